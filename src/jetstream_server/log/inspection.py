"""Checks every byte of a segment's batches and reports the offset ranges of bad ones.

A batch is *bad* where it fails a CRC, does not continue the log, or lies where the device refuses
to read. If its header is intact, exactly that batch is bad. Otherwise its length is unknown: the
bad range then ends at the next index entry, or at a valid batch from which valid batches lead to
that entry. **safety** A payload may contain stored batches: a valid batch inside a bad one proves
nothing.

Only reads. May run in any thread while the log grows. If a segment was cut or swapped meanwhile,
the result is discarded (`LogDamage.mark` checks that).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jetstream_protocol.batch import HEADER_BYTES, BatchHeader
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles.scan import SCAN_BYTES, Tail, Window, find_valid
from jetstream_server.disk_errors import lacks_descriptors
from jetstream_server.log.index import Index

PAGE_BYTES = 4096
"""A device fails to read whole pages, because the page cache reads whole pages."""


@dataclass(frozen=True, slots=True)
class BadRange:
    """Offsets [start_offset, end_offset), which lie in [position, end_position) of the segment
    that begins at `base_offset`."""

    base_offset: int
    start_offset: int
    end_offset: int
    position: int
    end_position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """A segment as it was when its inspection began: batches in `size` bytes of `path`, which had
    been cut `cuts` times."""

    path: str
    base_offset: int
    next_offset: int
    size: int
    boundaries: Index
    cuts: int

    def boundary_after(self, position: int) -> tuple[int, int]:
        """Position and offset of the next batch that is known to begin after `position`; the
        segment's end if none is known."""
        slot = self.boundaries.slot_of_position(position) + 1
        if slot < len(self.boundaries):
            offset, found, _ = self.boundaries.entry(slot)
            if found < self.size:
                return found, offset
        return self.size, self.next_offset

    def boundary_before(self, offset: int) -> tuple[int, int]:
        """Position and offset of the last batch that is known to begin at or before `offset`."""
        slot = self.boundaries.slot_of_offset(offset)
        if slot < 0:
            return 0, self.base_offset
        begins_at, position, _ = self.boundaries.entry(slot)
        return position, begins_at


class Source(Protocol):
    """The part of a disk that an inspection needs."""

    def exists(self, path: str) -> bool:
        """Raises OSError."""

    def pread(self, path: str, position: int, length: int) -> bytes:
        """Read those bytes; fewer where the file ends. Raises OSError."""


def inspect(
    disk: Source, segment: Inspected, start: tuple[int, int] | None = None,
    end_position: int | None = None,
) -> list[BadRange]:  # fmt: skip
    """The bad ranges, in order. Raises OSError if no descriptor is left to read the file.

    start: position and offset of the first batch to check; None: the segment's first.
    end_position: check up to the end of the batch that reaches there; None: the whole segment.
    """
    return _Inspection(disk, segment).run(start, end_position)


def inspect_at(disk: Source, segment: Inspected, offset: int, bytes_max: int) -> list[BadRange]:
    """The bad ranges around `offset`, within about `bytes_max` bytes after it."""
    start = segment.boundary_before(offset)
    end = segment.boundary_after(start[0])[0] + bytes_max
    return inspect(disk, segment, start, end)


class _Inspection:
    def __init__(self, disk: Source, segment: Inspected) -> None:
        self._disk = disk
        self._segment = segment
        self._unreadable: set[int] = set()  # pages
        self._found: list[BadRange] = []

    def _is_missing(self) -> bool:
        try:
            return not self._disk.exists(self._segment.path)
        except OSError:
            return False  # Reading it tells.

    def run(self, start: tuple[int, int] | None, end_position: int | None) -> list[BadRange]:
        segment = self._segment
        if self._is_missing():
            size = segment.size
            self._note(0, size, segment.base_offset, segment.next_offset, "the file is missing")
            return self._found
        position, offset = (0, segment.base_offset) if start is None else start
        end = segment.size if end_position is None else min(segment.size, end_position)
        tail = Tail(offset)
        window = Window(self._read, segment.size, min(SCAN_BYTES, end - position))
        while position < end:
            header, reason = self._check(window, position, tail)
            if not reason:
                assert header is not None
                tail.advance(header)
                position += header.length
                continue
            following, next_offset = self._next_after(position, header, tail)
            self._note(position, following, tail.offset, next_offset, reason)
            tail.offset = next_offset
            position = following
        if position == segment.size and tail.offset < segment.next_offset:
            self._note(position, position, tail.offset, segment.next_offset, "batches are missing")
        return self._found

    def _read(self, position: int, length: int) -> bytes:
        """Read those bytes, with zeros for the pages that cannot be read."""
        data = self._pread(position, length)
        if data is None:
            data = b"".join(self._pages(position, position + length))
        return data.ljust(length, b"\0")

    def _pread(self, position: int, length: int) -> bytes | None:
        """None: the device cannot read that."""
        try:
            return self._disk.pread(self._segment.path, position, length)
        except OSError as error:
            if lacks_descriptors(error):
                raise
            return None

    def _pages(self, position: int, end: int) -> list[bytes]:
        pages = []
        while position < end:
            page = position // PAGE_BYTES
            page_end = min(page * PAGE_BYTES + PAGE_BYTES, end)
            data = self._pread(position, page_end - position)
            if data is None:
                self._unreadable.add(page)
                data = b""
            pages.append(data.ljust(page_end - position, b"\0"))
            position = page_end
        return pages

    def _check(self, window: Window, position: int, tail: Tail) -> tuple[BatchHeader | None, str]:
        """The header, if it is intact, and what is wrong with the batch; "": nothing is."""
        try:
            header = window.header(position)
        except CorruptBatchError as error:
            return None, self._refusal(position, position + HEADER_BYTES) or error.reason
        problem = tail.problem(header)
        if not problem and position + header.length > self._segment.size:
            problem = "batch cut short"
        if problem:
            return None, problem
        try:
            window.check_body(position, header)
        except CorruptBatchError as error:
            return header, self._refusal(position, position + header.length) or error.reason
        return header, self._refusal(position, position + header.length)

    def _refusal(self, start: int, end: int) -> str:
        if not self._unreadable:
            return ""
        pages = range(start // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)
        refused = any(page in self._unreadable for page in pages)
        return "the device cannot read it" if refused else ""

    def _next_after(self, bad: int, header: BatchHeader | None, tail: Tail) -> tuple[int, int]:
        """Position and offset of the batch after the bad one."""
        if header is not None:
            return bad + header.length, header.next_offset
        boundary = self._segment.boundary_after(bad)
        at = bad
        while True:
            found = find_valid(self._read, at + 1, boundary[0], tail)
            if found is None:
                return boundary
            offset = self._leads_to(found, boundary)
            if offset is not None:
                return found, offset
            at = found

    def _leads_to(self, position: int, boundary: tuple[int, int]) -> int | None:
        """The base offset of the batch at `position`, if valid batches lead from it to `boundary`
        without a gap; None otherwise."""
        end, end_offset = boundary
        window = Window(self._read, end, SCAN_BYTES)
        first = window.header(position).base_offset
        tail = Tail(first)
        while position < end:
            header, reason = self._check(window, position, tail)
            if reason or header is None:
                return None
            tail.advance(header)
            position += header.length
        return first if position == end and tail.offset <= end_offset else None

    def _note(self, position: int, end: int, start_offset: int, end_offset: int, why: str) -> None:
        base_offset = self._segment.base_offset
        found = BadRange(base_offset, start_offset, end_offset, position, end, why)
        last = self._found[-1] if self._found else None
        if last is not None and last.end_position == position:
            found = BadRange(
                base_offset, last.start_offset, end_offset, last.position, end, last.reason
            )
            self._found.pop()
        self._found.append(found)
