"""Decides commands about a stream's leader and about the replicas in sync with it.

The class of each command (commands.py) says what it means. A decision changes nothing: it returns a
Decision, or raises the JetstreamError that the proposer gets.
"""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.types import NO_NODE, BootUs, NodeId
from jetstream_server.metadata.state.changes import LeaderDeposed, LeaderReported
from jetstream_server.metadata.state.commands import (
    ANY_REPLICA_LEVEL,
    ChangeIsr,
    DistrustReplica,
    ElectLeader,
    ReportLeader,
    TransferLeader,
)
from jetstream_server.metadata.state.decision import (
    Decision,
    check_leader_epoch,
    check_stream_epoch,
    decision_for,
    epochs,
    stream_at_epoch,
    stream_of,
)
from jetstream_server.metadata.state.elections import (
    asked_in_election,
    depose_unreachable,
    elected_uncleanly,
    with_another_leader,
    with_isr,
    without_node,
)
from jetstream_server.metadata.state.placement import Election
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables

REPORT_PERIOD_US = 10_000_000
"""Reports about a leader count together if they are at most this far apart: a few session timeouts,
so that a slow reporter still counts and old reports never add up."""


def change_isr(tables: Tables, command: ChangeIsr) -> Decision:
    stream = stream_of(tables, command.stream_id)
    leader, isr = command.leader, command.isr
    check_leader_epoch(stream, command.leader_epoch)
    if leader != stream.leader:
        raise FencedEpochError(f"node {leader} does not lead {stream.full_name}")
    check_stream_epoch(stream, command.stream_epoch)
    if leader not in isr:
        raise InvalidRequestError(f"the ISR of {stream.full_name} must contain its leader {leader}")
    if len(command.incarnations) != len(isr):
        raise InvalidRequestError("change_isr needs one incarnation for each member of the ISR")
    for node_id, incarnation in zip(isr, command.incarnations, strict=True):
        _check_isr_member(tables, stream, node_id, incarnation)
    after = with_isr(stream, isr)
    if after.isr == stream.isr:
        return Decision({"stream_id": stream.id, "stream_epoch": stream.stream_epoch})
    return decision_for(tables, stream, after)


def transfer_leader(tables: Tables, command: TransferLeader) -> Decision:
    stream = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
    leader = command.leader
    if leader == stream.leader:
        return Decision(epochs(stream))
    if leader not in stream.replicas:
        held_by = ", ".join(map(str, stream.replicas))
        only = f"nodes {held_by} hold" if len(stream.replicas) > 1 else f"node {held_by} holds"
        raise PreconditionFailedError(
            f"node {leader} cannot lead {stream.full_name}: only {only} it"
        )
    if leader not in stream.isr or not tables.may_be_given_leaderships(leader):
        reason = "is not in sync" if leader not in stream.isr else "is draining"
        raise PreconditionFailedError(
            f"node {leader} cannot lead {stream.full_name} now: it {reason}"
        )
    election = Election(tables.nodes, tables.leaderships)
    return decision_for(tables, stream, with_another_leader(stream, election, leader))


def elect_leader(tables: Tables, command: ElectLeader) -> Decision:
    stream = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
    leader = command.leader
    if stream.leader != NO_NODE or (not command.force and (stream.isr or stream.elr)):
        raise PreconditionFailedError(f"{stream.full_name} has a leader or eligible replicas")
    if leader not in stream.replicas or not tables.is_alive(leader):
        raise PreconditionFailedError(f"node {leader} is no live replica of {stream.full_name}")
    if command.force:
        _check_incarnation(tables, leader, command.incarnations)
    else:
        _check_all_reported(tables, stream, leader, command.incarnations)
    return decision_for(tables, stream, elected_uncleanly(stream, leader))


def distrust_replica(tables: Tables, command: DistrustReplica) -> Decision:
    """**safety** The stream epoch grows even if the replica is in neither ISR nor ELR: its leader
    may be about to add it to the ISR because of an earlier position."""
    stream = stream_of(tables, command.stream_id)
    node_id = command.node_id
    node = tables.nodes.get(node_id)
    if node is None or node.incarnation != command.node_incarnation:
        raise FencedEpochError(
            f"incarnation {command.node_incarnation} of node {node_id} is not registered"
        )
    election = Election(tables.nodes, tables.leaderships)
    after = without_node(stream, node_id, election, trusted=False)
    if after is stream and node_id in stream.copies:
        after = replace(stream, stream_epoch=stream.stream_epoch + 1)
    return decision_for(tables, stream, after)


def report_leader(tables: Tables, command: ReportLeader) -> Decision:
    stream = stream_of(tables, command.stream_id)
    reporter = command.reporter
    check_leader_epoch(stream, command.leader_epoch)
    if reporter not in stream.isr or reporter == stream.leader or stream.leader == NO_NODE:
        raise PreconditionFailedError(f"node {reporter} does not follow {stream.full_name} in sync")
    reports = _reports_with(tables, stream, reporter, command.now_us)
    followers = len(stream.isr) - 1
    if len(reports) * 2 <= followers:
        return Decision({"deposed": False}, (LeaderReported(stream.id, reports),))
    after = depose_unreachable(stream, Election(tables.nodes, tables.leaderships))
    decision = decision_for(tables, stream, after)
    if after is stream:
        return Decision({**decision.result, "deposed": False})
    deposed = LeaderDeposed(stream.id, stream.leader)
    return Decision({**decision.result, "deposed": True}, (deposed, *decision.changes))


def _check_all_reported(
    tables: Tables, stream: StreamMetadata, leader: NodeId, incarnations: tuple[int, ...]
) -> None:
    """Raise UnavailableError unless every replica that may hold committed records has reported."""
    missing = [node_id for node_id in stream.last_known if not tables.is_alive(node_id)]
    is_earlier = tables.settings.feature_level < ANY_REPLICA_LEVEL
    if missing or not stream.last_known or (is_earlier and leader not in stream.last_known):
        raise UnavailableError(
            f"{stream.full_name} waits for nodes {missing}, which may hold committed records"
        )
    asked = asked_in_election(stream, leader)
    if incarnations != tuple(tables.nodes[node_id].incarnation for node_id in asked):
        raise UnavailableError(
            f"replicas of {stream.full_name} have restarted since they reported what they hold"
        )


def _check_incarnation(tables: Tables, leader: NodeId, incarnations: tuple[int, ...]) -> None:
    """Raise UnavailableError for a replica that has restarted since its report."""
    if incarnations and incarnations != (tables.nodes[leader].incarnation,):
        raise UnavailableError(f"node {leader} has restarted since it reported what it holds")


def _reports_with(
    tables: Tables, stream: StreamMetadata, reporter: NodeId, now_us: BootUs
) -> tuple[tuple[NodeId, BootUs], ...]:
    """The reports of current ISR members that still count, including this one."""
    standing = [
        (node_id, at_us)
        for node_id, at_us in tables.reports.get(stream.id, ())
        if node_id != reporter and node_id in stream.isr and abs(now_us - at_us) <= REPORT_PERIOD_US
    ]
    return (*standing, (reporter, now_us))


def _check_isr_member(
    tables: Tables, stream: StreamMetadata, node_id: NodeId, incarnation: int
) -> None:
    node = tables.nodes.get(node_id)
    problem = ""
    if node_id not in stream.replicas:
        problem = "holds no replica"
    elif node is None or node.fenced:
        problem = "is not alive"
    elif node.incarnation != incarnation:
        problem = f"is in incarnation {node.incarnation}, not {incarnation}"
    elif node.draining and node_id not in stream.isr:
        problem = "is draining"
    if problem:
        raise InvalidRequestError(
            f"node {node_id} cannot be in the ISR of {stream.full_name}: it {problem}"
        )
