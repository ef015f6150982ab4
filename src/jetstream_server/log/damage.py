"""The bad ranges of a log's segments, kept durably in the file `damage` of a stream's folder.

    inspect (any thread) ──> mark ──> save ──(repair.py: fetched, verified, swapped in)──> repaired

Readers get the records before and after a marked range, and an error at it. **safety** A log with
a mark lacks records: its replica must not count as in sync (`is_damaged`).

Crash policy. A mark is in memory first and in the file as soon as possible: a crash in between
leaves damage that is not found yet. A mark leaves the file only after the folder in which the
repaired segment has its name was synced. Segments with a mark in the file are inspected again
after a start (replication/drivers/healing.py). If the file cannot be trusted, the whole log has to
be inspected (`is_unknown`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Final

from jetstream_protocol.errors import RecordsDamagedError, StorageError
from jetstream_protocol.logfiles.names import DAMAGE_NAME
from jetstream_server.log.disk import Disk
from jetstream_server.log.inspection import BadRange, Inspected
from jetstream_server.log.repair import Successor
from jetstream_server.log.segment import Segment
from jetstream_server.log.state_files import DamagedFile, owner_of, read_state, write_state
from jetstream_server.log.storage import LogStorage

KIND: Final = "damage"
RANGES_MAX: Final = 10_000
"""Ranges in one log. A segment with more is bad from the first to the last of its ranges."""


class LogDamage:
    """Owned by the log's thread, except `save` and `begin_at`. `ranges` is replaced, never
    changed."""

    __slots__ = (
        "_disk", "_is_unsaved", "_marking", "_mutex", "_save_checkpoint", "_storage",
        "damaged_files", "is_unknown", "marked", "ranges",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        storage: LogStorage,
        mutex: AbstractContextManager[object],
        save_checkpoint: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._save_checkpoint = save_checkpoint
        self._storage = storage
        self._mutex = mutex
        self._is_unsaved = False  # The file names ranges that were dropped: saving has failed.
        self._marking = disk.mutex()  # around the replacement of `ranges`, never around I/O
        self.ranges: tuple[BadRange, ...] = ()
        self.is_unknown = False
        self.marked = 0
        """How many bad ranges were found since the log was opened."""
        self.damaged_files: list[DamagedFile] = []
        """The file itself, if it is not trusted."""
        if self._may_exist():
            self._load()

    @property
    def _path(self) -> str:
        return f"{self._storage.directory}/{DAMAGE_NAME}"

    @property
    def is_damaged(self) -> bool:
        return bool(self.ranges) or self.is_unknown

    @property
    def first(self) -> tuple[int, int] | None:
        """The first bad range of offsets; (0, 0) when the bad offsets are unknown; None: none."""
        if self.ranges:
            return self.ranges[0].start_offset, self.ranges[0].end_offset
        return (0, 0) if self.is_unknown else None

    # For readers.

    def limit(self, offset: int, limit_offset: int) -> int:
        """The offset up to which records can be read from `offset` on. Raises RecordsDamagedError
        if `offset` lies in a bad range."""
        for bad in self.ranges:
            if bad.start_offset <= offset < bad.end_offset:
                raise RecordsDamagedError(
                    f"{self._storage.directory}: offsets {bad.start_offset} to "
                    f"{bad.end_offset - 1} cannot be read: {bad.reason}",
                    bad.start_offset, bad.end_offset,
                )  # fmt: skip
            if offset < bad.start_offset:
                return min(limit_offset, bad.start_offset)
        return limit_offset

    @property
    def interval_bytes(self) -> int:
        """Bytes between two entries of the log's indexes."""
        return self._storage.interval_bytes

    # Finding.

    def segments(self) -> list[Segment]:
        """All segments of the log, oldest first. For any thread."""
        return self._storage.segments.all

    def segment_of(self, offset: int) -> Segment | None:
        """The segment that holds `offset`; None: there is none. For any thread."""
        return self._storage.segments.find(offset)

    def is_as_seen(self, segment: Segment, seen: Inspected) -> bool:
        """Whether the inspected segment is still in the log and has not been cut since."""
        is_there = segment in self.segments() and not segment.is_gone
        return is_there and not segment.was_cut_below(seen.size, seen.cuts)

    def mark(self, segment: Segment, seen: Inspected, found: list[BadRange]) -> list[BadRange]:
        """Replace the known bad ranges of a segment by those that an inspection of all of it found.

        Returns the ranges that were not known before; none when the segment was cut or swapped
        since.
        """
        if not self.is_as_seen(segment, seen):
            return []
        if len(found) > RANGES_MAX:
            first, last = found[0], found[-1]
            found = [
                BadRange(
                    first.base_offset, first.start_offset, last.end_offset, first.position,
                    last.end_position, first.reason,
                )
            ]  # fmt: skip
        before = self._replace(lambda bad: bad.base_offset != segment.base_offset, found)
        known = {(bad.start_offset, bad.end_offset) for bad in before}
        fresh = [bad for bad in found if (bad.start_offset, bad.end_offset) not in known]
        self.marked += len(fresh)
        return fresh

    def is_last(self, segment: Segment) -> bool:
        """Whether the log still appends to this segment."""
        return segment is self._storage.segments.last

    def begin_swap(self, segment: Segment) -> None:
        """Announce a swap. Otherwise, after a crash, a segment whose size differs from the
        checkpoint would count as missing records. Blocks: call it in a thread. Raises
        StorageError."""
        with self._mutex:
            self._storage.rewriting.add(segment.base_offset)
            self._save_checkpoint()

    def swap(self, segment: Segment, successor: Successor) -> None:
        """Replace a sealed segment by its successor. Durable once the folder is synced; call
        `repaired` then. Raises OSError."""
        swapped = self._storage.swap(
            segment.base_offset, segment.size, successor.size, successor.path, successor.index_path
        )
        assert swapped, "the caller has made sure that it is in the log, and sealed"

    def repaired(self, base_offset: int) -> None:
        """Remove the marks of a segment that was replaced by an inspected one."""
        self._storage.rewriting.discard(base_offset)
        self._replace(lambda bad: bad.base_offset != base_offset)

    def inspected_all(self) -> None:
        """Note that every segment was inspected, and that everything bad in them is marked."""
        self.is_unknown = False

    # The log calls these under its mutex. Each saves what has changed.

    def cut_to(self, log_end_offset: int) -> None:
        """Forget bad ranges that reach beyond the new log end."""
        self._keep(lambda bad: bad.end_offset <= log_end_offset)

    def begin_at(self) -> None:
        """Forget bad ranges in segments that were removed at the start of the log."""
        first = self._storage.segments.base_offsets[:1]
        self._keep(lambda bad: bool(first) and bad.base_offset >= first[0])

    def forget(self) -> None:
        """Forget everything, because the log was emptied."""
        if self.is_damaged:
            self.is_unknown = False
            self._replace(lambda bad: False)
            try:
                self._save()
            except StorageError:
                self.is_unknown = True  # The file still says so.
                raise

    def _keep(self, is_kept: Callable[[BadRange], bool]) -> None:
        is_new = not all(map(is_kept, self._replace(is_kept)))
        if is_new or self._is_unsaved:
            self._is_unsaved = True
            self._save()
            self._is_unsaved = False

    def _replace(
        self, is_kept: Callable[[BadRange], bool], found: Sequence[BadRange] = ()
    ) -> tuple[BadRange, ...]:
        """Drop the ranges that are not kept, and add those that were found. Returns the ranges of
        before. **safety** Under one lock: what another thread marks meanwhile must stay."""
        with self._marking:
            before = self.ranges
            after = [*filter(is_kept, before), *found]
            self.ranges = tuple(sorted(after, key=lambda bad: bad.start_offset))
            for segment in self.segments():
                bad = tuple(each for each in self.ranges if each.base_offset == segment.base_offset)
                if bad or segment.bad:
                    segment.bad = bad
        return before

    # The file.

    def save(self) -> None:
        """Write the file; durable on return. Blocks. Raises StorageError, StorageFullError."""
        with self._mutex:
            self._save()

    def _save(self) -> None:
        ranges = [] if self.is_unknown else [list(asdict(bad).values()) for bad in self.ranges]
        state: dict[str, Any] = {"is_unknown": self.is_unknown, "ranges": ranges}
        write_state(self._disk, self._path, KIND, owner_of(self._storage.directory), state)

    def _may_exist(self) -> bool:
        try:
            return self._disk.exists(self._path)
        except OSError:
            return True

    def _load(self) -> None:
        try:
            state = read_state(self._disk, self._path, KIND, owner_of(self._storage.directory))
            self.is_unknown = state is None or bool(state["is_unknown"])
            found = [] if state is None else [_range_of(values) for values in state["ranges"]]
        except (StorageError, KeyError, TypeError, ValueError) as error:
            self.is_unknown = True
            damaged = DamagedFile(self._path, str(error), "every segment is inspected")
            self.damaged_files.append(damaged)
        if self.is_unknown:
            return
        sizes = {segment.base_offset: segment.size for segment in self.segments()}
        kept = [bad for bad in found if bad.end_position <= sizes.get(bad.base_offset, -1)]
        self.is_unknown = len(kept) < len(found)
        self._replace(lambda bad: True, kept)


def view(segment: Segment) -> Inspected:
    """The segment as it is, for an inspection. Reads its index. For any thread."""
    cuts = len(segment.cuts)
    size, next_offset = segment.end
    boundaries = segment.boundaries()
    return Inspected(segment.path, segment.base_offset, next_offset, size, boundaries, cuts)


def _range_of(values: list[Any]) -> BadRange:
    *numbers, reason = values
    base_offset, start_offset, end_offset, position, end_position = map(int, numbers)
    return BadRange(base_offset, start_offset, end_offset, position, end_position, str(reason))
