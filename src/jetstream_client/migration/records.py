"""`Records`: columns of records on their way from one system to another, and their digest.

The digest says whether two streams hold the same records: it covers offsets, times, subjects, keys,
values and header blocks, and does not depend on how records are grouped into batches, or on leader
epochs. Two streams with the same count and digest are the same to every reader.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from jetstream_protocol.batch import Batch


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of the same length. timestamps: µs. keys, values: None is null. header_blocks: raw
    NATS header blocks, b"" for none. Offsets grow."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    subjects: Sequence[bytes]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    header_blocks: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def of_batch(cls, batch: Batch) -> Records:
        return cls(
            batch.offsets(),
            batch.timestamps(),
            batch.subjects(),
            batch.keys(),
            batch.values(),
            batch.header_blocks(),
        )

    def rows(self, start: int, stop: int) -> Records:
        """The rows [start, stop)."""
        return Records(
            self.offsets[start:stop],
            self.timestamps[start:stop],
            self.subjects[start:stop],
            self.keys[start:stop],
            self.values[start:stop],
            self.header_blocks[start:stop],
        )

    def where(self, wanted: Callable[[int], bool]) -> Records:
        """The rows whose offset is wanted."""
        at = [row for row, offset in enumerate(self.offsets) if wanted(offset)]
        if len(at) == len(self):
            return self
        columns: list[Sequence[Any]] = [
            self.offsets, self.timestamps, self.subjects, self.keys, self.values, self.header_blocks
        ]  # fmt: skip
        return Records(*([column[row] for row in at] for column in columns))

    def sizes(self) -> list[int]:
        """About how many bytes each record takes."""
        return [
            64 + len(subject) + len(key or b"") + len(value or b"") + len(block)
            for subject, key, value, block in zip(
                self.subjects, self.keys, self.values, self.header_blocks, strict=True
            )
        ]


class RecordDigest:
    """Call `add` with records in order; `count` and `hexdigest` then describe all of them."""

    def __init__(self) -> None:
        self.count = 0
        self._columns = [blake2b(digest_size=16) for _ in range(10)]

    def add(self, records: Records) -> None:
        self.count += len(records)
        numbers, columns = self._columns[:2], self._columns[2:]
        numbers[0].update(array("q", records.offsets).tobytes())
        numbers[1].update(array("q", records.timestamps).tobytes())
        found: tuple[Sequence[bytes | None], ...] = (
            records.subjects, records.keys, records.values, records.header_blocks,
        )  # fmt: skip
        for at, items in enumerate(found):
            lengths = array("q", [-1 if item is None else len(item) for item in items])
            columns[2 * at].update(lengths.tobytes())
            columns[2 * at + 1].update(b"".join([item or b"" for item in items]))

    def hexdigest(self) -> str:
        """32 hexadecimal digits. It may be called at any time."""
        whole = blake2b(digest_size=16)
        for column in self._columns:
            whole.update(column.digest())
        return whole.hexdigest()


class OffsetRanges:
    """Which offsets there are: 16 bytes for each range without a hole. `add` them in order."""

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")

    def add(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if self._ends and self._ends[-1] == offset:
                self._ends[-1] = offset + 1
            else:
                self._starts.append(offset)
                self._ends.append(offset + 1)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]
