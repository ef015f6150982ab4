"""Which replicas hold a started node back from being ready, and until when."""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.types import NO_NODE, MonotonicUs, NodeId
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.node.catching_up import LIMIT_US, CatchingUp, out_of_sync
from tests.unit.metadata.cluster import Cluster
from tests.unit.replication.cores import stream

NODE = NodeId(2)
BEHIND = stream(isr=(0, 1))


def started(cluster: Cluster, now: list[int]) -> CatchingUp:
    registry = cluster.registry
    return CatchingUp(
        registry, NODE, lambda: registry.nodes[NODE].incarnation, lambda: MonotonicUs(now[0])
    )


def counted(found: StreamMetadata) -> int:
    return out_of_sync([found], NODE)


def test_only_a_replica_that_is_to_join_the_isr_again_counts() -> None:
    assert counted(BEHIND) == 1
    assert counted(stream(isr=(0, 1, 2))) == 0
    assert counted(replace(BEHIND, leader=NO_NODE)) == 0
    joining = replace(BEHIND, target_replicas=(NodeId(1), NODE))
    assert counted(joining) == 0
    observed = replace(BEHIND, replicas=(NodeId(0), NodeId(1)), observers=(NODE,))
    assert counted(observed) == 0


def test_a_node_that_was_in_sync_once_is_never_held_back_again() -> None:
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id)
    made = cluster.create(replicas=(0, 1, 2))
    cluster.register(NODE, session="again")
    catching_up = started(cluster, [0])
    assert catching_up.reasons() == ["catching up: 1 of its replicas is not in sync yet"]
    cluster.change_isr(made, (0, 1, 2))
    assert catching_up.reasons() == []
    cluster.change_isr(made, (0, 1))
    assert catching_up.reasons() == []


def test_it_waits_for_its_own_registration() -> None:
    """Until then the ISRs are those from before the start."""
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id)
    cluster.create(replicas=(0, 1, 2))
    catching_up = CatchingUp(cluster.registry, NODE, lambda: 99, lambda: MonotonicUs(0))
    assert catching_up.reasons() == ["catching up: not registered yet"]


def test_it_waits_for_a_limited_time() -> None:
    cluster, now = Cluster(), [0]
    for node_id in range(3):
        cluster.register(node_id)
    cluster.create(replicas=(0, 1, 2))
    cluster.register(NODE, session="again")
    catching_up = started(cluster, now)
    now[0] = LIMIT_US - 1
    assert catching_up.reasons()
    now[0] = LIMIT_US
    assert catching_up.reasons() == []
