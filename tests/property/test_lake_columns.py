"""The table in the lake has the columns of a schema as every other reader decodes them, and its
objects come back to the byte all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyiceberg")

from pyiceberg.table import StaticTable

from jetstream_client.reading.typed import Decoder
from jetstream_protocol.batch import encode as encode_batch
from jetstream_protocol.schema import ERROR, Field, ListType, Schema, StructType, Type
from jetstream_server.lake import parquet_object
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.table import StoredObject, StreamTable
from jetstream_server.lake.typed_columns import TypedColumns, numbered
from tests.property.typed_records import NAMES, documents, schemas
from tests.support.lake_objects import decode, encode

Values = list[bytes | None]
VALUES: st.SearchStrategy[Values] = st.lists(documents(), min_size=1, max_size=6)


def log_of(batches: Sequence[Values]) -> bytes:
    data, offset = b"", 0
    for values in batches:
        batch = encode_batch(values, b"s")
        batch.stamp(offset, 1, 1)
        data += batch.to_bytes()
        offset += len(values)
    return data


def decoded(values: Values, schema: Schema) -> list[dict[str, Any]]:
    """As `to_arrow(typed=…)` and SQL have them."""
    table = pa.table({"value": pa.array(values, pa.binary())})
    rows: list[dict[str, Any]] = Decoder(schema, [*schema.names, ERROR]).decode(table).to_pylist()
    return rows


@settings(max_examples=25, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), schemas, st.sampled_from([1, 3, 10**6]))
def test_an_object_has_the_columns_that_every_reader_decodes(
    batches: list[Values], schema: Schema, rows_at_a_time: int
) -> None:
    data = log_of(batches)
    typed = TypedColumns(schema, numbered((), 8, schema.fields), 1)
    typed.rows_at_a_time = rows_at_a_time
    whole = encode(data, typed).data
    assert decode(whole) == data
    found = pq.read_table(pa.BufferReader(whole)).drop_columns(parquet_object.SCHEMA.names)
    assert found.column_names == [*schema.names, ERROR]
    assert found.to_pylist() == decoded([value for each in batches for value in each], schema)


# A table whose schema changes.


@st.composite
def chains(draw: st.DrawFn) -> list[Schema]:
    """Schemas of one stream, one after the other: each goes on from the last, or does not."""
    found = [draw(schemas)]
    for _ in range(draw(st.integers(0, 2))):
        anew = draw(st.integers(0, 5)) == 0
        found.append(draw(schemas) if anew else Schema(draw(followers(found[-1].fields))))
    return found


@st.composite
def followers(draw: st.DrawFn, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Fields wider, under other names, and new ones."""
    taken = {key for field in fields for key in field.keys}
    free = [name for name in (*NAMES, "c", "d", "e") if name not in taken]
    made = []
    for field in fields:
        kind = draw(wider(field.type))
        name = free.pop() if free and draw(st.integers(0, 2)) == 0 else field.name
        aliases = field.aliases if name == field.name else (field.name, *field.aliases)
        made.append(Field(name, kind, False, aliases))
    if free and draw(st.booleans()):
        made.insert(draw(st.integers(0, len(made))), Field(free.pop(), "string"))
    return tuple(made)


@st.composite
def wider(draw: st.DrawFn, kind: Type) -> Type:
    if isinstance(kind, ListType):
        return ListType(draw(wider(kind.element)))
    if isinstance(kind, StructType):
        return StructType(draw(followers(kind.fields)))
    return draw(st.sampled_from(["int", "bigint", "double"])) if kind == "int" else kind


def seen(row: Any, was: Type, now: Type) -> Any:
    """A value of an object, as the table shows it by now."""
    if row is None:
        return None
    if isinstance(was, ListType) and isinstance(now, ListType):
        return [seen(each, was.element, now.element) for each in row]
    if isinstance(was, StructType) and isinstance(now, StructType):
        return seen_fields(row, was.fields, now.fields)
    return row


def seen_fields(row: dict[str, Any], was: Sequence[Field], now: Sequence[Field]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in now:
        before = next((each for each in was if each.name in field.keys), None)
        made[field.name] = None
        if before is not None and goes(before.type, field.type):
            made[field.name] = seen(row[before.name], before.type, field.type)
    return made


def solid(found: Any) -> Any:
    """Without what holds nothing: engines differ on a struct that an object has no part of."""
    if isinstance(found, dict):
        made = {name: solid(each) for name, each in found.items()}
        return made if any(each is not None for each in made.values()) else None
    if isinstance(found, list):
        items = list(map(solid, found))
        return items if any(each is not None for each in items) else None
    return found


def goes(was: Type, now: Type) -> bool:
    """Whether Iceberg reads the one as the other."""
    if isinstance(was, ListType) and isinstance(now, ListType):
        return goes(was.element, now.element)
    if isinstance(was, StructType) and isinstance(now, StructType):
        pairs = ((one, two) for one in was.fields for two in now.fields if one.name in two.keys)
        return any(goes(one.type, two.type) for one, two in pairs)
    return was == now or (was, now) == ("int", "bigint")


@settings(max_examples=8, deadline=None)
@given(chains(), st.data())
def test_older_objects_are_seen_by_the_newest_schema(
    tmp_path_factory: pytest.TempPathFactory, chain: list[Schema], data: st.DataObject
) -> None:
    store = FolderStore(tmp_path_factory.mktemp("lake").as_uri())
    table = StreamTable(store, store.url, "s", {})
    location, offset = "", 0
    wanted: list[dict[str, Any]] = []
    for number, schema in enumerate(chain):
        values = data.draw(VALUES)
        batch = encode_batch(values, b"s")
        batch.stamp(offset, 1, 1)
        typed = TypedColumns(schema, table.columns(location, schema.fields), number + 1)
        encoded = encode(batch.to_bytes(), typed)
        store.put(name := f"s/data/{number}.parquet", encoded.data)
        added = StoredObject(name, len(encoded.data), encoded.facts)
        location = table.append(location, added, lambda *_: None, 0, schema.fields)
        offset += len(values)
        # Where the type of an object's column begins anew, it is null; so step by step.
        if number:
            before = (*chain[number - 1].fields, Field(ERROR, "string"))
            wanted = [seen_fields(row, before, (*schema.fields, before[-1])) for row in wanted]
        wanted += decoded(values, schema)
    found = StaticTable.from_metadata(table.url_of(location)).scan().to_arrow().sort_by("offset")
    rows = found.drop_columns(parquet_object.SCHEMA.names).to_pylist()
    assert list(map(solid, rows)) == list(map(solid, wanted))
