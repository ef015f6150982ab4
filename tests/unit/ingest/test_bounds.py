"""What waits for commits is bounded over all streams, and no stream's trouble is another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.pending_acks import RESERVED, Waiting
from jetstream_server.ingest.stream.stream_ingest import Bounds, StreamIngest
from jetstream_server.metadata.state.commands import FenceNode
from jetstream_server.replication.replica import Replica
from tests.support.loops import on_loop
from tests.support.node import Node

BYTES_MAX = 64 * 1024
ACKS_MAX = 100


class Streams:
    """`stuck`, whose follower fetches nothing, and `healthy` without followers, on one node."""

    def __init__(self, tmp_path: Path) -> None:
        self.node = Node(tmp_path / "streams", nodes=2)
        self.node.start()
        self.bounds = Bounds(ACKS_MAX, BYTES_MAX)
        self.written: list[bytes] = []
        config = {"min_insync_replicas": 2, "flush": "interval"}
        stuck = self.node.create("stuck", "stuck.>", (0, 1), config=config)
        self.stuck = self._ingest(stuck)
        healthy = self.node.create("healthy", "healthy.>", (0,), config={"flush": "interval"})
        self.healthy = self._ingest(healthy)
        healthy.on_commit = lambda _: self.healthy.committed()

    def _ingest(self, replica: Replica) -> StreamIngest:
        return StreamIngest(replica, self.node.replicas, AckPolicy(), self.bounds, self._write)

    def _write(self, data: bytes) -> bool:
        self.written.append(data)
        return True

    def healthy_acknowledges(self) -> bool:
        self.written.clear()
        self.healthy.deliver(Delivery(2, [b"healthy.a"], [b"_INBOX.a"], [b"1"], None))
        return b'"seq":' in b"".join(self.written)


@on_loop
async def test_messages_that_nobody_waits_for_use_up_no_bound(tmp_path: Path) -> None:
    """A publisher of core NATS goes on while too few replicas are in sync, perhaps for days."""
    streams = Streams(tmp_path)
    streams.node.cluster.do(FenceNode(node_id=NodeId(1)))
    streams.node.apply()
    leadership = streams.stuck.replica.leadership
    assert leadership is not None
    assert not leadership.can_commit
    for header_blocks in (None, [b"NATS/1.0\r\nX: y\r\n\r\n"]):
        for _ in range(100):
            delivery = Delivery(1, [b"stuck.a"], [b""], [bytes(1024)], header_blocks)
            streams.stuck.deliver(delivery)
    assert streams.stuck.replica.log.log_end_offset == 200
    assert streams.stuck.pending_count == 0
    assert (streams.bounds.pending_acks, streams.bounds.uncommitted_bytes) == (0, 0)
    assert streams.healthy_acknowledges()


@pytest.mark.parametrize("size", [1, 4096])
@on_loop
async def test_a_stream_whose_follower_is_slow_leaves_room_for_the_others(
    tmp_path: Path, size: int
) -> None:
    streams = Streams(tmp_path)
    for _ in range(2 * ACKS_MAX):
        streams.stuck.deliver(Delivery(1, [b"stuck.a"], [b"_INBOX.s"], [bytes(size)], None))
    assert b"overloaded" in b"".join(streams.written)
    assert streams.healthy_acknowledges()
    streams.stuck.drop()
    bounds = streams.bounds
    assert (bounds.pending_acks, bounds.uncommitted_bytes, bounds.streams) == (0, 0, 1)


def add(bounds: Bounds, own: Waiting, acks: int, length: int) -> None:
    for each in (bounds, own):
        each.pending_acks += acks
        each.uncommitted_bytes += length


def test_however_many_streams_are_stuck_each_has_its_share() -> None:
    bounds = Bounds(1_000_000, 256 * 1024 * 1024, streams=200)
    for _ in range(200):
        stuck = Waiting()
        while not bounds.reason(10, 1000, stuck):
            add(bounds, stuck, 10, 1000)
        assert stuck.pending_acks >= 100
    assert bounds.pending_acks <= bounds.pending_acks_max


@pytest.mark.parametrize("acks_max", [1, 2, 10, 1600])
def test_a_stream_alone_may_have_nearly_all(acks_max: int) -> None:
    bounds, own = Bounds(acks_max, 1 << 30, streams=2), Waiting()
    while not bounds.reason(1, 1, own):
        add(bounds, own, 1, 1)
    assert own.pending_acks == acks_max - acks_max // RESERVED
