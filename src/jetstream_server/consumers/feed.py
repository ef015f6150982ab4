"""The records of a stream in front of one consumer, read from the log of this node.

Records are held back until it is known whether another one follows: so a consumer can say with its
last message that nothing is left (`pending` 0), also with a filter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from jetstream_protocol.errors import CorruptBatchError, OffsetOutOfRangeError, UnavailableError
from jetstream_protocol.subjects import covers
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.records import (
    LOOKED_AT_BYTES_MAX,
    STEP_BYTES,
    Piece,
    Record,
    Wanted,
    look_through,
    payload_lengths,
    sizes,
)
from jetstream_server.log.encryption import plain_batches
from jetstream_server.log.segment import LogSlice
from jetstream_server.replication.core.unreadable import InLakeError
from jetstream_server.replication.replica import Replica

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Records that all consumers of a node hold while nobody takes them. A consumer that would hold
more reads again instead."""
_RECORD_BYTES: Final = 200
"""Memory of a record besides its bytes."""
FromLake = Callable[[Replica, int, int], Awaitable[LogSlice | None]]
"""(replica, offset, bytes_max): what the lake holds there, once it was read; None: that takes too
long. Raises the errors of LongPoll.fetch."""
COUNT_SECONDS: Final = 0.5
"""How long a count waits for those of others. Then `pending` is what is known."""
READING_MAX: Final = 4
"""Steps at once on a node, in worker threads. More wait."""

Pace = Callable[[Replica, int], Awaitable[None]]
"""(replica, bytes): checks that the consumers' principal may read, and waits until it may read that
much more. Raises PermissionDeniedError."""


class Reader:
    """Reads the logs of streams that this node leads, for all consumers of the node."""

    def __init__(self, pace: Pace, from_lake: FromLake | None = None) -> None:
        """from_lake: for records that are only in the lake; None: they cannot be read."""
        self.held_bytes = 0
        """What the feeds hold."""
        self._pace = pace
        self._from_lake = from_lake
        self._reading = asyncio.Semaphore(READING_MAX)
        self.counting = asyncio.Semaphore()
        """One at a time counts messages: who waits for messages must find a turn."""

    async def read(
        self,
        replica: Replica,
        wanted: Wanted,
        start: int,
        bytes_max: int = STEP_BYTES,
        *,
        is_paced: bool = True,
    ) -> Piece:
        """The wanted committed records from `start` on, in the next batches. `next_offset` is
        `start` at the end. is_paced: False: for who has been checked, and is held back, elsewhere.
        Raises JetstreamError: OffsetOutOfRangeError below the log start."""
        found = await self._find(replica, start, bytes_max)
        if found is None:
            return Piece([], start, 0)
        if is_paced:
            await self._pace(replica, found.length)
        async with self._reading:  # Nobody waits for the lake, or for somebody's quota, in here.
            try:
                piece = await asyncio.to_thread(_look, replica, found, wanted, start)
            except CorruptBatchError as error:
                replica.suspect(start, error)
                raise UnavailableError(f"damaged records are being repaired: {error}") from error
        if piece.looked_at < LOOKED_AT_BYTES_MAX:
            return piece._replace(next_offset=found.next_offset)
        return piece

    async def _find(self, replica: Replica, start: int, bytes_max: int) -> LogSlice | None:
        """Committed batches from `start` on; None at the end."""
        try:
            return replica.read(start, bytes_max)
        except InLakeError:
            if self._from_lake is None:
                raise
        found = await self._from_lake(replica, start, bytes_max)
        if found is None:  # **safety** Else a record would seem to be gone, and so be done.
            raise UnavailableError("the lake takes too long to read; try again")
        return found

    async def check(self, replica: Replica) -> None:
        """Raise PermissionDeniedError if the consumers' principal may not read."""
        await self._pace(replica, 0)


def _look(replica: Replica, found: LogSlice, wanted: Wanted, start: int) -> Piece:
    """Blocks."""
    data = plain_batches(replica.log.encryption, replica.log.pread(found))
    return look_through(data, wanted, start, found.next_offset, LOOKED_AT_BYTES_MAX)


def wanted_of(replica: Replica, config: ConsumerConfig) -> Wanted:
    """What a consumer wants of its stream."""
    subject = replica.stream.subject
    is_everything = any(covers(each, subject) for each in config.filters)
    return Wanted(() if is_everything else config.filters)


class Feed:
    """scanned: every wanted record between the consumer's position and this is held. rest: behind
    the selected offsets."""

    def __init__(
        self,
        reader: Reader,
        replica: Replica,
        wanted: Wanted,
        position: int,
        selected: Iterable[int] = (),
    ) -> None:
        """selected: offsets to take first, ascending. Then all wanted records from `position`."""
        self.replica = replica
        self.scanned = position
        self.held: deque[Record] = deque()
        self.selected = deque(selected)
        self._reader = reader
        self._wanted = wanted
        self.rest = position
        self._held_bytes = 0
        self._counted, self._counted_to = 0, position
        """How many wanted records are between `scanned` and there, at most."""

    @property
    def is_at_end(self) -> bool:
        return not self.selected and self.scanned >= self.replica.high_watermark

    def next(self) -> Record | None:
        """The next record, if it is known whether another one follows."""
        if len(self.held) > 1 or (self.held and self._is_last_known):
            return self.held[0]
        return None

    @property
    def _is_last_known(self) -> bool:
        """Whether it is known what follows the records that are held. **safety** Not while a new
        leader finds out what was acknowledged: whoever is told that nothing is left stops there."""
        leadership = self.replica.leadership
        seeks_end = leadership is not None and leadership.seeks_end
        return bool(self.selected) or (self.is_at_end and not seeks_end)

    def next_ones(self, most: int) -> list[Record]:
        """The next records, as many as `next` and `take` would give in turn."""
        count = len(self.held) - (not self._is_last_known)
        return list(islice(self.held, min(count, most))) if count > 0 else []

    @property
    def pending(self) -> int:
        """How many records are in front. Exact without a filter, and whenever it is 0; else at
        most so many: what was counted (`count`), and all records after that."""
        end, ahead = self.replica.high_watermark, 0
        if self.scanned < end:
            ahead = self._counted + max(0, end - self._counted_to)
        return len(self.held) + len(self.selected) + ahead

    @property
    def selected_left(self) -> tuple[int, ...]:
        """The offsets that are still to be taken before the rest."""
        held = (each.offset for each in self.held if each.offset < self.rest)
        return (*held, *self.selected)

    async def fill(self, *, is_paced: bool = True) -> None:
        """Read on. is_paced: see Reader. Raises JetstreamError."""
        if self.selected:
            await self._take_selected(is_paced)
            return
        at, wanted = self.scanned, self._wanted
        piece = await self._read(at, is_paced=is_paced)
        # Else somebody else has read meanwhile, or it was all let go.
        if self.scanned == at and self._wanted is wanted:
            self._hold(piece.records)
            self._move_on(piece.next_offset, len(piece.records))

    def _move_on(self, offset: int, records: int) -> None:
        """Note that these wanted records, and no others, were up to there."""
        self.scanned = offset
        self._counted -= records
        if offset >= self._counted_to:
            self._counted, self._counted_to = 0, offset

    async def check(self) -> None:
        """Raise PermissionDeniedError if the consumers' principal may not read."""
        await self._reader.check(self.replica)

    async def _take_selected(self, is_paced: bool) -> None:
        first = self.selected[0]
        self._check_known(first)
        piece = await self._read(first, Wanted(), is_paced=is_paced)
        found = {each.offset: each for each in piece.records}
        while self.selected and self.selected[0] < max(piece.next_offset, first + 1):
            record = found.get(self.selected.popleft())
            if record is not None:
                self._hold([record])

    def _check_known(self, offset: int) -> None:
        """Raise UnavailableError for a record that a new leader does not know to be committed yet.
        It is there: an earlier leader knew it."""
        leadership = self.replica.leadership
        if offset >= self.replica.high_watermark and not (leadership and leadership.knows_end):
            raise UnavailableError(f"offset {offset} is not known to be committed yet; try again")

    async def _read(self, at: int, wanted: Wanted | None = None, *, is_paced: bool = True) -> Piece:
        """Records before the log start are passed over."""
        how = {} if is_paced else {"is_paced": False}
        try:
            return await self._reader.read(self.replica, wanted or self._wanted, at, **how)
        except OffsetOutOfRangeError as error:
            if error.log_start_offset <= at:
                raise
            return Piece([], error.log_start_offset, 0)

    def _hold(self, records: Sequence[Record]) -> None:
        self.held.extend(records)
        length = sum(sizes(records, payload_lengths(records)))
        self._count_bytes(length + len(records) * _RECORD_BYTES)

    def _count_bytes(self, change: int) -> None:
        self._held_bytes += change
        self._reader.held_bytes += change

    def take(self) -> None:
        """Take the next record."""
        self._count_bytes(-self.held.popleft().size - _RECORD_BYTES)

    def take_some(self, count: int, size: int) -> None:
        """Take the next `count` records. size: of all of them."""
        for _ in range(count):
            self.held.popleft()
        self._count_bytes(-size - count * _RECORD_BYTES)

    def put_back(self, record: Record) -> None:
        """Nobody has taken it."""
        self.held.appendleft(record)
        self._count_bytes(record.size + _RECORD_BYTES)

    def begins(self, offset: int) -> None:
        """Pass over what is before the log start."""
        while self.held and self.held[0].offset < offset:
            self.take()
        while self.selected and self.selected[0] < offset:
            self.selected.popleft()
        if self.scanned < offset:
            self._counted, self._counted_to = 0, offset
            self.scanned = offset

    def pause(self) -> None:
        """Nobody takes anything now: hold what there is room for."""
        if self._reader.held_bytes > HELD_BYTES_MAX:
            self.forget()

    def forget(self) -> None:
        """Let go of what is held, to be read again when it is needed."""
        self._count_bytes(-self._held_bytes)
        if self.held:
            first = [each.offset for each in self.held if each.offset < self.rest]
            self.selected.extendleft(reversed(first))
            rest = [each.offset for each in self.held if each.offset >= self.rest]
            if rest:
                self.scanned = rest[0]
                self._counted += len(rest)
            self.held.clear()

    def want(self, wanted: Wanted, position: int) -> None:
        """From `position` on, the first offset that was not delivered, other records are wanted.
        What was selected stays selected."""
        self.forget()
        self._wanted = wanted
        self.scanned = max(self.rest, position)
        self._counted, self._counted_to = 0, self.scanned

    async def count(self, *, is_paced: bool = True) -> int:
        """`pending`, after a search in front of what was counted: exact if it comes to the end, as
        further deliveries are then. Raises JetstreamError."""
        if self._is_counted:
            return self.pending
        counting, looked_at = self._reader.counting, 0
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                await counting.acquire()
        except TimeoutError:
            return self.pending
        try:
            while not self._is_counted and looked_at < LOOKED_AT_BYTES_MAX:
                at, wanted = self._counted_to, self._wanted
                piece = await self._read(at, is_paced=is_paced)
                if self._counted_to != at or self._wanted is not wanted:
                    break  # Somebody else has read meanwhile.
                self._counted += len(piece.records)
                self._counted_to = piece.next_offset
                looked_at += piece.looked_at + 1
        finally:
            counting.release()
        return self.pending

    @property
    def _is_counted(self) -> bool:
        """Whether there is nothing in front that was not counted."""
        return self._wanted.is_everything or self._counted_to >= self.replica.high_watermark

    async def old(self, offset: int, *, is_paced: bool = True) -> list[Record]:
        """The record at `offset`, if it still exists, and some that follow it. Raises
        JetstreamError."""
        self._check_known(offset)
        if offset >= self.replica.high_watermark:
            return []  # An election that lost records has cut it off.
        return (await self._read(offset, Wanted(), is_paced=is_paced)).records
