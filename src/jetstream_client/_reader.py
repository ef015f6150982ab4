"""Reading: positions to offsets, offsets to `Messages`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from jetstream_client import _wire
from jetstream_client._consume import AsyncConsumer
from jetstream_client._control import ControlPlane, next_step
from jetstream_client._data_plane import DataPlane
from jetstream_client._messages import Cutter, Messages
from jetstream_client._positions import Position, Simple, needed, offset_of
from jetstream_client._routes import check_read_from
from jetstream_client._streams import Streams
from jetstream_client._types import OffsetAt, ReadFrom, StreamLike
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    OffsetOutOfRangeError,
    from_proto,
)
from jetstream_protocol.generated import api_pb2, common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

FETCH_BYTES = 8 * 1024 * 1024
"""What one fetch brings by default: large enough for a fast reader, small enough for memory."""

_ANSWER_BYTES = 1024 * 1024
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_ANSWER_SECONDS = 0.25
"""An answer is as large as comes in that time, at the rate of the last one: on a slow link a large
one would take longer than a request may."""
_FEW_BYTES = 64 * 1024
_FEW_MESSAGES = 100  # Whoever wants so few should not be sent a megabyte.
_WAIT_SECONDS_MAX = 30.0  # Of one request; a longer wait asks again, and so notices a dead server.


class Portions:
    """How many bytes to ask for next, for a cutter that wants `max_bytes` at most."""

    def __init__(self, cutter: Cutter, max_bytes: int, answer_bytes: int) -> None:
        """answer_bytes: what a first answer may be."""
        self._cutter = cutter
        self._max_bytes = max_bytes
        self._answer_bytes = self._first_bytes = answer_bytes
        self._start = cutter.next_offset
        self._came_bytes = 0

    def came(self, count: int, seconds: float) -> None:
        """An answer of `count` bytes came after `seconds`."""
        self._came_bytes += count
        in_time = int(count / max(seconds, 1e-6) * _ANSWER_SECONDS)
        self._answer_bytes = min(max(in_time, self._first_bytes), _ANSWER_BYTES_MAX)

    def next_bytes(self) -> int:
        """At least 1. The server knows neither where the cutter ends nor how much bytes unpack to:
        from the second answer on both are guessed from what has come."""
        cutter = self._cutter
        wanted = self._max_bytes - cutter.length_bytes
        if self._came_bytes:
            wanted = wanted * self._came_bytes // max(cutter.length_bytes, self._came_bytes)
            offsets = cutter.next_offset - self._start
            if cutter.end is not None and offsets > 0:
                missing = (cutter.end - cutter.next_offset) * self._came_bytes // offsets
                wanted = min(wanted, missing + missing // 4 + _FEW_BYTES)
        return max(1, min(wanted, self._answer_bytes))


class Reader:
    """Owns the data plane."""

    def __init__(
        self, streams: Streams, data: DataPlane, control: ControlPlane, timeout: float
    ) -> None:
        self._streams = streams
        self._data = data
        self._control = control
        self._timeout = timeout

    async def fetch(
        self,
        stream: StreamLike,
        position: Position,
        *,
        stop: Position | None = None,
        max_messages: int | None = None,
        max_wait: float = 0.0,
        max_bytes: int = FETCH_BYTES,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
    ) -> Messages:
        """See AsyncClient.fetch."""
        check_read_from(read_from)
        if max_messages is not None and max_messages < 1:
            raise InvalidRequestError(f"max_messages must be positive, not {max_messages}")
        if max_bytes < 1 or max_wait < 0:
            raise InvalidRequestError("max_bytes must be positive, max_wait not negative")
        name = await self._streams.name_of(stream)
        offset, end = await self.resolve(stream, position, stop)
        cutter = Cutter(name, offset, last_epoch=last_epoch, end=end, count_max=max_messages)
        few = max_messages is not None and max_messages <= _FEW_MESSAGES
        answer_bytes = _FEW_BYTES if few else _ANSWER_BYTES
        ref = _wire.to_ref(stream)
        try:
            await self._fill(cutter, ref, max_wait, max_bytes, answer_bytes, read_from=read_from)
        except OffsetOutOfRangeError as error:
            if isinstance(position, int) or last_epoch >= 0 or cutter.length_bytes:
                raise
            # Retention was quicker than this fetch: the first record is a later one now.
            cutter.next_offset = max(error.log_start_offset, offset)
            await self._fill(cutter, ref, max_wait, max_bytes, answer_bytes, read_from=read_from)
        return cutter.messages()

    async def _fill(
        self,
        cutter: Cutter,
        ref: common_pb2.StreamRef,
        max_wait: float,
        max_bytes: int,
        answer_bytes: int = _ANSWER_BYTES,
        *,
        read_from: ReadFrom,
    ) -> None:
        """Fetch until the cutter has what it wants, or the end of what is committed is reached."""
        deadline = asyncio.get_running_loop().time() + max_wait
        portions = Portions(cutter, max_bytes, answer_bytes)
        while not cutter.full and cutter.length_bytes < max_bytes:
            wait = 0.0
            if cutter.length_bytes == 0:
                wait = max(0.0, deadline - asyncio.get_running_loop().time())
            asked_at, before = asyncio.get_running_loop().time(), cutter.next_offset
            count = await self._fetch_once(ref, cutter, portions.next_bytes(), wait, read_from)
            portions.came(count, asyncio.get_running_loop().time() - asked_at)
            progress = cutter.next_offset > before
            if not progress and wait <= _WAIT_SECONDS_MAX:
                break
            if cutter.next_offset >= cutter.high_watermark and cutter.length_bytes:
                break

    async def _fetch_once(
        self,
        ref: common_pb2.StreamRef,
        cutter: Cutter,
        bytes_max: int,
        wait: float,
        read_from: ReadFrom,
    ) -> int:
        """One question and its answer, of so many bytes. Pins `ref` to the stream's id."""
        request = pb.DataFetchRequest(
            stream=ref,
            offset=cutter.next_offset,
            bytes_max=bytes_max,
            wait_ms_max=int(min(wait, _WAIT_SECONDS_MAX) * 1000),
        )
        if cutter.last_epoch >= 0:
            request.last_epoch = cutter.last_epoch
        fetched = await self._data.fetch(request, read_from)
        ref.CopyFrom(common_pb2.StreamRef(id=fetched.head.stream_id))
        cutter.log_start_offset = fetched.head.log_start_offset
        cutter.high_watermark = fetched.head.high_watermark
        cutter.add(fetched.batches)
        return len(fetched.batches)

    async def resolve(
        self, stream: StreamLike, start: Position, stop: Position | None
    ) -> tuple[int, int | None]:
        """Both offsets, as of one moment; a stop of None stays None."""
        positions = [start] if stop is None else [start, stop]
        found = await self.list_offsets([(stream, position) for position in positions])
        return found[0].offset, None if stop is None else found[1].offset

    async def list_offsets(
        self, positions: Sequence[tuple[StreamLike, Position]]
    ) -> list[OffsetAt]:
        """See AsyncClient.list_offsets."""
        asked = [(stream, each) for stream, position in positions for each in needed(position)]
        answers = iter(await self._ask(asked))
        resolved = []
        for _, position in positions:
            found = [next(answers) for _ in needed(position)]
            offset = offset_of(position, [each.offset for each in found])
            resolved.append(OffsetAt(offset, found[0].leader_epoch if len(found) == 1 else -1))
        return resolved

    async def _ask(self, positions: Sequence[tuple[StreamLike, Simple]]) -> list[OffsetAt]:
        """Raises the first error there is.

        Streams have different leaders: who is not one says who is, and is asked for the rest.
        """
        queries = [_wire.to_query(stream, position) for stream, position in positions]
        found: dict[int, OffsetAt] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        address = None
        attempt = 0
        while len(found) < len(queries):
            attempt += 1
            missing = [index for index in range(len(queries)) if index not in found]
            answer = await self._control.call(
                lambda stubs: stubs.reads.ListOffsets,
                api_pb2.ListOffsetsRequest(queries=[queries[index] for index in missing]),
                api_pb2.ListOffsetsResponse,
                what="resolving positions",
                address=address,
            )
            failure = None
            for index, result in zip(missing, answer.results, strict=True):
                if result.HasField("error"):
                    failure = _graver(failure, from_proto(result.error))
                else:
                    found[index] = OffsetAt(result.offset, result.leader_epoch)
            if failure is not None:
                step = next_step(failure, attempt, random.random())
                if step is None or loop.time() + step.wait >= deadline:
                    raise failure
                address = step.address
                await asyncio.sleep(step.wait)
        return [found[index] for index in range(len(queries))]

    def consume(
        self,
        stream: StreamLike,
        start: Position,
        stop: Position | None,
        *,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        patience: float | None = None,
        pinned: bool | None = None,
        ref: common_pb2.StreamRef | None = None,
    ) -> AsyncConsumer:
        """pinned: see AsyncConsumer. ref: names the stream; the first answer pins it to its id."""
        check_read_from(read_from)
        if patience is not None and patience <= 0:
            raise InvalidRequestError(f"patience must be positive, not {patience}")
        ref = _wire.to_ref(stream) if ref is None else ref

        async def fetch(
            offset: int, last_epoch: int, stop: int | None, max_wait: float
        ) -> Messages:
            name = await self._streams.name_of(stream)
            cutter = Cutter(name, offset, last_epoch=last_epoch, end=stop)
            await self._fill(cutter, ref, max_wait, FETCH_BYTES, read_from=read_from)
            return cutter.messages()

        async def resolve() -> tuple[int, int | None]:
            return await self.resolve(stream, start, stop)

        return AsyncConsumer(
            fetch,
            resolve,
            pinned=isinstance(start, int) if pinned is None else pinned,
            last_epoch=last_epoch,
            patience=patience,
        )

    async def close(self) -> None:
        await self._data.close()


def _graver(first: JetstreamError | None, second: JetstreamError) -> JetstreamError:
    """The one that no repetition cures; the earlier of equals."""
    return second if first is None or (first.retriable and not second.retriable) else first
