"""Typed columns, with the option `typed`: the fields of a stream's schema, and `_error`.

The columns are those of the schema at `load()`. Each task asks for the schema as it is then, and
goes on if that has followed: a field is found under its new name, and keeps its type. Otherwise the
task fails. Only the columns that are wanted are decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as spark

from jetstream_client.reading.schema_sources import no_schema
from jetstream_client.reading.typed import Decoder
from jetstream_protocol.schema import (
    ERROR,
    Field,
    ListType,
    Schema,
    StructType,
    Type,
    parse,
    why_incompatible,
)
from pyspark_jetstream import planning
from pyspark_jetstream.clients import asked_now
from pyspark_jetstream.errors import LOAD_ANEW, OptionError, explained

if TYPE_CHECKING:
    from jetstream_client import AsyncClient, Client, Messages
    from pyspark_jetstream.options import ReadOptions
    from pyspark_jetstream.ranges import Range

_SCALARS: dict[str, spark.DataType] = {
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "double": spark.DoubleType(),
    "boolean": spark.BooleanType(),
    "string": spark.StringType(),
    "timestamp": spark.TimestampType(),
    "date": spark.DateType(),
    "binary": spark.BinaryType(),
}
_NAMES = {kind: name for name, kind in _SCALARS.items()}


def typed_fields(options: ReadOptions) -> list[spark.StructField]:
    """The typed columns that are wanted, of the schema that all streams have now. Raises
    OptionError."""
    with explained(options.servers):
        schema = parse(asyncio.run(asked_now(options.config, lambda one: _text(one, options))))
    found = {field.name: _to_spark(field.type) for field in schema.fields}
    found[ERROR] = spark.StringType()
    strangers = [name for name in options.fields if name not in found]
    if strangers:
        raise OptionError(
            f"columns names {', '.join(strangers)}: the schema has {', '.join(found)}"
        )
    wanted = options.fields or (() if options.names_columns else tuple(found))
    return [spark.StructField(name, kind) for name, kind in found.items() if name in wanted]


async def _text(client: AsyncClient, options: ReadOptions) -> str:
    listed = await client.list_streams()
    planning.check_names(listed, options.selection)
    streams = planning.select(listed, options.selection)
    planning.check_found(streams, options.selection)
    texts: dict[str, str] = {}
    for stream in streams.values():
        text = (await client.describe_schema(stream)).text
        if not text:
            raise OptionError(f"stream {no_schema(stream.full_name)}")
        texts.setdefault(text, stream.full_name)
    if len(texts) > 1:
        raise OptionError(
            f"the streams {' and '.join(texts.values())} have different schemas: read each on its "
            "own, or without typed"
        )
    return next(iter(texts))


def _to_spark(kind: Type) -> spark.DataType:
    if isinstance(kind, ListType):
        return spark.ArrayType(_to_spark(kind.element))
    if isinstance(kind, StructType):
        fields = [spark.StructField(each.name, _to_spark(each.type)) for each in kind.fields]
        return spark.StructType(fields)
    return _SCALARS[kind]


def _of_spark(kind: spark.DataType) -> Type:
    if isinstance(kind, spark.ArrayType):
        return ListType(_of_spark(kind.elementType))
    if isinstance(kind, spark.StructType):
        return StructType(tuple(Field(each.name, _of_spark(each.dataType)) for each in kind))
    return _NAMES[kind]


@dataclass(frozen=True)
class Typed:
    """The typed columns of a read. Pickled into tasks."""

    fields: spark.StructType

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def batches(
        self, client: Client, part: Range, columns: Sequence[str], messages: Messages, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The records with these columns of every stream and the typed ones."""
        return self._decoder(client, part, columns).batches(messages, rows)

    def _decoder(self, client: Client, part: Range, columns: Sequence[str]) -> Decoder:
        text = client.describe_schema(part.stream_id).text
        if not text:
            raise OptionError(f"stream {part.name!r} has no schema any more: {LOAD_ANEW}")
        before = tuple(
            Field(each.name, _of_spark(each.dataType)) for each in self.fields if each.name != ERROR
        )
        return _made(before, text, part.name, (*columns, *self.names))


@lru_cache(maxsize=8)
def _made(before: tuple[Field, ...], text: str, stream: str, columns: tuple[str, ...]) -> Decoder:
    now = parse(text)
    return Decoder(replace(now, fields=_followed(before, now.fields, stream)), columns)


def _followed(before: tuple[Field, ...], now: tuple[Field, ...], stream: str) -> tuple[Field, ...]:
    """The fields as they are now, but those of before with the names and types that they had.
    Raises OptionError if one is gone, or of another type."""
    optional = Schema(tuple(_optional(field) for field in now))
    why = why_incompatible(Schema(before), optional) if before else ""
    if why:
        raise OptionError(
            f"the schema of stream {stream!r} is another one now ({why}): {LOAD_ANEW}"
        )
    names = {field.name: field for field in before}
    found = []
    for field in now:
        was = next((names[key] for key in field.keys if key in names), field)
        others = tuple(key for key in field.keys if key != was.name)
        kind = _kept(was.type, field.type, stream)
        found.append(Field(was.name, kind, field.required, others, field.default))
    return tuple(found)


def _kept(before: Type, now: Type, stream: str) -> Type:
    if isinstance(before, ListType) and isinstance(now, ListType):
        return ListType(_kept(before.element, now.element, stream))
    if isinstance(before, StructType) and isinstance(now, StructType):
        fields = {field.name: field for field in _followed(before.fields, now.fields, stream)}
        return StructType(tuple(fields[field.name] for field in before.fields))
    return before


def _optional(field: Field) -> Field:
    """Whether a field may be missing is told by `_error`: Spark's columns are all nullable."""
    return Field(field.name, _all_optional(field.type), aliases=field.aliases)


def _all_optional(kind: Type) -> Type:
    if isinstance(kind, ListType):
        return ListType(_all_optional(kind.element))
    if isinstance(kind, StructType):
        return StructType(tuple(map(_optional, kind.fields)))
    return kind
