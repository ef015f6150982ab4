"""Converts between the protobuf messages of proto/jetstream/v1 and the client's own values."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any, NamedTuple

from jetstream_client.values.checks import check_text
from jetstream_client.values.durations import to_us
from jetstream_client.values.positions import Simple
from jetstream_client.values.settings import AlterableSettings, ClusterSettings, StreamSettings
from jetstream_client.values.sizes import to_size
from jetstream_client.values.types import (
    ClusterInfo,
    CompactionInfo,
    DamagedRange,
    History,
    HistorySeries,
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
from jetstream_protocol.descriptions import (
    cluster_fields,
    description_fields,
    stream_fields,
    undescribed_fields,
)
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2, common_pb2
from jetstream_protocol.setting_messages import NUMBERS
from jetstream_protocol.settings import CLUSTER_SETTINGS, STREAM_SETTINGS, Kind, Setting
from jetstream_protocol.times import to_datetime

_BY_NAME = {setting.name: setting for setting in STREAM_SETTINGS}
_SETTINGS = frozenset(StreamSettings.__annotations__) | frozenset(AlterableSettings.__annotations__)


def to_ref(stream: StreamLike) -> common_pb2.StreamRef:
    """How the wire names `stream`. An id is exact; a bare name may be ambiguous."""
    if isinstance(stream, Stream):
        return common_pb2.StreamRef(id=stream.id)
    if isinstance(stream, int):
        if not 1 <= stream < 2**64:
            raise InvalidRequestError(f"stream ids are positive, {stream} is not one")
        return common_pb2.StreamRef(id=stream)
    check_text("the stream's name", stream)
    name, _, subject = stream.partition("@")
    if not name:
        raise InvalidRequestError("which stream? give its name, or name@subject")
    return common_pb2.StreamRef(name=name, subject=subject)


class LastOf(NamedTuple):
    """The position of the last record on a subject."""

    subject: str


def to_query(
    stream: StreamLike, position: Simple | int | LastOf
) -> api_pb2.ListOffsetsRequest.Query:
    query = api_pb2.ListOffsetsRequest.Query(stream=to_ref(stream))
    if position == "earliest":
        query.earliest = True
    elif position == "latest":
        query.latest = True
    elif isinstance(position, int):
        query.offset = position
    elif isinstance(position, LastOf):
        query.last_of_subject = position.subject
    else:
        query.timestamp_us = position.timestamp_us
    return query


def _number_of(setting: Setting, choice: str) -> int:
    """Raises InvalidRequestError."""
    numbers = NUMBERS[setting.field]
    if choice not in numbers:
        text = f"invalid {setting.name} {choice!r}: say one of {', '.join(numbers)}"
        raise InvalidRequestError(text)
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
            elif setting.kind is Kind.FLAG and isinstance(given, str):
                raise InvalidRequestError(f"invalid {name} {given!r}: say True or False")
            elif setting.kind is Kind.BYTES and isinstance(given, str):
                value = to_size(name, given)
        try:
            setattr(config, field, value)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"invalid {name} {given!r}: {error}") from None


def stream_of(stream: api_pb2.Stream) -> Stream:
    return Stream(**stream_fields(stream))


def undescribed(stream: api_pb2.Stream, state: str) -> StreamDescription:
    """A stream whose leader has not answered."""
    return StreamDescription(**undescribed_fields(stream, state))


def description_of(description: api_pb2.StreamDescription) -> StreamDescription:
    fields = description_fields(description)
    fields["progress"] = tuple(ReplicaProgress(**each) for each in fields["progress"])
    fields["damaged"] = tuple(DamagedRange(**each) for each in fields["damaged"])
    if fields["compaction"] is not None:
        fields["compaction"] = CompactionInfo(**fields["compaction"])
    return StreamDescription(**fields)


def election_of(answer: api_pb2.ElectLeaderResponse) -> UncleanElection:
    return UncleanElection(
        stream_of(answer.stream),
        tuple(map(_replica_of, answer.replicas)),
        answer.records_lost_max,
        tuple(answer.unheard),
    )


def _replica_of(state: api_pb2.ReplicaState) -> ReplicaState:
    def known(field: str) -> int | None:
        return int(getattr(state, field)) if state.HasField(field) else None

    return ReplicaState(
        node=state.node_id,
        alive=state.alive,
        standing=state.standing,
        log_start_offset=known("log_start_offset"),
        log_end_offset=known("log_end_offset"),
        last_epoch=known("last_epoch"),
        high_watermark=known("high_watermark"),
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


def history_of(answer: api_pb2.DescribeHistoryResponse) -> History:
    return History(
        answer.node_id,
        tuple(map(to_datetime, answer.times_us)),
        tuple(
            HistorySeries(
                each.name,
                each.stream_id or None,
                tuple(None if isnan(value) else value for value in each.values),
            )
            for each in answer.series
        ),
    )


def cluster_of(answer: api_pb2.DescribeClusterResponse) -> ClusterInfo:
    fields = cluster_fields(answer)
    fields["nodes"] = tuple(Node(**each) for each in fields["nodes"])
    return ClusterInfo(**fields)
