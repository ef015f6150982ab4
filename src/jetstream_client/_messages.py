"""Records as people read them: `Message`, and `Messages`, a run of them still in their batches.

`Messages` keeps the raw batches of a fetch and cuts rows out when rows are asked for: counting,
`values()` and `to_arrow()` never build a `Message`. A batch may begin before the offset asked
for and end beyond the last record wanted; both ends are trimmed by index, not by copying.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, TypeVar, overload

from jetstream_client._headers import Headers
from jetstream_client._types import to_datetime
from jetstream_protocol.batch import Batch, iterate
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

ROWS = 10_000
"""What engines take at a time by preference: Spark is twice as fast with it as with 1,000."""


def check_rows(rows: int) -> int:
    """`rows`, if there can be such batches. Raises InvalidRequestError."""
    if rows < 1:
        raise InvalidRequestError(f"rows must be positive, not {rows}")
    return rows


class Message:
    """One record. `value` None is a tombstone; `key` None is no key."""

    __slots__ = ("header_block", "key", "offset", "stream", "subject", "timestamp_us", "value")

    def __init__(
        self,
        stream: str,
        offset: int,
        timestamp_us: int,
        subject: str,
        key: bytes | None,
        value: bytes | None,
        header_block: bytes = b"",
    ) -> None:
        self.stream = stream
        self.offset = offset
        self.timestamp_us = timestamp_us
        self.subject = subject
        self.key = key
        self.value = value
        self.header_block = header_block

    @property
    def timestamp(self) -> datetime:
        """The producer's timestamp if it gave one, else when the leader appended; UTC."""
        return to_datetime(self.timestamp_us)

    @property
    def headers(self) -> Headers:
        """The NATS headers, parsed anew each time from `header_block`, which is verbatim."""
        return Headers(self.header_block)

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return (
            f"Message(stream={self.stream!r}, offset={self.offset}, subject={self.subject!r}, "
            f"key={self.key!r}, value={_shortened(self.value)})"
        )


def _shortened(value: bytes | None) -> str:
    if value is None or len(value) <= 64:
        return repr(value)
    return f"{value[:64]!r}… {len(value)} bytes"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [start, stop) of one batch."""

    batch: Batch
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def offsets(self) -> Sequence[int]:
        return self.batch.offsets()[self.start : self.stop]

    def values(self) -> list[bytes | None]:
        return self._trimmed(self.batch.values())

    def keys(self) -> list[bytes | None]:
        return self._trimmed(self.batch.keys())

    def subjects(self) -> list[str]:
        """Subjects repeat, so each distinct one is decoded once."""
        subjects = self._trimmed(self.batch.subjects())
        decoded = {subject: subject.decode("utf-8", "surrogateescape") for subject in set(subjects)}
        return [decoded[subject] for subject in subjects]

    def messages(self, stream: str) -> Iterator[Message]:
        batch = self.batch
        return map(
            Message,
            repeat(stream),
            self.offsets(),
            self._trimmed(batch.timestamps()),
            self.subjects(),
            self._trimmed(batch.keys()),
            self.values(),
            self._trimmed(batch.header_blocks()),
        )

    def _trimmed(self, rows: list[T]) -> list[T]:
        return rows if len(self) == len(rows) else rows[self.start : self.stop]


class Messages(Sequence[Message]):
    """Committed records of one stream, in order: a read-only sequence.

    next_offset: where to fetch from next. last_epoch: the leader epoch of the last record seen,
    -1 for none; passed back, it lets the server notice that the log behind it was replaced.
    [log_start_offset, high_watermark) could be read when the server answered.
    """

    __slots__ = (
        "_starts",
        "chunks",
        "high_watermark",
        "last_epoch",
        "log_start_offset",
        "next_offset",
        "stream",
    )

    def __init__(
        self,
        stream: str,
        chunks: Sequence[Chunk],
        *,
        next_offset: int,
        last_epoch: int = -1,
        log_start_offset: int = 0,
        high_watermark: int = 0,
    ) -> None:
        self.stream = stream
        self.chunks = tuple(chunks)
        self.next_offset = next_offset
        self.last_epoch = last_epoch
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self._starts = list(accumulate(map(len, self.chunks), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(chunk.messages(self.stream) for chunk in self.chunks)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        """A record, or a list of them. Iterating is the fast way to see them all."""
        if isinstance(index, slice):
            rows = range(len(self))[index]
            wanted = list(self) if rows else []
            return [wanted[row] for row in rows]
        row = range(len(self))[index]  # Counts from the end too, and raises IndexError.
        number = bisect_right(self._starts, row) - 1
        chunk = self.chunks[number]
        at = chunk.start + row - self._starts[number]
        return next(Chunk(chunk.batch, at, at + 1).messages(self.stream))

    def values(self) -> list[bytes | None]:
        """Every value, in order, without building a Message each."""
        return list(chain.from_iterable(chunk.values() for chunk in self.chunks))

    def keys(self) -> list[bytes | None]:
        return list(chain.from_iterable(chunk.keys() for chunk in self.chunks))

    def offsets(self) -> list[int]:
        return [offset for chunk in self.chunks for offset in chunk.offsets()]

    def subjects(self) -> list[str]:
        return [subject for chunk in self.chunks for subject in chunk.subjects()]

    def to_arrow(self, columns: Iterable[str] | None = None) -> pyarrow.Table:
        """The records as a table, one chunk a batch, without work per row.

        columns: only these, in this order; the others are not built.

        Columns: stream, subject (string), offset (int64), timestamp (timestamp[us, UTC]), key,
        value, headers (binary; headers is the raw NATS header block, null where there is none).
        Raises CorruptBatchError for buffers Arrow must not see; needs `jetstream-log[arrow]`.
        """
        from jetstream_client._arrow import to_table

        return to_table(self, columns)

    def to_batches(
        self, rows: int = ROWS, columns: Iterable[str] | None = None
    ) -> list[pyarrow.RecordBatch]:
        """The same as record batches of at most `rows`, each column one contiguous chunk."""
        return list(self.iter_batches(rows, columns))

    def iter_batches(
        self, rows: int = ROWS, columns: Iterable[str] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """The same, each made when it is asked for: cheaper where they are not kept."""
        from jetstream_client._arrow import iter_batches

        return iter_batches(self, check_rows(rows), columns)

    def __repr__(self) -> str:
        return f"<Messages of {self.stream!r}: {len(self)}, next_offset={self.next_offset}>"


class Cutter:
    """Collects the batches of fetch answers into `Messages`, between two bounds.

    Takes records from `offset` on, below `end` (None: no bound) and at most `count_max`.
    """

    def __init__(
        self,
        stream: str,
        offset: int,
        *,
        last_epoch: int = -1,
        end: int | None = None,
        count_max: int | None = None,
    ) -> None:
        self.stream = stream
        self.next_offset = offset
        self.last_epoch = last_epoch
        self.log_start_offset = 0
        self.high_watermark = 0
        self.length_bytes = 0
        self.end = end
        self._missing = count_max
        self._chunks: list[Chunk] = []

    @property
    def full(self) -> bool:
        """Whether a bound is reached: no later record can be taken."""
        return self._missing == 0 or (self.end is not None and self.next_offset >= self.end)

    def add(self, batches: bytes | bytearray | memoryview) -> None:
        """Take what is wanted of whole batches, back to back. Raises CorruptBatchError."""
        for batch in iterate(batches):
            if self.full:
                return
            # What it takes in memory: compressed batches must not add up to more than is wanted.
            self.length_bytes += max(batch.header.length, batch.header.uncompressed_length)
            self._add(batch)

    def _add(self, batch: Batch) -> None:
        header = batch.header
        if batch.layout.offset_deltas < 0 and len(batch) != header.last_offset_delta + 1:
            raise CorruptBatchError("record count and last offset delta disagree")
        if header.next_offset <= self.next_offset:
            return
        if self._chunks and header.base_offset < self.next_offset:
            raise CorruptBatchError("a batch begins before the previous one ends")
        if self.end is not None and header.base_offset >= self.end:
            self.next_offset = self.end  # The records up to there were compacted away.
            return
        offsets = batch.offsets()
        start = bisect_left(offsets, self.next_offset)
        stop = len(offsets) if self.end is None else bisect_left(offsets, self.end)
        if self._missing is not None:
            stop = min(stop, start + self._missing)
            self._missing -= max(0, stop - start)
        if stop > start:
            self._chunks.append(Chunk(batch, start, stop))
        whole = stop == len(offsets)
        self.next_offset = header.next_offset if whole else offsets[stop]
        if self.end is not None:
            self.next_offset = min(self.next_offset, self.end)
        self.last_epoch = header.leader_epoch

    def messages(self) -> Messages:
        return Messages(
            self.stream,
            self._chunks,
            next_offset=self.next_offset,
            last_epoch=self.last_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
        )
