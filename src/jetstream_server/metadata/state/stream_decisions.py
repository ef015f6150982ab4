"""Decides commands about which streams exist: create, delete, alter, pause.

The class of each command (commands.py) says what it means. A decision changes nothing: it returns a
Decision, or raises the JetstreamError that the proposer gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from jetstream_protocol.ack_cluster import mark_of
from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    QuotaExceededError,
    StreamExistsError,
    UnavailableError,
)
from jetstream_protocol.schema import parse, why_incompatible
from jetstream_protocol.stream_names import INTERNAL_PREFIX, check_name, check_partition
from jetstream_protocol.subjects import INGEST_SUBJECTS, RESERVED, check_pattern, overlaps
from jetstream_protocol.types import NO_NODE, LeaderEpoch, NodeId, StreamId
from jetstream_server.metadata.state.changes import StreamCreated, StreamDeleted
from jetstream_server.metadata.state.cluster import ClusterSettings
from jetstream_server.metadata.state.commands import (
    NEW_MINIMUM_LEVEL,
    AlterStream,
    ConfirmFlush,
    CreateStream,
    DeleteStream,
    PurgeStream,
    SetSchema,
    SetStreamAccess,
)
from jetstream_server.metadata.state.decision import (
    Decision,
    check_known,
    check_observers,
    decision_for,
    epochs,
    reports_void,
    stream_at_epoch,
    stream_of,
)
from jetstream_server.metadata.state.elections import under_new_minimum, without_elr
from jetstream_server.metadata.state.lake_decisions import check_lake, check_lake_stays, purged
from jetstream_server.metadata.state.placement import Election
from jetstream_server.metadata.state.setting_checks import (
    checked_settings,
    effective_settings,
    in_words,
    requested_settings,
)
from jetstream_server.metadata.state.streams import (
    INTERNAL_MINIMUM_LEVEL,
    QUEUE_GROUP_LEVEL,
    RequestedSettings,
    StreamMetadata,
    StreamSettings,
)
from jetstream_server.metadata.state.tables import Tables


def create_stream(tables: Tables, command: CreateStream) -> Decision:
    name, subject, group = command.name, command.subject, command.group
    requested = requested_settings(command.config, command.op, tables.settings.feature_level)
    check_name(name)
    if command.internal:
        _check_internal(name, subject, group)
    else:
        check_pattern(subject)
    if group:
        check_name(group)
    check_partition(group, command.partition, command.partitions)
    existing = tables.find(name, subject)
    if existing is not None:
        _check_same(existing, command, requested)
        return Decision({"stream_id": existing.id, "created": False})
    if not command.allow_same_name:
        _check_name_is_free(tables, name, subject)
    _check_names(tables, command)
    _check_quota(tables, command)
    if command.partitions and overlaps(subject, INGEST_SUBJECTS):
        raise InvalidRequestError(
            f"subject {subject!r} overlaps {INGEST_SUBJECTS!r}, where keyed groups listen as well"
        )
    config = effective_settings(requested, len(command.replicas), len(command.observers))
    if command.partitions and config.is_keyed_by_subject:
        raise InvalidRequestError(
            "the streams of a keyed group have keys that publishers give: key must be record"
        )
    check_lake(config)
    _check_acks(subject, config, tables.settings)
    check_observers(tables, command.replicas, command.observers)
    isr = _initial_isr(tables, command.replicas, config)
    stream = StreamMetadata(
        id=StreamId(tables.revision),
        name=name,
        subject=subject,
        group=group,
        config=config,
        replicas=command.replicas,
        leader=Election(tables.nodes, tables.leaderships).choose(isr),
        leader_epoch=LeaderEpoch(0),
        stream_epoch=0,
        isr=isr,
        elr=(),
        created_at_us=command.created_at_us,
        was_compacted=config.compact,
        creator=command.creator,
        partition=command.partition,
        partitions=command.partitions,
        observers=command.observers,
        queue_group=_queue_group(tables, group),
    )
    return Decision({"stream_id": stream.id, "created": True}, (StreamCreated(stream),))


def _queue_group(tables: Tables, group: str) -> str:
    """**safety** The streams of a group listen in one queue group as long as there are any: a
    message would be stored once for each name that is in use."""
    if not group:
        return ""
    for stream in tables.in_group(group):
        return stream.queue_group
    mark = mark_of(tables.settings.cluster_id)
    if not mark or tables.settings.feature_level < QUEUE_GROUP_LEVEL:
        return ""
    return f"{group}.{mark}"


def _check_names(tables: Tables, command: CreateStream) -> None:
    """**safety** What has one of the names by now, the creator may share it with: it had the right
    to at `names_at`, and what came since is its own."""
    if not command.names_at:
        return
    for name in (command.name, command.group):
        for stream in tables.holders_of(name):
            if stream.id > command.names_at and stream.creator != command.creator:
                raise PreconditionFailedError(
                    f"the name {name!r} was taken while {command.name}@{command.subject} was being "
                    "created"
                )


def _check_quota(tables: Tables, command: CreateStream) -> None:
    most = command.streams_max
    if most and tables.created_by.get(command.creator, 0) >= most:
        raise QuotaExceededError(
            f"{command.creator} has created {most} streams that exist, as many as it may: delete "
            "some, or have security.streams_per_principal raised"
        )


def _check_internal(name: str, subject: str, group: str) -> None:
    if not name.startswith(INTERNAL_PREFIX) or subject or group:
        raise InvalidRequestError(
            f"an internal stream has a name that begins with {INTERNAL_PREFIX!r}, and neither "
            "subject nor group"
        )


def _check_not_internal(stream: StreamMetadata) -> None:
    if stream.is_internal:
        raise InvalidRequestError(
            f"{stream.full_name} is the server's own stream: it cannot be altered, paused, "
            "purged or deleted"
        )


def delete_stream(tables: Tables, command: DeleteStream) -> Decision:
    stream = stream_of(tables, command.stream_id)
    _check_not_internal(stream)
    return Decision(
        {"stream_id": stream.id}, (*reports_void(tables, stream), StreamDeleted(stream))
    )


def alter_stream(tables: Tables, command: AlterStream) -> Decision:
    stream = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
    level = tables.settings.feature_level
    if level < INTERNAL_MINIMUM_LEVEL:
        _check_not_internal(stream)
    requested = requested_settings(command.config, command.op, level)
    if stream.is_internal and requested.keys() - {"min_insync_replicas"}:
        raise InvalidRequestError(
            f"{stream.full_name} is the server's own stream: only its min_insync_replicas can be "
            "altered"
        )
    if requested.get("replicas", stream.config.replicas) != stream.config.replicas:
        raise InvalidRequestError("the number of replicas of a stream cannot be altered")
    if requested.get("observers", stream.config.observers) != stream.config.observers:
        raise InvalidRequestError("observers are added and removed by reassign_stream")
    if requested.get("key", stream.config.key) != stream.config.key:
        raise InvalidRequestError(
            f"the key of {stream.full_name} is the {stream.config.key}: that is chosen when a "
            "stream is created, and its records are stored accordingly"
        )
    if requested.get("restoring") and not stream.config.restoring:
        raise InvalidRequestError(
            f"{stream.full_name} takes its records from its subject: only a new stream is restored"
        )
    config = checked_settings(replace(stream.config, **requested))
    check_lake(config, stream.was_compacted)
    check_lake_stays(stream, config)
    _check_acks(stream.subject, config, tables.settings)
    if config == stream.config:
        return Decision({"stream_id": stream.id, "stream_epoch": stream.stream_epoch})
    after = replace(
        stream,
        config=config,
        stream_epoch=stream.stream_epoch + 1,
        was_compacted=stream.was_compacted or config.compact,
    )
    if config.min_insync_replicas != stream.config.min_insync_replicas:
        is_earlier = level < NEW_MINIMUM_LEVEL
        after = without_elr(after) if is_earlier else under_new_minimum(after)
    if config.flush != stream.config.flush:
        after = replace(after, unflushed=stream.replicas if config.flush == "group" else ())
    return decision_for(tables, stream, after)


def purge_stream(tables: Tables, command: PurgeStream) -> Decision:
    stream = stream_of(tables, command.stream_id)
    _check_not_internal(stream)
    leader_epoch, offset = command.leader_epoch, command.offset
    if leader_epoch != stream.leader_epoch or stream.leader == NO_NODE:
        raise PreconditionFailedError(
            f"{stream.full_name} has another leader by now: leader epoch {stream.leader_epoch}, "
            f"not {leader_epoch}"
        )
    if stream.purged_epoch == stream.leader_epoch and offset <= stream.purged_offset:
        return Decision(epochs(stream))
    after = replace(
        stream,
        purged_offset=offset,
        purged_epoch=stream.leader_epoch,
        stream_epoch=stream.stream_epoch + 1,
        lake=purged(stream, offset),
    )
    return decision_for(tables, stream, after)


def set_stream_access(tables: Tables, command: SetStreamAccess) -> Decision:
    stream = stream_of(tables, command.stream_id)
    _check_not_internal(stream)
    readonly = stream.readonly if command.readonly is None else command.readonly
    paused = stream.paused if command.paused is None else command.paused
    if (readonly, paused) == (stream.readonly, stream.paused):
        return Decision(epochs(stream))
    after = replace(stream, readonly=readonly, paused=paused, stream_epoch=stream.stream_epoch + 1)
    return decision_for(tables, stream, after)


def confirm_flush(tables: Tables, command: ConfirmFlush) -> Decision:
    stream = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
    if command.node_id not in stream.unflushed:
        return Decision({"stream_epoch": stream.stream_epoch})
    unflushed = tuple(member for member in stream.unflushed if member != command.node_id)
    after = replace(stream, unflushed=unflushed, stream_epoch=stream.stream_epoch + 1)
    return decision_for(tables, stream, after)


def _check_same(existing: StreamMetadata, command: CreateStream, wished: RequestedSettings) -> None:
    differing = [
        _difference(name, getattr(existing.config, name), value)
        for name, value in wished.items()
        if getattr(existing.config, name) != value
    ]
    if command.group != existing.group:
        differing.append(f"group is {existing.group!r}, not {command.group!r}")
    found, wanted = (each.partition if each.partitions else None for each in (existing, command))
    if found != wanted:
        differing.append(f"partition is {found}, not {wanted}")
    if differing:
        raise StreamExistsError(
            f"stream {existing.full_name} exists with another configuration: {', '.join(differing)}"
        )


def _check_name_is_free(tables: Tables, name: str, subject: str) -> None:
    others = tables.streams_named(name)
    if others:
        raise StreamExistsError(
            f"there is {others[0].full_name} already: with {name}@{subject} beside it the name "
            f"{name!r} alone would be ambiguous, and be refused to all who use it; choose another "
            "name, or allow_same_name (--allow-same-name) to tell them apart by their subjects"
        )


def _difference(name: str, value: Any, wished: Any) -> str:
    label, found = in_words(name, value)
    return f"{label} is {found}, not {in_words(name, wished)[1]}"


def _check_acks(subject: str, config: StreamSettings, cluster: ClusterSettings) -> None:
    """Refuse a stream whose acks could reach, or be stored as, traffic that is not for it."""
    if config.acks == "off":
        return
    if cluster.feature_level >= 2 and overlaps(subject, INGEST_SUBJECTS):
        raise InvalidRequestError(
            f"subject {subject!r} overlaps {INGEST_SUBJECTS!r}, where the streams of keyed groups "
            "listen: a stream there would acknowledge what is theirs; create it with acks: off"
        )
    for pattern in dict.fromkeys((*RESERVED, *cluster.ack_subjects)):
        if overlaps(subject, pattern):
            raise InvalidRequestError(
                f"subject {subject!r} overlaps {pattern!r}, where NATS's own messages and acks "
                "travel: a stream there would acknowledge those too; create it with acks: off"
            )


def _initial_isr(
    tables: Tables, placement: tuple[NodeId, ...], config: StreamSettings
) -> tuple[NodeId, ...]:
    """The live nodes of the placement: their empty logs are in sync."""
    check_known(tables, placement)
    isr = tuple(node_id for node_id in placement if tables.is_alive(node_id))
    if len(isr) < config.min_insync_replicas:
        raise UnavailableError(
            f"{len(isr)} of the {len(placement)} nodes chosen are alive and "
            f"{config.min_insync_replicas} are needed; try again"
        )
    return isr


VERSIONS_MAX: Final = 10
"""So many versions of a schema are kept: they are in every snapshot of the metadata."""


def set_schema(tables: Tables, command: SetSchema) -> Decision:
    """Its versions are kept, and each must go on from the last.

    **safety** All nodes decide alike, whatever their version: what `parse` takes and what
    `why_incompatible` finds may change only at another feature level.
    """
    stream = stream_of(tables, command.stream_id)
    if stream.is_internal:
        raise InvalidRequestError(f"{stream.full_name} is the server's own stream")
    text = str(parse(command.schema)) if command.schema else ""
    if text == stream.schema:
        return Decision({"schema_version": stream.schema_version})
    if command.schema_version != stream.schema_version:
        raise PreconditionFailedError(
            f"the schema of {stream.full_name} is at version {stream.schema_version}, not "
            f"{command.schema_version}: somebody has changed it"
        )
    if stream.schema and text:
        why = why_incompatible(parse(stream.schema), parse(text))
        if why:
            raise InvalidRequestError(f"the schema of {stream.full_name} cannot change so: {why}")
    version = stream.schema_version + 1
    after = replace(
        stream,
        schemas=(*stream.schemas, text)[-VERSIONS_MAX:],
        schema_version=version,
        stream_epoch=stream.stream_epoch + 1,
    )
    return Decision({"schema_version": version}, decision_for(tables, stream, after).changes)
