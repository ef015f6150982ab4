"""Altering a stream's settings: a compare-and-set, repeated while only other things changed."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.metadata.streams import StreamMetadata

ATTEMPTS_MAX = 20
"""Each failed one means that the stream changed in between: its ISR or its leader, most likely.
More than a few in a row mean a cluster in trouble, and the caller is to hear of it."""


class StreamAlteration:
    """`await alter(…)`, as often and as concurrently as one likes."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata

    async def alter(
        self, stream: StreamMetadata, config: dict[str, Any], stream_epoch: int | None
    ) -> StreamMetadata:
        """The stream with the settings that are not None in `config` changed.

        stream_epoch: only if the stream is still at that epoch; None: whatever else changed
        meanwhile. Idempotent. Raises InvalidRequestError,
        PreconditionFailedError, StreamNotFoundError, UnavailableError, UnknownOutcomeError.
        """
        settings = {key: value for key, value in config.items() if value is not None}
        if settings.pop("group"):
            raise InvalidRequestError("the group of a stream cannot be altered")
        if not settings:
            raise InvalidRequestError("say which settings to alter")
        before = stream
        for attempt in range(1, ATTEMPTS_MAX + 1):
            epoch = before.stream_epoch if stream_epoch is None else stream_epoch
            try:
                await self._propose(before, settings, epoch)
            except PreconditionFailedError:
                if stream_epoch is not None or attempt == ATTEMPTS_MAX:
                    raise
                before = self._current(stream)
            else:
                return self._current(stream)
        raise AssertionError("the last attempt raises")

    async def _propose(self, stream: StreamMetadata, settings: dict[str, Any], epoch: int) -> None:
        await self._metadata.propose(
            {
                "op": "alter_stream",
                "stream_id": stream.id,
                "stream_epoch": epoch,
                "config": settings,
            }
        )

    def _current(self, stream: StreamMetadata) -> StreamMetadata:
        current = self._metadata.registry.streams.get(stream.id)
        if current is None:
            raise StreamNotFoundError(f"stream {stream.full_name} was deleted")
        return current
