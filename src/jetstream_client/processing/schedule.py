"""Which record may be handled next, and how far each stream is done.

Pure: the caller reads, calls handlers and commits. The rules:

* Records of one stream with the same key are handled one after the other, in order of their
  offsets. Records without a key wait for no other.
* A checkpoint is at or below every record that has not ended. So a reader that resumes there misses
none.
* At most `concurrency` records are being handled. Room ends at `records_max` or `bytes_max` of
  what was read and is at or after its checkpoint: that is also the most that comes again.
* A stream that goes to another reader is first held: nothing more of it starts. Then it is dropped.
  A record that is still being handled then keeps its key: should the stream come back, the next of
  that key waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any


class State(Enum):
    """Of one record. WAITING: for room or for its key. RESTING: between two attempts."""

    WAITING = auto()
    RUNNING = auto()
    RESTING = auto()
    ENDED = auto()


class Work:
    """One record that was read. attempts: how often its handler has failed. epoch: the leader epoch
    of the record."""

    __slots__ = ("attempts", "epoch", "key", "offset", "reading", "record", "size", "state")

    def __init__(
        self, reading: Reading, offset: int, epoch: int, key: bytes | None, size: int, record: Any
    ) -> None:
        self.reading = reading
        self.offset = offset
        self.epoch = epoch
        self.key = key
        self.size = size
        self.record = record
        self.state = State.WAITING
        self.attempts = 0

    @property
    def is_dropped(self) -> bool:
        """Its stream belongs to another member by now: its outcome counts for nothing."""
        return self.reading.is_dropped


class Reading:
    """One stream, from `begin` to `drop`."""

    __slots__ = ("done", "is_dropped", "is_held", "next", "running", "stream", "works")

    def __init__(self, stream: int, offset: int, epoch: int) -> None:
        self.stream = stream
        self.next = (offset, epoch)  # below it everything was added; and the epoch before it
        self.done = (offset, epoch)  # below it everything has ended, as far as there are records
        self.works: deque[Work] = deque()  # from the checkpoint on, by offset
        self.running = 0
        self.is_held = False
        self.is_dropped = False


class Schedule:
    """concurrency, records_max, bytes_max: see above. One thread uses it."""

    def __init__(self, concurrency: int, records_max: int, bytes_max: int) -> None:
        self._concurrency = concurrency
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._readings: dict[int, Reading] = {}
        self._ready: deque[Work] = deque()
        self._keys: dict[tuple[int, bytes], deque[Work]] = {}  # the first has the key
        self.records = 0
        """Read, and at or after the checkpoint of its stream."""
        self.bytes = 0
        """The bytes of these records."""
        self.running = 0
        """Being handled, those of dropped streams included."""

    @property
    def has_room(self) -> bool:
        """Whether one more record may be added; the last one may exceed `bytes_max`."""
        return self.records < self._records_max and self.bytes < self._bytes_max

    def has(self, stream: int) -> bool:
        return stream in self._readings

    def streams(self) -> list[int]:
        return list(self._readings)

    def begin(self, stream: int, offset: int, epoch: int = -1) -> None:
        """The stream is read from `offset` on. epoch: of the record before it; -1: not known."""
        assert stream not in self._readings
        self._readings[stream] = Reading(stream, offset, epoch)

    def add(
        self, stream: int, offset: int, epoch: int, key: bytes | None, size: int, record: Any
    ) -> Work:
        """A record was read; offsets grow. The caller has seen that there is room."""
        reading = self._readings[stream]
        assert offset >= reading.next[0]
        work = Work(reading, offset, epoch, key, size, record)
        reading.next = (offset + 1, epoch)
        reading.works.append(work)
        self.records += 1
        self.bytes += size
        if key is None:
            self._ready.append(work)
            return work
        same_key = self._keys.setdefault((stream, key), deque())
        same_key.append(work)
        if len(same_key) == 1:
            self._ready.append(work)
        return work

    def passed(self, stream: int, next_offset: int, epoch: int) -> None:
        """The stream holds no more records below `next_offset` than were added."""
        reading = self._readings[stream]
        if next_offset >= reading.next[0]:
            reading.next = (next_offset, epoch)

    def start(self) -> Work | None:
        """A record to be handled now; None: none may be."""
        while self.running < self._concurrency and self._ready:
            work = self._ready.popleft()
            if work.reading.is_held:
                continue
            work.state = State.RUNNING
            work.reading.running += 1
            self.running += 1
            return work
        return None

    def rest(self, work: Work) -> None:
        """Its handler has ended and it has not: it keeps its key, and the checkpoint stays before
        it. `again` lets it start once more."""
        self._stops_running(work, State.RESTING)
        if work.is_dropped:
            self._leave_key(work)

    def again(self, work: Work) -> None:
        """A resting record may start again."""
        if work.state is State.RESTING and not work.reading.is_held:
            work.state = State.WAITING
            self._ready.appendleft(work)

    def end(self, work: Work) -> None:
        """It was handled, or is kept as a dead letter."""
        self._stops_running(work, State.ENDED)
        work.record = None
        self._leave_key(work)
        if not work.is_dropped:
            self._advance(work.reading)

    def _stops_running(self, work: Work, state: State) -> None:
        assert work.state is State.RUNNING
        work.state = state
        work.reading.running -= 1
        self.running -= 1

    def _leave_key(self, work: Work) -> None:
        if work.key is None:
            return
        name = work.reading.stream, work.key
        same_key = self._keys[name]
        assert same_key[0] is work
        same_key.popleft()
        if same_key:
            self._ready.append(same_key[0])
        else:
            del self._keys[name]

    def _advance(self, reading: Reading) -> None:
        works = reading.works
        while works and works[0].state is State.ENDED:
            last = works.popleft()
            reading.done = (last.offset + 1, last.epoch)
            self._forget(last)

    def _forget(self, work: Work) -> None:
        self.records -= 1
        self.bytes -= work.size

    def checkpoint(self, stream: int) -> tuple[int, int]:
        """Everything below is done, and the leader epoch of the record before it; -1: not known."""
        reading = self._readings[stream]
        if not reading.works:
            return reading.next
        first = reading.works[0].offset
        # Where records are missing before it, the epoch just before it is unknown.
        return reading.done if reading.done[0] == first else (first, -1)

    def is_busy(self, streams: Iterable[int]) -> bool:
        """Whether a record of these streams is being handled."""
        return any(self._readings[stream].running for stream in streams)

    def hold(self, stream: int) -> None:
        """Nothing more of it starts. It is dropped next."""
        self._readings[stream].is_held = True

    def drop(self, stream: int) -> None:
        """Forget a stream that is no longer read. Records that are still being handled keep only
        their keys."""
        reading = self._readings.pop(stream)
        reading.is_held = reading.is_dropped = True
        for work in reading.works:
            self._forget(work)
        for key in {work.key for work in reading.works if work.key is not None}:
            same_key = self._keys.get((stream, key))
            if same_key is None:
                continue
            if same_key[0].state is State.RUNNING:
                self._keys[stream, key] = deque([same_key[0]])
            else:
                del self._keys[stream, key]
        reading.works.clear()
