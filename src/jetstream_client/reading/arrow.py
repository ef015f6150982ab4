"""`Messages` as a pyarrow table: the batches' own buffers, never a row at a time.

A column that differs from row to row (values, keys, headers, subjects) wraps the buffer of each
batch, one chunk a batch; a column that does not (stream, offsets, constant subjects, timestamps)
is computed for the whole table at once, as a handful of calls into Arrow.

`iter_batches` cuts that table into record batches of one contiguous chunk a column, evenly, because
engines that take record batches work a batch at a time: many small ones are slow.

The bytes came over a network. Their CRCs prove that they arrived as they were built, not that the
builder was honest, and Arrow crashes the process on a wrong offset. So every array that wraps a
buffer is validated in full (in C) before it is sliced or returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from jetstream_client.values.checks import names_in
from jetstream_protocol.columns import Column, Layout
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_protocol.extras import needed_by

with needed_by("Arrow", "arrow"):
    import pyarrow as pa
    import pyarrow.compute as pc

    from jetstream_protocol.arrow_values import integer, integers, null_if_empty, same_text

if TYPE_CHECKING:
    from jetstream_client.reading.messages import Chunk, Messages

TIMESTAMP = pa.timestamp("us", "UTC")

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("subject", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
    ]
)
"""All nullable, in this order, as Spark expects it from an Arrow source."""


KEPT_BYTES_MAX = 4 * 1024 * 1024


def schema_of(columns: Iterable[str] | None) -> pa.Schema:
    """`SCHEMA`, or these columns of it in this order. Raises InvalidRequestError."""
    if columns is None:
        return SCHEMA
    fields = []
    for name in names_in("columns", columns):
        if name not in SCHEMA.names:
            raise InvalidRequestError(f"no column {name!r}: there are {', '.join(SCHEMA.names)}")
        fields.append(SCHEMA.field(name))
    return pa.schema(fields)


def to_table(messages: Messages, columns: Iterable[str] | None = None) -> pa.Table:
    """The records as one table of `schema_of(columns)`. Raises CorruptBatchError."""
    schema = schema_of(columns)
    chunks = messages.chunks
    if not chunks:
        return schema.empty_table()
    try:
        arrays = [_BUILDERS[name](messages.stream, chunks) for name in schema.names]
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise CorruptBatchError(f"a column of a batch is not valid: {error}") from error
    return pa.table(arrays, schema=schema)


def iter_batches(
    messages: Messages, rows: int, columns: Iterable[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records as batches of at most `rows`, of about the same length each."""
    if len(messages):
        yield from cut(to_table(messages, columns), rows)


def cut(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    """A table that is not empty as batches of at most `rows`, of about the same length each.

    Each is built only when it is asked for: a caller that drops one before the next needs the
    memory of one.
    """
    pieces = -(-len(table) // rows)
    length = -(-len(table) // pieces)
    for start in range(0, len(table), length):
        yield from table.slice(start, length).combine_chunks().to_batches()


def _wrap(chunk: Chunk, buffers: Sequence[tuple[int, int] | None], kind: Any) -> Any:
    """The rows of `chunk` from parts of its batch's body, each (position, length)."""
    body = pa.py_buffer(chunk.batch.body)
    slices = [None if part is None else body.slice(*part) for part in buffers]
    whole = pa.Array.from_buffers(kind, len(chunk.batch), slices)
    whole.validate(full=True)
    if chunk.picked is not None:
        return whole.take(integers(chunk.picked, pa.int64()))
    return whole if len(chunk) == len(whole) else whole.slice(chunk.start, len(chunk))


def _strings(chunk: Chunk, column: Column | None, kind: Any) -> Any:
    if column is None:
        return pa.nulls(len(chunk), kind)
    count = len(chunk.batch)
    validity = None if column.validity < 0 else (column.validity, (count + 7) // 8)
    offsets = (column.offsets, 4 * (count + 1))
    return _wrap(chunk, (validity, offsets, (column.data, column.data_length)), kind)


def _binary(chunks: Sequence[Chunk], column_of: Callable[[Layout], Column | None]) -> Any:
    kind = pa.binary()
    columns = [column_of(chunk.batch.layout) for chunk in chunks]
    if not any(columns):
        return pa.nulls(sum(map(len, chunks)), kind)
    arrays = [_strings(chunk, column, kind) for chunk, column in zip(chunks, columns, strict=True)]
    return pa.chunked_array(arrays, kind)


def _headers(chunks: Sequence[Chunk]) -> Any:
    """Null, not empty, where a record has none."""
    blocks = _binary(chunks, lambda layout: layout.header_blocks)
    if blocks.null_count == len(blocks):
        return blocks
    return null_if_empty(blocks)


def _subjects(chunks: Sequence[Chunk]) -> Any:
    layouts = [chunk.batch.layout for chunk in chunks]
    first = layouts[0].subject
    if all(layout.subjects is None and layout.subject == first for layout in layouts):
        return _same(first.decode(), sum(map(len, chunks)))
    kind = pa.string()
    arrays = [
        _same(chunk.batch.layout.subject.decode(), len(chunk))
        if chunk.batch.layout.subjects is None
        else _strings(chunk, chunk.batch.layout.subjects, kind)
        for chunk in chunks
    ]
    return pa.chunked_array(arrays, kind)


@lru_cache(maxsize=1)
def _ramp(length: int) -> Any:
    """0, 1, … , length - 1."""
    ones = pa.repeat(integer(1, pa.int64()), length)
    return pc.cumulative_sum(ones, start=integer(-1, pa.int64()))


@lru_cache(maxsize=8)
def _constant(text: str, length: int) -> Any:
    return same_text(text, length)


def _same(text: str, length: int) -> Any:
    """`text` in every row. Successive fetches are of one stream and of similar length, so the
    column of the last one is used again, unless it is too long to keep."""
    rounded = _round_up(length)
    if len(text) * rounded > KEPT_BYTES_MAX:
        return same_text(text, length)
    return _constant(text, rounded)[:length]


def counting(start: int, length: int) -> Any:
    """start, start + 1, … : so many."""
    return pc.add(_ramp(_round_up(length))[:length], integer(start, pa.int64()))


def _round_up(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()


def _offsets(chunks: Sequence[Chunk]) -> Any:
    """One run where no offset is missing between the first record and the last."""
    length = sum(map(len, chunks))
    first, last = chunks[0].offsets()[0], chunks[-1].offsets()[-1]
    if last - first + 1 == length:
        return counting(first, length)
    arrays = []
    for chunk in chunks:
        base, deltas = chunk.batch.header.base_offset, chunk.batch.layout.offset_deltas
        if deltas < 0 and chunk.picked is not None:
            arrays.append(integers([base + each for each in chunk.picked], pa.int64()))
        elif deltas < 0:
            arrays.append(counting(base + chunk.start, len(chunk)))
        else:
            column = _wrap(chunk, (None, (deltas, 4 * len(chunk.batch))), pa.int32())
            arrays.append(pc.add(column.cast(pa.int64()), integer(base, pa.int64())))
    return pa.chunked_array(arrays, pa.int64())


def _timestamps(chunks: Sequence[Chunk]) -> Any:
    """Append timestamps are one per batch: run-end encoded, then decoded in one call."""
    if all(chunk.batch.layout.timestamps < 0 for chunk in chunks):
        ends = integers(list(accumulate(map(len, chunks))), pa.int32())
        moments = integers([each.batch.header.append_timestamp for each in chunks], TIMESTAMP)
        kind, count = pa.run_end_encoded(ends.type, TIMESTAMP), ends[-1].as_py()
        runs = pa.Array.from_buffers(kind, count, [None], children=[ends, moments])
        return pc.run_end_decode(runs)
    arrays = []
    for chunk in chunks:
        column = chunk.batch.layout.timestamps
        if column < 0:
            moment = integer(chunk.batch.header.append_timestamp, TIMESTAMP)
            arrays.append(pa.repeat(moment, len(chunk)))
        else:
            arrays.append(_wrap(chunk, (None, (column, 8 * len(chunk.batch))), TIMESTAMP))
    return pa.chunked_array(arrays, TIMESTAMP)


_BUILDERS: dict[str, Callable[[str, Sequence[Chunk]], Any]] = {
    "stream": lambda stream, chunks: _same(stream, sum(map(len, chunks))),
    "subject": lambda _, chunks: _subjects(chunks),
    "offset": lambda _, chunks: _offsets(chunks),
    "timestamp": lambda _, chunks: _timestamps(chunks),
    "key": lambda _, chunks: _binary(chunks, lambda layout: layout.keys),
    "value": lambda _, chunks: _binary(chunks, lambda layout: layout.values),
    "headers": lambda _, chunks: _headers(chunks),
}
