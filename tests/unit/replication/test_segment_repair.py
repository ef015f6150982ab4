"""Where a repair asks for the records, while the cluster changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    FenceNode,
    FinishReassignment,
    ReassignStream,
    RemoveNode,
    SetCluster,
)
from jetstream_server.net.frame_connection import FrameConnection
from jetstream_server.net.node_link import NodeIdentity
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from tests.support.loops import on_loop
from tests.support.node import Node
from tests.support.repairing import find
from tests.support.rot import rot


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

    repair = SegmentRepair(
        node.disk, cluster.registry, NodeIdentity(0, 1, "cluster", b"secret"), refuse,
        ThreadPoolExecutor(1),
    )  # fmt: skip
    with pytest.raises(UnavailableError, match="node 1: refused; node 2: it was removed"):
        await repair.repair(replica, found.base_offset)
    assert dialled == 1
    await repair.close()
    replicas.close()
