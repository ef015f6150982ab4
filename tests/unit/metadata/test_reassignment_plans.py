"""Plans: a node is emptied, or replicas are spread evenly, with as many racks as before."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import NotFoundError, PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import DrainNode, FenceNode
from jetstream_server.metadata.state.reassignment_plans import balancing, moves_off

from .cluster import Cluster


def load(cluster: Cluster, moves: dict[int, tuple[int, ...]]) -> list[int]:
    """Replicas of each node once the moves are done."""
    placed = [moves.get(stream.id, stream.replicas) for stream in cluster.registry.streams.values()]
    return [sum(node in replicas for replicas in placed) for node in cluster.registry.nodes]


def test_a_node_is_emptied_to_those_that_hold_least() -> None:
    cluster = Cluster(5)
    for number in range(4):
        cluster.create(f"s{number}", f"s.{number}", (0, 1, 2))
    moves = moves_off(cluster.registry, NodeId(2))
    assert all(2 not in replicas for replicas in moves.values())
    assert load(cluster, dict(moves)) == [4, 4, 0, 2, 2]


def test_a_rack_without_a_replica_comes_first() -> None:
    cluster = Cluster(5, racks=("a", "b", "c", "a", "c"))
    stream = cluster.create(replicas=(0, 1, 2))
    assert moves_off(cluster.registry, NodeId(2)) == {stream.id: (0, 1, 4)}


def test_nodes_that_are_away_or_drained_get_nothing() -> None:
    cluster = Cluster(5)
    stream = cluster.create(replicas=(0, 1))
    cluster.do(FenceNode(node_id=NodeId(2)))
    cluster.do(DrainNode(node_id=NodeId(3), until_undone=True))
    assert moves_off(cluster.registry, NodeId(0)) == {stream.id: (1, 4)}
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
    assert load(cluster, dict(moves)) == [4, 4, 4, 4]
    even = Cluster(3)
    even.create(replicas=(0, 1, 2))
    assert balancing(even.registry) == {}


def test_evenness_costs_no_rack() -> None:
    cluster = Cluster(3, racks=("a", "b", "b"))
    for number in range(4):
        cluster.create(f"s{number}", f"s.{number}", (0, 1))
    moves = balancing(cluster.registry)
    assert load(cluster, dict(moves)) == [4, 2, 2]
    assert all(0 in replicas for replicas in moves.values())
