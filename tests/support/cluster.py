"""A real cluster for tests: what `scripts/cluster` starts, and what a test does to it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import yaml

from examples.cluster.local import PORTS_BETWEEN_NODES, LocalCluster
from examples.cluster.processes import ClusterError
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.support import command
from tests.support.api import Api, call
from tests.support.forked_nodes import ForkedNodes
from tests.support.load import Books
from tests.support.server import free_port_base

PATIENCE_SECONDS = 120.0
"""For what takes a few seconds, on a machine that others use, too."""


class TestCluster:
    """Three nodes and a NATS server, each a process."""

    __test__ = False
    kind: type[LocalCluster] = LocalCluster

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self.cluster = self.kind(directory)
        self.cluster.processes = self.processes = ForkedNodes(self.cluster.directory)
        self.cluster.create(nodes, free_port_base(PORTS_BETWEEN_NODES * nodes))
        self.nodes = self.cluster.node_ids
        self._apis: dict[int, Api] = {}

    @property
    def nats(self) -> str:
        return self.cluster.nats_url

    @property
    def servers(self) -> str:
        return ",".join(self.cluster.grpc_addresses)

    def jetstream(self, *arguments: str, code: int = 0) -> str:
        """Run the command; returns what it printed where it should."""
        done = command.jetstream("--server", self.servers, *arguments)
        assert done.returncode == code, done
        if code:
            assert re.fullmatch(r"error: .*\n", done.stderr), done.stderr
        return done.stderr if code else done.stdout

    def start(self) -> None:
        self.cluster.start_nats()
        for node in self.nodes:
            self.cluster.start_node(node)
        self._wait_for_nodes(*self.nodes)

    def close(self) -> None:
        for api in self._apis.values():
            api.close()
        running = self.cluster.pids()
        for pid in running.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # It ends a frozen one, too.
        for name in running:
            self.cluster.end(name, signal.SIGKILL)

    def api(self, node: int) -> Api:
        if node not in self._apis:
            self._apis[node] = Api(self.cluster.grpc_addresses[node])
        return self._apis[node]

    def kill(self, node: int) -> None:
        self.cluster.end(f"node-{node}", signal.SIGKILL)

    def stop(self, node: int) -> None:
        self.cluster.end(f"node-{node}", signal.SIGTERM)

    def freeze(self, node: int) -> None:
        os.kill(self.cluster.pids()[f"node-{node}"], signal.SIGSTOP)

    def thaw(self, node: int) -> None:
        os.kill(self.cluster.pids()[f"node-{node}"], signal.SIGCONT)

    def restart(self, *nodes: int) -> None:
        """All at once."""
        for node in nodes:
            self.cluster.start_node(node)
        self._wait_for_nodes(*nodes)
        for node in nodes:
            if node in self._apis:
                self._apis.pop(node).close()  # It may not have tried again yet.

    def _wait_for_nodes(self, *nodes: int) -> None:
        try:
            self.cluster.wait_for_nodes(*nodes)
        except ClusterError as error:
            raise AssertionError(f"{error}{self._ends_of_logs()}") from error

    def log(self, node: int) -> str:
        return (self.cluster.directory / f"node-{node}.log").read_text()

    def _ends_of_logs(self) -> str:
        begun = (node for node in self.nodes if self.cluster.processes.log(f"node-{node}").exists())
        return "".join(f"\n--- node {node}\n{self.log(node)[-3000:]}" for node in begun)

    @property
    def controller(self) -> int:
        """The metadata leader, as the first node that knows one says. Raises AssertionError if none
        does."""
        for node in self.nodes:
            try:
                found = call(self.api(node).cluster.DescribeCluster, pb.DescribeClusterRequest())
            except (JetstreamError, grpc.RpcError):
                continue  # It is down, or knows nothing.
            if found.controller >= 0:
                return int(found.controller)
        raise AssertionError("no node knows a metadata leader")

    def describe(self, name: str, nodes: list[int] | None = None) -> pb.StreamDescription:
        """From its leader. Raises the last error if it has none."""
        last: Exception | None = None
        for node in self.nodes if nodes is None else nodes:
            try:
                return self.api(node).describe(name)
            except (JetstreamError, OSError) as error:
                last = error
            except Exception as error:  # noqa: BLE001  gRPC's own, of a node that is down
                last = error
        raise AssertionError(f"nobody leads {name}") from last

    def wait_for(
        self, what: str, holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS
    ) -> float:
        """Until `holds` does, errors counting as no; returns the seconds it took.

        It is asked ever more seldom: each question takes the time of a node, too."""
        begun = time.monotonic()
        last: Exception | None = None
        while (waited := time.monotonic() - begun) < seconds:
            try:
                if holds():
                    return time.monotonic() - begun
            except (JetstreamError, grpc.RpcError, OSError, AssertionError) as error:
                last = error
            time.sleep(min(max(0.03, waited / 10), 0.2))
        raise AssertionError(f"{what}: not within {seconds} s ({last}){self._ends_of_logs()}")

    def wait_for_isr(
        self, name: str, members: list[int], seconds: float = PATIENCE_SECONDS
    ) -> float:
        return self.wait_for(
            f"ISR of {name} is {members}",
            lambda: sorted(self.describe(name).stream.isr) == sorted(members),
            seconds,
        )

    def settled(self, name: str) -> pb.StreamDescription:
        """The stream's description, once it has a leader: leaderships also move by themselves."""
        found: list[pb.StreamDescription] = []

        def is_led() -> bool:
            found[:] = [self.describe(name)]
            return True

        self.wait_for(f"somebody leads {name}", is_led)
        return found[0]

    def hand_over(self, name: str, node: int) -> None:
        """Return once that node leads. It may have to be in sync first, and others may take over
        meanwhile."""
        request = pb.TransferLeaderRequest(stream=common_pb2.StreamRef(name=name), node_id=node)

        def leads() -> bool:
            call(self.api(self.nodes[0]).cluster.TransferLeader, request)
            return bool(self.describe(name).stream.leader == node)

        self.wait_for(f"node {node} leads {name}", leads)

    def segments(self, node: int, stream_id: int) -> bytes:
        """What a node's log of a stream is made of."""
        folder = self.cluster.directory / f"node-{node}" / "streams" / str(stream_id)
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def check_everywhere(self, name: str, books: Books) -> None:
        """The books hold on every replica, and the replicas agree to the byte."""
        acked = max(books.acked.values(), default=-1)
        self.wait_for(  # One that has begun to lead finds out how far that was.
            "what is acknowledged is committed", lambda: self.describe(name).high_watermark > acked
        )
        end = self.settled(name).high_watermark
        for node in self.nodes:
            self.wait_for(
                f"node {node} has everything",
                lambda node=node: len(self.api(node).values_upto(name, end)) == end,  # type: ignore[misc]
            )
            books.check(self.api(node).values_upto(name, end))
        stream = self.settled(name).stream

        def agree() -> bool:
            held = [self.segments(node, stream.id) for node in self.nodes]
            return bool(held[0]) and held[0] == held[1] == held[2]

        self.wait_for("the replicas agree", agree)


@contextmanager
def running_cluster(
    directory: Path,
    nodes: int = 3,
    racks: Sequence[str] = (),
    kind: type[TestCluster] = TestCluster,
) -> Iterator[TestCluster]:
    """racks: of the nodes, if they have any."""
    cluster = kind(directory, nodes)
    if racks:
        config = cluster.cluster.config
        for node, rack in zip(config["nodes"], racks, strict=True):
            node["rack"] = rack
        cluster.cluster.config_file.write_text(yaml.safe_dump(config))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
