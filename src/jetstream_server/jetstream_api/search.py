"""Finds records by sequence, subject and time.

A stream with `key: subject` has an index of its subjects. Other streams are searched, and a search
is bounded: one request looks at LOOKED_AT_BYTES_MAX, and is refused where that is not
enough (`not_searched_error`). One search runs at a time, in a worker thread, so that clients who
search slow down neither ingest nor readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from jetstream_protocol.errors import OffsetOutOfRangeError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.subjects import covers, is_pattern
from jetstream_protocol.types import WallUs
from jetstream_server.consumers.records import (
    LOOKED_AT_BYTES_MAX,
    STEP_BYTES,
    Piece,
    Record,
    Wanted,
    look_through,
)
from jetstream_server.jetstream_api.errors import (
    ApiError,
    no_message_error,
    not_searched_error,
    too_many_subjects_error,
)
from jetstream_server.jetstream_api.requests import SUBJECTS_MAX, GetRequest
from jetstream_server.jetstream_api.stream_reads import StreamReads
from jetstream_server.metadata.state.streams import StreamMetadata

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the records of one batch, which are in memory until they are sent. It is cut after them."""
_PAUSE_SECONDS: Final = 0.002
"""Between two steps of a search: clients that search all the time leave the processor to others."""
LAST_OFFSETS_MAX: Final = 250_000
"""Of one consumer that begins with the last record of each subject: 10 MB until they are sent."""
_LOOKUPS: Final = 3
_WINDOW_GROWTH: Final = 8
"""A search from the end on looks at the last record, then at the 8 before it, and so on."""

Pace = Callable[[StreamMetadata, int], Awaitable[None]]
"""(stream, bytes): waits until the caller may read that much more."""


@dataclass(frozen=True, slots=True)
class Results:
    """pending: how many wanted records follow the last one, exact where the search came to the
    end, else at most so many. up_to: the sequence up to which was searched."""

    records: list[Record]
    pending: int
    up_to: int


@dataclass(slots=True)
class _Budget:
    left: int = LOOKED_AT_BYTES_MAX


@dataclass(slots=True)
class _Last:
    """The last records of each subject, found from the end on."""

    by_subject: dict[bytes, Record] = field(default_factory=dict)

    def take(self, piece: list[Record]) -> None:
        """piece: records of a window, ascending, all before those taken so far."""
        for record in reversed(piece):
            self.by_subject.setdefault(record.subject, record)


class Search:
    def __init__(self, reads: StreamReads, pace: Pace) -> None:
        self._reads = reads
        self._pace = pace
        self._searching = asyncio.Lock()

    async def one(self, stream: StreamMetadata, get: GetRequest) -> Record:
        """The record that a request for a single one means. Raises ApiError, JetstreamError."""
        if get.last_subject:
            if stream.config.is_keyed_by_subject and not is_pattern(get.last_subject):
                return await self._indexed(stream, get.last_subject)
            return await self._last(stream, get.last_subject)
        if get.next_subject or get.start_time is not None:
            found = await self._from(stream, get, 1)
            if not found.records:
                raise no_message_error()
            return found.records[0]
        return await self._at(stream, get.sequence - 1)

    async def batch(self, stream: StreamMetadata, get: GetRequest) -> Results:
        """The records that a request for a batch means, with at least one. Raises ApiError,
        JetstreamError."""
        if get.subjects:
            found = await self._last_of_each(stream, get)
            if not found.records:
                raise ApiError(404, 10037, "no message found", "404 No Results")
        else:
            found = await self._from(stream, get, get.batch)
            if not found.records:
                raise no_message_error()
        return found

    async def last_offsets(
        self, stream: StreamMetadata, patterns: Sequence[str]
    ) -> tuple[list[int], int]:
        """The offsets of the last records of each subject of these patterns, ascending; and the
        end of what was looked at. For the node that leads. Raises ApiError, JetstreamError."""
        if stream.config.is_keyed_by_subject:
            offsets, end = await self._reads.last_offsets_here(stream, patterns)
            if len(offsets) > LAST_OFFSETS_MAX:
                raise too_many_subjects_error(LAST_OFFSETS_MAX)
            return offsets, end
        get = GetRequest(subjects=tuple(patterns), up_to_sequence=2**62)
        found = await self._last_of_each(stream, get)
        if found.pending:
            raise not_searched_error(found.records[-1].sequence)
        return [record.offset for record in found.records], found.up_to

    async def _at(self, stream: StreamMetadata, offset: int) -> Record:
        if offset < 0:
            raise no_message_error()
        try:
            answer = await self._fetch(stream, offset, 1)
        except OffsetOutOfRangeError:
            raise no_message_error() from None
        piece = await _look(answer, Wanted(), offset, offset + 1, LOOKED_AT_BYTES_MAX)
        if not piece.records:
            raise no_message_error()
        return piece.records[0]

    async def _indexed(self, stream: StreamMetadata, subject: str) -> Record:
        """The last record on a subject, by the stream's index."""
        for _ in range(_LOOKUPS):
            offsets = await self._reads.last_of_subjects(stream, [subject])
            if not offsets:
                break
            try:
                return await self._at(stream, offsets[0])
            except ApiError:
                continue  # Replaced, and compacted away meanwhile.
        raise no_message_error()

    async def _from(self, stream: StreamMetadata, get: GetRequest, count: int) -> Results:
        """The first `count` wanted records of a place, ascending."""
        start, end = await self._place(stream, get)
        wanted = _patterns_to_find(stream, (get.next_subject,) if get.next_subject else ())
        async with self._searching:
            return await self._forward(stream, wanted, start, end, count, get.bytes_max)

    async def _place(self, stream: StreamMetadata, get: GetRequest) -> tuple[int, int]:
        """The offset to begin at, and the end."""
        start, end = await self._reads.bounds(stream)
        if get.start_time is not None:
            start = max(start, await self._reads.offset_at(stream, get.start_time))
        return max(start, get.sequence - 1), end

    async def _forward(
        self,
        stream: StreamMetadata,
        wanted: Wanted,
        start: int,
        end: int,
        count: int,
        bytes_max: int,
    ) -> Results:
        records: list[Record] = []
        at, size, after, budget = start, 0, 0, _Budget()
        is_full, bytes_max = False, min(bytes_max or BATCH_BYTES_MAX, BATCH_BYTES_MAX)
        while at < end and budget.left > 0 and not (is_full and wanted.is_everything):
            piece = await self._step(stream, wanted, at, end, budget)
            for record in piece.records:
                if is_full:
                    after += 1
                    continue
                records.append(record)
                size += record.size
                is_full = len(records) == count or size >= bytes_max
            at = piece.next_offset
            if is_full and count == 1:
                break
        if not records and at < end:
            raise not_searched_error(at)
        if wanted.is_everything and records:
            after, at = end - 1 - records[-1].offset, end
        return Results(records, after + (end - at), end)

    async def _last(self, stream: StreamMetadata, subject: str) -> Record:
        start, end = await self._reads.bounds(stream)
        wanted, last, budget = _patterns_to_find(stream, (subject,)), _Last(), _Budget()
        async with self._searching:
            low = await self._backward(
                stream, wanted, start, end, budget, lambda found: bool(found), last
            )
        if last.by_subject:
            return max(last.by_subject.values())
        if low > start:
            raise not_searched_error(low + 1)
        raise no_message_error()

    async def _last_of_each(self, stream: StreamMetadata, get: GetRequest) -> Results:
        """Of those that are not before the place: so a client asks for the next page."""
        start, end = await self._place(stream, get)
        if get.up_to_time is not None:
            end = min(end, await self._reads.offset_at(stream, WallUs(get.up_to_time + 1)))
        if get.up_to_sequence:
            end = min(end, get.up_to_sequence)
        literal = {each.encode() for each in get.subjects if not is_pattern(each)}
        is_literal = len(literal) == len(set(get.subjects))
        wanted, last, budget = Wanted(get.subjects), _Last(), _Budget()
        if is_literal and stream.config.is_keyed_by_subject and not get.is_of_the_past:
            return await self._indexed_each(stream, get, start, end)

        def is_enough(found: dict[bytes, Record]) -> bool:
            return len(found) > SUBJECTS_MAX or (is_literal and literal <= found.keys())

        async with self._searching:
            low = await self._backward(stream, wanted, start, end, budget, is_enough, last)
        found = sorted(last.by_subject.values())
        if len(found) > SUBJECTS_MAX:
            raise ApiError(413, 10003, "too many results", "413 Too Many Results")
        if low > start and not is_enough(last.by_subject):
            raise not_searched_error(low + 1)
        kept = _first_of(found, get.batch or len(found), get.bytes_max)
        return Results(kept, len(found) - len(kept), end)

    async def _indexed_each(
        self, stream: StreamMetadata, get: GetRequest, start: int, end: int
    ) -> Results:
        """The last record of each of these subjects, by the stream's index."""
        for _ in range(_LOOKUPS):
            found = await self._reads.last_of_subjects(stream, get.subjects)
            offsets = [offset for offset in found if offset >= start]
            records, are_all = await self._at_each(stream, offsets, get)
            if are_all:  # Otherwise some were replaced, and compacted away meanwhile.
                break
        return Results(records, len(offsets) - len(records), end)

    async def _at_each(
        self, stream: StreamMetadata, offsets: Sequence[int], get: GetRequest
    ) -> tuple[list[Record], bool]:
        """The records at the offsets, as many as are asked for; and whether all of these are
        there."""
        records: list[Record] = []
        size, most, are_all = 0, get.batch or len(offsets), True
        for offset in offsets:
            if len(records) == most or (records and size >= (get.bytes_max or BATCH_BYTES_MAX)):
                break
            try:
                records.append(await self._at(stream, offset))
            except ApiError:
                are_all = False
                continue
            size += records[-1].size
        return records, are_all

    async def _backward(
        self,
        stream: StreamMetadata,
        wanted: Wanted,
        start: int,
        end: int,
        budget: _Budget,
        is_enough: Callable[[dict[bytes, Record]], bool],
        last: _Last,
    ) -> int:
        """Look from the end on, window by window, until there is enough. Returns where it ended:
        nothing below was looked at."""
        high, window = end, 1
        while high > start and budget.left > 0 and not is_enough(last.by_subject):
            low = max(start, high - window)
            records: list[Record] = []
            at = low
            while at < high:
                if budget.left <= 0:
                    return high  # Only a part of the window: its end may hold later ones.
                piece = await self._step(stream, wanted, at, high, budget)
                records += piece.records
                at = piece.next_offset
            last.take(records)
            high, window = low, window * _WINDOW_GROWTH
        return high

    async def _step(
        self, stream: StreamMetadata, wanted: Wanted, at: int, stop: int, budget: _Budget
    ) -> Piece:
        """Look through the next batches. What is gone by now is skipped."""
        await asyncio.sleep(_PAUSE_SECONDS)
        try:
            answer = await self._fetch(stream, at, STEP_BYTES)
        except OffsetOutOfRangeError as error:
            if error.log_start_offset <= at:
                raise
            return Piece([], min(error.log_start_offset, stop), 0)
        piece = await _look(answer, wanted, at, stop, budget.left)
        budget.left -= piece.looked_at
        if piece.next_offset <= at:
            # A gap up to what follows, or to the end.
            if answer.next_offset <= at:
                raise UnavailableError("the records were removed while they were read; try again")
            return piece._replace(next_offset=min(answer.next_offset, stop))
        return piece

    async def _fetch(self, stream: StreamMetadata, offset: int, bytes_max: int) -> pb.FetchResponse:
        answer = await self._reads.fetch(stream, offset, bytes_max)
        await self._pace(stream, len(answer.batches))
        return answer


async def _look(
    answer: pb.FetchResponse, wanted: Wanted, start: int, stop: int, looked_at_max: int
) -> Piece:
    data = answer.batches
    return await asyncio.to_thread(look_through, data, wanted, start, stop, looked_at_max)


def _patterns_to_find(stream: StreamMetadata, patterns: tuple[str, ...]) -> Wanted:
    """Patterns that cover the whole stream leave nothing to search for."""
    return Wanted(() if any(covers(each, stream.subject) for each in patterns) else patterns)


def _first_of(records: list[Record], count: int, bytes_max: int) -> list[Record]:
    kept: list[Record] = []
    size = 0
    for record in records:
        if len(kept) == count or (kept and size >= (bytes_max or BATCH_BYTES_MAX)):
            break
        kept.append(record)
        size += record.size
    return kept
