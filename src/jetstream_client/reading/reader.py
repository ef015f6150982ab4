"""Reading: positions to offsets, offsets to `Messages`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from jetstream_client.reading.backwards import (
    FIRST_OFFSETS,
    ReadWindow,
    Windows,
    last_of,
    newest_first,
)
from jetstream_client.reading.batches import FetchedBatches, check_batches
from jetstream_client.reading.byte_budget import ByteBudget
from jetstream_client.reading.consumer import FETCH_BYTES, AsyncConsumer
from jetstream_client.reading.cursor import ConsumerCursor
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.messages import LogView, Message, MessageCollector, Messages
from jetstream_client.transport import wire
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.transport.follow import Following
from jetstream_client.transport.retries import next_step
from jetstream_client.transport.routes import check_read_from
from jetstream_client.transport.streams import Streams
from jetstream_client.values.checks import check_number, check_text, to_int
from jetstream_client.values.positions import (
    At,
    Position,
    Simple,
    check_offset,
    needed,
    offset_of,
)
from jetstream_client.values.records import to_bytes
from jetstream_client.values.type_variables import K, V
from jetstream_client.values.types import OffsetAt, Payload, ReadFrom, Stream, StreamLike
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
    QuotaExceededError,
    RecordsDamagedError,
    StreamNotFoundError,
    UnavailableError,
    from_proto,
)
from jetstream_protocol.generated import api_pb2, common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.record_filter import RecordFilter

_ANSWER_BYTES = 1024 * 1024
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_ANSWER_SECONDS = 0.25
"""An answer is as large as can arrive in that time, at the rate of the last one: on a slow link a
large answer would take longer than a request may."""
REFUSALS_MAX = 3
"""How often bytes that fail their checks are requested again. The server inspects its file
meanwhile, and then serves other bytes, or says that its disk has lost them."""
_FEW_BYTES = 64 * 1024
_FEW_MESSAGES = 100  # A caller that wants so few records should not be sent a megabyte.
_GRACE_SHARE = 0.1
"""Share of a consumer's patience by which an answer without records may be late."""
_LOOKUPS = 3
"""How often a record is looked up that is replaced, and compacted away, before it is read."""
_INDEX_SECONDS = 1.0
"""So long the last record of a subject is asked for by an index that the leader is making: then the
log is searched, as where there is none."""
_LEADER_SHARE = 4
"""If another replica can serve, the leader is looked for no longer than that."""
# Longest wait of one request; a longer wait sends another one, and so notices a dead server.
_WAIT_SECONDS_MAX = 30.0
_BYTES_MAX = 2**31 - 1
"""That can be asked for. Servers send less."""
_AS_STORED: Deserializers[Any, Any] = Deserializers()


class FetchSizer:
    """How many bytes to ask for next, for a collector that wants `max_bytes` at most."""

    def __init__(self, collector: MessageCollector, max_bytes: int, answer_bytes: int) -> None:
        """answer_bytes: what a first answer may be."""
        self._collector = collector
        self._max_bytes = max_bytes
        self._answer_bytes = self._first_bytes = answer_bytes
        self._start = collector.next_offset
        self._came_bytes = 0

    def came(self, count: int, seconds: float) -> None:
        """An answer of `count` bytes came after `seconds`."""
        self._came_bytes += count
        in_time = int(count / max(seconds, 1e-6) * _ANSWER_SECONDS)
        self._answer_bytes = min(max(in_time, self._first_bytes), _ANSWER_BYTES_MAX)

    def next_bytes(self) -> int:
        """At least 1. The server knows neither where the collector ends nor how large the bytes are
        when unpacked. From the second answer on, both are estimated from the answers so far."""
        collector = self._collector
        wanted = self._max_bytes - collector.length_bytes
        if self._came_bytes:
            wanted = wanted * self._came_bytes // max(collector.length_bytes, self._came_bytes)
            offsets = collector.next_offset - self._start
            if collector.end is not None and offsets > 0:
                missing = (collector.end - collector.next_offset) * self._came_bytes // offsets
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
        wanted: RecordFilter | None = None,
        reverse: bool = False,
    ) -> Messages:
        """See AsyncClient.fetch."""
        if reverse:
            if max_wait or last_epoch >= 0:
                raise InvalidRequestError("reverse=True takes neither max_wait nor last_epoch")
            return await self._fetch_reversed(
                stream, position, stop, max_messages, max_bytes, read_from, wanted
            )
        check_read_from(read_from)
        check_number("last_epoch", last_epoch, -1)
        _check_bounds(max_messages, max_bytes, max_wait)
        name = await self._streams.name_of(stream)
        ref = wire.to_ref(stream)
        offset, end = await self.resolve(stream, position, stop, read_from, ref=ref)
        collector = MessageCollector(
            name, offset, last_epoch=last_epoch, end=end, count_max=max_messages, wanted=wanted
        )
        few = max_messages is not None and max_messages <= _FEW_MESSAGES
        answer_bytes = _FEW_BYTES if few else _ANSWER_BYTES
        may_be_later = not isinstance(position, int) and last_epoch < 0
        while True:
            try:
                await self._fill(
                    collector, ref, max_wait, max_bytes, answer_bytes, read_from=read_from
                )
                break
            except OffsetOutOfRangeError as error:
                if not may_be_later or error.log_start_offset <= collector.next_offset:
                    raise
                # Retention was quicker than this fetch, and may be once more: the first record is
                # a later one now.
                collector.next_offset = error.log_start_offset
        return collector.messages()

    async def _fill(
        self,
        collector: MessageCollector,
        ref: common_pb2.StreamRef,
        max_wait: float,
        max_bytes: int,
        answer_bytes: int = _ANSWER_BYTES,
        *,
        read_from: ReadFrom,
        within: float | None = None,
        following: Following | None = None,
    ) -> None:
        """Fetch until the collector has what it wants, or the end of what is committed is reached.

        within: seconds in which each question has to be answered; None: the wait and the timeout.
        following: of a reader that goes on from there.
        """
        deadline = asyncio.get_running_loop().time() + max_wait
        sizer = FetchSizer(collector, max_bytes, answer_bytes)
        # With a filter a server waits for what is wanted. So it is asked first how far nothing is:
        # that may be the end already.
        looks = collector.wanted is not None
        while not collector.full and collector.length_bytes < max_bytes:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            wait = 0.0 if looks or collector.length_bytes else left
            asked_at, before = asyncio.get_running_loop().time(), collector.next_offset
            had = collector.record_count
            try:
                count = await self._fetch_once(
                    ref, collector, sizer.next_bytes(), wait, read_from, within, following
                )
            except (CorruptBatchError, OffsetOutOfRangeError, RecordsDamagedError):
                if not collector.length_bytes:
                    raise
                break  # The records before are good; the next read raises.
            sizer.came(count, asyncio.get_running_loop().time() - asked_at)
            progress = collector.next_offset > before
            if looks and not progress and left > 0 and not collector.length_bytes:
                looks = False
                continue
            looks = collector.wanted is not None
            if not progress and wait <= _WAIT_SECONDS_MAX:
                break
            if collector.next_offset >= collector.high_watermark and collector.length_bytes:
                break
            if collector.wanted is not None and 0 < had == collector.record_count:
                break  # Wanted records are rare: return those found so far.

    async def _fetch_once(
        self,
        ref: common_pb2.StreamRef,
        collector: MessageCollector,
        bytes_max: int,
        wait: float,
        read_from: ReadFrom,
        within: float | None,
        following: Following | None,
    ) -> int:
        """One question and its answer, of so many bytes. Pins `ref` to the stream's id."""
        request = pb.DataFetchRequest(
            stream=ref,
            offset=collector.next_offset,
            bytes_max=bytes_max,
            wait_ms_max=int(min(wait, _WAIT_SECONDS_MAX) * 1000),
        )
        if collector.last_epoch >= 0:
            request.last_epoch = collector.last_epoch
        if collector.wanted is not None:
            request.filter_subject = collector.wanted.subject
            if collector.wanted.key is not None:
                request.filter_key = collector.wanted.key
        timeout = self._timeout if within is None else min(self._timeout, within - wait)
        fetch = self._data.fetch
        if following is not None:
            fetch = partial(fetch, following=following)
        for attempt in range(REFUSALS_MAX):
            fetched = await fetch(request, read_from, timeout)
            _pin(ref, fetched.head.stream_id)
            collector.log_start_offset = fetched.head.log_start_offset
            collector.high_watermark = fetched.head.high_watermark
            collector.compacted_below = max(collector.compacted_below, fetched.head.compacted_below)
            collector.saw(LogView(fetched.head.leader_epoch, fetched.head.tombstones_gone_below))
            try:
                collector.add(fetched.batches)
                if fetched.head.HasField("next_offset"):
                    collector.skip_to(fetched.head.next_offset, fetched.head.last_epoch)
                break
            except CorruptBatchError as error:
                if collector.next_offset > request.offset:
                    break  # The records before are good; the next request returns the rest.
                if attempt == REFUSALS_MAX - 1:
                    raise _corrupt_error(collector, fetched.address, error) from error
                request.refused = True
        return len(fetched.batches)

    async def fetch_batches(
        self,
        stream: StreamLike,
        offset: int,
        *,
        max_bytes: int,
        last_epoch: int,
        encrypted: bool,
    ) -> FetchedBatches:
        """See AsyncClient.fetch_batches."""
        check_number("last_epoch", last_epoch, -1)
        request = pb.DataFetchRequest(
            stream=wire.to_ref(stream),
            offset=check_offset(offset),
            bytes_max=min(max(1, max_bytes), _BYTES_MAX),
            as_stored=encrypted,
        )
        if last_epoch >= 0:
            request.last_epoch = last_epoch
        for attempt in range(REFUSALS_MAX):
            fetched = await self._data.fetch(request)
            try:
                return check_batches(bytes(fetched.batches), offset, last_epoch, fetched.head)
            except CorruptBatchError:
                if attempt == REFUSALS_MAX - 1:
                    raise
                request.refused = True
        raise AssertionError("the last attempt raises")

    async def last(self, stream: StreamLike, wanted: RecordFilter | None) -> Message | None:
        """See AsyncClient.get_last."""
        ref = wire.to_ref(stream)
        read = self._read_window(await self._streams.name_of(stream), ref, wanted)
        if wanted is not None and wanted.is_one_subject:
            for _ in range(_LOOKUPS):
                offset = await self._offset_of_last(stream, wanted.subject, ref)
                if offset is None:
                    break
                if offset < 0:
                    return None
                found = await last_of(Windows(offset, offset + 1), read)
                if found is not None:
                    return found
                # Replaced, and compacted away meanwhile.
        start, stop = await self.resolve(stream, "earliest", "latest", ref=ref)
        assert stop is not None
        return await last_of(Windows(start, stop), read)

    async def _offset_of_last(
        self, stream: StreamLike, subject: str, ref: common_pb2.StreamRef
    ) -> int | None:
        """By the stream's index of subjects: -1 if there is no record; None: it has none yet."""
        patience = min(self._timeout, _INDEX_SECONDS)
        try:
            (found,) = await self._ask([(stream, wire.LastOf(subject))], patience)
        except (PreconditionFailedError, InvalidRequestError, QuotaExceededError):
            return None  # The last two: an older server, and more subjects than an index holds.
        except JetstreamError as error:
            if not error.retriable:
                raise
            return None
        _pin(ref, found.stream_id)
        return int(found.offset)

    def _read_window(
        self,
        name: str,
        ref: common_pb2.StreamRef,
        wanted: RecordFilter | None,
        read_from: ReadFrom = "leader",
        *,
        pinned: bool = False,
    ) -> ReadWindow:
        """pinned: raise OffsetOutOfRangeError for records that retention has removed; otherwise
        skip them."""

        async def read(start: int, stop: int) -> Messages | None:
            collector = MessageCollector(name, start, end=stop, wanted=wanted)
            while not collector.full and collector.length_bytes < FETCH_BYTES:
                before = collector.next_offset
                try:
                    await self._fill(
                        collector, ref, self._timeout, FETCH_BYTES, read_from=read_from
                    )
                except OffsetOutOfRangeError as error:
                    if pinned or error.log_start_offset <= collector.next_offset:
                        raise
                    collector.next_offset = min(error.log_start_offset, stop)
                if collector.next_offset == before:
                    raise UnavailableError(
                        f"record {before} of stream {name!r} was committed, and did not come for "
                        f"{self._timeout:.0f} s; try again"
                    )
            return collector.messages() if collector.full or stop - start == 1 else None

        return read

    async def _fetch_reversed(
        self,
        stream: StreamLike,
        position: Position,
        stop: Position | None,
        max_messages: int | None,
        max_bytes: int,
        read_from: ReadFrom,
        wanted: RecordFilter | None,
    ) -> Messages:
        check_read_from(read_from)
        _check_bounds(max_messages, max_bytes)
        name = await self._streams.name_of(stream)
        ref = wire.to_ref(stream)
        start, end = await self._committed_range(stream, position, stop, read_from, ref=ref)
        size = FIRST_OFFSETS
        if max_messages is not None and wanted is None:
            size = min(max_messages, size)
        pinned = isinstance(position, int)
        read = self._read_window(name, ref, wanted, read_from, pinned=pinned)

        async def newest(windows: Windows) -> Messages:
            return await newest_first(
                name, windows, read, count_max=max_messages, bytes_max=FETCH_BYTES,
                bytes_min=max_bytes,
            )  # fmt: skip

        is_last = max_messages == 1 and stop is None and wanted is not None
        if is_last and wanted is not None and wanted.is_one_subject:
            last = await self._offset_of_last(stream, wanted.subject, ref)
            if last is not None and start <= last < end:
                found = await newest(Windows(last, last + 1, 1))
                if len(found):
                    return found
        return await newest(Windows(start, end, size))

    async def _committed_range(
        self,
        stream: StreamLike,
        start: Position,
        stop: Position | None,
        read_from: ReadFrom,
        timeout: float | None = None,
        *,
        ref: common_pb2.StreamRef,
    ) -> tuple[int, int]:
        """Like `resolve`, but a missing stop, or one beyond the high watermark, becomes the high
        watermark."""
        first, end = await self.resolve(stream, start, "latest", read_from, timeout, ref=ref)
        assert end is not None
        if stop is not None and stop != "latest":
            found, _ = await self.resolve(stream, stop, None, read_from, timeout, ref=ref)
            end = min(end, found)
        return first, end

    async def resolve(
        self,
        stream: StreamLike,
        start: Position,
        stop: Position | None,
        read_from: ReadFrom = "leader",
        timeout: float | None = None,
        *,
        ref: common_pb2.StreamRef | None = None,
    ) -> tuple[int, int | None]:
        """Both offsets, as of one moment; a stop of None stays None. timeout: a shorter one. The
        leader resolves them. If it cannot be reached, and the reader may use any replica, the
        bounds are those of the replica that serves it.

        ref: names the stream, and is pinned to its id: an offset says nothing in another stream of
        the name.
        """
        positions = [start] if stop is None else [start, stop]
        asked = [each for position in positions for each in needed(position)]
        may_stand_in = read_from != "leader" and set(asked) <= {"earliest", "latest"}
        patience = self._timeout if timeout is None else min(timeout, self._timeout)
        if may_stand_in:
            patience /= _LEADER_SHARE
        try:
            named = stream if ref is None else ref.id or stream
            found = await self._ask([(named, each) for each in asked], patience)
            if ref is not None:
                for each in found:
                    _pin(ref, each.stream_id)
            answers = iter([int(each.offset) for each in found])
        except JetstreamError as error:
            if not (may_stand_in and error.retriable):
                raise
            if ref is not None and not ref.id:
                _pin(ref, (await self._streams.registered(ref, self._timeout)).id)
            bounds = await self._bounds(ref or wire.to_ref(stream), read_from)
            answers = iter([bounds[str(each)] for each in asked])
        offsets = [offset_of(each, [next(answers) for _ in needed(each)]) for each in positions]
        return offsets[0], None if stop is None else offsets[1]

    async def _bounds(self, ref: common_pb2.StreamRef, read_from: ReadFrom) -> dict[str, int]:
        """The range of the replica that serves; every answer has its begin and end."""
        request = pb.DataFetchRequest(stream=ref, offset=0, bytes_max=1)
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

    async def appended_us(self, stream: StreamLike, offset: int) -> int | None:
        """When the record at the offset, or the first one after it, was appended, in µs since
        1970; None: there is none yet. Raises as list_offsets."""
        (found,) = await self._ask([(stream, offset)], self._timeout)
        return found.append_timestamp if found.HasField("append_timestamp") else None

    async def _ask(
        self, positions: Sequence[tuple[StreamLike, Simple | int | wire.LastOf]], timeout: float
    ) -> list[api_pb2.ListOffsetsResponse.Result]:
        """Raises the first error. Streams have different leaders: a node that does not lead a
        stream names its leader, and is asked for the rest.
        """
        queries = [wire.to_query(stream, position) for stream, position in positions]
        found: dict[int, api_pb2.ListOffsetsResponse.Result] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        address = None
        attempt = 0
        failure: JetstreamError | None = None
        while len(found) < len(queries):
            attempt += 1
            missing = [index for index in range(len(queries)) if index not in found]
            try:
                answer: api_pb2.ListOffsetsResponse = await self._control.call(
                    api_pb2.ListOffsetsRequest(queries=[queries[index] for index in missing]),
                    what="resolving positions",
                    address=address,
                    timeout=deadline - loop.time(),
                )
            except UnavailableError as error:
                raise failure or error from error
            failure = None
            for index, result in zip(missing, answer.results, strict=True):
                if result.HasField("error"):
                    refused = _reader_error(*positions[index], from_proto(result.error))
                    failure = _graver_error(failure, refused)
                else:
                    found[index] = result
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
        deserializers: Deserializers[V, K] = _AS_STORED,
        wanted: RecordFilter | None = None,
        reverse: bool = False,
        cursor: ConsumerCursor | None = None,
        budget: ByteBudget | None = None,
    ) -> AsyncConsumer[V, K]:
        """pinned, cursor, budget: see AsyncConsumer. ref: names the stream; the first answer of any
        kind pins it to its id."""
        check_read_from(read_from)
        if patience is not None and patience <= 0:
            raise InvalidRequestError(f"patience must be positive, not {patience}")
        ref = wire.to_ref(stream) if ref is None else ref
        within = None if patience is None else patience * (1 + _GRACE_SHARE)
        following = Following()
        fill = partial(self._fill, read_from=read_from, within=within, following=following)

        async def fetch(
            offset: int, last_epoch: int, stop: int | None, max_wait: float
        ) -> Messages:
            name = await self._streams.name_of(stream)
            collector = MessageCollector(
                name, offset, last_epoch=last_epoch, end=stop, wanted=wanted
            )
            max_bytes = FETCH_BYTES if budget is None else budget.fetch_bytes(FETCH_BYTES)
            await fill(collector, ref, max_wait, max_bytes)
            return collector.messages()

        size = FIRST_OFFSETS

        async def fetch_backwards(
            offset: int, last_epoch: int, stop: int | None, max_wait: float
        ) -> Messages:
            nonlocal size
            assert stop is not None
            windows = Windows(stop, offset, size)
            name = await self._streams.name_of(stream)
            read = self._read_window(name, ref, wanted, read_from, pinned=isinstance(start, int))
            messages = await newest_first(name, windows, read, bytes_max=FETCH_BYTES)
            size = windows.size
            return messages

        async def resolve(start: Position, stop: Position | None) -> tuple[int, int | None]:
            if cursor is not None:
                _pin(ref, cursor.stream.id)
            resolved = self._committed_range if reverse else self.resolve
            return await resolved(stream, start, stop, read_from, patience, ref=ref)

        consumer = AsyncConsumer(
            fetch_backwards if reverse else fetch,
            resolve,
            start,
            stop,
            reverse=reverse,
            pinned=pinned,
            last_epoch=last_epoch,
            patience=patience,
            deserializers=deserializers,
            cursor=cursor,
            budget=budget,
            leave=following.leave,
        )
        # An idle one notices in twice the timeout that its server is frozen.
        consumer.wait_max = min(consumer.wait_max, self._timeout)
        return consumer

    async def close(self) -> None:
        await self._data.close()


def _pin(ref: common_pb2.StreamRef, stream_id: int) -> None:
    """From now on it names that stream by its id, so that no other stream of the name is read in
    its place. Raises StreamNotFoundError if it names another one already."""
    if not stream_id or ref.id == stream_id:
        return
    if ref.id:
        raise StreamNotFoundError(
            f"stream {ref.id} is no more: another one of its name, {stream_id}, was created"
        )
    ref.CopyFrom(common_pb2.StreamRef(id=stream_id))


def _check_bounds(max_messages: int | None, max_bytes: int, max_wait: float = 0.0) -> None:
    if max_messages is not None and to_int("max_messages", max_messages) < 1:
        raise InvalidRequestError(f"max_messages must be positive, not {max_messages}")
    if max_bytes < 1 or max_wait < 0:
        raise InvalidRequestError("max_bytes must be positive, max_wait not negative")


def filter_of(subject: str, key: Payload | None) -> RecordFilter | None:
    """None: all records are wanted. Raises InvalidRequestError, TypeError."""
    if not subject and key is None:
        return None
    check_text("the filter", subject)
    return RecordFilter(subject, to_bytes("a key", key))


def _corrupt_error(
    collector: MessageCollector, address: str, error: CorruptBatchError
) -> CorruptBatchError:
    """The server says that its file is sound, but what it sends is not."""
    return CorruptBatchError(
        f"what the node at {address} sends of stream {collector.stream!r} from offset "
        f"{collector.next_offset} on fails its checks ({error.reason}), although its file does "
        "not: suspect the network or that machine's memory, and read from another replica "
        "(read_from='any') or try again"
    )


def _reader_error(
    stream: StreamLike, position: Simple | int | wire.LastOf, error: JetstreamError
) -> JetstreamError:
    """The reader does not know which node does not lead, but may know what else to do."""
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


def _graver_error(first: JetstreamError | None, second: JetstreamError) -> JetstreamError:
    """The error that retries cannot help; of equal ones the earlier."""
    return second if first is None or (first.retriable and not second.retriable) else first
