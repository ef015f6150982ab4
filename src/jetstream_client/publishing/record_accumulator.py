"""Collects records into batches; callers add to it from any thread.

One batch is open at a time. It is sealed when the next record does not fit. It is taken when its
linger is over or somebody waits for its outcome, and the sender has room. While the sender is busy
an open batch goes on filling, so batches grow by themselves under load. The sum of all bytes that
are buffered, sealed and in flight is limited; beyond the limit `RecordAccumulator.put` has no room,
and the caller waits. With linger 0 a batch is sealed at the end of every call, so each call is a
batch of its own. Callers that repeat calls and rely on the same batches need that.

Ctrl-C, or a signal handler that raises, may end a call of `put` at any line. So each change counts
by one last assignment: a record by the batch's `count`, a sealed batch by `is_sealed`. What was
half added is cut back before the next change, and what is buffered follows from the batches. A
handler that uses the client in the middle of such a call gets an error (_locked.py).
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise

from jetstream_client._locked import LOOK_SECONDS, check_not_within, holds_a_lock
from jetstream_client.publishing.ack import Ack
from jetstream_client.publishing.outcome import Outcome
from jetstream_client.publishing.subject_routes import Expectation
from jetstream_protocol import batch as record_batch
from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import (
    JetstreamError,
    MessageTooLargeError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import WallUs

RECORD_BYTES = 16
"""Counted for each record beside its bytes: its places in up to three offset columns, its validity.
More than they take, so that a batch never outgrows what it was sealed for."""


class Batch:
    """Records that travel together. `future` gets the acks, each with the offset of the first
    record; of a batch that was split, those of the first part (`acks_from` knows all).

    is_seen: a caller has its outcome. hurry: called when somebody waits for it. start: bytes of
    all batches before it. thread: the sender's, which must not wait for it; process: its own.
    whole: the batch that it was split from; None: it was not. send_at, sequence and the later
    fields belong to `InFlightBatches`.
    """

    __slots__ = (
        "_parts",
        "_waiting",
        "acks",
        "attempt",
        "count",
        "deadline",
        "doubtful",
        "due",
        "encoded",
        "future",
        "header_blocks",
        "hurry",
        "is_announced",
        "is_sealed",
        "is_seen",
        "keys",
        "missing",
        "place",
        "process",
        "send_at",
        "sequence",
        "size",
        "start",
        "thread",
        "tokens",
        "unanswered",
        "values",
        "whole",
    )

    def __init__(
        self,
        due: float,
        deadline: float,
        hurry: Callable[[Batch], object] = lambda _: None,
        start: int = 0,
        thread: int = 0,
    ) -> None:
        self.due = due
        self.deadline = deadline
        self.hurry = hurry
        self.start = start
        self.thread = thread
        self.is_announced = False
        self.is_sealed = False
        self.whole: Batch | None = None
        self.place = 0
        self.process = os.getpid()
        self._parts: list[_Part] = []
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.header_blocks: list[bytes] | None = None
        self.count = 0
        self.size = 0
        self.future: Outcome[tuple[Ack, ...]] = Outcome()
        self.is_seen = False
        self._waiting: list[threading.Lock] = []  # A list: it grows and shrinks without a lock.
        self.encoded: EncodedBatch | None = None
        self.send_at: float | None = None
        self.sequence = -1
        self.attempt = 0
        self.tokens: list[str] = []
        self.missing: tuple[Expectation, ...] = ()
        self.unanswered: tuple[Expectation, ...] = ()
        self.acks: tuple[Ack, ...] = ()
        self.doubtful = False

    def __len__(self) -> int:
        return self.count

    @property
    def end(self) -> int:
        """Bytes of all batches up to and including this one."""
        return self.start + self.size

    @property
    def asked(self) -> bool:
        """Whether a caller has seen the outcome, or waits for it."""
        return self.is_seen or any(each.locked() for each in self._waiting.copy())

    def ask(self, waits: threading.Lock) -> None:
        """Somebody waits for the outcome while `waits` is held: Python releases it however the
        waiting ends, also by a signal handler that raises. From any thread."""
        self._waiting.append(waits)

    def give_up(self, waits: threading.Lock) -> None:
        """Nobody waits by it any more. From any thread."""
        with suppress(ValueError):
            self._waiting.remove(waits)

    def add(self, value: bytes | None, key: bytes | None, block: bytes) -> None:
        values = self.values
        if len(values) != self.count:
            self._cut_back()
        values.append(value)  # First: by this column `_cut_back` is called.
        if key is not None and self.keys is None:
            self.keys = [None] * self.count
        if self.keys is not None:
            self.keys.append(key)
        if block and self.header_blocks is None:
            self.header_blocks = [b""] * self.count
        if self.header_blocks is not None:
            self.header_blocks.append(block)
        self.count += 1

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        blocks: Sequence[bytes] | None = None,
    ) -> None:
        if len(self.values) != self.count:
            self._cut_back()
        self.values.extend(values)
        if keys is not None and self.keys is None:
            self.keys = [None] * self.count
        if self.keys is not None:
            self.keys.extend([None] * len(values) if keys is None else keys)
        if blocks is not None and self.header_blocks is None:
            self.header_blocks = [b""] * self.count
        if self.header_blocks is not None:
            self.header_blocks.extend([b""] * len(values) if blocks is None else blocks)
        self.count += len(values)

    def _cut_back(self) -> None:
        """Remove what an interrupted call has half added."""
        count = self.count
        if self.keys is not None:
            del self.keys[count:]
        if self.header_blocks is not None:
            del self.header_blocks[count:]
        del self.values[count:]

    def encode(self, subject: bytes, compression: int) -> EncodedBatch:
        """Call it once: the batch then drops its records."""
        if self.encoded is None:
            if len(self.values) != self.count:
                self._cut_back()
            self.encoded = encode(
                self.values,
                subject,
                keys=self.keys,
                header_blocks=self.header_blocks,
                compression=compression,
            )
            self.values, self.keys, self.header_blocks = [], None, None
        return self.encoded

    def split(self) -> tuple[Batch, Batch]:
        """Its records in two batches, where NATS takes it no longer as one. Only of several
        records, and once it is encoded."""
        assert self.encoded is not None
        assert self.count > 1
        self.encoded.stamp(0, 0, WallUs(0))
        decoded = record_batch.Batch.decode(self.encoded.to_bytes())
        values, keys, blocks = decoded.values(), decoded.keys(), decoded.header_blocks()
        middle = self.count // 2
        first, second = Batch(self.due, self.deadline), Batch(self.due, self.deadline)
        for part, place, stop in ((first, 0, middle), (second, middle, self.count)):
            part.whole = self.whole or self
            part.future = self.future
            part.place = self.place + place
            part.count = stop - place
            part.values = values[place:stop]
            part.keys = keys[place:stop] if any(key is not None for key in keys) else None
            part.header_blocks = blocks[place:stop] if any(blocks) else None
        first.size = self.size * middle // self.count
        second.size = self.size - first.size
        self.encoded = None
        return first, second

    def finish(self, error: JetstreamError | None) -> Batch | None:
        """Report the outcome: the acks, unless there is an error. Returns the batch whose outcome
        is known now: itself; or the one that it is a part of, if this was the last part."""
        self.values, self.keys, self.header_blocks, self.encoded = [], None, None, None
        if self.whole is not None:
            return self.whole._part_finished(_Part(self.place, self.count, self.acks, error))
        if error is None:
            self.future.set_result(self.acks)
        else:
            self.future.set_exception(error)
        return self

    def _part_finished(self, part: _Part) -> Batch | None:
        self._parts = sorted([*self._parts, part], key=lambda each: each.place)
        if sum(each.count for each in self._parts) < self.count:
            return None
        errors = [each.error for each in self._parts if each.error is not None]
        self.acks = self._parts[0].acks
        if len(errors) < len(self._parts) and errors:
            stored = sum(each.count for each in self._parts if each.error is None)
            why = f"{stored} of its {self.count} records are stored: it was split; the others"
            return self.finish(UnknownOutcomeError(f"{why}: {errors[0].message}"))
        return self.finish(errors[0] if errors else None)

    @property
    def is_split(self) -> bool:
        """Whether its records were stored in several batches."""
        return bool(self._parts)

    def acks_from(self, place: int) -> tuple[Ack, ...]:
        """Once it is stored: the acks, each with the offset of the record at that place."""
        first, acks = 0, self.acks
        for part in self._parts:
            if part.place <= place:
                first, acks = part.place, part.acks
        return tuple(Ack(ack.stream, ack.offset + place - first, ack.duplicate) for ack in acks)

    def runs(self, place: int, count: int) -> list[tuple[str, range]]:
        """Once it is stored: a stream, and the offsets there of so many records from that place on.
        One range, unless the batch was split. The stream is the first that acknowledged; of a part
        that it has not acknowledged (`acks="any"`), another one."""
        ends = [part.place for part in self._parts[1:] if place < part.place < place + count]
        stream = self.acks_from(place)[0].stream
        found = []
        for first, stop in pairwise([place, *ends, place + count]):
            acks = self.acks_from(first)  # Streams answer each part in another order.
            ack = next((ack for ack in acks if ack.stream == stream), acks[0])
            found.append((ack.stream, range(ack.offset, ack.offset + stop - first)))
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """The outcome of the records of a split batch from `place` on."""

    place: int
    count: int
    acks: tuple[Ack, ...]
    error: JetstreamError | None


class RecordAccumulator:
    """The open batch, the sealed ones, and the free room. Any thread may call any method.

    batch_bytes: the largest batch; its owner sets it anew when the connection changes. releases:
    counts the batches that are done. wake: called when the sender has something new to look at.
    thread: the sender's.
    linger, delivery_timeout: seconds.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        linger: float,
        delivery_timeout: float,
        clock: Callable[[], float],
        wake: Callable[[], None],
        thread: int = 0,
    ) -> None:
        self.batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._linger = min(linger, delivery_timeout / 2)  # There must be time to send it, too.
        self._timeout = delivery_timeout
        self._clock = clock
        self._wake = wake
        self._thread = thread
        self._lock = threading.Lock()
        self._waiting: list[threading.Lock] = []  # Changed without the lock.
        self._queue: deque[Batch] = deque()
        """The batches that the sender has not taken. The last one is open unless it is sealed."""
        self._taken = Batch(0.0, 0.0)
        """The last one that was taken."""
        self._released = 0
        self.releases = 0
        self._end: JetstreamError | None = None

    @property
    def _open(self) -> Batch | None:
        queue = self._queue
        return queue[-1] if queue and not queue[-1].is_sealed else None

    # Callers.

    @holds_a_lock
    def put(self, value: bytes | None, key: bytes | None, block: bytes) -> tuple[Batch, int] | None:
        """Returns the batch that has the record now, and the record's place in it; None: there is
        no room.

        Raises MessageTooLargeError.
        """
        size = RECORD_BYTES + len(block)
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if self._lock.locked():
            check_not_within()
        with self._lock:
            batch = self._place_for(size)
            if batch is None:
                return None
            # First: an interrupted call may leave the size too large, never too small.
            batch.size += size
            batch.add(value, key, block)
            place = batch.count - 1
            if not batch.is_announced:
                self._announce(batch)
            if not self._linger:
                self._seal()
        return batch, place

    @holds_a_lock
    def fits(self, size: int) -> bool:
        """Whether the open batch takes so many bytes more. Another thread may be quicker."""
        with self._lock:
            batch = self._open
            return batch is not None and batch.size + size <= self.batch_bytes

    def check(self, ends: Sequence[int]) -> None:
        """Raise MessageTooLargeError unless each of the records fits into a batch."""
        largest = max(map(int.__sub__, ends, [0, *ends[:-1]]), default=0)
        if largest > self.batch_bytes:
            raise too_large_error(largest, self.batch_bytes)

    @holds_a_lock
    def put_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        ends: Sequence[int],
        start: int,
        blocks: Sequence[bytes] | None = None,
    ) -> tuple[Batch, int, int] | None:
        """Add as many records from `start` on as fit into a batch, at least one.

        ends: for each record, the bytes of all records up to and including it. blocks: the headers
        of each, counted in `ends`; None: there are none. Returns the batch, the place of the first
        record in it, and the position to go on from; None: there is no room.
        """
        before = ends[start - 1] if start else 0
        if self._lock.locked():
            check_not_within()
        with self._lock:
            batch = self._place_for(ends[start] - before)
            if batch is None:
                return None
            free = min(self.batch_bytes - batch.size, self._buffer_bytes - self._buffered())
            stop = max(start + 1, bisect_right(ends, before + free, start))
            place = batch.count
            batch.size += ends[stop - 1] - before
            batch.extend(
                values[start:stop],
                None if keys is None else keys[start:stop],
                None if blocks is None else blocks[start:stop],
            )
            if not batch.is_announced:
                self._announce(batch)
            if batch.size >= self.batch_bytes or not self._linger:
                self._seal()
        return batch, place, stop

    @holds_a_lock
    def hurry(self, batch: Batch) -> None:
        """Somebody waits for the batch: it stops lingering and is sent as soon as the sender has
        room. Until then it goes on filling, so many waiting threads still share batches."""
        if self._lock.locked():
            check_not_within()
        with self._lock:
            if batch is self._open and batch.due:
                batch.due = 0.0
                self._wake()

    def wait_for_release(self, seen: int, timeout: float) -> bool:
        """Block until there may be room; False: not within `timeout` seconds. seen: the value of
        `releases` before room was looked for, so that no release in between is missed.

        No lock is held: a signal handler may use the client meanwhile.
        """
        deadline = time.monotonic() + timeout
        waits = threading.Lock()
        waits.acquire()  # Whoever makes room releases it.
        self._waiting.append(waits)
        try:
            while self.releases == seen and self._end is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                waits.acquire(timeout=min(left, LOOK_SECONDS))
        finally:
            with suppress(ValueError):
                self._waiting.remove(waits)
        return True

    def _tell_waiting(self) -> None:
        """Once `releases` or `_end` has changed: who begins to wait just now sees that."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.release()

    def _place_for(self, size: int) -> Batch | None:
        """The open batch, if it takes so many bytes more, or a new one. None: there is no room.
        Raises MessageTooLargeError."""
        batch = self._queue[-1] if self._queue else self._taken
        grown = batch.size + size
        if (
            not batch.count
            or batch.is_sealed
            or grown > self.batch_bytes
            or batch.start + grown - self._released > self._buffer_bytes
        ):
            return self._opened(size)
        return batch

    def _buffered(self) -> int:
        newest = self._queue[-1] if self._queue else self._taken
        return newest.start + newest.size - self._released

    def _has_room(self, size: int) -> bool:
        buffered = self._buffered()
        return buffered + size <= self._buffer_bytes or not buffered

    def _opened(self, size: int) -> Batch | None:
        """A new open batch, the one before sealed. Raises MessageTooLargeError."""
        if self._end is not None:
            with suppress(RuntimeError):  # The sender's loop is closed.
                self._wake()  # Perhaps it can go on by now.
            raise self._end.with_traceback(None)
        if size > self.batch_bytes:
            raise too_large_error(size, self.batch_bytes)
        self._drop_empty()
        if not self._has_room(size):
            return None
        self._seal()
        now = self._clock()
        newest = self._queue[-1] if self._queue else self._taken
        batch = Batch(now + self._linger, now + self._timeout, self.hurry, newest.end, self._thread)
        self._queue.append(batch)
        return batch

    def _drop_empty(self) -> None:
        """An interrupted call has opened a batch and added nothing."""
        batch = self._open
        if batch is not None and not batch.count:
            self._queue.pop()

    def _announce(self, batch: Batch) -> None:
        """Tell the sender of an open batch. In this order, so that an interrupted call leaves it to
        the next one."""
        self._wake()
        batch.is_announced = True

    def _seal(self) -> None:
        self._drop_empty()
        batch = self._open
        if batch is not None:
            batch.is_sealed = True
            self._wake()

    # The sender.

    def seal(self) -> None:
        """Send everything without lingering."""
        with self._lock:
            self._seal()

    def take(self, now: float) -> Batch | None:
        """The next batch to send; an open one only when its linger is over."""
        with self._lock:
            batch = self._queue[0] if self._queue else None
            if batch is None or not batch.count or (not batch.is_sealed and now < batch.due):
                return None
            return self._take()

    def _take(self) -> Batch:
        batch = self._queue[0]
        batch.is_sealed = True
        self._taken = batch
        self._queue.popleft()
        return batch

    def take_expired(self, now: float) -> list[Batch]:
        """Remove and return the batches that have waited for their turn too long."""
        with self._lock:
            found = []
            while self._queue and self._queue[0].count and self._queue[0].deadline <= now:
                found.append(self._take())
            return found

    def next_time(self, *, has_room: bool = True) -> float | None:
        """When `take` or `take_expired` will have something to return; None: nothing waits.
        has_room: whether the sender may take a batch."""
        with self._lock:
            batch = self._queue[0] if self._queue else None
            if batch is None or not batch.count:
                return None
            if batch.is_sealed or not has_room:
                return batch.deadline
            return batch.due

    @property
    @holds_a_lock
    def buffered(self) -> int:
        """Bytes of the open, sealed and sent batches."""
        with self._lock:
            return self._buffered()

    def sealed(self) -> list[Batch]:
        """The sealed batches that the sender has not taken."""
        with self._lock:
            return [batch for batch in self._queue if batch.is_sealed]

    def release(self, batch: Batch) -> None:
        """The batch is done: there is room again."""
        with self._lock:
            self._released += batch.size
            self.releases += 1
            self._tell_waiting()

    def end(self, error: JetstreamError) -> list[Batch]:
        """Take nothing more: callers get `error`. Returns what was never sent."""
        with self._lock:
            self._end = error
            self._seal()
            rest = []
            while self._queue:
                rest.append(self._take())
            self._tell_waiting()
            return rest

    def begin_anew(self) -> None:
        """After `end`: take records again."""
        with self._lock:
            self._end = None


def too_large_error(size: int, most: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"a record of {size} bytes is more than a batch may hold: {most}")


def ends_of(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    blocks: Sequence[bytes] | None = None,
) -> list[int]:
    """Running sums of what the records take."""
    lengths = _lengths(values)
    for column in (keys, blocks):
        if column is not None:
            lengths = [a + b for a, b in zip(lengths, _lengths(column), strict=True)]
    return list(accumulate(length + RECORD_BYTES for length in lengths))


def _lengths(items: Sequence[bytes | None]) -> list[int]:
    if None not in items:
        return list(map(len, items))  # type: ignore[arg-type]
    return [0 if item is None else len(item) for item in items]
