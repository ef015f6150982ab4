"""What must cost no lease and no leadership, on a machine where any process may stand still."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.cluster import TestCluster

EVENTS = ("metadata_leadership", "session_lost", "node_fenced")
ROUNDS = 30


def leaderships(cluster: TestCluster) -> set[str]:
    """What the nodes have said about who leads and who is heard."""
    return {
        line
        for node in cluster.nodes
        for line in cluster.log(node).splitlines()
        if any(f'"{event}"' in line for event in EVENTS)
    }


def check_undisturbed(
    cluster: TestCluster, act: Callable[[], object], stream: str | None = None
) -> None:
    """Do it until nobody was disturbed meanwhile. A node that stands still loses its lease, too,
    but not each time; what disturbs nodes does so each time. stream: nor may its leader change."""
    for _ in range(ROUNDS):
        before = leaderships(cluster), stream and cluster.settled(stream).stream.leader_epoch
        act()
        after = leaderships(cluster), stream and cluster.settled(stream).stream.leader_epoch
        if after == before:
            return
    raise AssertionError(f"it disturbs nodes: {after[0] - before[0]}")
