"""The outcome of deciding one command, and what decisions about one stream share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jetstream_protocol.errors import PreconditionFailedError, StreamNotFoundError
from jetstream_protocol.types import StreamId
from jetstream_server.metadata.state.changes import Change, LeaderReported, StreamChanged
from jetstream_server.metadata.state.model import StreamMetadata
from jetstream_server.metadata.state.tables import Tables


@dataclass(frozen=True, slots=True)
class Decision:
    """`result` goes to the proposer, as JSON; `changes` are committed, then shown to watchers."""

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


def changed(tables: Tables, before: StreamMetadata, after: StreamMetadata) -> Decision:
    if before is after:
        return Decision(epochs(before))
    void = reports_void(tables, before) if before.leader_epoch != after.leader_epoch else ()
    return Decision(epochs(after), (*void, StreamChanged(before, after)))


def epochs(stream: StreamMetadata) -> dict[str, Any]:
    return {
        "stream_id": stream.id,
        "leader": stream.leader,
        "leader_epoch": stream.leader_epoch,
        "stream_epoch": stream.stream_epoch,
    }


def reports_void(tables: Tables, stream: StreamMetadata) -> tuple[Change, ...]:
    return (LeaderReported(stream.id, ()),) if stream.id in tables.reports else ()
