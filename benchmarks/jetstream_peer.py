"""The peer: NATS JetStream, in a nats-server of the same binary, with a file-backed stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.nats_socket import NatsSocket
from benchmarks.processes import HOST, data_folder, executable, free_port_base, server

STREAM = "BENCH"
SUBJECT = "bench.load"


def settings(sync: str) -> str:
    """The nats-server configuration; `sync` is its sync_interval.

    max_buffered_msgs is raised above the load's window: with its default of 10,000 the server may
    refuse messages instead of storing them.
    """
    return f"""
jetstream {{
  sync_interval: {sync}
  max_buffered_msgs: 65536
}}
"""


def flush_setting(sync: str) -> str:
    """What the results say about this side's durability."""
    if sync == "always":
        return "sync_interval: always (fsync before each ack)"
    return f"sync_interval: {sync} (acks do not wait for fsync)"


@contextmanager
def jetstream(sync: str = "2m") -> Iterator[int]:
    """A running JetStream with an empty stream on SUBJECT; its port."""
    with data_folder() as folder:
        port = free_port_base(1)
        config = folder / "nats.conf"
        config.write_text(settings(sync))
        command = [
            executable("nats-server"), "--config", str(config), "--jetstream",
            "--store_dir", str(folder), "--addr", HOST, "--port", str(port),
        ]  # fmt: skip
        with server(command, port, folder):
            with NatsSocket(HOST, port) as client:
                client.request_json(
                    f"$JS.API.STREAM.CREATE.{STREAM}",
                    {
                        "name": STREAM,
                        "subjects": [SUBJECT],
                        "storage": "file",
                        "retention": "limits",
                        "discard": "old",
                        "num_replicas": 1,
                        "max_msgs": -1,
                        "max_bytes": -1,
                        "max_age": 0,
                    },
                )
            yield port
