"""The outcome of deciding one command, and what decisions about one stream share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnknownEpochError,
)
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state.changes import Change, LeaderReported, StreamChanged
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables


@dataclass(frozen=True, slots=True)
class Decision:
    """`result` goes to the proposer, and is kept; `changes` are committed, then shown to
    watchers."""

    result: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()


def stream_of(tables: Tables, stream_id: StreamId) -> StreamMetadata:
    stream = tables.streams.get(stream_id)
    if stream is None:
        raise StreamNotFoundError(f"there is no stream with id {stream_id}")
    return stream


def stream_at_epoch(
    tables: Tables, stream_id: StreamId, stream_epoch: int | None
) -> StreamMetadata:
    """The stream. stream_epoch: raise PreconditionFailedError unless it is still at that epoch."""
    stream = stream_of(tables, stream_id)
    if stream_epoch is not None:
        check_stream_epoch(stream, stream_epoch)
    return stream


def check_stream_epoch(stream: StreamMetadata, stream_epoch: int) -> None:
    if stream_epoch != stream.stream_epoch:
        raise PreconditionFailedError(
            f"{stream.full_name} changed: stream epoch {stream.stream_epoch}, not {stream_epoch}"
        )


def check_leader_epoch(stream: StreamMetadata, leader_epoch: int) -> None:
    """Raise FencedEpochError or UnknownEpochError unless that is the stream's leader epoch."""
    if leader_epoch < stream.leader_epoch:
        raise FencedEpochError(
            f"leader epoch {leader_epoch} of {stream.full_name} ended; it is {stream.leader_epoch}"
        )
    if leader_epoch > stream.leader_epoch:
        raise UnknownEpochError(
            f"{stream.full_name} is at leader epoch {stream.leader_epoch}, before {leader_epoch}"
        )


def decision_for(tables: Tables, before: StreamMetadata, after: StreamMetadata) -> Decision:
    if before is after:
        return Decision(epochs(before))
    void = reports_void(tables, before) if before.leader_epoch != after.leader_epoch else ()
    return Decision(epochs(after), (*void, StreamChanged(before, after)))


def check_known(tables: Tables, nodes: Iterable[NodeId]) -> None:
    """Raise InvalidRequestError unless all these nodes are part of the cluster."""
    unknown = [node_id for node_id in nodes if node_id not in tables.nodes]
    if unknown:
        raise InvalidRequestError(f"nodes {unknown} are not part of this cluster")


def check_observers(
    tables: Tables, replicas: Sequence[NodeId], observers: Sequence[NodeId]
) -> None:
    """Raise InvalidRequestError for observers that are unknown, or replicas too."""
    check_known(tables, observers)
    both = [node_id for node_id in observers if node_id in replicas]
    if both:
        raise InvalidRequestError(f"nodes {both} cannot be both replicas and observers")


def epochs(stream: StreamMetadata) -> dict[str, Any]:
    return {
        "stream_id": stream.id,
        "leader": stream.leader,
        "leader_epoch": stream.leader_epoch,
        "stream_epoch": stream.stream_epoch,
    }


def reports_void(tables: Tables, stream: StreamMetadata) -> tuple[Change, ...]:
    return (LeaderReported(stream.id, ()),) if stream.id in tables.reports else ()
