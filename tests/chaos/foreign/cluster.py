"""Three nodes, three NATS servers, a stream that outlives a node, and one that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.chaos.foreign.checker import Record
from tests.chaos.mixed.cluster import REPLICAS, MixedCluster
from tests.support import clocked_server, faulty_server
from tests.support.api import call

LOOSE, STRICT = "loose", "strict"
"""The first goes on without one of its replicas; the second refuses everything meanwhile."""
MINIMUM = {LOOSE: 2, STRICT: 3}
ID = b"Nats-Msg-Id:"


class ForeignCluster(MixedCluster):
    """mutant: the safety rule of the simulation that all nodes go without."""

    def __init__(self, directory: Path, mutant: str = clocked_server.NO_MUTANT) -> None:
        super().__init__(directory, REPLICAS, small_disks=False, secured=False)
        if mutant != clocked_server.NO_MUTANT:
            clocks = faulty_server.clocks_file(self._faults)
            self.cluster.server = clocked_server.command(clocks, mutant)

    def create_streams(self) -> None:
        for name, minimum in MINIMUM.items():
            self.api(0).create(name, f"{name}.>", replicas=REPLICAS, min_insync_replicas=minimum)

    @property
    def stream_names(self) -> tuple[str, ...]:
        return tuple(MINIMUM)

    def leader(self, name: str) -> int:
        return int(self.settled(name).stream.leader)

    def lead(self, name: str, node: int) -> None:
        """Have the node lead the stream."""
        request = pb.TransferLeaderRequest(stream=common_pb2.StreamRef(name=name), node_id=node)

        def leads() -> bool:
            if self.describe(name).stream.leader == node:
                return True
            try:
                call(self.api(node).cluster.TransferLeader, request)
            except grpc.RpcError:
                pass  # The node was started a moment ago.
            return False

        self.wait_for(f"node {node} leads {name}", leads)

    def records(self, name: str) -> list[Record]:
        """Everything committed, by its leader."""
        found: list[Record] = []

        def read() -> bool:
            found[:] = [
                Record(offset, subject.decode(), value or b"", message_id(block))
                for batch in self.api(self.leader(name)).read_all(name)
                for offset, subject, value, block in zip(
                    batch.offsets(),
                    batch.subjects(),
                    batch.values(),
                    batch.header_blocks(),
                    strict=True,
                )
            ]
            return True

        self.wait_for(f"{name} is read", read)
        return found


def message_id(block: bytes) -> bytes:
    """Of a header block; b"" for none. Not every client writes a space after the colon."""
    ids = [line.removeprefix(ID).strip() for line in block.split(b"\r\n") if line.startswith(ID)]
    return ids[0] if ids else b""


@contextmanager
def running_foreign_cluster(directory: Path, mutant: str) -> Iterator[ForeignCluster]:
    cluster = ForeignCluster(directory, mutant)
    try:
        cluster.start()
        cluster.wait_for("all is whole", lambda: not cluster.why_not_whole())
        yield cluster
    finally:
        cluster.close()
