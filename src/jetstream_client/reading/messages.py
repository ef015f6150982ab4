"""Records for programs: `Message`, and `Messages`, a sequence of them that are still in their
batches. `Messages` keeps the raw batches of a fetch and builds a `Message` only when one is asked
for: counting, `values()` and `to_arrow()` build none. A batch may begin before the requested offset
and end after the last wanted record; both ends are trimmed by index, without a copy.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from jetstream_client.values.headers import Headers
from jetstream_client.values.record_types import record_type
from jetstream_client.values.type_variables import K, Typed, V
from jetstream_client.values.types import StreamSchema
from jetstream_protocol.batch import Batch, iterate
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_protocol.record_filter import RecordFilter
from jetstream_protocol.schema import Schema, parse
from jetstream_protocol.times import to_datetime
from jetstream_protocol.typed_rows import row_of

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


T = TypeVar("T")

ROWS = 10_000
"""A good number of rows for query engines: Spark is twice as fast with it as with 1,000."""


def check_rows(rows: int, what: str = "rows") -> int:
    """`rows`, if it is a valid size. Raises InvalidRequestError."""
    if rows < 1:
        raise InvalidRequestError(f"{what} must be positive, not {rows}")
    return rows


class Message(Typed[V, K]):
    """One record. `value` is None for a tombstone; `key` is None if there is no key.

    Both are bytes, unless the reader has deserialisers for them. For type checkers it is
    `Message[VALUE]` or `Message[VALUE, KEY]`.
    """

    __slots__ = ("header_block", "key", "offset", "stream", "subject", "timestamp_us", "value")

    def __init__(
        self,
        stream: str,
        offset: int,
        timestamp_us: int,
        subject: str,
        key: K | None,
        value: V | None,
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
        """The producer's timestamp if it set one, else the time of the append; an aware datetime in
        UTC."""
        return to_datetime(self.timestamp_us)

    @property
    def headers(self) -> Headers:
        """The NATS headers, parsed from `header_block` at each call. `header_block` is verbatim."""
        return Headers(self.header_block)

    @property
    def text(self) -> str | None:
        """The value as text; None: a tombstone. Raises UnicodeDecodeError if it is not UTF-8."""
        value: Any = self.value
        text: str | None = value if isinstance(value, str | None) else value.decode()
        return text

    def json(self) -> Any:
        """The value parsed as JSON; None: a tombstone. Raises ValueError if it is not JSON."""
        value: Any = self.value
        return None if value is None else json.loads(value)

    @overload
    def row(self, schema: StreamSchema) -> dict[str, Any]: ...
    @overload
    def row(self, schema: type[T]) -> T | None: ...
    def row(self, schema: StreamSchema | type[Any]) -> Any:
        """The fields of a schema (of `describe_schema`) by name, and `_error`: what of the value
        does not fit; None: all fits. docs/typed_streams.md has the rules. Of a class (a dataclass,
        a pydantic model, a msgspec struct) an object, None of a tombstone; SchemaMismatchError for
        a record that does not fit it; it is read as JSON. Raises InvalidRequestError for a value
        that a deserialiser has made something else of."""
        value: object = self.value
        if not isinstance(value, bytes | None):
            raise InvalidRequestError(
                f"row() takes the value as bytes, not {type(value).__name__}: read it without a "
                "value_deserializer"
            )
        if isinstance(schema, type):
            cls: Any = schema
            return None if value is None else record_type(cls)(value)
        return row_of(value, checked_schema(schema))

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in Message.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(stream={self.stream!r}, offset={self.offset}, "
            f"subject={self.subject!r}, key={self.key!r}, value={_shorten(self.value)})"
        )


def checked_schema(schema: StreamSchema) -> Schema:
    """Raises InvalidRequestError if the stream has none; TypeError for no `StreamSchema`."""
    given: object = schema
    if not isinstance(given, StreamSchema):
        raise TypeError(
            f"a schema is what client.describe_schema() returns, not {given!r}; only client.scan() "
            "takes typed=True, and asks for the schema itself"
        )
    if not given.text:
        raise InvalidRequestError("the stream has no schema: jetstream schema set gives it one")
    return _parsed(given.text)


_parsed = lru_cache(maxsize=64)(parse)


def _shorten(value: object) -> str:
    if not isinstance(value, bytes) or len(value) <= 64:
        return repr(value)
    return f"{value[:64]!r}… {len(value)} bytes"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [start, stop) of one batch; with `picked`, only those of them, in that order."""

    batch: Batch
    start: int
    stop: int
    picked: Sequence[int] | None = None

    @classmethod
    def of(cls, batch: Batch, rows: Sequence[int]) -> Chunk:
        """These rows, of which there is at least one."""
        start, stop = rows[0], rows[-1] + 1
        return cls(batch, start, stop, None if stop - start == len(rows) else rows)

    def __len__(self) -> int:
        return self.stop - self.start if self.picked is None else len(self.picked)

    def row(self, at: int) -> Chunk:
        """One row of it."""
        index = self.start + at if self.picked is None else self.picked[at]
        return Chunk(self.batch, index, index + 1)

    def offset_of(self, at: int) -> int:
        """The offset of one row of it."""
        return self.batch.offsets()[self.start + at if self.picked is None else self.picked[at]]

    def split(self, count: int) -> tuple[Chunk, Chunk]:
        """Its first `count` rows, and the others."""
        if self.picked is None:
            middle = self.start + count
            return Chunk(self.batch, self.start, middle), Chunk(self.batch, middle, self.stop)
        first, rest = self.picked[:count], self.picked[count:]
        return (
            Chunk(self.batch, self.start, self.stop, first),
            Chunk(self.batch, self.start, self.stop, rest),
        )

    def newest_first(self, skipped: int = 0) -> Chunk:
        """Its rows the other way round, without the `skipped` oldest."""
        rows = range(self.start, self.stop) if self.picked is None else self.picked
        return Chunk(self.batch, self.start, self.stop, rows[skipped:][::-1])

    def offsets(self) -> Sequence[int]:
        offsets = self.batch.offsets()
        if self.picked is not None:
            return [offsets[row] for row in self.picked]
        return offsets[self.start : self.stop]

    def values(self) -> list[bytes | None]:
        return self._trim(self.batch.values())

    def keys(self) -> list[bytes | None]:
        return self._trim(self.batch.keys())

    def header_blocks(self) -> list[bytes]:
        return self._trim(self.batch.header_blocks())

    def subjects(self) -> list[str]:
        """Subjects repeat, so each distinct one is decoded once."""
        subjects = self._trim(self.batch.subjects())
        decoded = {subject: subject.decode("utf-8", "surrogateescape") for subject in set(subjects)}
        return [decoded[subject] for subject in subjects]

    def messages(self, stream: str) -> Iterator[Message]:
        batch = self.batch
        return map(
            Message,
            repeat(stream),
            self.offsets(),
            self._trim(batch.timestamps()),
            self.subjects(),
            self._trim(batch.keys()),
            self.values(),
            self.header_blocks(),
        )

    def _trim(self, rows: list[T]) -> list[T]:
        if self.picked is not None:
            return [rows[row] for row in self.picked]
        return rows if len(self) == len(rows) else rows[self.start : self.stop]


class LogView(NamedTuple):
    """What a server said of its log with an answer. gone_below: tombstones may be gone that were
    before it."""

    leader_epoch: int
    gone_below: int


class Messages(Sequence[Message]):
    """Committed records of one stream, in order or newest first: a read-only sequence.

    next_offset: where the next fetch goes on; with newest first, the `stop` of the next fetch.
    last_epoch: the leader epoch of the last record, -1 for none; pass it to the next fetch, so that
    the server notices if the log before it was replaced. [log_start_offset, high_watermark) could
    be read when the server answered. compacted_below: what compaction had removed by then it had
    removed for later records of the same keys, all of them below that offset. log_views: of the
    first and the last answer, as they were fetched.
    """

    __slots__ = (
        "_starts",
        "chunks",
        "compacted_below",
        "high_watermark",
        "last_epoch",
        "log_start_offset",
        "log_views",
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
        compacted_below: int = 0,
    ) -> None:
        self.stream = stream
        self.chunks = tuple(chunks)
        self.next_offset = next_offset
        self.last_epoch = last_epoch
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.compacted_below = compacted_below
        self.log_views: tuple[LogView, ...] = ()
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
        chunk, at = self.place_of(row)
        return next(chunk.row(at).messages(self.stream))

    def place_of(self, row: int) -> tuple[Chunk, int]:
        """The chunk that holds the row, and which of its rows that is."""
        number = bisect_right(self._starts, row) - 1
        return self.chunks[number], row - self._starts[number]

    def rows_of_chunk(self, row: int) -> tuple[int, list[Message]]:
        """The records of the chunk that holds the row, and the row of the first of them."""
        chunk, at = self.place_of(row)
        return row - at, list(chunk.messages(self.stream))

    @property
    def length_bytes(self) -> int:
        """What the batches take in memory: all of them, also where rows were left out."""
        headers = (chunk.batch.header for chunk in self.chunks)
        return sum(max(header.length, header.uncompressed_length) for header in headers)

    def values(self) -> list[bytes | None]:
        """Every value, in order, without building a Message each."""
        return list(chain.from_iterable(chunk.values() for chunk in self.chunks))

    def keys(self) -> list[bytes | None]:
        """Every key, in order; None: the record has none."""
        return list(chain.from_iterable(chunk.keys() for chunk in self.chunks))

    def offsets(self) -> list[int]:
        """Every offset, in order."""
        return [offset for chunk in self.chunks for offset in chunk.offsets()]

    def subjects(self) -> list[str]:
        """Every subject, in order."""
        return [subject for chunk in self.chunks for subject in chunk.subjects()]

    def split(self, count: int, *, newest_first: bool = False) -> tuple[Messages, Messages | None]:
        """The first `count` records, and the others; None: there are none."""
        if len(self) <= count:
            return self, None
        number = bisect_right(self._starts, count) - 1
        first, rest = list(self.chunks[:number]), list(self.chunks[number:])
        if count > self._starts[number]:
            before, after = rest[0].split(count - self._starts[number])
            first.append(before)
            rest[0] = after
        last = first[-1].offsets()[-1]
        head = Messages(
            self.stream,
            first,
            next_offset=last if newest_first else last + 1,
            last_epoch=first[-1].batch.header.leader_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            compacted_below=self.compacted_below,
        )
        others = Messages(
            self.stream,
            rest,
            next_offset=self.next_offset,
            last_epoch=self.last_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            compacted_below=self.compacted_below,
        )
        return head, others

    def only(self, rows: Sequence[int]) -> Messages:
        """The records of these rows, which grow."""
        chunks = []
        for chunk, start in zip(self.chunks, self._starts, strict=False):
            first = bisect_left(rows, start)
            some = rows[first : bisect_left(rows, start + len(chunk), first)]
            if len(some) == len(chunk):
                chunks.append(chunk)
            elif some:
                base = range(chunk.start, chunk.stop) if chunk.picked is None else chunk.picked
                chunks.append(Chunk.of(chunk.batch, [base[row - start] for row in some]))
        return Messages(
            self.stream,
            chunks,
            next_offset=self.next_offset,
            last_epoch=self.last_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            compacted_below=self.compacted_below,
        )

    def to_arrow(
        self, columns: Iterable[str] | None = None, *, typed: StreamSchema | None = None
    ) -> pyarrow.Table:
        """The records as a pyarrow table, with one chunk for each batch and without work per row.

        columns: only these, in this order; the others are not built. All columns: stream, subject
        (string), offset (int64), timestamp (timestamp[us, UTC]), key, value, headers (binary;
        headers is the raw NATS header block, null if there is none). typed: a schema (of
        `describe_schema`), whose fields are columns after those, and `_error` is the last
        (docs/typed_streams.md). Raises CorruptBatchError for buffers that are not safe for Arrow.
        Needs `jetstream-log[arrow]`.
        """
        if typed is not None:
            from jetstream_client.reading.typed import Decoder

            return Decoder(checked_schema(typed), columns).table_of(self)
        from jetstream_client.reading.arrow import to_table

        return to_table(self, columns)

    def to_polars(
        self, columns: Iterable[str] | None = None, *, typed: StreamSchema | None = None
    ) -> polars.DataFrame:
        """The records as a Polars frame; columns, typed: as in `to_arrow`. Needs
        `jetstream-log[arrow]` and polars."""
        from jetstream_client.reading.dataframes import to_polars

        return to_polars(self.to_arrow(columns, typed=typed))

    def to_pandas(
        self, columns: Iterable[str] | None = None, *, typed: StreamSchema | None = None
    ) -> pandas.DataFrame:
        """The records as a pandas frame; columns, typed: as in `to_arrow`. Needs
        `jetstream-log[arrow]` and pandas."""
        from jetstream_client.reading.dataframes import to_pandas

        return to_pandas(self.to_arrow(columns, typed=typed))

    def to_batches(
        self, rows: int = ROWS, columns: Iterable[str] | None = None
    ) -> list[pyarrow.RecordBatch]:
        """The records as Arrow record batches of at most `rows` rows, each column one contiguous
        chunk."""
        return list(self.iter_batches(rows, columns))

    def iter_batches(
        self, rows: int = ROWS, columns: Iterable[str] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """The same as `to_batches`, but each batch is built when it is asked for: this takes less
        memory if the caller does not keep them."""
        from jetstream_client.reading.arrow import iter_batches

        return iter_batches(self, check_rows(rows), columns)

    def __repr__(self) -> str:
        return f"<Messages of {self.stream!r}: {len(self)}, next_offset={self.next_offset}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from jetstream_client.reading.notebooks import html_of

        return html_of(self.stream, self)


class MessageCollector:
    """Collects the batches of fetch answers into `Messages`, between two bounds.

    Takes records from `offset` on, below `end` (None: no bound) and at most `count_max`; of those
    only the `wanted` ones.
    """

    def __init__(
        self,
        stream: str,
        offset: int,
        *,
        last_epoch: int = -1,
        end: int | None = None,
        count_max: int | None = None,
        wanted: RecordFilter | None = None,
    ) -> None:
        self.stream = stream
        self.wanted = wanted
        self.next_offset = offset
        self.last_epoch = last_epoch
        self.log_start_offset = 0
        self.high_watermark = 0
        self.compacted_below = 0
        self._views: tuple[LogView, ...] = ()
        self.length_bytes = 0
        self.end = end
        self.record_count = 0
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
            before = self.record_count
            self._add(batch)
            if self.wanted is None or self.record_count > before:
                # Sizes in memory: compressed batches must not unpack to more than is wanted.
                self.length_bytes += max(batch.header.length, batch.header.uncompressed_length)

    def _add(self, batch: Batch) -> None:
        header = batch.header
        batch.check_count()
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
        stop = self._take(batch, start, stop)
        whole = stop == len(offsets)
        self.next_offset = header.next_offset if whole else offsets[stop]
        if self.end is not None:
            self.next_offset = min(self.next_offset, self.end)
        self.last_epoch = header.leader_epoch

    def _take(self, batch: Batch, start: int, stop: int) -> int:
        """Take what is wanted of the rows [start, stop); returns where to go on."""
        if self.wanted is None:
            if self._missing is not None:
                stop = min(stop, start + self._missing)
                self._missing -= max(0, stop - start)
            if stop > start:
                self._took(Chunk(batch, start, stop))
            return stop
        rows = [row for row in self.wanted.rows(batch) if start <= row < stop]
        if self._missing is not None and len(rows) >= self._missing:
            rows = rows[: self._missing]
            stop = rows[-1] + 1
        if self._missing is not None:
            self._missing -= len(rows)
        if rows:
            self._took(Chunk.of(batch, rows))
        return stop

    def _took(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.record_count += len(chunk)

    def skip_to(self, offset: int, last_epoch: int) -> None:
        """A server has found no wanted record up to there. last_epoch: of the record before it."""
        if self._missing == 0 or offset <= self.next_offset:
            return
        if self.end is not None and offset > self.end:
            offset, last_epoch = self.end, -1  # The epoch of the record before that is not known.
        self.next_offset, self.last_epoch = offset, last_epoch

    def saw(self, view: LogView) -> None:
        """An answer has come."""
        self._views = (*self._views[:1], view)

    def messages(self) -> Messages:
        found = Messages(
            self.stream,
            self._chunks,
            next_offset=self.next_offset,
            last_epoch=self.last_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            compacted_below=self.compacted_below,
        )
        found.log_views = self._views
        return found
