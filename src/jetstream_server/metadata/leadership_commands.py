"""Decisions on commands about who leads a stream and who is in sync with it.

Each takes (tables, fields, revision), looks but does not touch, and returns a Decision or raises
the JetstreamError that the proposer gets. Compare-and-set tokens: `stream_epoch` stale is
precondition_failed, `leader_epoch` older is fenced_epoch and newer unknown_epoch.
"""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
    UnknownEpochError,
)
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.changes import (
    LeaderReported,
)
from jetstream_server.metadata.controller import Election
from jetstream_server.metadata.decision import Decision
from jetstream_server.metadata.elections import (
    deposed,
    elected_uncleanly,
    unheard,
    with_isr,
    without_node,
)
from jetstream_server.metadata.fields import Fields
from jetstream_server.metadata.stream_access import (
    changed,
    check_stream_epoch,
    epochs,
    stream_at_epoch,
    stream_of,
)
from jetstream_server.metadata.streams import (
    StreamMetadata,
)
from jetstream_server.metadata.tables import Tables

REPORT_PERIOD_US = 10_000_000
"""Complaints about a leader count together when they are at most this far apart: a few session
timeouts, so that one slow reporter is still heard, and old complaints never add up."""


def change_isr(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader, leader_epoch, stream_epoch, isr, incarnations (one per ISR member).

    Proposed by the stream's leader. A member that is fenced, draining (when it joins), unknown or
    in another incarnation makes it invalid_request: the leader must revert, not retry.
    """
    stream = stream_of(tables, fields)
    leader, leader_epoch = fields.node("leader"), fields.integer("leader_epoch")
    stream_epoch = fields.integer("stream_epoch")
    isr, incarnations = fields.nodes("isr"), fields.integers("incarnations")
    fields.finish()
    _check_leader_epoch(stream, leader_epoch)
    if leader != stream.leader:
        raise FencedEpochError(f"node {leader} does not lead {stream.full_name}")
    check_stream_epoch(stream, stream_epoch)
    if leader not in isr:
        raise InvalidRequestError(f"the ISR of {stream.full_name} must contain its leader {leader}")
    if len(incarnations) != len(isr):
        raise InvalidRequestError("change_isr needs one incarnation for each member of the ISR")
    for node_id, incarnation in zip(isr, incarnations, strict=True):
        _check_isr_member(tables, stream, node_id, incarnation)
    after = with_isr(stream, isr)
    if after.isr == stream.isr:
        return Decision({"stream_id": stream.id, "stream_epoch": stream.stream_epoch})
    return changed(tables, stream, after)


def transfer_leader(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader, [stream_epoch]: hand the leadership to that ISR member."""
    stream = stream_at_epoch(tables, fields, required=False)
    leader = fields.node("leader")
    fields.finish()
    if leader == stream.leader:
        return Decision(epochs(stream))
    if leader not in stream.replicas:
        held_by = ", ".join(map(str, stream.replicas))
        raise PreconditionFailedError(
            f"node {leader} cannot lead {stream.full_name}: only nodes {held_by} hold it"
        )
    node = tables.nodes.get(leader)
    if leader not in stream.isr or node is None or node.steps_aside:
        reason = "is not in sync" if leader not in stream.isr else "is draining"
        raise PreconditionFailedError(
            f"node {leader} cannot lead {stream.full_name} now: it {reason}"
        )
    election = Election(tables.nodes, tables.leaderships)
    return changed(tables, stream, deposed(stream, election, leader))


def elect_leader(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader, incarnations or force, [stream_epoch]: elect a replica although ISR and
    ELR are empty.

    The controller may once every replica of the last ISR and ELR (`last_known`) has registered
    and told its log's end, choosing the highest (last epoch, log end); `incarnations` are those
    under which they told, in that order, for another power failure makes what they told untrue.
    An operator may (`force`) whenever nobody leads; `incarnations` is then that of the leader.
    Records may be lost, so it counts as lossy.
    """
    stream = stream_at_epoch(tables, fields, required=False)
    leader, force = fields.node("leader"), fields.flag("force", False)
    incarnations = fields.integers("incarnations", [])
    fields.finish()
    if stream.leader != NO_NODE or (not force and (stream.isr or stream.elr)):
        raise PreconditionFailedError(f"{stream.full_name} has a leader or eligible replicas")
    if leader not in stream.replicas or not tables.is_alive(leader):
        raise PreconditionFailedError(f"node {leader} is no live replica of {stream.full_name}")
    if force:
        _check_incarnation(tables, leader, incarnations)
    else:
        _check_all_told(tables, stream, leader, incarnations)
    return changed(tables, stream, elected_uncleanly(stream, leader))


def distrust_replica(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, node_id, node_incarnation: the node does not believe its own replica any more.

    A failed flush or corruption, found at run time: as if the node had come back without what it
    held of this stream. It leaves ISR and ELR, and its leadership of the stream ends. **safety** Of
    a replica that is in neither, the stream epoch grows all the same: its leader may be about to
    add it to the ISR, by what it said before.
    """
    stream = stream_of(tables, fields)
    node_id, incarnation = fields.node("node_id"), fields.integer("node_incarnation")
    fields.finish()
    node = tables.nodes.get(node_id)
    if node is None or node.incarnation != incarnation:
        raise FencedEpochError(f"incarnation {incarnation} of node {node_id} is not registered")
    election = Election(tables.nodes, tables.leaderships)
    after = without_node(stream, node_id, election, trusted=False)
    if after is stream and node_id in stream.replicas:
        after = replace(stream, stream_epoch=stream.stream_epoch + 1)
    return changed(tables, stream, after)


def report_leader(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader_epoch, reporter, now_us: the reporter cannot fetch from the leader.

    Once a majority of the ISR without the leader has said so within REPORT_PERIOD_US, another
    member is elected in the same entry, and the leader leaves the ISR if enough others are in it.
    """
    stream = stream_of(tables, fields)
    leader_epoch = fields.integer("leader_epoch")
    reporter, now_us = fields.node("reporter"), fields.integer("now_us")
    fields.finish()
    _check_leader_epoch(stream, leader_epoch)
    if reporter not in stream.isr or reporter == stream.leader or stream.leader == NO_NODE:
        raise PreconditionFailedError(f"node {reporter} does not follow {stream.full_name} in sync")
    reports = _reports_with(tables, stream, reporter, now_us)
    followers = len(stream.isr) - 1
    if len(reports) * 2 <= followers:
        return Decision({"deposed": False}, (LeaderReported(stream.id, reports),))
    decision = changed(tables, stream, unheard(stream, Election(tables.nodes, tables.leaderships)))
    return Decision({**decision.result, "deposed": bool(decision.changes)}, decision.changes)


def _check_all_told(
    tables: Tables, stream: StreamMetadata, leader: NodeId, incarnations: tuple[int, ...]
) -> None:
    """Raise UnavailableError unless everyone who may hold committed records has been asked."""
    missing = [node_id for node_id in stream.last_known if not tables.is_alive(node_id)]
    if missing or leader not in stream.last_known:
        raise UnavailableError(
            f"{stream.full_name} waits for nodes {missing}, which may hold committed records"
        )
    if incarnations != tuple(tables.nodes[node_id].incarnation for node_id in stream.last_known):
        raise UnavailableError(
            f"replicas of {stream.full_name} have restarted since they told what they hold"
        )


def _check_incarnation(tables: Tables, leader: NodeId, incarnations: tuple[int, ...]) -> None:
    """Raise UnavailableError for a replica that has restarted since it told what it holds."""
    if incarnations and incarnations != (tables.nodes[leader].incarnation,):
        raise UnavailableError(f"node {leader} has restarted since it told what it holds")


def _reports_with(
    tables: Tables, stream: StreamMetadata, reporter: NodeId, now_us: int
) -> tuple[tuple[NodeId, int], ...]:
    """The complaints that still count, of current ISR members, with this one."""
    standing = [
        (node_id, at_us)
        for node_id, at_us in tables.reports.get(stream.id, ())
        if node_id != reporter and node_id in stream.isr and abs(now_us - at_us) <= REPORT_PERIOD_US
    ]
    return (*standing, (reporter, now_us))


def _check_leader_epoch(stream: StreamMetadata, leader_epoch: int) -> None:
    if leader_epoch < stream.leader_epoch:
        raise FencedEpochError(
            f"leader epoch {leader_epoch} of {stream.full_name} ended; it is {stream.leader_epoch}"
        )
    if leader_epoch > stream.leader_epoch:
        raise UnknownEpochError(
            f"{stream.full_name} is at leader epoch {stream.leader_epoch}, before {leader_epoch}"
        )


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
