"""A real Kafka, of jars that scripts/kafka has fetched: one process, broker and controller."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import free_port_base

READY_SECONDS = 60.0
_CLUSTER = "AAAAAAAAQAqAAAAAAAAAAg"


@contextmanager
def running_kafka(jars: str, folder: Path) -> Iterator[str]:
    """Its address, once it listens."""
    port = free_port_base(2)
    properties = folder / "server.properties"
    properties.write_text(
        f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{port + 1}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
log.dirs={folder}/data
"""
    )
    java = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    format_ = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)]
    subprocess.run([*java, *format_], check=True, capture_output=True)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
    try:
        _wait_for(port, process, folder / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.2)
