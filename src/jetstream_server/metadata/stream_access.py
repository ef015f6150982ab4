"""What decisions about one stream share: finding it at the epoch meant, and changing it."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import (
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_server.metadata.changes import (
    Change,
    LeaderReported,
    StreamChanged,
)
from jetstream_server.metadata.decision import Decision
from jetstream_server.metadata.fields import Fields
from jetstream_server.metadata.streams import (
    StreamMetadata,
)
from jetstream_server.metadata.tables import Tables


def stream_of(tables: Tables, fields: Fields) -> StreamMetadata:
    stream_id = fields.stream_id()
    stream = tables.streams.get(stream_id)
    if stream is None:
        raise StreamNotFoundError(f"there is no stream with id {stream_id}")
    return stream


def stream_at_epoch(tables: Tables, fields: Fields, *, required: bool = True) -> StreamMetadata:
    stream = stream_of(tables, fields)
    if required or fields.has("stream_epoch"):
        check_stream_epoch(stream, fields.integer("stream_epoch"))
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
