"""One segment: a file of whole batches, and where to find things in it.

Only the last segment of a log grows; the others are sealed and never change again, unless the log
is cut. A segment holds no descriptor and, until the first lookup, no index.

Lookups go around bytes in the middle that are known to be bad (`bad`). A *stretch* lies between two
such ranges.

Invariant: `end` is the pair (bytes, next offset) up to which the file is known to hold batches. It
is replaced as a whole, so that a reader in another thread never sees half an append.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field

from jetstream_protocol.batch import HEADER_BYTES, BatchHeader, decode_header
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles.names import index_name, segment_name
from jetstream_protocol.logfiles.scan import skim, walk
from jetstream_protocol.types import WallUs
from jetstream_server.disk_errors import changed_nothing
from jetstream_server.log.disk import Disk
from jetstream_server.log.index import Index
from jetstream_server.log.inspection import BadRange

_SEEK_BYTES = 8192
"""Bytes read at a time between two index entries. Entries are little more than 4 KiB apart when
batches are small; of a large batch this reads one header and a part of the body."""

_RECENT_MAX = 4
"""Followers that keep up fetch what was appended since their last fetch: one batch when messages
come one at a time, a few under load."""


@dataclass(slots=True, unsafe_hash=True)
class LogSlice:
    """Whole batches in one segment file: the bytes to send, and the offsets that they cover. cuts:
    how often the file had been cut when the slice was chosen. last_epoch: of a slice that is not
    of a log: the leader epoch of its last record. It is never changed."""

    path: str
    position: int
    length: int
    base_offset: int
    next_offset: int
    source: Segment | None = field(default=None, compare=False, repr=False)
    cuts: int = field(default=0, compare=False, repr=False)
    last_epoch: int | None = field(default=None, compare=False, repr=False)

    @property
    def is_gone(self) -> bool:
        """Whether the file was removed or swapped, or the slice cut. Call it *after* opening the
        file: False then means that the opened file is the one from which the slice was chosen."""
        return self.source is not None and (self.source.is_gone or self.is_cut)

    @property
    def is_cut(self) -> bool:
        """Whether the file was truncated below the end of the slice, so that other batches may be
        there. Call it *after* reading the bytes, too: False then means that they are the slice."""
        source, end = self.source, self.position + self.length
        return source is not None and source.was_cut_below(end, self.cuts)

    def check_is_there(self) -> None:
        """Raise FileNotFoundError if the slice is gone, as if its file could not be opened."""
        if self.is_gone:
            raise FileNotFoundError(errno.ENOENT, "removed, cut or compacted meanwhile", self.path)


class Segment:
    """Finds batches by offset, size and time. Methods raise OSError and CorruptBatchError."""

    __slots__ = (
        "_disk", "_index", "_index_is_loaded", "_indexing", "_interval_bytes", "_last_timestamp",
        "_recent", "bad", "base_offset", "cuts", "end", "index_path", "is_gone", "path",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, next_offset: int,
        *, interval_bytes: int, index: Index | None = None,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._interval_bytes = interval_bytes
        self._index = index
        self._index_is_loaded = False  # from the file, not yet compared with the segment
        self._indexing = disk.mutex()  # around the replacement of the index
        self.index_path = f"{directory}/{index_name(base_offset)}"
        self.base_offset = base_offset
        self.path = f"{directory}/{segment_name(base_offset)}"
        self.end = (size, next_offset)
        self._last_timestamp: WallUs | None = None  # looked up once, when it is sealed
        self.bad: tuple[BadRange, ...] = ()
        """The ranges that cannot be read, in order. Replaced, never changed."""
        self.is_gone = False  # out of the log: its file is removed, or is another segment's
        self.cuts: tuple[int, ...] = ()
        """The positions at which the file was cut, in the order of the cuts. Replaced, never
        changed."""
        self._recent: tuple[tuple[int, int], ...] = ()
        """Base offset and position of the batches written last, newest last."""

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, interval_bytes: int) -> Segment:
        """Make a new, empty segment file. Its name is not synced yet."""
        segment = cls(
            disk, directory, base_offset, 0, base_offset,
            interval_bytes=interval_bytes, index=Index(interval_bytes),
        )  # fmt: skip
        disk.create(segment.path)
        return segment

    @property
    def size(self) -> int:
        """Bytes of batches in the file."""
        return self.end[0]

    @property
    def next_offset(self) -> int:
        return self.end[1]

    @property
    def index(self) -> Index:
        """The index. Loaded when first needed; rebuilt from the batches if its file is not good."""
        while (index := self._index) is None:  # Again if it was cut meanwhile.
            if not self._load_index():
                self._rebuild_index()
        return index

    @property
    def has_index(self) -> bool:
        """Whether the index is in memory. The last segment keeps it."""
        return self._index is not None

    def load_index(self) -> None:
        """Have the index in memory."""
        _ = self.index

    def read(self, position: int, length: int) -> bytes:
        return self._disk.pread(self.path, position, length)

    def headers(self, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch in [start, end) outside of `bad`. CorruptBatchError
        names the file."""
        try:
            for bad in self.bad:
                if bad.position < end and start < bad.end_position:
                    yield from self._walk(start, bad.position)
                    start = bad.end_position
            yield from self._walk(start, end)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, self.path, error.position) from error

    def _walk(self, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        return walk(self.read, start, end, bodies=False, chunk_bytes=_SEEK_BYTES)

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that begins at `position`. CorruptBatchError names the file."""
        try:
            return decode_header(self.read(position, HEADER_BYTES))
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, self.path, position) from error

    # Looking up.

    def tail_from(self, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
        """All batches from the one that begins at `offset` on, if they are known without a read and
        lie within both limits; None: they have to be looked up."""
        cuts = len(self.cuts)  # First, like everywhere: a cut meanwhile counts.
        size, next_offset = self.end
        if next_offset > limit_offset:
            return None
        for base_offset, position in self._recent:
            if base_offset == offset and size - position <= bytes_max:
                length = size - position
                return LogSlice(self.path, position, length, offset, next_offset, self, cuts)
        return None

    def locate(self, offset: int) -> tuple[int, BatchHeader]:
        """Position and header of the batch that holds `offset`. If `offset` lies in a gap: of the
        first batch after it."""
        try:
            return self._seek(offset)
        except CorruptBatchError:
            if not self._index_is_loaded:
                raise
            self._rebuild_index()  # The index may be wrong.
            return self._seek(offset)

    def locate_end(self, offset: int) -> tuple[int, int]:
        """Where the batches wholly below `offset` end: position and offset. A gap after them is
        not included: the next append could not continue from there. Raises CorruptBatchError inside
        of a bad range: which of its batches lie below `offset` is not known."""
        for bad in self.bad:
            if bad.start_offset == offset:
                return bad.position, offset
            if bad.start_offset < offset < bad.end_offset:
                raise CorruptBatchError(bad.reason, self.path, bad.position)
        position, header = self.locate(offset)
        if not header.flags & Flags.AFTER_GAP:
            return position, header.base_offset
        ends = [(at + found.length, found.next_offset) for at, found in self.headers(0, position)]
        ends += [(bad.end_position, bad.end_offset) for bad in self.bad]
        return max((each for each in ends if each[0] <= position), default=(0, self.base_offset))

    def _stretch(self, offset: int) -> tuple[int, int, int, int]:
        """Start and end of the good bytes around `offset`: position and offset of both."""
        position, begins_at = 0, self.base_offset
        for bad in self.bad:
            if bad.start_offset > offset:
                return position, begins_at, bad.position, bad.start_offset
            position, begins_at = bad.end_position, bad.end_offset
        return position, begins_at, *self.end

    def _seek(self, offset: int) -> tuple[int, BatchHeader]:
        first, first_offset, size, _ = self._stretch(offset)
        index = self.index
        slot = index.slot_of_offset(offset)
        expected, start, _ = index.entry(slot) if slot >= 0 else (self.base_offset, 0, 0)
        if start < first:
            expected, start = first_offset, first
        try:
            for position, _, next_offset in skim(
                self.read, start, size, expected, chunk_bytes=_SEEK_BYTES
            ):
                if next_offset > offset:
                    return position, self.header_at(position)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, self.path, error.position) from error
        raise CorruptBatchError(f"batches end before offset {offset}", self.path, size)

    def slice_from(
        self, position: int, header: BatchHeader, bytes_max: int, limit_offset: int, cuts: int
    ) -> LogSlice:
        """The batch at `position` and the batches after it that fit within both limits. cuts: how
        often the file had been cut when the batch was located."""
        _, _, size, next_offset = self._stretch(header.base_offset)
        reach = position + bytes_max
        if next_offset <= limit_offset and size <= reach:
            length = size - position
            return LogSlice(
                self.path, position, length, header.base_offset, next_offset, self, cuts
            )
        end, end_offset = position + header.length, header.next_offset
        index = self.index
        slot = min(index.slot_of_position(reach), index.slot_of_offset(limit_offset))
        if slot >= 0:
            # All batches before an entry at or below the limit lie wholly below the limit.
            entry_offset, entry_position, _ = index.entry(slot)
            if entry_position > end:
                end, end_offset = entry_position, entry_offset
        end, end_offset = self._extend(end, end_offset, min(reach, size), limit_offset, size)
        length = end - position
        return LogSlice(self.path, position, length, header.base_offset, end_offset, self, cuts)

    def _extend(
        self, end: int, end_offset: int, reach: int, limit_offset: int, size: int
    ) -> tuple[int, int]:
        """Move (end, end offset) over the whole batches after it that fit within both limits."""
        last, before = (end, end_offset), (end, end_offset)
        try:
            for _, following, next_offset in skim(
                self.read, end, size, end_offset, chunk_bytes=_SEEK_BYTES
            ):
                if following > reach or next_offset > limit_offset:
                    break
                last, before = (following, next_offset), last
        except CorruptBatchError:
            pass  # What lies before it is good; a reader that goes on gets the error.
        if last != before:
            try:
                self.header_at(before[0])
            except CorruptBatchError:
                return before
        return last

    def first_timestamp(self) -> WallUs | None:
        """Append timestamp (µs) of the first batch; None: the segment is empty."""
        index = self.index
        return index.entry(0)[2] if len(index) else None

    def last_timestamp(self) -> WallUs:
        """Append timestamp (µs) of the last batch of a sealed segment."""
        if self._last_timestamp is None:
            index, cuts = self.index, self.cuts
            start = index.entry(len(index) - 1)[1] if len(index) else 0
            noted = index.entry(len(index) - 1)[2] if len(index) else WallUs(0)
            timestamps = [header.append_timestamp for _, header in self.headers(start, self.size)]
            self.unload_index()
            found = self._last_timestamp = timestamps[-1] if timestamps else noted
            if self.cuts is not cuts:
                self._last_timestamp = None  # It was cut meanwhile, by another thread.
            return found
        return self._last_timestamp

    def last_offset_end(self) -> int:
        """The offset after the last batch in the file."""
        index, end = self.index, self.base_offset
        start = index.entry(len(index) - 1)[1] if len(index) else 0
        for _, header in self.headers(start, self.size):
            end = header.next_offset
        self.unload_index()
        return end

    def find_timestamp(self, timestamp: WallUs) -> BatchHeader | None:
        """The first batch appended at `timestamp` or later; None: all are older."""
        index = self.index
        slot = index.slot_before_timestamp(timestamp)
        start = index.entry(slot)[1] if slot >= 0 else 0
        for _, header in self.headers(start, self.size):
            if header.append_timestamp >= timestamp:
                return header
        return None

    # Changing.

    def write(self, buffers: tuple[bytes | bytearray | memoryview, ...]) -> None:
        """Write after the last batch. Does not move `end`: `wrote` does, for each batch."""
        self._disk.write(self.path, self.end[0], buffers)

    def wrote(self, base_offset: int, next_offset: int, length: int, timestamp: WallUs) -> None:
        """Account for one batch that was written at the end. Raises nothing if the index is in
        memory."""
        position = self.end[0]
        index = self._index or self.index
        index.add(base_offset, position, timestamp)
        self._index_is_loaded = False
        self._recent = (*self._recent[-_RECENT_MAX + 1 :], (base_offset, position))
        self.end = (position + length, next_offset)

    def undo_write(self) -> None:
        """Cut off what a failed write has left behind the last batch."""
        self._disk.truncate(self.path, self.size)

    def ends_at(self, position: int, next_offset: int) -> None:
        """Cut the log there. The bytes after the cut are still in the file."""
        self._recent = ()
        self.end = (position, next_offset)
        self.cuts = (*self.cuts, position)  # Before the file: what is read after that is cut.
        self._last_timestamp = None

    def truncate(self, position: int, next_offset: int) -> None:
        """Drop the batches from `position` on; the first dropped one began at `next_offset`."""
        self.ends_at(position, next_offset)
        index = self.index
        self.remove_index()
        index.truncate(position)
        with self._indexing:
            self._index = index
        self._disk.truncate(self.path, position)

    def was_cut_below(self, position: int, since: int) -> bool:
        """Whether the file was cut below `position` after it had been cut `since` times."""
        return len(self.cuts) > since and min(self.cuts[since:]) < position

    def remove(self) -> None:
        """Remove both files. A file that is missing already is no error."""
        self.remove_index()
        if self._disk.exists(self.path):
            self._disk.remove(self.path)

    # The index's file.

    def boundaries(self) -> Index:
        """Where batches begin, as far as it is known without reading them: from the index in memory
        or from its file. Empty if there is neither."""
        if self._index is not None:
            return self._index
        try:
            data = self._disk.read_file(self.index_path)
            return Index.from_bytes(data, self.base_offset, self.size, self._interval_bytes)
        except (OSError, CorruptBatchError):
            return Index(self._interval_bytes)

    def adopt_index(self, index: Index) -> None:
        """Use an index that was built from the batches."""
        self._index = index
        self._index_is_loaded = False

    def save_index(self) -> None:
        """Write the index file, unless it has the same content already."""
        if self._index is None or self._index_is_loaded:
            return
        data = self._index.to_bytes(self.base_offset, self.size)
        try:
            self._disk.write_atomic(self.index_path, data, durable=False)
        except OSError as error:
            if not changed_nothing(error):
                raise
            return  # The index stays in memory; a failed cache is no failure.
        self._index_is_loaded = True

    def unload_index(self) -> None:
        """Free the memory of the index if its file can restore it."""
        if self._index_is_loaded:
            self._index = None

    def remove_index(self) -> None:
        self._index_is_loaded = False
        if self._disk.exists(self.index_path):
            self._disk.remove(self.index_path)

    def _load_index(self) -> bool:
        """Use the index in the file. False: it is not good, or says nothing."""
        cuts = self.cuts
        try:
            data = self._disk.read_file(self.index_path)
            index = Index.from_bytes(data, self.base_offset, self.size, self._interval_bytes)
        except (OSError, CorruptBatchError):
            return False
        with self._indexing:
            if self.cuts is cuts and self._index is None:
                self._index, self._index_is_loaded = index, True
        return len(index) > 0

    def _rebuild_index(self) -> None:
        """Use an index of the batches. **safety** Not if the segment was cut meanwhile, by another
        thread: other batches may begin where those did that were dropped."""
        cuts, index = self.cuts, Index(self._interval_bytes)
        try:
            for position, header in self.headers(0, self.size):
                index.add(header.base_offset, position, header.append_timestamp)
        except CorruptBatchError:
            pass  # The index covers what can be read; reading on reports the damage.
        with self._indexing:
            if self.cuts is cuts:
                self._index, self._index_is_loaded = index, False
