"""Columns of a stream's schema beside those of every stream: only those that are asked for are
decoded (jetstream_protocol/typed_columns.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetstream_client.reading.schema_sources import no_schema
from jetstream_client.values.checks import names_in
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.extras import needed_by
from jetstream_protocol.schema import ERROR, Field, ListType, Schema, StructType, Type, parse
from jetstream_protocol.typed_json import PARTS_MIN

with needed_by("a table with the fields of a schema", "arrow"):
    import pyarrow as pa

    from jetstream_client.reading.arrow import SCHEMA, counting, cut, schema_of, to_table
    from jetstream_protocol.typed_columns import Records, arrow_type

if TYPE_CHECKING:
    from jetstream_client.reading.messages import Chunk, Messages

_WORD = re.compile(r"\w+")
_FEW = 8
_ROW = "row number"
"""No name of a field has a space."""
CELLS_MAX = 8_000_000
"""Values that are made before a batch is returned: 64 MiB of plain ones, if each record has what
few bytes can make."""
_WIDE = 16
"""From so many fields of a struct on, a list of few bytes makes PARTS_MIN values."""


class Decoder:
    """Makes tables with some columns of records and of a schema. schema: theirs."""

    def __init__(self, schema: Schema, columns: Iterable[str] | None = None) -> None:
        """columns: in this order; None: all, those of every stream first. Raises
        InvalidRequestError for one that is in neither."""
        every = [*SCHEMA.names, *schema.names, ERROR]
        wanted = every if columns is None else names_in("columns", columns)
        for name in wanted:
            if name not in every:
                raise InvalidRequestError(f"no column {name!r}: there are {', '.join(every)}")
        self._own = [name for name in SCHEMA.names if name in wanted]
        # What is the first error of a record, only all its fields can tell.
        fields = tuple(field for field in schema.fields if ERROR in wanted or field.name in wanted)
        self._has_error = ERROR in wanted
        self._values = replace(schema, fields=fields)
        self._rows = max(1, CELLS_MAX // max(1, sum(_cells(each.type) for each in fields)))
        self.schema = _schema(wanted, fields)

    def decode(self, table: pa.Table) -> pa.Table:
        """table: with the columns of every stream that are wanted, and `value`."""
        records = Records(self._values)
        for chunk in table["value"].chunks:
            records.add_array(chunk)
        own = {name: table[name] for name in self._own}
        return self._table(records, own)

    def table_of(self, messages: Messages) -> pa.Table:
        """The records. Raises CorruptBatchError."""
        records = Records(self._values)
        if self._values.fields or self._has_error:
            for chunk in messages.chunks:
                records.add_batch(chunk.batch, _parts(chunk))
        found = to_table(messages, self._own)
        return self._table(records, {name: found[name] for name in self._own})

    def batches(self, messages: Messages, rows: int) -> Iterator[pa.RecordBatch]:
        """The records as batches of at most `rows`, of about the same length each."""
        for some in self.parts_of(messages):
            yield from cut(self.table_of(some), rows)

    def parts_of(self, messages: Messages) -> Iterator[Messages]:
        """The records, as many at a time as make no more than CELLS_MAX values."""
        if 0 < len(messages) <= self._rows:
            yield messages
            return
        for start in range(0, len(messages), self._rows):
            yield messages.only(range(start, min(start + self._rows, len(messages))))

    def _table(self, records: Records, own: dict[str, Any]) -> pa.Table:
        columns = {**own, **records.columns()}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)


def _cells(kind: Type) -> int:
    """How many values a record of few bytes makes of a field."""
    if isinstance(kind, StructType):
        return sum(_cells(field.type) for field in kind.fields)
    if not isinstance(kind, ListType):
        return 1
    element = kind.element
    while isinstance(element, ListType):
        element = element.element
    return PARTS_MIN if _cells(element) >= _WIDE else 1


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
        for some in self._whole.parts_of(messages):
            table = self._whole.table_of(some)
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
        raise InvalidRequestError(f"stream {no_schema(stream)}")
    return Decoder(parse(text), columns)


def _parts(chunk: Chunk) -> Iterable[tuple[int, int]]:
    if chunk.picked is not None:
        return _runs(chunk.picked)
    return [(chunk.start, chunk.stop)]


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The rows as ranges, in their order."""
    start = stop = rows[0]
    for row in rows:
        if row != stop:
            yield start, stop
            start = row
        stop = row + 1
    yield start, stop
