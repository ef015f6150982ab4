"""Columns of a stream's schema, decoded from JSON: only those that are asked for.

What fits what is in `typed_json`, whose compiled twin goes through each value once and writes the
buffers of Arrow. Where nothing was compiled, plain Python does the same, more slowly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jetstream_client.reading.arrow import (
    SCHEMA,
    TIMESTAMP,
    counting,
    cut,
    schema_of,
    to_table,
)
from jetstream_client.reading.schema_sources import HOW_TO_SET
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_protocol.schema import ERROR, Field, ListType, Schema, StructType, Type, parse
from jetstream_protocol.typed_json import compiled, decoded, errors_of, plan_of

if TYPE_CHECKING:
    from jetstream_client.reading.messages import Chunk, Messages

_WORD = re.compile(r"\w+")
_FEW = 8
_ROW = "row number"
"""No name of a field has a space."""
_SCALARS: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
    "date": pa.date32(),
    "binary": pa.binary(),
}


def arrow_type(kind: Type) -> pa.DataType:
    """The type of a column."""
    if isinstance(kind, ListType):
        return pa.list_(pa.field("element", arrow_type(kind.element)))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(each.name, arrow_type(each.type)) for each in kind.fields])
    return _SCALARS[kind]


class Decoder:
    """Makes tables with some columns of records and of a schema. schema: theirs."""

    def __init__(self, schema: Schema, columns: Iterable[str] | None = None) -> None:
        """columns: in this order; None: all, those of every stream first. Raises
        InvalidRequestError for one that is in neither."""
        every = [*SCHEMA.names, *schema.names, ERROR]
        wanted = every if columns is None else list(columns)
        for name in wanted:
            if name not in every:
                raise InvalidRequestError(f"no column {name!r}: there are {', '.join(every)}")
        self._own = [name for name in SCHEMA.names if name in wanted]
        # What is the first error of a record, only all its fields can tell.
        self._fields = tuple(
            field for field in schema.fields if ERROR in wanted or field.name in wanted
        )
        self._has_error = ERROR in wanted
        self.schema = _schema(wanted, self._fields)

    def decode(self, table: pa.Table) -> pa.Table:
        """table: with the columns of every stream that are wanted, and `value`."""
        records = Records(self._fields)
        for chunk in table["value"].chunks:
            records.add_array(chunk)
        own = {name: table[name] for name in self._own}
        return self._table(records, own)

    def table_of(self, messages: Messages) -> pa.Table:
        """The records. Raises CorruptBatchError."""
        records = Records(self._fields)
        if self._fields or self._has_error:
            for chunk in messages.chunks:
                records.add_chunk(chunk)
        found = to_table(messages, self._own)
        return self._table(records, {name: found[name] for name in self._own})

    def batches(self, messages: Messages, rows: int) -> Iterator[pa.RecordBatch]:
        """The records as batches of at most `rows`, of about the same length each."""
        if len(messages):
            yield from cut(self.table_of(messages), rows)

    def _table(self, records: Records, own: dict[str, Any]) -> pa.Table:
        columns = {**own, **records.columns()}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)


def _schema(wanted: Sequence[str], fields: Sequence[Field]) -> pa.Schema:
    kinds = {field.name: arrow_type(field.type) for field in fields}
    kinds[ERROR] = pa.string()
    own = schema_of(name for name in wanted if name in SCHEMA.names)
    return pa.schema(
        [own.field(name) if name in own.names else pa.field(name, kinds[name]) for name in wanted]
    )


class ConditionalDecoder:
    """Makes batches of the records that meet a condition. If it is about columns that every stream
    has, and few records meet it, only those are decoded."""

    def __init__(self, schema: Schema, columns: Sequence[str], condition: Any) -> None:
        """condition: an expression of pyarrow, perhaps over other columns; None: there is none."""
        # The text of an expression has the names of its columns, perhaps others by chance.
        words = () if condition is None else set(_WORD.findall(str(condition)))
        asked = [name for name in (*SCHEMA.names, *schema.names, ERROR) if name in words]
        self._whole = Decoder(schema, [*columns, *(set(asked) - set(columns))])
        self._asked = Decoder(schema, asked)
        self._is_cheap = all(name in SCHEMA.names for name in asked)
        self._condition = condition
        self.schema = Decoder(schema, columns).schema

    def batches(self, messages: Messages, rows: int) -> Iterator[pa.RecordBatch]:
        """At most `rows` in each."""
        if self._condition is not None and self._is_cheap:
            messages = self._only_few(messages)
        if not len(messages):
            return
        table = self._whole.table_of(messages)
        if self._condition is not None:
            table = table.filter(self._condition).select(self.schema.names)
        if len(table):
            yield from cut(table, rows)

    def _only_few(self, messages: Messages) -> Messages:
        """The records that meet the condition, if few do. To pick a record costs as much as to
        decode some."""
        table = self._asked.table_of(messages)
        table = table.append_column(_ROW, counting(0, len(table))).filter(self._condition)
        if len(table) > len(messages) // _FEW:
            return messages
        return messages.only(table[_ROW].to_pylist())


def decoder_of(text: str, stream: str, columns: Iterable[str] | None = None) -> Decoder:
    """Raises InvalidRequestError, also for a stream without a schema."""
    if not text:
        raise InvalidRequestError(f"stream {stream} has no schema: {HOW_TO_SET.format(stream)}")
    return Decoder(parse(text), columns)


class Records:
    """The fields of records as columns: `add…` them, then ask for the columns, once."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._compiled = None if compiled is None else compiled.Columns(plan_of(fields))
        self._rows: list[list[Any]] = []
        self._errors: list[str | None] = []

    def add_chunk(self, chunk: Chunk) -> None:
        """Rows of a batch. Raises CorruptBatchError."""
        if self._compiled is None:
            self._add_values(chunk.values())
            return
        body, column = chunk.batch.body, chunk.batch.layout.values
        validity = None if column.validity < 0 else body
        parts: Iterable[tuple[int, int]] = [(chunk.start, chunk.stop)]
        if chunk.picked is not None:
            parts = _runs(chunk.picked)
        try:
            for start, stop in parts:
                self._compiled.add(
                    *(body, column.offsets, body, column.data, column.data_length),
                    *(validity, max(0, column.validity), start, stop),
                )
        except ValueError as error:
            raise CorruptBatchError(f"a column of a batch is not valid: {error}") from error

    def add_array(self, values: pa.BinaryArray) -> None:
        """Values in Arrow's form."""
        if self._compiled is None:
            self._add_values(values.to_pylist())
        elif len(values):
            validity, offsets, data = values.buffers()
            data = b"" if data is None else data
            start, stop = values.offset, values.offset + len(values)
            length = memoryview(data).nbytes
            self._compiled.add(offsets, 0, data, 0, length, validity, 0, start, stop)

    def _add_values(self, values: Iterable[bytes | None]) -> None:
        for value in values:
            row, error = decoded(value, self._fields)
            self._rows.append(row)
            self._errors.append(error)

    def columns(self) -> dict[str, pa.Array]:
        """Of each field, and of the errors."""
        if self._compiled is None:
            return self._columns_of_rows()
        rows, errors, columns = self._compiled.take()
        made = {
            field.name: _array(arrow_type(field.type), column)
            for field, column in zip(self._fields, columns, strict=True)
        }
        made[ERROR] = _error_texts(rows, errors, self._fields)
        return made

    def _columns_of_rows(self) -> dict[str, pa.Array]:
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(self._fields)
        made = {
            field.name: pa.array(list(column), arrow_type(field.type))
            for field, column in zip(self._fields, columns, strict=True)
        }
        made[ERROR] = pa.array(self._errors, pa.string())
        return made


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The rows as ranges, in their order."""
    start = stop = rows[0]
    for row in rows:
        if row != stop:
            yield start, stop
            start = row
        stop = row + 1
    yield start, stop


def _array(kind: pa.DataType, column: Any) -> pa.Array:
    rows, nulls, buffers, within = column
    kinds = [kind.field(place).type for place in range(kind.num_fields)]
    inner = [_array(each, part) for each, part in zip(kinds, within, strict=True)]
    parts = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, rows, parts, nulls, children=inner or None)


def _error_texts(rows: int, errors: Any, fields: Sequence[Field]) -> pa.Array:
    if errors is None:
        return pa.nulls(rows, pa.string())
    numbers = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(errors)])
    return pa.array([None, *errors_of(fields)], pa.string()).take(numbers)
