"""Converts between the protobuf messages of proto/jetstream/v1 and the client's own values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetstream_client.values.positions import Simple
from jetstream_client.values.settings import (
    AlterableSettings,
    ClusterSettings,
    StreamSettings,
    to_us,
)
from jetstream_client.values.text import check_text
from jetstream_client.values.types import (
    ClusterInfo,
    CompactionInfo,
    DamagedRange,
    Node,
    ReplicaProgress,
    ReplicaState,
    Stream,
    StreamDescription,
    StreamLike,
    UncleanElection,
    Voter,
    Voters,
)
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2, common_pb2
from jetstream_protocol.setting_messages import NUMBERS
from jetstream_protocol.settings import BY_FIELD, CLUSTER_SETTINGS, STREAM_SETTINGS, Kind, Setting
from jetstream_protocol.times import to_datetime

_BY_NAME = {setting.name: setting for setting in STREAM_SETTINGS}
_SHOWN = [each for each in STREAM_SETTINGS if each.name not in ("replicas", "observers")]
"""Those that `Stream` has under their own names."""
_CHOICES = {
    field: {0: BY_FIELD[field].default or "unspecified", **{n: name for name, n in numbers.items()}}
    for field, numbers in NUMBERS.items()
}
_SETTINGS = frozenset(StreamSettings.__annotations__) | frozenset(AlterableSettings.__annotations__)


def to_ref(stream: StreamLike) -> common_pb2.StreamRef:
    """How the wire names `stream`. An id is exact; a bare name may be ambiguous."""
    if isinstance(stream, Stream):
        return common_pb2.StreamRef(id=stream.id)
    if isinstance(stream, int):
        if stream < 1:
            raise InvalidRequestError(f"stream ids are positive, {stream} is not one")
        return common_pb2.StreamRef(id=stream)
    check_text("the stream's name", stream)
    name, _, subject = stream.partition("@")
    if not name:
        raise InvalidRequestError("which stream? give its name, or name@subject")
    return common_pb2.StreamRef(name=name, subject=subject)


def to_query(stream: StreamLike, position: Simple | int) -> api_pb2.ListOffsetsRequest.Query:
    query = api_pb2.ListOffsetsRequest.Query(stream=to_ref(stream))
    if position == "earliest":
        query.earliest = True
    elif position == "latest":
        query.latest = True
    elif isinstance(position, int):
        query.offset = position
    else:
        query.timestamp_us = position.timestamp_us
    return query


def _number_of(setting: Setting, choice: str) -> int:
    """Raises InvalidRequestError."""
    numbers = NUMBERS[setting.field]
    if choice not in numbers:
        said = f"invalid {setting.name} {choice!r}: say one of {', '.join(numbers)}"
        raise InvalidRequestError(said)
    return numbers[choice]


def to_config(settings: AlterableSettings) -> api_pb2.StreamConfig:
    """Raises TypeError for an unknown setting, InvalidRequestError for a wrong value."""
    unknown = [name for name in settings if name not in _SETTINGS]
    if unknown:
        raise TypeError(f"unknown setting {unknown[0]!r}: there are {', '.join(sorted(_SETTINGS))}")
    config = api_pb2.StreamConfig()
    _fill(config, settings, _BY_NAME)
    return config


def to_cluster_config(settings: ClusterSettings) -> api_pb2.ClusterConfig:
    """Raises TypeError for an unknown setting, InvalidRequestError for a wrong value."""
    known = {setting.name: setting for setting in CLUSTER_SETTINGS}
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise TypeError(f"unknown setting {unknown[0]!r}: there are {', '.join(sorted(known))}")
    config = api_pb2.ClusterConfig()
    _fill(config, settings, known)
    return config


def _fill(config: Any, settings: Mapping[str, Any], known: Mapping[str, Setting]) -> None:
    given: Any
    for name, given in settings.items():
        if given is None:
            continue
        field, value = name, given
        if setting := known.get(name):
            field = setting.field
            if setting.kind is Kind.CHOICE:
                value = _number_of(setting, given)
            elif setting.kind is Kind.DURATION:
                value = to_us(name, given)
        try:
            setattr(config, field, value)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"invalid {name} {given!r}: {error}") from error


def _in_programs(setting: Setting, value: Any) -> Any:
    """A setting as `Stream` has it. The number of a choice from a newer server stays a number."""
    if setting.kind is Kind.CHOICE:
        return _CHOICES[setting.field].get(value) or str(value)
    return value / 1_000_000 if setting.kind is Kind.DURATION else value


def _stream_fields(stream: api_pb2.Stream) -> dict[str, Any]:
    config = stream.config
    return {
        "id": stream.id,
        "name": stream.name,
        "subject": stream.subject,
        "group": config.group,
        "partition": config.partition if config.partitions else None,
        "partitions": config.partitions,
        "replication_factor": config.replicas,
        **{each.name: _in_programs(each, getattr(config, each.field)) for each in _SHOWN},
        "replicas": tuple(stream.replicas),
        "leader": stream.leader,
        "leader_epoch": stream.leader_epoch,
        "stream_epoch": stream.stream_epoch,
        "isr": tuple(stream.isr),
        "elr": tuple(stream.elr),
        "created_at": to_datetime(stream.created_at_us),
        "lossy_elections": stream.lossy_elections,
        "readonly": stream.readonly,
        "paused": stream.paused,
        "target_replicas": tuple(stream.target_replicas),
        "observers": tuple(stream.observers),
    }


def stream_of(stream: api_pb2.Stream) -> Stream:
    return Stream(**_stream_fields(stream))


def _compaction_of(compaction: api_pb2.Compaction) -> CompactionInfo:
    total = compaction.dirty_bytes + compaction.clean_bytes
    return CompactionInfo(
        cleaned_to=compaction.cleaned_to,
        dirty_ratio=compaction.dirty_bytes / total if total else 0.0,
        ended_at=to_datetime(compaction.ended_at_us) if compaction.ended_at_us else None,
        duration=compaction.duration_us / 1_000_000,
        bytes_before=compaction.bytes_before,
        bytes_after=compaction.bytes_after,
        records_removed=compaction.records_removed,
        tombstones=compaction.tombstones,
    )


def undescribed(stream: api_pb2.Stream, state: str) -> StreamDescription:
    """A stream whose leader has not answered."""
    return StreamDescription(**_stream_fields(stream), state=state)


def state_without_answer(stream: api_pb2.Stream) -> str:
    """The state of a stream whose leader, if it has one, has not answered."""
    if stream.leader >= 0:
        return "unknown: its leader does not answer"
    if stream.elr:
        return f"offline: waits for {' or '.join(f'node {node}' for node in stream.elr)}"
    return "offline: no replica may lead it now"


def description_of(description: api_pb2.StreamDescription) -> StreamDescription:
    if description.stream.leader < 0:
        return undescribed(description.stream, description.state)
    return StreamDescription(
        **_stream_fields(description.stream),
        log_start_offset=description.log_start_offset,
        high_watermark=None if description.end_unknown else description.high_watermark,
        log_end_offset=description.log_end_offset,
        flushed_offset=description.flushed_offset,
        size_bytes=description.size_bytes,
        segments=description.segments,
        state=description.state,
        records_appended=description.records_appended,
        acks_sent=description.acks_sent,
        nacks_sent=description.nacks_sent,
        acks_suppressed=description.acks_suppressed,
        suspected_gaps=description.suspected_gaps,
        hand_overs=description.hand_overs,
        hand_over_gap=description.hand_over_gap_us / 1e6,
        progress=tuple(
            ReplicaProgress(
                node=follower.node_id,
                offset=follower.offset,
                lag=None
                if follower.offset < 0
                else max(0, description.log_end_offset - follower.offset),
            )
            for follower in description.progress
        ),
        compaction=(
            _compaction_of(description.compaction) if description.HasField("compaction") else None
        ),
        damaged=tuple(
            DamagedRange(each.node_id, each.start_offset, each.end_offset)
            for each in description.damaged
        ),
        last_append=(
            to_datetime(description.last_append_us)
            if description.HasField("last_append_us")
            else None
        ),
        key_id=description.key_id,
    )


def election_of(answer: api_pb2.ElectLeaderResponse) -> UncleanElection:
    return UncleanElection(
        stream_of(answer.stream),
        tuple(map(_replica_of, answer.replicas)),
        answer.records_lost_max,
        tuple(answer.unheard),
    )


def _replica_of(state: api_pb2.ReplicaState) -> ReplicaState:
    def told(field: str) -> int | None:
        return int(getattr(state, field)) if state.HasField(field) else None

    return ReplicaState(
        node=state.node_id,
        alive=state.alive,
        standing=state.standing,
        log_start_offset=told("log_start_offset"),
        log_end_offset=told("log_end_offset"),
        last_epoch=told("last_epoch"),
        high_watermark=told("high_watermark"),
        problem=state.problem,
    )


def voters_of(answer: api_pb2.ListVotersResponse) -> Voters:
    return Voters(
        voters=tuple(Voter(voter.node_id, voter.address) for voter in answer.voters),
        leader=next((voter.node_id for voter in answer.voters if voter.is_leader), -1),
        linked=tuple(voter.node_id for voter in answer.voters if voter.is_linked),
        is_committed=answer.is_committed,
        answering_node=answer.answering_node,
    )


def cluster_of(answer: api_pb2.DescribeClusterResponse) -> ClusterInfo:
    nodes = tuple(
        Node(
            id=node.address.node_id,
            grpc=node.address.grpc,
            data=node.address.data,
            http=node.address.http,
            rack=node.rack,
            incarnation=node.incarnation,
            fenced=node.fenced,
            draining=node.draining,
            not_ready=tuple(node.not_ready),
            voter=node.voter if node.HasField("voter") else None,
        )
        for node in answer.nodes
    )
    return ClusterInfo(
        cluster_id=answer.cluster_id,
        controller=answer.controller,
        nodes=nodes,
        nats=tuple(answer.nats),
        server_version=answer.server_version,
        answering_node=answer.answering_node,
        **{
            setting.name: _in_programs(setting, getattr(answer.config, setting.field))
            for setting in CLUSTER_SETTINGS
        },
    )
