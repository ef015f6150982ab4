"""The columns of a stream's schema in its table: their numbers, and how an object gets them.

A column is found by its number, in each object, under whatever name it has by now. So a field keeps
its number under another name or a wider type. A field whose type Iceberg cannot read as the new one
(an int as a double, or what an unrelated schema has under that name) begins anew: older objects
show null there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from jetstream_protocol import schema
from jetstream_protocol.arrow_values import same_text
from jetstream_protocol.batch import Batch
from jetstream_protocol.schema import ERROR, Field, Schema
from jetstream_protocol.typed_columns import Records, arrow_type

CELLS: Final = 4_000_000
"""Values that are decoded before their memory is counted: at most 64 MiB of plain ones. Lists make
more of few bytes: see PARTS_MIN in typed_json."""
LIST_CELLS: Final = 4_000
GROUP_BYTES: Final = 64 * 1024 * 1024
"""Columns in memory after which a row group ends."""
GROUP_BYTES_MAX: Final = 512 * 1024 * 1024
"""Columns of a row group that are made. Beyond it they are null, and the errors say so."""
TOO_LONG: Final = "the columns of these records take too much memory for the lake"

_TYPES: Final[dict[str, IcebergType]] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
    "timestamp": TimestamptzType(),
    "date": DateType(),
    "binary": BinaryType(),
}
_WIDER: Final = {(IntegerType(), LongType())}
"""What Iceberg reads as another type."""


def numbered(
    before: Sequence[NestedField], last_id: int, fields: Sequence[Field]
) -> tuple[NestedField, ...]:
    """The columns of a schema, then that of the errors, after a table's columns so far. last_id:
    the highest number that any column of the table has ever had."""
    return tuple(_numbered(before, (*fields, Field(ERROR, "string")), count(last_id + 1)))


def _numbered(
    before: Sequence[NestedField], fields: Sequence[Field], ids: Iterator[int]
) -> Iterator[NestedField]:
    # All may be missing: what does not fit is null.
    there = {each.name: each for each in before}
    for field in fields:
        was = next((there[key] for key in field.keys if key in there), None)
        kind = None if was is None else _continued(was.field_type, field.type, ids)
        if was is None or kind is None:
            yield NestedField(next(ids), field.name, _new(field.type, ids), required=False)
        else:
            yield NestedField(was.field_id, field.name, kind, required=False)


def _continued(was: IcebergType, kind: schema.Type, ids: Iterator[int]) -> IcebergType | None:
    """The type of a column that goes on; None: it cannot."""
    if isinstance(kind, schema.ListType):
        if not isinstance(was, ListType):
            return None
        element = _continued(was.element_type, kind.element, ids)
        return None if element is None else ListType(was.element_id, element, False)
    if isinstance(kind, schema.StructType):
        if not isinstance(was, StructType):
            return None
        fields = tuple(_numbered(was.fields, kind.fields, ids))
        # With nothing in it that goes on, engines would not agree whether the struct is null.
        kept = {each.field_id for each in fields} & {each.field_id for each in was.fields}
        return StructType(*fields) if kept else None
    now = _TYPES[kind]
    return now if was == now or (was, now) in _WIDER else None


def _new(kind: schema.Type, ids: Iterator[int]) -> IcebergType:
    if isinstance(kind, schema.ListType):
        return ListType(next(ids), _new(kind.element, ids), False)
    if isinstance(kind, schema.StructType):
        return StructType(*_numbered((), kind.fields, ids))
    return _TYPES[kind]


class TypedColumns:
    """What an object has of a schema, beside the columns of every stream. columns: of the schema,
    as `numbered` gives them. version: of the schema."""

    def __init__(self, of: Schema, columns: Sequence[NestedField], version: int) -> None:
        self.of = of
        self.version = version
        kinds = [*(arrow_type(each.type) for each in of.fields), pa.string()]
        self.arrow = [_with_ids(*each) for each in zip(columns, kinds, strict=True)]
        leaves = [leaf for each in self.arrow for leaf in _leaves(each, each.name)]
        self.strings = [path for path, kind in leaves if pa.types.is_string(kind)]
        """The paths of the columns that hold text."""
        self.bounded = [each.name for each in self.arrow if pa.types.is_primitive(each.type)]
        """Those whose least and greatest value have a fixed length."""
        self.leaves = len(leaves)
        has_lists = any(_has_list(each.type) for each in self.arrow)
        self.rows_at_a_time = max(1, CELLS // max(self.leaves, LIST_CELLS if has_lists else 1))

    def begin(self) -> Group:
        """Begin a row group."""
        return Group(self)


class Group:
    """The columns of a row group: add its batches, then take them."""

    def __init__(self, columns: TypedColumns) -> None:
        self._columns = columns
        self._records = Records(columns.of)
        self._schema = pa.schema(columns.arrow)
        self._parts: list[Any] = []
        self._rows = self._waiting = self._length = 0

    @property
    def is_full(self) -> bool:
        """Whether the row group should end."""
        return self._length > GROUP_BYTES

    def add(self, batch: Batch) -> None:
        """Raises CorruptBatchError."""
        row, rows = 0, len(batch)
        self._rows += rows
        while row < rows and self._length <= GROUP_BYTES_MAX:
            stop = min(rows, row + self._columns.rows_at_a_time - self._waiting)
            self._records.add_batch(batch, [(row, stop)])
            self._waiting += stop - row
            row = stop
            if self._waiting == self._columns.rows_at_a_time:
                self._take()

    def _take(self) -> None:
        made = self._records.columns()
        names = [*(each.name for each in self._columns.of.fields), ERROR]
        part = pa.table([made[name] for name in names], schema=self._schema)
        self._length += part.nbytes
        self._parts.append(part)
        self._waiting = 0
        if self._length > GROUP_BYTES_MAX:
            self._parts.clear()

    def take(self) -> Any:
        """The columns, as a table."""
        if self._waiting or not self._parts:
            self._take()
        if self._length <= GROUP_BYTES_MAX:
            return pa.concat_tables(self._parts)
        # One array of nulls for all columns of a type.
        kinds = {each.type for each in self._columns.arrow}
        nulls = {kind: pa.nulls(self._rows, kind) for kind in kinds}
        columns = [nulls[each.type] for each in self._columns.arrow[:-1]]
        errors = same_text(TOO_LONG, self._rows)
        return pa.table([*columns, errors], schema=self._schema)


def _with_ids(column: NestedField, kind: pa.DataType) -> pa.Field:
    """The column in Arrow, with its numbers."""
    within = column.field_type
    if isinstance(within, ListType):
        kind = pa.list_(_with_ids(within.element_field, kind.value_type))
    elif isinstance(within, StructType):
        kinds = [kind.field(at).type for at in range(kind.num_fields)]
        kind = pa.struct([_with_ids(*each) for each in zip(within.fields, kinds, strict=True)])
    return pa.field(column.name, kind, metadata={"PARQUET:field_id": str(column.field_id)})


def _leaves(field: pa.Field, path: str) -> Iterator[tuple[str, pa.DataType]]:
    """The columns of a Parquet file that hold a field: path and type."""
    kind = field.type
    if pa.types.is_list(kind):
        yield from _leaves(kind.value_field, f"{path}.list.element")
    elif pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _leaves(kind.field(at), f"{path}.{kind.field(at).name}")
    else:
        yield path, kind


def _has_list(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_list(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_list(kind))
