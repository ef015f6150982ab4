"""`jetstream-server --nodes-here N`: one command starts real nodes, restarts and stops them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from jetstream_client import Client
from tests.integration.test_encryption import KEY, NEW, write_keys
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

    def __init__(self, file: Path, number: int, python: str) -> None:
        self.number = number
        self.folder = file.parent / f"machine-{number}"
        self.output = file.parent / f"output-{number}"
        self.log = file.parent / f"log-{number}"
        arguments = ["--config", str(file), "--node-id", str(number), "--data", str(self.folder)]
        with self.output.open("w") as output, self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, "-m", "jetstream_server", *arguments, "--nodes-here", str(NODES)],
                stdout=output,
                stderr=log,
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")},
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
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

    def count(self, event: str) -> int:
        return self.log.read_text().count(f'"event": "{event}"')

    def hang_up(self) -> None:
        before = self.count("reload_passed_on")
        self.process.send_signal(signal.SIGHUP)
        wait_for(lambda: self.count("reload_passed_on") > before, "nothing was passed on")


@contextmanager
def started(
    folder: Path, count: int, python: str = sys.executable, **values: object
) -> Iterator[tuple[list[Machine], str]]:
    """So many machines with two nodes each, as soon as they start, and the address of a node.
    python: runs them. values: further keys of their file."""
    base = free_port_base(count * PORTS_OF_A_MACHINE)
    nodes = [
        {
            "id": number,
            **{
                port: f"127.0.0.1:{base + PORTS_OF_A_MACHINE * number + at}"
                for at, port in enumerate(("grpc", "data", "raft", "http"))
            },
        }
        for number in range(count)
    ]
    file = folder / "machines.yaml"
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServer())
        file.write_text(
            yaml.safe_dump(
                {"credential": "s", "nodes": nodes, "nats": {"servers": [nats.url]}, **values}
            )
        )
        machines = []
        for number in range(count):
            machine = Machine(file, number, python)
            stack.callback(machine.process.wait)
            stack.callback(machine.process.kill)  # And the nodes die with it.
            machines.append(machine)
        yield machines, f"127.0.0.1:{base}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[list[Machine], str]]:
    with started(tmp_path, MACHINES) as (machines, address):
        for machine in machines:
            machine.wait_until_ready()
        yield machines, address


def test_nodes_of_one_command_are_a_cluster(cluster: tuple[list[Machine], str]) -> None:
    machines, address = cluster
    first, second = machines
    with Client(address, timeout=PATIENCE_SECONDS) as client:
        for number in range(4):
            stream = client.create_stream(f"s{number}", subject=f"s.{number}", replicas=2)
            # One on each machine: its nodes share a rack.
            assert {node // 100 for node in stream.replicas} == {0, 1}, stream
        client.publish("s.0", b"before", msg_id="before")

        # SIGHUP ends no node, although these have nothing to read again.
        first.hang_up()

        # A node that dies is started again; the others do not notice.
        others = {node: pid for node, pid in first.pids().items() if node != 1}
        os.kill(first.pids()[1], signal.SIGKILL)
        wait_for(lambda: first.ready_lines(1) == 2, "it was not started again")
        assert [node for node, _ in first.started()].count(1) == 2
        assert others.items() <= first.pids().items()
        assert first.count("node_ended") == 1
        client.publish("s.0", b"after", msg_id="after")
        assert [message.value for message in client.fetch("s0", start=0)] == [b"before", b"after"]

    # What the nodes were started with is an ordinary file, and their folders are ordinary folders.
    assert (first.folder / "cluster.yaml").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in first.folder.glob("node-*")) == ["node-0", "node-1"]

    # SIGTERM stops them in order; a killed command leaves none behind.
    first.process.terminate()
    assert first.process.wait(PATIENCE_SECONDS) == 0, first.log.read_text()
    assert not any(map(is_alive, first.pids().values()))
    second.process.kill()
    wait_for(lambda: not any(map(is_alive, second.pids().values())), "nodes outlive their command")


def test_a_node_that_cannot_be_started_again_ends_no_other(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    with started(tmp_path, 1, str(python)) as ((machine,), _):
        machine.wait_until_ready()
        before = machine.pids()
        python.rename(tmp_path / "replaced")  # As while its environment is made anew.
        os.kill(before[1], signal.SIGKILL)
        wait_for(lambda: machine.count("node_not_started") > 1, machine.log.read_text())
        (tmp_path / "replaced").rename(python)
        wait_for(lambda: machine.ready_lines(1) == 2, "it was not started again")
        assert machine.pids()[0] == before[0]
        machine.process.terminate()
        assert machine.process.wait(PATIENCE_SECONDS) == 0, machine.log.read_text()


def test_sighup_makes_every_node_read_its_keys_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_keys(keys, KEY)
    # A command is run again on SIGHUP, and else only every five minutes.
    encryption = {"key_command": ["cat", str(keys)]}
    with started(tmp_path, 1, encryption=encryption) as ((machine,), _):
        wait_for(lambda: len(machine.started()) == NODES, "no nodes")
        machine.hang_up()  # Nodes that only begin to start live on.
        machine.wait_until_ready()
        write_keys(keys, NEW, KEY)
        machine.hang_up()
        wait_for(lambda: machine.count("keys_reloaded") == NODES, machine.log.read_text())
        assert len(machine.started()) == NODES
        machine.process.terminate()
        assert machine.process.wait(PATIENCE_SECONDS) == 0, machine.log.read_text()
