"""Plans: a node is emptied, or replicas are spread evenly, with as many racks as before."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import NotFoundError, PreconditionFailedError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    DrainNode,
    FenceNode,
    SetCluster,
)
from jetstream_server.metadata.state.placement import Placement
from jetstream_server.metadata.state.reassignment_plans import balancing, moves_off

from .cluster import Cluster


def load(cluster: Cluster, moves: dict[StreamId, Placement]) -> list[int]:
    """Copies on each node once the moves are done."""
    placed = [
        moves.get(stream.id, Placement(stream.replicas, stream.observers))
        for stream in cluster.registry.streams.values()
    ]
    return [
        sum(node in (*each.replicas, *each.observers) for each in placed)
        for node in cluster.registry.nodes
    ]


def test_a_node_is_emptied_to_those_that_hold_least() -> None:
    cluster = Cluster(5)
    for number in range(4):
        cluster.create(f"s{number}", f"s.{number}", (0, 1, 2))
    moves = moves_off(cluster.registry, NodeId(2))
    assert all(2 not in move.replicas for move in moves.values())
    assert load(cluster, moves) == [4, 4, 0, 2, 2]


def test_a_rack_without_a_replica_comes_first() -> None:
    cluster = Cluster(5, racks=("a", "b", "c", "a", "c"))
    stream = cluster.create(replicas=(0, 1, 2))
    assert moves_off(cluster.registry, NodeId(2)) == {stream.id: Placement((0, 1, 4))}


def test_nodes_that_are_away_or_drained_get_nothing() -> None:
    cluster = Cluster(5)
    stream = cluster.create(replicas=(0, 1))
    cluster.do(FenceNode(node_id=NodeId(2)))
    cluster.do(DrainNode(node_id=NodeId(3), until_undone=True))
    assert moves_off(cluster.registry, NodeId(0)) == {stream.id: Placement((1, 4))}
    cluster.do(FenceNode(node_id=NodeId(4)))
    with pytest.raises(
        PreconditionFailedError, match=r"orders@orders.> has no other node to go to"
    ):
        moves_off(cluster.registry, NodeId(0))
    with pytest.raises(NotFoundError):
        moves_off(cluster.registry, NodeId(9))


def test_replicas_are_spread_evenly_and_an_even_spread_moves_nothing() -> None:
    cluster = Cluster(4)
    for number in range(8):
        cluster.create(f"s{number}", f"s.{number}", (0, 1))
    moves = balancing(cluster.registry)
    assert load(cluster, moves) == [4, 4, 4, 4]
    even = Cluster(3)
    even.create(replicas=(0, 1, 2))
    assert balancing(even.registry) == {}


def test_evenness_costs_no_rack() -> None:
    cluster = Cluster(3, racks=("a", "b", "b"))
    for number in range(4):
        cluster.create(f"s{number}", f"s.{number}", (0, 1))
    moves = balancing(cluster.registry)
    assert load(cluster, moves) == [4, 2, 2]
    assert all(0 in move.replicas for move in moves.values())


def test_observers_move_too() -> None:
    cluster = Cluster(4)
    for node_id in range(4):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    stream = cluster.create(replicas=(0, 1), observers=(NodeId(2),))
    assert moves_off(cluster.registry, NodeId(2)) == {stream.id: Placement((0, 1), (3,))}
    assert moves_off(cluster.registry, NodeId(1)) == {stream.id: Placement((0, 3), (2,))}
    for number in range(3):
        cluster.create(f"s{number}", f"s.{number}", (0, 1), observers=(NodeId(2),))
    moves = balancing(cluster.registry)
    assert load(cluster, moves) == [3, 3, 3, 3]
    for move in moves.values():
        assert (len(move.replicas), len(move.observers)) == (2, 1)
        assert not set(move.replicas) & set(move.observers)
