"""Plans: a node is emptied, or replicas are spread evenly, with as many racks as before."""

from __future__ import annotations

import time
from dataclasses import replace

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
from jetstream_server.metadata.state.reassignment_plans import Moves, balancing, moves_off

from .cluster import Cluster


def balanced(cluster: Cluster) -> Moves:
    return balancing(cluster.registry.nodes, cluster.registry.streams)


def emptied(cluster: Cluster, node_id: NodeId) -> Moves:
    return moves_off(cluster.registry.nodes, cluster.registry.streams, node_id)


def load(cluster: Cluster, moves: Moves) -> list[int]:
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
    moves = emptied(cluster, NodeId(2))
    assert all(2 not in move.replicas for move in moves.values())
    assert load(cluster, moves) == [4, 4, 0, 2, 2]


def test_a_rack_without_a_replica_comes_first() -> None:
    cluster = Cluster(5, racks=("a", "b", "c", "a", "c"))
    stream = cluster.create(replicas=(0, 1, 2))
    assert emptied(cluster, NodeId(2)) == {stream.id: Placement((0, 1, 4))}


def test_nodes_that_are_away_or_drained_get_nothing() -> None:
    cluster = Cluster(5)
    stream = cluster.create(replicas=(0, 1))
    cluster.do(FenceNode(node_id=NodeId(2)))
    cluster.do(DrainNode(node_id=NodeId(3), until_undone=True))
    assert emptied(cluster, NodeId(0)) == {stream.id: Placement((1, 4))}
    cluster.do(FenceNode(node_id=NodeId(4)))
    with pytest.raises(
        PreconditionFailedError, match=r"orders@orders.> has no other node to go to"
    ):
        emptied(cluster, NodeId(0))
    with pytest.raises(NotFoundError):
        emptied(cluster, NodeId(9))


def test_replicas_are_spread_evenly_and_an_even_spread_moves_nothing() -> None:
    cluster = Cluster(4)
    for number in range(8):
        cluster.create(f"s{number}", f"s.{number}", (0, 1))
    moves = balanced(cluster)
    assert load(cluster, moves) == [4, 4, 4, 4]
    even = Cluster(3)
    even.create(replicas=(0, 1, 2))
    assert balanced(even) == {}


def test_evenness_costs_no_rack() -> None:
    cluster = Cluster(3, racks=("a", "b", "b"))
    for number in range(4):
        cluster.create(f"s{number}", f"s.{number}", (0, 1))
    moves = balanced(cluster)
    assert load(cluster, moves) == [4, 2, 2]
    assert all(0 in move.replicas for move in moves.values())


def test_a_move_that_another_one_makes_possible_is_made() -> None:
    """Node 1 takes replicas of node 0, and nobody else can, once it has given some to 2 and 3."""
    cluster = Cluster(4, racks=("a", "a", "b", "b"))
    for number in range(8):
        cluster.create(f"p{number}", f"p.{number}", (0, 2 + number % 2))
    for number in range(7):
        cluster.create(f"q{number}", f"q.{number}", (1,))
    assert load(cluster, {}) == [8, 7, 4, 4]
    assert load(cluster, balanced(cluster)) == [7, 6, 5, 5]


def test_thousands_of_streams_that_racks_keep_where_they_are_are_looked_at_once() -> None:
    cluster = Cluster(3, racks=("a", "b", "b"))
    stream = cluster.create(replicas=(0, 1))
    streams = {StreamId(number): replace(stream, id=StreamId(number)) for number in range(6000)}
    begun = time.process_time()
    moves = balancing(cluster.registry.nodes, streams)
    assert list(moves) == list(range(3000))
    assert set(moves.values()) == {Placement((0, 2))}
    assert time.process_time() - begun < 10.0


def test_observers_move_too() -> None:
    cluster = Cluster(4)
    for node_id in range(4):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    stream = cluster.create(replicas=(0, 1), observers=(NodeId(2),))
    assert emptied(cluster, NodeId(2)) == {stream.id: Placement((0, 1), (3,))}
    assert emptied(cluster, NodeId(1)) == {stream.id: Placement((0, 3), (2,))}
    for number in range(3):
        cluster.create(f"s{number}", f"s.{number}", (0, 1), observers=(NodeId(2),))
    moves = balanced(cluster)
    assert load(cluster, moves) == [3, 3, 3, 3]
    for move in moves.values():
        assert (len(move.replicas), len(move.observers)) == (2, 1)
        assert not set(move.replicas) & set(move.observers)
