"""How far cursors are behind their streams: in records, and in seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from jetstream_client.transport.streams import Streams
from jetstream_client.values.types import Cursor, CursorDescription, StreamDescription
from jetstream_protocol.errors import JetstreamError, StreamNotFoundError

_AT_A_TIME = 16


class Lags:
    """Asks the leaders of the streams."""

    def __init__(
        self, streams: Streams, appended_us: Callable[[int, int], Awaitable[int | None]]
    ) -> None:
        """appended_us: when the record at an offset of a stream was appended."""
        self._streams = streams
        self._appended_us = appended_us

    async def describe(self, cursors: Sequence[Cursor]) -> list[CursorDescription]:
        """The descriptions, in the order of the cursors."""
        streams = await self._described({each.stream_id for each in cursors if each.is_current})
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def describe(cursor: Cursor) -> CursorDescription:
            async with turns:
                return await self._describe(cursor, streams.get(cursor.stream_id))

        return await asyncio.gather(*map(describe, cursors))

    async def _described(self, ids: set[int]) -> dict[int, StreamDescription]:
        if len(ids) != 1:
            found = await self._streams.describe_all("") if ids else []
            return {stream.id: stream for stream in found}
        try:
            (stream_id,) = ids
            return {stream_id: await self._streams.describe(stream_id)}
        except StreamNotFoundError:
            return {}

    async def _describe(
        self, cursor: Cursor, stream: StreamDescription | None
    ) -> CursorDescription:
        fields = asdict(cursor)
        if not cursor.is_current:
            state = "stream deleted" if cursor.stream_id_now is None else "stream re-created"
            return CursorDescription(**fields, state=state)
        if stream is None or stream.log_start_offset is None:
            return CursorDescription(**fields, state="current")
        start, end = stream.log_start_offset, stream.high_watermark
        # A new leader may not know yet that what it holds is committed, nor one whose log is lost.
        is_held = start <= cursor.offset
        is_held = is_held and (end is None or cursor.offset <= max(end, stream.log_end_offset or 0))
        fields |= {"state": "current" if is_held else "truncated", "log_start_offset": start}
        if end is None:
            return CursorDescription(**fields)
        lag = end - max(start, cursor.offset)
        return CursorDescription(
            **fields,
            high_watermark=end,
            lag=max(0, lag),
            lag_seconds=await self._age(cursor, max(start, cursor.offset)) if lag > 0 else 0.0,
        )

    async def _age(self, cursor: Cursor, offset: int) -> float | None:
        """Since the record there was appended, by this machine's clock; None: unknown."""
        try:
            appended_us = await self._appended_us(cursor.stream_id, offset)
        except JetstreamError:
            return None
        if appended_us is None:
            return 0.0  # Compaction has removed all that there was.
        return max(0.0, time.time() - appended_us / 1e6)
