"""The fields of a schema as Arrow's columns. Readers and the lake make them here, so they agree.

What fits what is in `typed_json`; compiled code goes through each value once and writes the buffers
of Arrow. Where nothing was compiled, plain Python does the same for JSON, more slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from jetstream_protocol.arrow_values import strings
from jetstream_protocol.batch import Batch
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.schema import ERROR, ListType, Schema, StructType, Type
from jetstream_protocol.typed_json import decoded
from jetstream_protocol.typed_values import columns_of, errors_of

TIMESTAMP = pa.timestamp("us", "UTC")
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


class Records:
    """The fields of a schema as columns of records: `add…` them, then ask for the columns. Raises
    InvalidRequestError if this installation cannot read the format."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._fields = schema, schema.fields
        self._compiled = columns_of(schema)
        self._rows: list[list[Any]] = []
        self._errors: list[str | None] = []

    def add_batch(self, batch: Batch, parts: Iterable[tuple[int, int]]) -> None:
        """Some of its rows: from, to. Raises CorruptBatchError."""
        if self._compiled is None:
            values = batch.values()
            for start, stop in parts:
                self._add_values(values[start:stop])
            return
        body, column = batch.body, batch.layout.values
        validity = None if column.validity < 0 else body
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
        """Of each field, and of the errors; then begin anew."""
        if self._compiled is None:
            return self._columns_of_rows()
        rows, errors, columns = self._compiled.take()
        made = {
            field.name: _array(arrow_type(field.type), column)
            for field, column in zip(self._fields, columns, strict=True)
        }
        made[ERROR] = _error_texts(rows, errors, self._schema)
        return made

    def _columns_of_rows(self) -> dict[str, pa.Array]:
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(self._fields)
        made = {
            field.name: pa.array(list(column), arrow_type(field.type))
            for field, column in zip(self._fields, columns, strict=True)
        }
        made[ERROR] = pa.array(self._errors, pa.string())
        self._rows, self._errors = [], []
        return made


def _array(kind: pa.DataType, column: Any) -> pa.Array:
    rows, nulls, buffers, within = column
    kinds = [kind.field(place).type for place in range(kind.num_fields)]
    inner = [_array(each, part) for each, part in zip(kinds, within, strict=True)]
    parts = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, rows, parts, nulls, children=inner or None)


def _error_texts(rows: int, errors: Any, schema: Schema) -> pa.Array:
    if errors is None:
        return pa.nulls(rows, pa.string())
    numbers = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(errors)])
    texts = [None, *(each.encode() for each in errors_of(schema))]
    return strings(texts, pa.string()).take(numbers)
