"""A node whose disk is full gets nothing new, as long as there is another with room."""

from __future__ import annotations

import asyncio
import json
import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    PreconditionFailedError,
    StorageFullError,
)
from jetstream_protocol.types import NO_NODE, NodeId, WallUs
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.activity import ACTIVITY
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import (
    DISK_LEVEL,
    DrainNode,
    FenceNode,
    NoteDisk,
    ReassignStream,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.placement import Placement, Placer, balancing_moves
from jetstream_server.metadata.state.reassignment_plans import balancing, moves_off
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata

from .cluster import Cluster


def cluster_of(nodes: int) -> Cluster:
    return Cluster.at_level(nodes, DISK_LEVEL)


def note(cluster: Cluster, node_id: int, *, full: bool = True) -> None:
    run = cluster.registry.nodes[NodeId(node_id)].incarnation
    cluster.do(NoteDisk(node_id=NodeId(node_id), node_incarnation=run, full=full))


def test_a_new_stream_and_its_observers_go_to_nodes_with_room() -> None:
    cluster = cluster_of(5)
    note(cluster, 0)
    placer = Placer(cluster.registry, 5)
    assert placer.place(2, 2) == Placement((1, 2), (3, 4))
    assert placer.place(5).replicas == (0, 1, 2, 3, 4)
    note(cluster, 0, full=False)
    assert 0 in Placer(cluster.registry, 5).place(1).replicas


def test_a_full_node_comes_before_a_dead_one_and_after_one_that_is_drained() -> None:
    cluster = cluster_of(3)
    note(cluster, 0)
    cluster.do(DrainNode(node_id=NodeId(1), until_undone=True))
    assert Placer(cluster.registry, 3).place(2).replicas == (1, 2)
    cluster.do(FenceNode(node_id=NodeId(2)))
    assert Placer(cluster.registry, 3).place(2).replicas == (0, 1)


def test_one_with_room_is_elected() -> None:
    cluster = cluster_of(3)
    note(cluster, 0)
    streams = [cluster.create(f"s{number}", f"s.{number}") for number in range(4)]
    assert [stream.leader for stream in streams] == [1, 2, 1, 2]
    assert [stream.isr for stream in streams] == [(0, 1, 2)] * 4
    cluster.do(DrainNode(node_id=NodeId(1), until_undone=True))
    cluster.do(FenceNode(node_id=NodeId(2)))
    assert {cluster.now(stream).leader for stream in streams} == {1}
    cluster.do(FenceNode(node_id=NodeId(1)))
    assert {cluster.now(stream).leader for stream in streams} == {0}


def test_nothing_is_balanced_to_it() -> None:
    cluster = cluster_of(3)
    for number in range(6):
        cluster.create(f"s{number}", f"s.{number}", (0, 1))
    note(cluster, 2)
    assert balancing(cluster.registry.nodes, cluster.registry.streams) == {}
    note(cluster, 2, full=False)
    note(cluster, 0)
    moves = balancing(cluster.registry.nodes, cluster.registry.streams)
    assert {move.replicas for move in moves.values()} == {(1, 2), (0, 2)}, "it may give some away"
    led = cluster_of(2)
    note(led, 0)
    for number in range(4):
        led.create(f"s{number}", f"s.{number}", (0, 1))
    assert balancing_moves(led.registry, 9) == []
    note(led, 0, full=False)
    assert len(balancing_moves(led.registry, 9)) == 2


def test_a_node_is_not_emptied_onto_it() -> None:
    cluster = cluster_of(4)
    stream = cluster.create(replicas=(0, 1))
    note(cluster, 2)
    moved = moves_off(cluster.registry.nodes, cluster.registry.streams, NodeId(0))
    assert moved == {stream.id: Placement((1, 3))}
    note(cluster, 3)
    with pytest.raises(PreconditionFailedError, match=r"nodes \[2, 3\] have a full disk"):
        moves_off(cluster.registry.nodes, cluster.registry.streams, NodeId(0))


def test_a_stream_is_not_moved_to_it_and_may_stay() -> None:
    cluster = cluster_of(4)
    stream = cluster.create(replicas=(0, 1), observers=(NodeId(2),))
    note(cluster, 0)
    note(cluster, 2)
    note(cluster, 3)

    def move(replicas: tuple[int, ...], observers: tuple[int, ...]) -> StreamMetadata:
        command = ReassignStream(
            stream_id=stream.id,
            replicas=tuple(map(NodeId, replicas)),
            observers=tuple(map(NodeId, observers)),
        )
        cluster.do(command)
        return cluster.now(stream)

    for replicas, observers in (((1, 3), (2,)), ((0, 1), (3,))):
        with pytest.raises(StorageFullError, match=r"cannot be moved to nodes \[3\]"):
            move(replicas, observers)
    assert move((0, 1, 2), ()).target_replicas == (0, 1, 2), "what it holds already, it may keep"
    assert move((0, 1), ()).target_replicas == (0, 1)


def created(cluster: Cluster, here: NodeId = NO_NODE, full_reason: str = "") -> StreamMetadata:
    async def propose(command: Command, **_: object) -> dict[str, Any]:
        return cluster.do(command)

    metadata = cast(RaftMetadataLog, SimpleNamespace(registry=cluster.registry, propose=propose))
    streams = Streams(metadata, lambda: WallUs(0), nodes_configured=1)
    streams.check_room(here, full_reason)
    settings = {"group": "", "partition": 0, "partitions": 0}
    return asyncio.run(streams.create("orders", "orders.>", settings, False))[0]


def test_a_stream_is_refused_only_where_no_node_has_room() -> None:
    cluster = cluster_of(2)
    note(cluster, 0)
    cluster.do(FenceNode(node_id=NodeId(1)))
    with pytest.raises(StorageFullError, match=r"the disks of nodes \[0\] are below"):
        created(cluster)
    cluster.register(1, feature_level_max=DISK_LEVEL)
    with pytest.raises(StorageFullError, match="it fills now"):
        created(cluster, NodeId(1), "it fills now")
    assert created(cluster, NodeId(0), "it is full").leader == 1
    note(cluster, 1)
    with pytest.raises(StorageFullError, match=r"the disks of nodes \[0, 1\] are below"):
        created(cluster)


def test_a_node_that_has_room_again_takes_streams_before_the_others_know() -> None:
    cluster = cluster_of(1)
    note(cluster, 0)
    assert created(cluster, NodeId(0)).leader == 0


def test_a_mark_is_of_the_present_run_and_outlives_it() -> None:
    cluster = cluster_of(1)
    run = cluster.registry.nodes[NodeId(0)].incarnation
    note(cluster, 0)
    note(cluster, 0)
    assert cluster.changes == []
    cluster.register(0, feature_level_max=DISK_LEVEL)
    assert cluster.registry.nodes[NodeId(0)].disk_full
    with pytest.raises(FencedEpochError):
        cluster.do(NoteDisk(node_id=NodeId(0), node_incarnation=run, full=False))


def test_older_software_never_hears_of_it() -> None:
    older = Cluster.at_level(1, FeatureLevel(DISK_LEVEL - 1), DISK_LEVEL)
    with pytest.raises(InvalidRequestError):
        note(older, 0)
    cluster = cluster_of(2)
    note(cluster, 1)
    snapshot = cluster.registry.snapshot()
    nodes = json.loads(zlib.decompress(snapshot).split(b"\n")[1])
    assert ["disk_full" in node for node in nodes] == [False, True]
    copy = Registry()
    copy.restore(snapshot)
    assert copy.nodes == cluster.registry.nodes


def test_the_stream_of_activity_tells_of_it() -> None:
    cluster = cluster_of(1)
    cluster.create(ACTIVITY, "", (0,), internal=True)
    note(cluster, 0)
    event = json.loads(cluster.registry.activity.events[-1])
    assert event["type"] == "node_changed"
    assert event["changes"] == {"disk_full": {"before": False, "after": True}}
