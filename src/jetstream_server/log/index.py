"""The sparse index of one segment, in memory.

Entries (offset, position, append timestamp) lie in one flat array: 4 KiB of log cost 24 bytes and
no object. A lookup bisects the entries, then walks the headers of the batches between two of them.
jetstream_protocol.logfiles describes the file's layout and when it is trusted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from jetstream_protocol.logfiles import index_file
from jetstream_protocol.logfiles.index_file import FIELDS
from jetstream_protocol.types import WallUs

_NEVER_INDEXED = -(1 << 62)


class Index:
    """Grows with its segment, at the end only.

    Another thread may read at the same time: an entry is added by one call under the
    interpreter's lock, and a lookup never goes beyond the length that it saw first.
    """

    __slots__ = ("_entries", "_interval_bytes", "_last_position")

    def __init__(self, interval_bytes: int, entries: array[int] | None = None) -> None:
        self._entries = array("q") if entries is None else entries
        self._interval_bytes = interval_bytes
        self._last_position = self._entries[-2] if self._entries else _NEVER_INDEXED

    def __len__(self) -> int:
        return len(self._entries) // FIELDS

    def add(self, offset: int, position: int, timestamp: WallUs) -> None:
        """Add the batch at `position` if the last entry is at least an interval away."""
        if position - self._last_position >= self._interval_bytes:
            self._entries.extend((offset, position, timestamp))
            self._last_position = position

    def entry(self, slot: int) -> tuple[int, int, WallUs]:
        """Offset, position and append timestamp (µs) of entry `slot`."""
        at = slot * FIELDS
        offset, position, timestamp = self._entries[at : at + FIELDS]
        return offset, position, WallUs(timestamp)

    def slot_of_offset(self, offset: int) -> int:
        """Slot of the last entry at or before `offset`; -1: none."""
        entries = self._entries
        return bisect_right(range(len(self)), offset, key=lambda i: entries[i * FIELDS]) - 1

    def slot_of_position(self, position: int) -> int:
        """Slot of the last entry at or before `position`; -1: none."""
        entries = self._entries
        return bisect_right(range(len(self)), position, key=lambda i: entries[i * FIELDS + 1]) - 1

    def slot_before_timestamp(self, timestamp: WallUs) -> int:
        """Slot of the last entry appended before `timestamp`; -1: none."""
        entries = self._entries
        return (
            bisect_left(range(len(self)), timestamp, key=lambda i: WallUs(entries[i * FIELDS + 2]))
            - 1
        )

    def truncate(self, position: int) -> None:
        """Forget the batches at and after `position`."""
        kept = (self.slot_of_position(position - 1) + 1) * FIELDS
        # A new array: a lookup in another thread keeps the one it began with.
        self._entries = self._entries[:kept]
        self._last_position = self._entries[-2] if kept else _NEVER_INDEXED

    def to_bytes(self, base_offset: int, log_length: int) -> bytes:
        return index_file.encode(base_offset, log_length, self._entries)

    @classmethod
    def from_bytes(
        cls, data: bytes, base_offset: int, log_length: int, interval_bytes: int
    ) -> Index:
        """Read an index. Raises CorruptBatchError unless it is intact and belongs to this
        segment."""
        return cls(interval_bytes, index_file.decode(data, base_offset, log_length))
