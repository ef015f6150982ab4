"""Decisions on commands about what streams there are: create, delete, alter.

Each takes (tables, fields, revision), looks but does not touch, and returns a Decision or raises
the JetstreamError that the proposer gets. A stale `stream_epoch` is precondition_failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import (
    InvalidRequestError,
    StreamExistsError,
    UnavailableError,
)
from jetstream_protocol.subjects import RESERVED, check_name, check_pattern, overlaps
from jetstream_protocol.types import LeaderEpoch, NodeId, StreamId
from jetstream_server.metadata.changes import (
    StreamCreated,
    StreamDeleted,
)
from jetstream_server.metadata.controller import Election
from jetstream_server.metadata.decision import Decision
from jetstream_server.metadata.elections import (
    without_elr,
)
from jetstream_server.metadata.fields import Fields
from jetstream_server.metadata.stream_access import (
    changed,
    reports_void,
    stream_at_epoch,
    stream_of,
)
from jetstream_server.metadata.stream_settings import (
    checked,
    effective_settings,
    in_words,
    wished_settings,
)
from jetstream_server.metadata.streams import (
    StreamMetadata,
    StreamSettings,
)
from jetstream_server.metadata.tables import Tables


def create_stream(tables: Tables, fields: Fields, revision: int) -> Decision:
    """name, subject, [group], [config], replicas (the placement), created_at_us,
    [allow_same_name].

    `config` holds only what the user set: those fields must fit a stream that exists already
    (then nothing is created), and the others take their defaults in a new one.
    """
    name, subject, group = fields.text("name"), fields.text("subject"), fields.text("group", "")
    wished = wished_settings(fields.object("config", {}))
    placement = fields.nodes("replicas")
    created_at_us = fields.integer("created_at_us")
    # Commands from before there was a choice did not say, and were not refused.
    allow_same_name = fields.flag("allow_same_name", True)
    fields.finish()
    check_name(name)
    check_pattern(subject)
    if group:
        check_name(group)
    existing = tables.find(name, subject)
    if existing is not None:
        _check_same(existing, group, wished)
        return Decision({"stream_id": existing.id, "created": False})
    if not allow_same_name:
        _check_name_is_free(tables, name, subject)
    config = effective_settings(wished, len(placement))
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
        was_compacted=config.compact,
    )
    return Decision({"stream_id": stream.id, "created": True}, (StreamCreated(stream),))


def delete_stream(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id."""
    stream = stream_of(tables, fields)
    fields.finish()
    return Decision(
        {"stream_id": stream.id}, (*reports_void(tables, stream), StreamDeleted(stream))
    )


def alter_stream(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, stream_epoch, config: any settings but the number of replicas.

    A new minimum clears the ELR: its members were eligible under the old one only. Flush turned
    to "group" earns restart trust once every replica confirmed a full flush (`confirm_flush`).
    """
    stream = stream_at_epoch(tables, fields)
    wished = wished_settings(fields.object("config"))
    fields.finish()
    if wished.get("replicas", stream.config.replicas) != stream.config.replicas:
        raise InvalidRequestError("the number of replicas of a stream cannot be altered")
    config = checked(replace(stream.config, **wished))
    _check_acks(stream.subject, config, tables.settings.ack_subjects)
    if config == stream.config:
        return Decision({"stream_id": stream.id, "stream_epoch": stream.stream_epoch})
    after = replace(
        stream,
        config=config,
        stream_epoch=stream.stream_epoch + 1,
        was_compacted=stream.was_compacted or config.compact,
    )
    if config.min_insync_replicas != stream.config.min_insync_replicas:
        after = without_elr(after)
    if config.flush != stream.config.flush:
        after = replace(after, unflushed=stream.replicas if config.flush == "group" else ())
    return changed(tables, stream, after)


def confirm_flush(tables: Tables, fields: Fields, revision: int) -> Decision:
    """stream_id, stream_epoch, node_id: the replica has flushed its whole log since `flush` became
    "group". The stream epoch tells a late copy that speaks of an earlier such time."""
    stream = stream_at_epoch(tables, fields)
    node_id = fields.node("node_id")
    fields.finish()
    if node_id not in stream.unflushed:
        return Decision({"stream_epoch": stream.stream_epoch})
    unflushed = tuple(member for member in stream.unflushed if member != node_id)
    after = replace(stream, unflushed=unflushed, stream_epoch=stream.stream_epoch + 1)
    return changed(tables, stream, after)


def _check_same(existing: StreamMetadata, group: str, wished: dict[str, Any]) -> None:
    differing = [
        _difference(name, getattr(existing.config, name), value)
        for name, value in wished.items()
        if getattr(existing.config, name) != value
    ]
    if group != existing.group:
        differing.append(f"group is {existing.group!r}, not {group!r}")
    if differing:
        raise StreamExistsError(
            f"stream {existing.full_name} exists with another configuration: {', '.join(differing)}"
        )


def _check_name_is_free(tables: Tables, name: str, subject: str) -> None:
    others = tables.named(name)
    if others:
        raise StreamExistsError(
            f"there is {others[0].full_name} already: with {name}@{subject} beside it the name "
            f"{name!r} alone would be ambiguous, and be refused to all who use it; choose another "
            "name, or allow_same_name (--allow-same-name) to tell them apart by their subjects"
        )


def _difference(name: str, value: Any, wished: Any) -> str:
    said, found = in_words(name, value)
    return f"{said} is {found}, not {in_words(name, wished)[1]}"


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
