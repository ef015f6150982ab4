"""The segments of a log, in order of their base offsets, and what spans several of them.

The list is replaced, never changed, so that a reader in another thread keeps the list with which it
began. Only the loop thread replaces it. A log that was ever written to has at least one segment;
the last one grows.
"""

from __future__ import annotations

from bisect import bisect_right

from jetstream_protocol.batch import BatchHeader
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.types import WallUs
from jetstream_server.log.segment import Segment

_LOADED_INDEXES_MAX = 4
"""Indexes of sealed segments kept in memory per log: readers use few segments at once, and the
index of a full segment takes 1.5 MiB."""


class Segments:
    """Methods raise OSError and CorruptBatchError."""

    __slots__ = ("_list", "_loaded")

    def __init__(self, segments: list[Segment]) -> None:
        self._list = segments
        self._loaded: list[Segment] = []  # sealed, with an index in memory, oldest first

    def __len__(self) -> int:
        return len(self._list)

    @property
    def last(self) -> Segment | None:
        segments = self._list  # Another thread may replace it.
        return segments[-1] if segments else None

    @property
    def all(self) -> list[Segment]:
        return self._list[:]

    @property
    def sealed(self) -> list[Segment]:
        return self._list[:-1]

    def sealed_beyond(self, offset: int) -> Segment | None:
        """The first sealed one that ends after `offset`."""
        segments = self._list
        at = bisect_right(segments, offset, key=lambda segment: segment.next_offset)
        return segments[at] if at < len(segments) - 1 else None

    @property
    def sealed_end(self) -> int:
        """Where the sealed ones end."""
        segments = self._list
        return segments[-1].base_offset if segments else 0

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._list)

    @property
    def base_offsets(self) -> list[int]:
        return [segment.base_offset for segment in self._list]

    def find(self, offset: int) -> Segment | None:
        """The segment that holds `offset`; None before the first segment, or if there is none."""
        segments = self._list
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[at - 1] if at else None

    def holding(self, offset: int) -> Segment:
        """The segment that holds `offset`. Raises CorruptBatchError where `find` finds none."""
        segment = self.find(offset)
        if segment is None:
            raise CorruptBatchError(f"the records at offset {offset} are missing")
        return segment

    def find_timestamp(self, timestamp: WallUs) -> BatchHeader | None:
        """The first batch appended at `timestamp` or later; None: all are older."""
        segments = self._list
        for segment in segments[max(self._last_begun_before(segments, timestamp), 0) :]:
            header = segment.find_timestamp(timestamp)
            if header is not None:
                return header
        return None

    def _last_begun_before(self, segments: list[Segment], timestamp: WallUs) -> int:
        """The slot of the last segment whose first batch is older than `timestamp`; -1: none."""
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            first = segments[middle].first_timestamp()
            self.note_loaded(segments[middle])
            if first is not None and first < timestamp:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def note_loaded(self, segment: Segment) -> None:
        """Note that a segment's index was used. Keeps only a few in memory."""
        if segment is self.last or segment in self._loaded:
            return
        self._loaded.append(segment)
        if len(self._loaded) > _LOADED_INDEXES_MAX:
            self._loaded.pop(0).unload_index()

    def append(self, segment: Segment) -> None:
        sealed = self.last
        self._list = [*self._list, segment]
        if sealed is not None:
            self.note_loaded(sealed)

    def replace(self, old: Segment, new: Segment) -> None:
        """Replace a segment whose batches another file holds."""
        self._keep([new if segment is old else segment for segment in self._list], [old])

    def drop_after(self, offset: int) -> list[Segment]:
        """Take out the segments that begin after `offset`; the caller removes the files."""
        at = bisect_right(self._list, offset, key=lambda segment: segment.base_offset)
        dropped = self._list[at:]
        self._keep(self._list[:at], dropped)
        return dropped

    def drop_before(self, offset: int) -> list[Segment]:
        """Take out the segments wholly below `offset`, never the last one."""
        at = bisect_right(self._list, offset, key=lambda segment: segment.base_offset)
        dropped = self._list[: max(at - 1, 0)]
        self._keep(self._list[len(dropped) :], dropped)
        return dropped

    def _keep(self, kept: list[Segment], dropped: list[Segment]) -> None:
        self._list = kept
        self._loaded = [segment for segment in self._loaded if segment not in dropped]
