"""Where a repair asks for the records, while the cluster changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import NodeId
from jetstream_server.log import damage
from jetstream_server.log.inspection import Inspected
from jetstream_server.log.segment import Segment
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    FenceNode,
    FinishReassignment,
    ReassignStream,
    RemoveNode,
    SetCluster,
)
from jetstream_server.net.frame_connection import Dial, FrameConnection
from jetstream_server.net.node_link import NodeIdentity
from jetstream_server.replication.drivers import segment_repair
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from tests.support.log_batches import batch
from tests.support.loops import on_loop
from tests.support.node import Node
from tests.support.repairing import find
from tests.support.rot import rot


@asynccontextmanager
async def repair_of(node: Node, dial: Dial | None = None) -> AsyncIterator[SegmentRepair]:
    """The node's repairs. dial: None: nobody is to be dialled."""
    identity, executor = NodeIdentity(0, 1, "cluster", b"secret"), ThreadPoolExecutor(1)
    repair = SegmentRepair(node.disk, node.cluster.registry, identity, cast(Dial, dial), executor)
    try:
        yield repair
    finally:
        await repair.close()


def started(tmp_path: Path) -> tuple[Node, ReplicaManager, Replica]:
    """Node 0, one of three, with a stream on all of them; node 1 is there as well."""
    node = Node(tmp_path / "streams", segment_bytes=2000, nodes=3)
    node.cluster.register(1)
    replicas = node.start()
    return node, replicas, node.create(replicas=(0, 1, 2))


@on_loop
async def test_a_node_that_is_removed_before_its_turn_is_no_source(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams", segment_bytes=2000, nodes=3)
    cluster = node.cluster
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    replicas = node.start()
    replica = node.create(replicas=(0, 1, 2))
    for number in range(40):
        node.append(replica, b"value %d" % number)
    bad = rot(sorted(tmp_path.rglob("*.log"))[0])
    (found,) = find(node.disk, replica.log)
    assert found.start_offset == bad.base_offset
    dialled = 0

    async def refuse(address: tuple[str, int]) -> FrameConnection:
        """Node 1 is away. Meanwhile an operator moves the stream off node 2, and removes it."""
        nonlocal dialled
        dialled += 1
        cluster.do(FenceNode(node_id=NodeId(2)))
        stream_id = replica.stream.id
        cluster.do(ReassignStream(stream_id=stream_id, replicas=(NodeId(0), NodeId(1))))
        epoch = cluster.now(replica.stream).stream_epoch
        cluster.do(FinishReassignment(stream_id=stream_id, stream_epoch=epoch))
        cluster.do(RemoveNode(node_id=NodeId(2)))
        raise ConnectionRefusedError("refused")

    async with repair_of(node, refuse) as repair:
        with pytest.raises(UnavailableError, match="node 1: refused; node 2: it was removed"):
            await repair.repair(replica, found.base_offset)
    assert dialled == 1
    replicas.close()


@on_loop
async def test_a_segment_that_retention_removes_meanwhile_contradicts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, replicas, replica = started(tmp_path)
    log = replica.log
    for number in range(40):
        log.append(batch(b"value %d" % number), leader_epoch=100 + number, timestamp_us=number)
    log.flush()
    first, second = log.damage.segments()[:2]
    data = first.read(0, first.size)
    rot(sorted(tmp_path.rglob("*.log"))[0])
    (found,) = find(node.disk, log)
    replica.stream = replace(replica.stream, leader=NodeId(1))

    class Source:
        async def fetch(self, *_: int) -> tuple[pb.DataFetchResponse, bytes]:
            return pb.DataFetchResponse(), data[found.position : found.end_position]

    @asynccontextmanager
    async def reading_from(*_: object) -> AsyncIterator[Source]:
        log.begin_advance(second.base_offset)
        yield Source()

    monkeypatch.setattr(segment_repair, "reading_from", reading_from)
    async with repair_of(node) as repair:
        with pytest.raises(UnavailableError, match="cut or closed while it was repaired"):
            await repair.repair(replica, found.base_offset)
    replicas.close()


@on_loop
async def test_a_segment_that_is_cut_before_it_is_looked_at_is_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has become the last one, which no other file can replace."""
    node, replicas, replica = started(tmp_path)
    log = replica.log
    for number in range(40):
        node.append(replica, b"value %d" % number)
    rot(sorted(tmp_path.rglob("*.log"))[0])
    (found,) = find(node.disk, log)
    replica.stream = replace(replica.stream, leader=NodeId(1))

    def view(segment: Segment) -> Inspected:
        log.truncate(0)
        return damage.view(segment)

    monkeypatch.setattr(segment_repair, "view", view)
    async with repair_of(node) as repair:
        with pytest.raises(UnavailableError, match="cut before its repair"):
            await repair.repair(replica, found.base_offset)
    replicas.close()
