"""`jetstream-server --nodes-here N`: one command starts real nodes, restarts and stops them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from jetstream_client import Client
from tests.support.cluster import PATIENCE_SECONDS
from tests.support.nats_server import NatsServer
from tests.support.server import free_port_base

NODES = 2
MACHINES = 2
PORTS_OF_A_MACHINE = 10 * NODES


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class Machine:
    """One such command, in a folder of its own."""

    def __init__(self, file: Path, number: int) -> None:
        self.number = number
        self.folder = file.parent / f"machine-{number}"
        self.output = file.parent / f"output-{number}"
        self.log = file.parent / f"log-{number}"
        arguments = ["--config", str(file), "--node-id", str(number), "--data", str(self.folder)]
        with self.output.open("w") as output, self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jetstream_server", *arguments, "--nodes-here", str(NODES)],
                stdout=output,
                stderr=log,
                env={k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")},
            )

    def ready_lines(self, node: int) -> int:
        return self.output.read_text().count(f"jetstream-server ready: node={node} ")

    def started(self) -> list[tuple[int, int]]:
        """Node and pid of every start. The nodes write into the same file, perhaps just now."""
        whole = self.log.read_text().split("\n")[:-1]
        lines = [json.loads(line) for line in whole if '"node_started"' in line]
        return [(line["node"], line["pid"]) for line in lines]

    def pids(self) -> dict[int, int]:
        return dict(self.started())

    def wait_until_ready(self) -> None:
        for node in (100 * self.number + at for at in range(NODES)):
            wait_for(lambda node=node: self.ready_lines(node) > 0, self.log.read_text())  # type: ignore[misc]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[list[Machine], str]]:
    """Two machines with two nodes each, and the address of a node."""
    base = free_port_base(MACHINES * PORTS_OF_A_MACHINE)
    nodes = [
        {
            "id": number,
            **{
                port: f"127.0.0.1:{base + PORTS_OF_A_MACHINE * number + at}"
                for at, port in enumerate(("grpc", "data", "raft", "http"))
            },
        }
        for number in range(MACHINES)
    ]
    file = tmp_path / "machines.yaml"
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServer())
        file.write_text(
            yaml.safe_dump({"credential": "s", "nodes": nodes, "nats": {"servers": [nats.url]}})
        )
        machines = []
        for number in range(MACHINES):
            machine = Machine(file, number)
            stack.callback(machine.process.wait)
            stack.callback(machine.process.kill)  # And the nodes die with it.
            machines.append(machine)
        for machine in machines:
            machine.wait_until_ready()
        yield machines, f"127.0.0.1:{base}"


def test_nodes_of_one_command_are_a_cluster(cluster: tuple[list[Machine], str]) -> None:
    machines, address = cluster
    first, second = machines
    with Client(address, timeout=PATIENCE_SECONDS) as client:
        for number in range(4):
            stream = client.create_stream(f"s{number}", subject=f"s.{number}", replicas=2)
            # One on each machine: its nodes share a rack.
            assert {node // 100 for node in stream.replicas} == {0, 1}, stream
        client.publish("s.0", b"before")

        # A node that dies is started again; the others do not notice.
        others = {node: pid for node, pid in first.pids().items() if node != 1}
        os.kill(first.pids()[1], signal.SIGKILL)
        wait_for(lambda: first.ready_lines(1) == 2, "it was not started again")
        assert [node for node, _ in first.started()].count(1) == 2
        assert others.items() <= first.pids().items()
        assert '"node_ended"' in first.log.read_text()
        client.publish("s.0", b"after")
        assert [message.value for message in client.fetch("s0", offset=0)] == [b"before", b"after"]

    # What the nodes were started with is an ordinary file, and their folders are ordinary folders.
    assert (first.folder / "cluster.yaml").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in first.folder.glob("node-*")) == ["node-0", "node-1"]

    # SIGTERM stops them in order; a killed command leaves none behind.
    first.process.terminate()
    assert first.process.wait(PATIENCE_SECONDS) == 0, first.log.read_text()
    assert not any(map(is_alive, first.pids().values()))
    second.process.kill()
    wait_for(lambda: not any(map(is_alive, second.pids().values())), "nodes outlive their command")
