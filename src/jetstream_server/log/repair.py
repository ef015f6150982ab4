"""Rewrites a segment with bad ranges: its good batches, and replacements from another replica.

    Repair ── copy, add (another replica's batches), copy … ── finish ──> Successor ──> swap

Written beside the segment as `<segment>.<token>.tmp`, with its index, then read back in full:
**safety** a file replaces a segment only if every batch in it passes both CRCs, continues the one
before, and has the epoch that this log knows for its offset. Crash policy: an interrupted repair
leaves temporary files, which recovery removes. The swap is one rename; the marks of the bad ranges
are removed after it (damage.py).

Blocks: run it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from jetstream_protocol.batch import BatchHeader, decode_header
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError, DivergedError
from jetstream_protocol.logfiles.names import TEMPORARY_SUFFIX, index_name, segment_name
from jetstream_protocol.logfiles.scan import Tail, check_body, walk
from jetstream_server.log.disk import Disk
from jetstream_server.log.index import Index
from jetstream_server.log.inspection import BadRange, Inspected

_COPY_BYTES: Final = 1 << 20

EpochAt = Callable[[int], int]
"""The leader epoch of the record at an offset, as the log knows it."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment's successor, complete and synced. gaps_end_at: the last offset before which
    compaction left a gap."""

    path: str
    index_path: str
    size: int
    gaps_end_at: int


def check_fetched(
    data: bytes, start_offset: int, bad: BadRange, epoch_at: EpochAt, *, has_gaps: bool
) -> tuple[int, int]:
    """Check batches that another replica sent for a bad range.

    data: its batches from `start_offset` on. Returns the number of bytes that belong in the bad
    range, and the offset where they end.

    has_gaps: the stream is or was compacted, so batches may be missing. Raises CorruptBatchError
    for an invalid batch, DivergedError for one that does not fit here.
    """
    position, offset = 0, start_offset
    while position < len(data):
        header = decode_header(data, position)
        if header.base_offset >= bad.end_offset:
            return position, bad.end_offset
        check_body(data, position, header, position)
        _check_place(header, offset, bad, epoch_at, has_gaps)
        offset = header.next_offset
        position += header.length
    return position, offset


def _check_place(
    header: BatchHeader, offset: int, bad: BadRange, epoch_at: EpochAt, has_gaps: bool
) -> None:
    problem = ""
    if header.base_offset != offset:
        is_gap = header.base_offset > offset and header.flags & Flags.AFTER_GAP
        if not (has_gaps and is_gap):
            problem = f"batch at offset {header.base_offset} where {offset} is missing"
    if header.next_offset > bad.end_offset:
        problem = f"batch up to {header.next_offset - 1} where {bad.end_offset} is not missing"
    if header.leader_epoch != epoch_at(header.base_offset):
        problem = (
            f"leader epoch {header.leader_epoch} at offset {header.base_offset}, where this log "
            f"has {epoch_at(header.base_offset)}"
        )
    if problem:
        raise DivergedError(problem, header.leader_epoch, offset)


class Repair:
    """Writes one successor. Methods raise OSError, and CorruptBatchError or DivergedError when the
    given batches cannot replace the bad ones."""

    def __init__(
        self, disk: Disk, segment: Inspected, token: str, *, interval_bytes: int, epoch_at: EpochAt,
        has_gaps: bool,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._segment = segment
        self._epoch_at = epoch_at
        self._has_gaps = has_gaps
        self._interval_bytes = interval_bytes
        folder = segment.path.rpartition("/")[0]
        name, index = segment_name(segment.base_offset), index_name(segment.base_offset)
        self.path = f"{folder}/{name}.{token}{TEMPORARY_SUFFIX}"
        self.index_path = f"{folder}/{index}.{token}{TEMPORARY_SUFFIX}"
        self._copied_to = 0
        self._size = 0

    def begin(self) -> None:
        self._disk.create(self.path)

    def copy_until(self, position: int) -> None:
        """Copy the good batches up to that position."""
        while self._copied_to < position:
            length = min(_COPY_BYTES, position - self._copied_to)
            data = self._disk.pread(self._segment.path, self._copied_to, length)
            if len(data) < length:
                raise CorruptBatchError("the segment is shorter than it was", self._segment.path)
            self._write(data)
            self._copied_to += length

    def add(self, data: bytes | memoryview) -> None:
        """Append these batches to the successor; `replaced` names the range that they replace."""
        self._write(data)

    def replaced(self, bad: BadRange) -> None:
        """Note that the batches added since the bad range was reached replace it."""
        self._copied_to = bad.end_position

    def _write(self, data: bytes | memoryview) -> None:
        if len(data):
            self._disk.write(self.path, self._size, [data])
            self._size += len(data)

    def finish(self) -> Successor:
        """Copy the rest, and check the whole file."""
        segment = self._segment
        self.copy_until(segment.size)
        self._disk.fsync(self.path)
        index, gaps_end_at = self._check()
        self._disk.create(self.index_path)
        self._disk.write(self.index_path, 0, [index.to_bytes(segment.base_offset, self._size)])
        return Successor(self.path, self.index_path, self._size, gaps_end_at)

    def _check(self) -> tuple[Index, int]:
        segment = self._segment
        index = Index(self._interval_bytes)
        tail = Tail(segment.base_offset)
        gaps_end_at = 0
        for position, header in walk(self._read, 0, self._size, bodies=True):
            problem = tail.problem(header)
            if not problem and header.base_offset != tail.offset and not self._has_gaps:
                problem = f"no batch at offset {tail.offset}"
            known = self._epoch_at(header.base_offset)
            if not problem and header.leader_epoch != known:
                problem = f"leader epoch {header.leader_epoch}, and this log has {known} there"
            if problem:
                raise DivergedError(problem, tail.leader_epoch, tail.offset)
            if header.base_offset != tail.offset:
                gaps_end_at = header.base_offset
            index.add(header.base_offset, position, header.append_timestamp)
            tail.advance(header)
        if tail.offset != segment.next_offset:
            raise DivergedError(
                f"the segment would end at offset {tail.offset}, not {segment.next_offset}",
                tail.leader_epoch, tail.offset,
            )  # fmt: skip
        return index, gaps_end_at

    def _read(self, position: int, length: int) -> bytes:
        return self._disk.pread(self.path, position, length)

    def discard(self) -> None:
        """Remove the files that were written."""
        for path in (self.path, self.index_path):
            if self._disk.exists(path):
                self._disk.remove(path)


def may_repair_exactly(
    bad: Sequence[BadRange], gone_here_below: int, gone_there_below: int
) -> bool:
    """Whether a compacted log may copy only the bad ranges from a log that was compacted
    differently.

    **safety** It may not if tombstones after the start of a range were removed. If they were
    removed from this log, the other log may bring back records that they deleted. If they were
    removed from the other log, this log would keep records that they deleted.
    """
    start = min(each.start_offset for each in bad)
    return max(gone_here_below, gone_there_below) <= start
