"""A stream's schema becomes columns of its table, which go on when the schema changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.table import StaticTable
from pyiceberg.types import NestedField

from jetstream_protocol.batch import encode as encode_batch
from jetstream_protocol.schema import FIELDS_MAX, parse
from jetstream_server.lake import parquet_object, typed_columns
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.parquet_object import read_footer
from jetstream_server.lake.table import StoredObject, StreamTable
from jetstream_server.lake.typed_columns import TypedColumns, numbered
from tests.support.lake_objects import decode, encode

FIRST = 9
"""The first number after those of the columns of every stream."""


def columns(*texts: str) -> tuple[NestedField, ...]:
    """Those of a table whose stream has had these schemas."""
    found: tuple[NestedField, ...] = ()
    last = FIRST - 1
    for text in texts:
        found = numbered(found, last, parse(text).fields)
        last = max(last, *_all_ids(found))
    return found


def _all_ids(fields: Sequence[NestedField]) -> list[int]:
    ids = []
    for each in fields:
        ids.append(each.field_id)
        kind = each.field_type
        if hasattr(kind, "element_field"):
            ids += _all_ids([kind.element_field])
        ids += _all_ids(getattr(kind, "fields", ()))
    return ids


def shown(found: Sequence[NestedField]) -> str:
    return ", ".join(f"{each.field_id} {each.name} {each.field_type}" for each in found)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["a int, b string"], "9 a int, 10 b string, 11 _error string"),
        (["a int", "a int"], "9 a int, 10 _error string"),
        (["a int", "b int alias a"], "9 b int, 10 _error string"),
        (["a int", "a bigint"], "9 a long, 10 _error string"),
        (["a int", "z int, a int"], "11 z int, 9 a int, 10 _error string"),
        (["a int", "a double"], "11 a double, 10 _error string"),
        (["a int", "a string"], "11 a string, 10 _error string"),
        (["a bigint", "a int"], "11 a int, 10 _error string"),
        (["a int, b int", "a int", "a int, b int"], "9 a int, 12 b int, 11 _error string"),
        (["a list<int>"], "9 a list<int>, 11 _error string"),
        (["a list<int>", "a list<bigint>"], "9 a list<long>, 11 _error string"),
        (["a list<int>", "a list<double>"], "12 a list<double>, 11 _error string"),
        (
            ["a struct<b int, c int>", "a struct<d bigint alias b, c int>"],
            "9 a struct<10: d: optional long, 11: c: optional int>, 12 _error string",
        ),
        (
            ["a struct<b int, c int>", "a struct<b double, c int, e date>"],
            "9 a struct<13: b: optional double, 11: c: optional int, 14: e: optional date>, "
            "12 _error string",
        ),
        (
            ["a struct<b int>", "a struct<b double>"],
            "13 a struct<14: b: optional double>, 11 _error string",
        ),
    ],
)  # fmt: skip
def test_a_column_keeps_its_number_while_it_can_be_read(texts: list[str], wanted: str) -> None:
    assert shown(columns(*texts)) == wanted


class Place(NamedTuple):
    """A table, and where it is by now."""

    table: StreamTable
    store: FolderStore
    state: dict[str, Any]

    def append(self, *values: bytes | None, schema: str = "", attempt: str = "a") -> str:
        """Copy records by a schema; returns the location before."""
        begin, before = self.state["end"], self.state["location"]
        batch = encode_batch(list(values), b"s")
        batch.stamp(begin, 1, 1 + begin)
        fields = parse(schema).fields if schema else ()
        typed = None
        if schema:
            typed = TypedColumns(parse(schema), self.table.columns(before, fields), 1)
        encoded = encode(batch.to_bytes(), typed)
        assert decode(encoded.data) == batch.to_bytes()
        self.store.put(name := f"s/data/{begin}-{attempt}.parquet", encoded.data)
        added = StoredObject(name, len(encoded.data), encoded.facts)
        self.state["location"] = self.table.append(before, added, lambda *_: None, 0, fields)
        self.state["end"] = begin + len(values)
        return str(before)

    @property
    def url(self) -> str:
        return self.table.url_of(self.state["location"])

    def rows(self) -> list[dict[str, Any]]:
        found = StaticTable.from_metadata(self.url).scan().to_arrow().sort_by("offset")
        rows: list[dict[str, Any]] = found.drop_columns(parquet_object.SCHEMA.names).to_pylist()
        return rows


def place_at(folder: Path) -> Place:
    store = FolderStore(folder.as_uri())
    return Place(StreamTable(store, store.url, "s", {}), store, {"location": "", "end": 0})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_at(tmp_path)


def test_the_table_follows_the_schema(place: Place) -> None:
    place.append(b'{"id": 1}')
    assert place.rows() == [{}]
    place.append(
        b'{"id": 2, "at": "2026-01-31T10:00:00Z"}', b"no", None, schema="id int, at timestamp"
    )
    place.append(
        b'{"id": 3}',
        b'{"number": 4294967296}',
        schema="number bigint alias id, at timestamp, x string",
    )
    place.append(b'{"id": 5}')  # Its schema was taken away.
    moment = datetime(2026, 1, 31, 10, tzinfo=UTC)
    nothing = {"number": None, "at": None, "x": None, "_error": None}
    assert place.rows() == [
        nothing,
        {**nothing, "number": 2, "at": moment},
        {**nothing, "_error": "the value is not JSON"},
        nothing,
        {**nothing, "number": 3},
        {**nothing, "number": 4294967296},
        nothing,
    ]


def test_a_type_that_iceberg_does_not_widen_begins_anew(place: Place) -> None:
    place.append(b'{"price": 1}', schema="price int")
    place.append(b'{"price": 1.5}', schema="price double")
    assert [row["price"] for row in place.rows()] == [None, 1.5]


def test_an_attempt_that_was_refused_numbers_nothing(place: Place) -> None:
    place.append(b'{"a": 1}', schema="a int")
    before, state = place.state["location"], dict(place.state)
    place.append(b'{"a": 2, "b": 3}', schema="a int, b int")
    # The metadata group has refused it. Meanwhile the schema has changed once more.
    place.state.update(state)
    place.append(b'{"a": 2, "c": "x"}', schema="a int, c string", attempt="b")
    assert place.state["location"] != before
    assert [(row["a"], row["c"]) for row in place.rows()] == [(1, None), (2, "x")]
    assert "b" not in place.rows()[0]


def test_a_number_is_never_given_again(place: Place) -> None:
    place.append(b'{"a": 1, "b": 2}', schema="a int")
    place.append(b'{"a": 1, "b": 2}', schema="a int, b int")
    place.append(b'{"a": 1, "b": 2}', schema="a int")  # After it was taken away.
    place.append(b'{"a": 1, "c": 3}', schema="a int, c int")
    assert [row["c"] for row in place.rows()] == [None, None, None, 3]


def test_schemas_that_no_snapshot_needs_leave_the_table(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream_server.lake.table.SNAPSHOTS_MAX", 2)
    for at in range(6):
        names = ", ".join(f"a{each} int" for each in range(at + 1))
        place.append(b'{"a0": 1}', schema=names)
    metadata = StaticTable.from_metadata(place.url).metadata
    assert [each.schema_id for each in metadata.schemas] == [5, 6]
    assert [row["a0"] for row in place.rows()] == [1] * 6


def test_polars_and_duckdb_read_the_columns(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Else it warns.
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    place.append(b'{"a": 1, "l": [{"x": 1}]}', schema="a int, l list<struct<x int>>")
    text = "b bigint alias a, l list<struct<x bigint, y string>>"
    place.append(b'{"b": 2, "l": [{"x": 2, "y": "z"}]}', schema=text)
    wanted = [(1, [{"x": 1, "y": None}]), (2, [{"x": 2, "y": "z"}])]
    frame = polars.scan_iceberg(place.url).sort("offset").collect()
    assert list(zip(frame["b"].to_list(), frame["l"].to_list(), strict=True)) == wanted
    scan = StaticTable.from_metadata(place.url).scan()
    lake = scan.to_arrow_batch_reader()  # As docs/lake.md says.
    assert lake is not None
    found = duckdb.sql('select b, l from lake order by "offset"').fetchall()
    assert found == wanted


# Limits.


def typed_by(text: str) -> TypedColumns:
    return TypedColumns(parse(text), columns(text), 1)


def batch_of(values: list[bytes], offset: int = 0) -> bytes:
    batch = encode_batch(values, b"s")
    batch.stamp(offset, 1, 1)
    return batch.to_bytes()


def test_columns_that_take_too_much_memory_are_null_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(typed_columns, "GROUP_BYTES", 10_000)
    monkeypatch.setattr(typed_columns, "GROUP_BYTES_MAX", 100_000)
    hostile = b'{"a": [' + b"{}," * 1000 + b"{}]}"
    data = batch_of([b'{"a": []}']) + batch_of([hostile] * 3, 1) + batch_of([b'{"a": [{}]}'], 4)
    fields = ", ".join(f"f{at} bigint" for at in range(8))
    typed = typed_by(f"a list<struct<{fields}>>")
    typed.rows_at_a_time = 1
    whole = encode(data, typed).data
    assert decode(whole) == data
    table = pq.read_table(pa.BufferReader(whole))
    assert table["_error"].to_pylist() == [typed_columns.TOO_LONG] * 4 + [None]
    assert table["a"].null_count == 4


def test_a_wide_schema_does_not_make_a_footer_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 100)
    monkeypatch.setattr(parquet_object, "CHUNKS_MAX", 3 * FIELDS_MAX)
    text = ", ".join(f"a{at} string" for at in range(FIELDS_MAX))
    value = b'{"a0": "' + b"x" * 5000 + b'"}'
    parts = [batch_of([value], at) for at in range(5)]
    encoded = encode(b"".join(parts), typed_by(text))
    assert encoded.facts.end == 3, "it ends early, and the next object goes on"
    whole = encoded.data
    assert decode(whole) == b"".join(parts[:3])
    footer = read_footer(lambda at, length: whole[at : at + length], len(whole))
    assert footer.metadata.serialized_size < 3 * FIELDS_MAX * 200
