"""Collects records into batches; callers add to it from any thread.

One batch is open at a time. It is sealed when the next record does not fit. It is taken when its
linger is over or somebody waits for its outcome, and the sender has room. While the sender is busy
an open batch goes on filling, so batches grow by themselves under load. The sum of all bytes that
are buffered, sealed and in flight is limited; beyond the limit `RecordAccumulator.put` has no room,
and the caller waits. With linger 0 a batch is sealed at the end of every call, so each call is a
batch of its own. Callers that repeat calls and rely on the same batches need that.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import accumulate

from jetstream_client.publishing.ack import Ack
from jetstream_client.publishing.subject_routes import Expectation
from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import (
    JetstreamError,
    MessageTooLargeError,
)

RECORD_BYTES = 16
"""Counted for each record beside its bytes: its places in up to three offset columns, its validity.
More than they take, so that a batch never outgrows what it was sealed for."""

_ASKING = threading.Lock()
"""Held for one addition. A lock for each batch would gain nothing."""


class Batch:
    """Records that travel together. `future` gets the acks, each with the offset of the first
    record.

    hurry: called when somebody waits for the outcome. asked: how many wait for it or have seen it,
    as `ask` and `give_up` tell. sequence, attempt and the later fields belong
    to `InFlightBatches`.
    """

    __slots__ = (
        "acks",
        "asked",
        "attempt",
        "count",
        "deadline",
        "doubtful",
        "due",
        "encoded",
        "future",
        "header_blocks",
        "hurry",
        "keys",
        "missing",
        "sequence",
        "size",
        "tokens",
        "unanswered",
        "values",
    )

    def __init__(
        self, due: float, deadline: float, hurry: Callable[[Batch], object] = lambda _: None
    ) -> None:
        self.due = due
        self.deadline = deadline
        self.hurry = hurry
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.header_blocks: list[bytes] | None = None
        self.count = 0
        self.size = 0
        self.future: Future[tuple[Ack, ...]] = Future()
        self.future.set_running_or_notify_cancel()  # It cannot be cancelled.
        self.asked = 0
        self.encoded: EncodedBatch | None = None
        self.sequence = -1
        self.attempt = 0
        self.tokens: list[str] = []
        self.missing: tuple[Expectation, ...] = ()
        self.unanswered: tuple[Expectation, ...] = ()
        self.acks: tuple[Ack, ...] = ()
        self.doubtful = False

    def __len__(self) -> int:
        return self.count

    def ask(self) -> None:
        """Somebody sees the outcome, unless it gives up. From any thread."""
        with _ASKING:
            self.asked += 1

    def give_up(self) -> None:
        """Who asked did not wait for the outcome. From any thread."""
        with _ASKING:
            self.asked -= 1

    def add(self, value: bytes | None, key: bytes | None, block: bytes) -> None:
        values = self.values
        if key is not None and self.keys is None:
            self.keys = [None] * len(values)
        if self.keys is not None:
            self.keys.append(key)
        if block and self.header_blocks is None:
            self.header_blocks = [b""] * len(values)
        if self.header_blocks is not None:
            self.header_blocks.append(block)
        values.append(value)
        self.count += 1

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        block: bytes = b"",
    ) -> None:
        """block: of the first of them; b"": it has none, as the others."""
        if keys is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        if self.keys is not None:
            self.keys.extend([None] * len(values) if keys is None else keys)
        if block and self.header_blocks is None:
            self.header_blocks = [b""] * len(self.values)
        if self.header_blocks is not None:
            self.header_blocks.append(block)
            self.header_blocks.extend([b""] * (len(values) - 1))
        self.values.extend(values)
        self.count += len(values)

    def encode(self, subject: bytes, compression: int) -> EncodedBatch:
        """Call it once: the batch then drops its records."""
        if self.encoded is None:
            self.encoded = encode(
                self.values,
                subject,
                keys=self.keys,
                header_blocks=self.header_blocks,
                compression=compression,
            )
            self.values, self.keys, self.header_blocks = [], None, None
        return self.encoded

    def finish(self, error: JetstreamError | None) -> None:
        """Tell the outcome: the acks, unless there is an error."""
        self.values, self.keys, self.header_blocks, self.encoded = [], None, None, None
        if error is None:
            self.future.set_result(self.acks)
        else:
            self.future.set_exception(error)


class RecordAccumulator:
    """The open batch, the sealed ones, and the free room. Any thread may call any method.

    releases: counts the batches that are done. wake: called when the sender has something new to
    look at. linger, delivery_timeout: seconds.
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
    ) -> None:
        self.batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._linger = linger
        self._timeout = delivery_timeout
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._open: Batch | None = None
        self._sealed: deque[Batch] = deque()
        self._buffered = 0
        self.releases = 0
        self._end: JetstreamError | None = None

    # Callers.

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
        with self._lock:
            batch = self._open
            if batch is None or batch.size + size > self.batch_bytes or not self._has_room(size):
                batch = self._opened(size)
                if batch is None:
                    return None
            batch.add(value, key, block)
            batch.size += size
            self._buffered += size
            place = batch.count - 1
            if not self._linger:
                self._seal()
        return batch, place

    def fits(self, size: int) -> bool:
        """Whether the open batch takes so many bytes more. Another thread may be quicker."""
        batch = self._open
        return batch is not None and batch.size + size <= self.batch_bytes

    def check(self, ends: Sequence[int]) -> None:
        """Raise MessageTooLargeError unless each of the records fits into a batch."""
        largest = max(map(int.__sub__, ends, [0, *ends[:-1]]), default=0)
        if largest > self.batch_bytes:
            raise too_large(largest, self.batch_bytes)

    def put_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        ends: Sequence[int],
        start: int,
        block: bytes = b"",
    ) -> tuple[Batch, int, int] | None:
        """Add as many records from `start` on as fit into a batch, at least one.

        ends: for each record, the bytes of all records up to and including it. block: the headers
        of the first one that is added, counted in `ends`. Returns the batch, the place of the first
        record in it, and the position to go on from; None: there is no room.
        """
        before = ends[start - 1] if start else 0
        with self._lock:
            first = ends[start] - before
            batch = self._open
            if batch is None or batch.size + first > self.batch_bytes or not self._has_room(first):
                batch = self._opened(first)
                if batch is None:
                    return None
            free = min(self.batch_bytes - batch.size, self._buffer_bytes - self._buffered)
            stop = max(start + 1, bisect_right(ends, before + free, start))
            size = ends[stop - 1] - before
            place = batch.count
            batch.extend(values[start:stop], None if keys is None else keys[start:stop], block)
            batch.size += size
            self._buffered += size
            if batch.size >= self.batch_bytes or not self._linger:
                self._seal()
        return batch, place, stop

    def hurry(self, batch: Batch) -> None:
        """Somebody waits for the batch: it stops lingering and is sent as soon as the sender has
        room. Until then it goes on filling, so many waiting threads still share batches."""
        with self._lock:
            if batch is self._open and batch.due:
                batch.due = 0.0
                self._wake()

    def wait_for_release(self, seen: int, timeout: float) -> bool:
        """Block until there may be room; False: not within `timeout` seconds. seen: the value of
        `releases` before room was looked for, so that no release in between is missed.
        """
        with self._lock:
            return self._changed.wait_for(
                lambda: self.releases != seen or self._end is not None, timeout
            )

    def _has_room(self, size: int) -> bool:
        return self._buffered + size <= self._buffer_bytes or not self._buffered

    def _opened(self, size: int) -> Batch | None:
        """A new open batch, the one before sealed. Raises MessageTooLargeError."""
        if self._end is not None:
            raise self._end
        if size > self.batch_bytes:
            raise too_large(size, self.batch_bytes)
        if not self._has_room(size):
            return None
        self._seal()
        now = self._clock()
        self._open = Batch(now + self._linger, now + self._timeout, self.hurry)
        self._wake()
        return self._open

    def _seal(self) -> None:
        if self._open is not None:
            self._sealed.append(self._open)
            self._open = None
            self._wake()

    # The sender.

    def seal(self) -> None:
        """Send everything without lingering."""
        with self._lock:
            self._seal()

    def take(self, now: float) -> Batch | None:
        """The next batch to send; an open one only when its linger is over."""
        with self._lock:
            if self._sealed:
                return self._sealed.popleft()
            batch = self._open
            if batch is None or now < batch.due:
                return None
            self._open = None
            return batch

    def expired(self, now: float) -> list[Batch]:
        """Remove and return the batches that have waited for their turn too long."""
        with self._lock:
            found = []
            while self._sealed and self._sealed[0].deadline <= now:
                found.append(self._sealed.popleft())
            if not self._sealed and self._open is not None and self._open.deadline <= now:
                found.append(self._open)
                self._open = None
            return found

    def next_time(self) -> float | None:
        """When `take` or `expired` will have something to return; None: nothing waits."""
        with self._lock:
            if self._sealed:
                return self._sealed[0].deadline
            return None if self._open is None else self._open.due

    @property
    def buffered(self) -> int:
        """What is open, sealed and in flight, bytes."""
        return self._buffered

    def sealed(self) -> list[Batch]:
        """Those that wait for their turn."""
        with self._lock:
            return list(self._sealed)

    def release(self, batch: Batch) -> None:
        """The batch is done: there is room again."""
        with self._lock:
            self._buffered -= batch.size
            self.releases += 1
            self._changed.notify_all()

    def end(self, error: JetstreamError) -> list[Batch]:
        """Take nothing more: callers get `error`. Returns what was never sent."""
        with self._lock:
            self._end = error
            self._seal()
            rest, self._sealed = list(self._sealed), deque()
            self._changed.notify_all()
            return rest


def too_large(size: int, most: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"a record of {size} bytes is more than a batch may hold: {most}")


def ends_of(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> list[int]:
    """Running sums of what the records take."""
    lengths = _lengths(values)
    if keys is not None:
        lengths = [a + b for a, b in zip(lengths, _lengths(keys), strict=True)]
    return list(accumulate(length + RECORD_BYTES for length in lengths))


def _lengths(items: Sequence[bytes | None]) -> list[int]:
    if None not in items:
        return list(map(len, items))  # type: ignore[arg-type]
    return [0 if item is None else len(item) for item in items]
