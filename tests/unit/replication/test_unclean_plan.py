"""What an election by hand may cost, from what is known of each replica."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import FenceNode
from jetstream_server.replication.core.unclean_plan import (
    LogState,
    ReplicaState,
    check_electable,
    plan_of,
    standing_of,
)
from tests.unit.metadata.cluster import Cluster


def replica(
    node_id: int, standing: str = "", log: tuple[int, int, int, int] | None = None
) -> ReplicaState:
    held = None if log is None else LogState(*log)
    return ReplicaState(NodeId(node_id), held is not None, standing, held)  # type: ignore[arg-type]


def test_a_replica_as_long_as_any_other_loses_nothing_that_is_known() -> None:
    plan = plan_of([replica(0, "", (0, 9, 2, 5)), replica(1, "", (0, 9, 2, 9))], NodeId(0))
    assert (plan.records_lost_max, plan.unheard) == (0, ())


def test_a_shorter_log_of_the_same_epoch_lacks_the_difference() -> None:
    plan = plan_of([replica(0, "", (0, 7, 2, 5)), replica(1, "", (0, 9, 2, 9))], NodeId(0))
    assert plan.records_lost_max == 2


def test_a_log_of_an_older_epoch_may_lack_all_that_it_does_not_know_to_be_committed() -> None:
    """Though it is longer."""
    plan = plan_of([replica(0, "", (0, 12, 1, 5)), replica(1, "", (0, 9, 2, 9))], NodeId(0))
    assert plan.records_lost_max == 4


def test_what_the_other_log_does_not_hold_any_more_is_not_counted() -> None:
    plan = plan_of([replica(0, "", (0, 0, -1, 0)), replica(1, "", (100, 109, 2, 9))], NodeId(0))
    assert plan.records_lost_max == 9


def test_the_worst_of_several_others_counts() -> None:
    others = [replica(1, "", (0, 9, 2, 9)), replica(2, "", (0, 20, 2, 9))]
    assert plan_of([replica(0, "", (0, 8, 2, 5)), *others], NodeId(0)).records_lost_max == 12


def test_who_may_hold_more_and_is_not_heard_is_named_and_who_may_not_is_not() -> None:
    """A replica that was outside ISR, ELR and last_known holds nothing committed that they lack."""
    replicas = [
        replica(0, "", (0, 9, 2, 5)),
        replica(1, "isr"),
        replica(2, "elr"),
        replica(3, "last_known"),
        replica(4, ""),
    ]
    assert plan_of(replicas, NodeId(0)).unheard == (1, 2, 3)


def test_any_other_may_hold_more_when_nobody_is_eligible() -> None:
    left, down = replica(1, "last_known", (0, 4, 1, 0)), replica(2, "")
    assert plan_of([left, down], NodeId(1)).unheard == (2,)
    eligible = replica(1, "elr", (0, 4, 1, 0))
    assert plan_of([eligible, down], NodeId(1)).unheard == ()


def test_a_replica_that_cannot_be_read_or_written_is_refused_with_the_reason() -> None:
    silent = ReplicaState(NodeId(0), True, "", problem="cannot open it")
    with pytest.raises(PreconditionFailedError, match="node 0 cannot lead it: cannot open it"):
        plan_of([silent], NodeId(0))
    failed = ReplicaState(NodeId(0), True, "", LogState(0, 1, 0, 0), "EIO", can_lead=False)
    with pytest.raises(PreconditionFailedError, match="EIO"):
        plan_of([failed], NodeId(0))


def test_each_refusal_says_what_to_do() -> None:
    cluster = Cluster(4)
    stream = cluster.create()
    with pytest.raises(PreconditionFailedError, match="transfer-leader"):
        check_electable(stream, cluster.registry, stream.replicas[1])
    outside = next(node for node in (0, 1, 2, 3) if node not in stream.replicas)
    for node_id in stream.replicas:
        cluster.do(FenceNode(node_id=node_id))
    stream = cluster.now(stream)
    assert standing_of(stream, stream.replicas[0]) in ("elr", "")
    with pytest.raises(PreconditionFailedError, match="choose one of"):
        check_electable(stream, cluster.registry, NodeId(outside))
    with pytest.raises(PreconditionFailedError, match="start a node that holds it"):
        check_electable(stream, cluster.registry, stream.replicas[0])
