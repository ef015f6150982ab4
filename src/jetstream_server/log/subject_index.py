"""The last offset of each subject in a log. Pure: it holds what it is told.

    [log start, reached) is in the index:   committed, one entry a subject
                                            pending, one entry a subject and batch, above it

It can always be made again from the log: whatever is behind `reached` is read there, in steps
(`CommitLog.read_subjects`, `take`). What a leader appends at `reached` it notes at once (`note`).

Invariants.
* **safety** For each subject the index has the last record below `reached`, neither an earlier nor
  a later one: the leader decides by it whether an expectation holds, and readers are told of it.
* Pending entries can be taken back, because what is not committed may be truncated. Where committed
  records are cut, after a lossy election, the index begins anew.
* Memory is bounded: an index of more than `bytes_max` forgets everything, and says so (`is_full`).

Records that retention has removed are found by their offsets: callers compare. Owned by the log's
thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from jetstream_protocol.batch import Batch
from jetstream_protocol.columns import Flags

BYTES_MAX: Final = 256 * 1024 * 1024
"""Of one log's index: about 1.7 million subjects of 20 bytes."""
ENTRY_BYTES: Final = 130
"""Of one entry, besides its subject: its places in the table, and the objects."""

_NULL_VALUES: Final = int(Flags.VALUE_VALIDITY)


class Last(NamedTuple):
    """The last record of a subject. is_tombstone: its value is null."""

    offset: int
    is_tombstone: bool


Row = tuple[int, bytes]
"""An entry as it is kept: twice the offset, plus 1 for a tombstone; and the subject. One number
takes a third of the memory of an object with two fields."""


class Rows(NamedTuple):
    """The entries of the batches in [start, next_offset), ascending."""

    start: int
    next_offset: int
    rows: list[Row]


def rows_of(batch: Batch) -> list[Row]:
    """The last record of each subject in a batch, which is appended and cut as a whole."""
    if not len(batch):
        return []
    offsets, is_null = batch.offsets(), batch.header.flags & _NULL_VALUES
    nulls = [value is None for value in batch.values()] if is_null else [False] * len(batch)
    if batch.layout.subjects is None:
        return [(2 * offsets[-1] + nulls[-1], batch.layout.subject)]
    found = {
        subject: 2 * offset + null
        for subject, offset, null in zip(batch.subjects(), offsets, nulls, strict=True)
    }
    return sorted((entry, subject) for subject, entry in found.items())


class SubjectIndex:
    """See the module. reached: see there. is_full: there are more subjects than it may hold; it
    holds none then. cuts: how often the log was cut, or the index begun."""

    __slots__ = (
        "_bytes", "_bytes_max", "_committed", "_newest", "_pending", "committed_to", "cuts",
        "forgotten_below", "is_full", "reached", "steps_at_once",
    )  # fmt: skip

    def __init__(self, start_offset: int, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.cuts = 0
        self.steps_at_once = 0
        """How many steps were read within turns of the event loop since the background has read."""
        self.begin(start_offset)

    def begin(self, start_offset: int) -> None:
        """Begin anew: the log begins there."""
        self.cuts += 1
        self._committed: dict[bytes, int] = {}
        self._pending: deque[Row] = deque()
        self._newest: dict[bytes, int] = {}
        """The last pending entry of each subject."""
        self._bytes = 0
        self.committed_to = self.reached = start_offset
        self.forgotten_below = start_offset, start_offset
        """The log start, and the offset below which tombstones were gone, at the last `forget`."""
        self.is_full = False

    def __len__(self) -> int:
        """How many committed subjects it knows, also those of removed records."""
        return len(self._committed)

    @property
    def size_bytes(self) -> int:
        """Its memory, roughly."""
        return self._bytes

    # What it is told.

    def take(self, found: Rows, cuts: int) -> bool:
        """Take what was read from the log. cuts: as it was before that was read. Returns False,
        with nothing done, unless it continues what is known. **safety** What was read may have been
        cut off meanwhile, even if nothing of it was known."""
        if found.start != self.reached or cuts != self.cuts:
            return False
        self._add(found.rows)
        self.reached = found.next_offset
        self.forgotten_below = -1, -1
        return True

    def note(self, batch: Batch) -> None:
        """Note a batch that was just appended, if everything before it is known."""
        if batch.header.base_offset == self.reached and not self.is_full:
            self._add(rows_of(batch))
            self.reached = batch.header.next_offset

    def skip_to(self, start_offset: int) -> None:
        """Note that the log begins there: what is before it need not be read."""
        self.reached = max(self.reached, start_offset)

    def truncate(self, end_offset: int, start_offset: int) -> None:
        """Note that the log was cut at `end_offset`. start_offset: where it begins."""
        self.cuts += 1
        if end_offset < self.committed_to:
            self.begin(start_offset)
            return
        if end_offset >= self.reached:
            return
        pending = self._pending
        while pending and pending[-1][0] >= 2 * end_offset:
            self._bytes -= ENTRY_BYTES
            pending.pop()
        self._newest = {subject: entry for entry, subject in pending}
        self.reached = end_offset

    def commit(self, high_watermark: int) -> None:
        """Note what is committed. Pending entries below it cannot be taken back any more."""
        pending, committed = self._pending, self._committed
        limit = 2 * min(high_watermark, self.reached)
        while pending and pending[0][0] < limit:
            entry, subject = pending.popleft()
            self._bytes -= ENTRY_BYTES
            if subject not in committed:
                self._bytes += ENTRY_BYTES + len(subject)
            committed[subject] = entry
            if self._newest.get(subject) == entry:
                del self._newest[subject]
        self.committed_to = max(self.committed_to, limit // 2)

    def _add(self, rows: list[Row]) -> None:
        if self.is_full:
            return
        self._pending.extend(rows)
        for entry, subject in rows:
            self._newest[subject] = entry
        self._bytes += ENTRY_BYTES * len(rows)
        if self._bytes > self._bytes_max:
            self.give_up()

    def give_up(self) -> None:
        """Forget everything, because it takes too much memory."""
        self.begin(self.reached)
        self.is_full = True

    def forget(self, start_offset: int, tombstones_gone_below: int) -> None:
        """Forget committed subjects whose last record is before the log start, or a tombstone that
        is gone."""
        limits = 2 * start_offset, 2 * max(start_offset, tombstones_gone_below)
        gone = [subject for subject, entry in self._committed.items() if entry < limits[entry & 1]]
        for subject in gone:
            del self._committed[subject]
            self._bytes -= ENTRY_BYTES + len(subject)
        self.forgotten_below = start_offset, tombstones_gone_below

    # What it knows.

    def newest(self, subject: bytes) -> Last | None:
        """The last record of a subject below `reached`, committed or not."""
        entry = self._newest.get(subject)
        if entry is None:
            entry = self._committed.get(subject)
        return None if entry is None else _last(entry)

    def last(self, subject: bytes) -> Last | None:
        """The last committed record of a subject: call `commit` before."""
        entry = self._committed.get(subject)
        return None if entry is None else _last(entry)

    def snapshot(self) -> dict[bytes, int]:
        """A copy of the committed entries, for another thread: see `listed`."""
        return dict(self._committed)


def listed(entries: Iterable[tuple[bytes, int]]) -> Iterable[tuple[bytes, Last]]:
    """Entries of a snapshot, readable."""
    return ((subject, _last(entry)) for subject, entry in entries)


def _last(entry: int) -> Last:
    return Last(entry >> 1, bool(entry & 1))
