"""Decisions on commands about streams: create, delete, alter, ISR changes, leaderships.

Each takes (tables, fields, revision), looks but does not touch, and returns a Decision or raises
the JetstreamError that the proposer gets. Compare-and-set tokens: `stream_epoch` stale is
precondition_failed, `leader_epoch` older is fenced_epoch and newer unknown_epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    PreconditionFailedError,
    StreamExistsError,
    StreamNotFoundError,
    UnavailableError,
    UnknownEpochError,
)
from jetstream_protocol.subjects import RESERVED, check_name, check_pattern, overlaps
from jetstream_protocol.types import NO_NODE, LeaderEpoch, NodeId, StreamId
from jetstream_server.metadata.changes import (
    Change,
    LeaderReported,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
)
from jetstream_server.metadata.controller import Election
from jetstream_server.metadata.decision import Decision
from jetstream_server.metadata.elections import (
    deposed,
    elected_uncleanly,
    with_isr,
    without_elr,
    without_node,
)
from jetstream_server.metadata.fields import Fields
from jetstream_server.metadata.streams import (
    ACK_POLICIES,
    FLUSH_POLICIES,
    StreamMetadata,
    StreamSettings,
)
from jetstream_server.metadata.tables import Tables

REPORT_PERIOD_US = 10_000_000
"""Complaints about a leader count together when they are at most this far apart: a few session
timeouts, so that one slow reporter is still heard, and old complaints never add up."""


def create_stream(tables: Tables, fields: Fields, revision: int) -> Decision:
    """name, subject, [group], [config], replicas (the placement), created_at_us.

    `config` holds only what the user set: those fields must fit a stream that exists already
    (then nothing is created), and the others take their defaults in a new one.
    """
    name, subject, group = fields.text("name"), fields.text("subject"), fields.text("group", "")
    wished = _wished_settings(fields.object("config", {}))
    placement = fields.nodes("replicas")
    created_at_us = fields.integer("created_at_us")
    fields.finish()
    check_name(name)
    check_pattern(subject)
    if group:
        check_name(group)
    existing = tables.find(name, subject)
    if existing is not None:
        _check_same(existing, group, wished)
        return Decision({"stream_id": existing.id, "created": False})
    config = _effective_settings(wished, len(placement))
    _check_acks(subject, config, tables.settings.ack_subjects)
    isr = _initial_isr(tables, placement, config)
    stream = StreamMetadata(
        id=StreamId(revision),
        name=name,
        subject=subject,
        group=group,
        config=config,
        replicas=placement,
        leader=Election(tables.nodes, tables.leaderships).choose(isr),
        leader_epoch=LeaderEpoch(0),
        stream_epoch=0,
        isr=isr,
        elr=(),
        created_at_us=created_at_us,
    )
    return Decision({"stream_id": stream.id, "created": True}, (StreamCreated(stream),))


def delete_stream(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id."""
    stream = _stream(tables, fields)
    fields.finish()
    return Decision(
        {"stream_id": stream.id}, (*_reports_void(tables, stream), StreamDeleted(stream))
    )


def alter_stream(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, stream_epoch, config: any of min_insync_replicas, flush, acks.

    A new minimum clears the ELR: its members were eligible under the old one only. Flush turned
    to "group" earns restart trust once every replica confirmed a full flush (`confirm_flush`).
    """
    stream = _stream_at_epoch(tables, fields)
    wished = _wished_settings(fields.object("config"))
    fields.finish()
    if wished.get("replicas", stream.config.replicas) != stream.config.replicas:
        raise InvalidRequestError("the number of replicas of a stream cannot be altered")
    config = _checked(replace(stream.config, **wished))
    _check_acks(stream.subject, config, tables.settings.ack_subjects)
    if config == stream.config:
        return Decision({"stream_id": stream.id, "stream_epoch": stream.stream_epoch})
    after = replace(stream, config=config, stream_epoch=stream.stream_epoch + 1)
    if config.min_insync_replicas != stream.config.min_insync_replicas:
        after = without_elr(after)
    if config.flush != stream.config.flush:
        after = replace(after, unflushed=stream.replicas if config.flush == "group" else ())
    return _changed(tables, stream, after)


def confirm_flush(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, stream_epoch, node_id: the replica has flushed its whole log since `flush` became
    "group". The stream epoch tells a late copy that speaks of an earlier such time."""
    stream = _stream_at_epoch(tables, fields)
    node_id = fields.node("node_id")
    fields.finish()
    if node_id not in stream.unflushed:
        return Decision({"stream_epoch": stream.stream_epoch})
    unflushed = tuple(member for member in stream.unflushed if member != node_id)
    after = replace(stream, unflushed=unflushed, stream_epoch=stream.stream_epoch + 1)
    return _changed(tables, stream, after)


def change_isr(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader, leader_epoch, stream_epoch, isr, incarnations (one per ISR member).

    Proposed by the stream's leader. A member that is fenced, draining (when it joins), unknown or
    in another incarnation makes it invalid_request: the leader must revert, not retry.
    """
    stream = _stream(tables, fields)
    leader, leader_epoch = fields.node("leader"), fields.integer("leader_epoch")
    stream_epoch = fields.integer("stream_epoch")
    isr, incarnations = fields.nodes("isr"), fields.integers("incarnations")
    fields.finish()
    _check_leader_epoch(stream, leader_epoch)
    if leader != stream.leader:
        raise FencedEpochError(f"node {leader} does not lead {stream.full_name}")
    _check_stream_epoch(stream, stream_epoch)
    if leader not in isr:
        raise InvalidRequestError(f"the ISR of {stream.full_name} must contain its leader {leader}")
    if len(incarnations) != len(isr):
        raise InvalidRequestError("change_isr needs one incarnation for each member of the ISR")
    for node_id, incarnation in zip(isr, incarnations, strict=True):
        _check_isr_member(tables, stream, node_id, incarnation)
    after = with_isr(stream, isr)
    if after.isr == stream.isr:
        return Decision({"stream_id": stream.id, "stream_epoch": stream.stream_epoch})
    return _changed(tables, stream, after)


def transfer_leader(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader, [stream_epoch]: hand the leadership to that ISR member."""
    stream = _stream_at_epoch(tables, fields, required=False)
    leader = fields.node("leader")
    fields.finish()
    if leader == stream.leader:
        return Decision(_epochs(stream))
    node = tables.nodes.get(leader)
    if leader not in stream.isr or node is None or node.draining:
        raise PreconditionFailedError(
            f"node {leader} cannot lead {stream.full_name} now: it is draining or not in sync"
        )
    election = Election(tables.nodes, tables.leaderships)
    return _changed(tables, stream, deposed(stream, election, leader))


def elect_leader(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader, incarnations or force: elect a replica although ISR and ELR are empty.

    The controller may once every replica of the last ISR and ELR (`last_known`) has registered
    and told its log's end, choosing the highest (last epoch, log end); `incarnations` are those
    under which they told, in that order, for another power failure makes what they told untrue.
    An operator may (`force`) at any time. Records may be lost, so it counts as lossy.
    """
    stream = _stream(tables, fields)
    leader, force = fields.node("leader"), fields.flag("force", False)
    incarnations = fields.integers("incarnations", [])
    fields.finish()
    if stream.leader != NO_NODE or (not force and (stream.isr or stream.elr)):
        raise PreconditionFailedError(f"{stream.full_name} has a leader or eligible replicas")
    if leader not in stream.replicas or not tables.is_alive(leader):
        raise PreconditionFailedError(f"node {leader} is no live replica of {stream.full_name}")
    if not force:
        _check_all_told(tables, stream, leader, incarnations)
    return _changed(tables, stream, elected_uncleanly(stream, leader))


def distrust_replica(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, node_id, node_incarnation: the node does not believe its own replica any more.

    A failed flush or corruption, found at run time: as if the node had come back without what it
    held of this stream. It leaves ISR and ELR, and its leadership of the stream ends.
    """
    stream = _stream(tables, fields)
    node_id, incarnation = fields.node("node_id"), fields.integer("node_incarnation")
    fields.finish()
    node = tables.nodes.get(node_id)
    if node is None or node.incarnation != incarnation:
        raise FencedEpochError(f"incarnation {incarnation} of node {node_id} is not registered")
    election = Election(tables.nodes, tables.leaderships)
    return _changed(tables, stream, without_node(stream, node_id, election, trusted=False))


def report_leader(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, leader_epoch, reporter, now_us: the reporter cannot fetch from the leader.

    Once a majority of the ISR without the leader has said so within REPORT_PERIOD_US, another
    member is elected in the same entry.
    """
    stream = _stream(tables, fields)
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
    decision = _changed(tables, stream, deposed(stream, Election(tables.nodes, tables.leaderships)))
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


def _reports_void(tables: Tables, stream: StreamMetadata) -> tuple[Change, ...]:
    return (LeaderReported(stream.id, ()),) if stream.id in tables.reports else ()


def _changed(tables: Tables, before: StreamMetadata, after: StreamMetadata) -> Decision:
    if before is after:
        return Decision(_epochs(before))
    void = _reports_void(tables, before) if before.leader_epoch != after.leader_epoch else ()
    return Decision(_epochs(after), (*void, StreamChanged(before, after)))


def _epochs(stream: StreamMetadata) -> dict[str, Any]:
    return {
        "stream_id": stream.id,
        "leader": stream.leader,
        "leader_epoch": stream.leader_epoch,
        "stream_epoch": stream.stream_epoch,
    }


def _stream(tables: Tables, fields: Fields) -> StreamMetadata:
    stream_id = fields.stream_id()
    stream = tables.streams.get(stream_id)
    if stream is None:
        raise StreamNotFoundError(f"there is no stream with id {stream_id}")
    return stream


def _stream_at_epoch(tables: Tables, fields: Fields, *, required: bool = True) -> StreamMetadata:
    stream = _stream(tables, fields)
    if required or fields.has("stream_epoch"):
        _check_stream_epoch(stream, fields.integer("stream_epoch"))
    return stream


def _check_stream_epoch(stream: StreamMetadata, stream_epoch: int) -> None:
    if stream_epoch != stream.stream_epoch:
        raise PreconditionFailedError(
            f"{stream.full_name} changed: stream epoch {stream.stream_epoch}, not {stream_epoch}"
        )


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


def _wished_settings(fields: Fields) -> dict[str, Any]:
    """The settings the user gave, by name."""
    wished: dict[str, Any] = {}
    for name in ("replicas", "min_insync_replicas"):
        if fields.has(name):
            wished[name] = fields.integer(name, minimum=1)
    if fields.has("flush"):
        wished["flush"] = fields.choice("flush", FLUSH_POLICIES)
    if fields.has("acks"):
        wished["acks"] = fields.choice("acks", ACK_POLICIES)
    fields.finish()
    return wished


def _effective_settings(wished: dict[str, Any], replicas: int) -> StreamSettings:
    if wished.get("replicas", replicas) != replicas or replicas == 0:
        raise InvalidRequestError(
            f"the stream was placed on {replicas} nodes, not {wished.get('replicas', 'at least 1')}"
        )
    return _checked(StreamSettings.with_defaults(**{**wished, "replicas": replicas}))


def _checked(config: StreamSettings) -> StreamSettings:
    if config.min_insync_replicas > config.replicas:
        raise InvalidRequestError(
            f"min_insync_replicas {config.min_insync_replicas} is more than the stream's "
            f"{config.replicas} replicas"
        )
    return config


def _check_same(existing: StreamMetadata, group: str, wished: dict[str, Any]) -> None:
    differing = [
        f"{name} is {getattr(existing.config, name)!r}, not {value!r}"
        for name, value in wished.items()
        if getattr(existing.config, name) != value
    ]
    if group != existing.group:
        differing.append(f"group is {existing.group!r}, not {group!r}")
    if differing:
        raise StreamExistsError(
            f"stream {existing.full_name} exists with another configuration: {', '.join(differing)}"
        )


def _check_acks(subject: str, config: StreamSettings, ack_subjects: tuple[str, ...]) -> None:
    """Refuse a stream whose acks could reach, or be stored as, traffic that is not for it."""
    if config.acks == "off":
        return
    for pattern in dict.fromkeys((*RESERVED, *ack_subjects)):
        if overlaps(subject, pattern):
            raise InvalidRequestError(
                f"subject {subject!r} overlaps {pattern!r}, where NATS's own messages and acks "
                "travel: a stream there would acknowledge those too; create it with acks: off"
            )


def _initial_isr(
    tables: Tables, placement: tuple[NodeId, ...], config: StreamSettings
) -> tuple[NodeId, ...]:
    """The live nodes of the placement: their empty logs are in sync."""
    unknown = [node_id for node_id in placement if node_id not in tables.nodes]
    if unknown:
        raise InvalidRequestError(f"nodes {unknown} are not part of this cluster")
    isr = tuple(node_id for node_id in placement if tables.is_alive(node_id))
    if len(isr) < config.min_insync_replicas:
        raise UnavailableError(
            f"{len(isr)} of the {len(placement)} nodes chosen are alive and "
            f"{config.min_insync_replicas} are needed; try again"
        )
    return isr
