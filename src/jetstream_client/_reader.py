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
from jetstream_client._positions import At, Position, Simple, needed, offset_of
from jetstream_client._routes import check_read_from
from jetstream_client._streams import Streams
from jetstream_client._types import OffsetAt, ReadFrom, Stream, StreamLike
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RecordsDamagedError,
    UnavailableError,
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
REFUSALS_MAX = 3
"""Bytes that fail their checks are asked for again so often: a server that has been told of them
looks at its file, and then serves others, or says that its disk has lost them."""
_FEW_BYTES = 64 * 1024
_FEW_MESSAGES = 100  # Whoever wants so few should not be sent a megabyte.
_LEADER_SHARE = 4
"""A leader that another replica can stand in for is looked for no longer than that."""
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
        offset, end = await self.resolve(stream, position, stop, read_from)
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
            try:
                count = await self._fetch_once(ref, cutter, portions.next_bytes(), wait, read_from)
            except (CorruptBatchError, RecordsDamagedError):
                if not cutter.length_bytes:
                    raise
                break  # What came before is good; whoever reads on is told.
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
        for attempt in range(REFUSALS_MAX):
            fetched = await self._data.fetch(request, read_from)
            ref.CopyFrom(common_pb2.StreamRef(id=fetched.head.stream_id))
            cutter.log_start_offset = fetched.head.log_start_offset
            cutter.high_watermark = fetched.head.high_watermark
            try:
                cutter.add(fetched.batches)
                break
            except CorruptBatchError:
                if cutter.next_offset > request.offset:
                    break  # What came before is good; the next question tells of the rest.
                if attempt == REFUSALS_MAX - 1:
                    raise
                request.refused = True
        return len(fetched.batches)

    async def resolve(
        self,
        stream: StreamLike,
        start: Position,
        stop: Position | None,
        read_from: ReadFrom = "leader",
    ) -> tuple[int, int | None]:
        """Both offsets, as of one moment; a stop of None stays None.

        The leader says where they are. Where it is not reached, and the reader takes any replica,
        the bounds are those of the replica that serves it.
        """
        positions = [start] if stop is None else [start, stop]
        asked = {each for position in positions for each in needed(position)}
        may_stand_in = read_from != "leader" and asked <= {"earliest", "latest"}
        patience = self._timeout / _LEADER_SHARE if may_stand_in else self._timeout
        try:
            found = await self.list_offsets([(stream, each) for each in positions], patience)
            offsets = [each.offset for each in found]
        except JetstreamError as error:
            if not (may_stand_in and error.retriable):
                raise
            bounds = await self._bounds(stream, read_from)
            offsets = [offset_of(each, [bounds[end] for end in needed(each)]) for each in positions]
        return offsets[0], None if stop is None else offsets[1]

    async def _bounds(self, stream: StreamLike, read_from: ReadFrom) -> dict[Simple, int]:
        """What the replica that serves holds; where it begins and ends comes with any answer."""
        request = pb.DataFetchRequest(stream=_wire.to_ref(stream), offset=0, bytes_max=1)
        found: pb.DataFetchResponse | OffsetOutOfRangeError
        try:
            found = (await self._data.fetch(request, read_from)).head
        except OffsetOutOfRangeError as error:
            found = error
        return {"earliest": found.log_start_offset, "latest": found.high_watermark}

    async def list_offsets(
        self, positions: Sequence[tuple[StreamLike, Position]], timeout: float | None = None
    ) -> list[OffsetAt]:
        """See AsyncClient.list_offsets."""
        asked = [(stream, each) for stream, position in positions for each in needed(position)]
        answers = iter(await self._ask(asked, self._timeout if timeout is None else timeout))
        resolved = []
        for _, position in positions:
            found = [next(answers) for _ in needed(position)]
            offset = offset_of(position, [each.offset for each in found])
            resolved.append(OffsetAt(offset, found[0].leader_epoch if len(found) == 1 else -1))
        return resolved

    async def _ask(
        self, positions: Sequence[tuple[StreamLike, Simple]], timeout: float
    ) -> list[OffsetAt]:
        """Raises the first error there is.

        Streams have different leaders: who is not one says who is, and is asked for the rest.
        """
        queries = [_wire.to_query(stream, position) for stream, position in positions]
        found: dict[int, OffsetAt] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        address = None
        attempt = 0
        failure: JetstreamError | None = None
        while len(found) < len(queries):
            attempt += 1
            missing = [index for index in range(len(queries)) if index not in found]
            try:
                answer = await self._control.call(
                    lambda stubs: stubs.reads.ListOffsets,
                    api_pb2.ListOffsetsRequest(queries=[queries[index] for index in missing]),
                    api_pb2.ListOffsetsResponse,
                    what="resolving positions",
                    address=address,
                    timeout=deadline - loop.time(),
                )
            except UnavailableError as error:
                raise failure or error from error
            failure = None
            for index, result in zip(missing, answer.results, strict=True):
                if result.HasField("error"):
                    refused = _for_reader(*positions[index], from_proto(result.error))
                    failure = _graver(failure, refused)
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
            return await self.resolve(stream, start, stop, read_from)

        return AsyncConsumer(
            fetch,
            resolve,
            pinned=isinstance(start, int) if pinned is None else pinned,
            last_epoch=last_epoch,
            patience=patience,
        )

    async def close(self) -> None:
        await self._data.close()


def _for_reader(stream: StreamLike, position: Simple, error: JetstreamError) -> JetstreamError:
    """A reader does not know which node it is that does not lead, but may know what else to do."""
    if not isinstance(error, NotLeaderError):
        return error
    name = stream.name if isinstance(stream, Stream) else stream
    missing = f"stream {name!r} has no leader now"
    if error.redirect is not None:
        missing = f"node {error.redirect.node_id}, leader of stream {name!r}, cannot be reached"
    instead = "give an offset in place of the time"
    if not isinstance(position, At):
        instead = "read from any replica (--read-from any)"
    return NotLeaderError(f"{missing}: wait until a node leads it, or {instead}", error.redirect)


def _graver(first: JetstreamError | None, second: JetstreamError) -> JetstreamError:
    """The one that no repetition cures; the earlier of equals."""
    return second if first is None or (first.retriable and not second.retriable) else first
