"""Schemas of Avro, Protobuf and Arrow as those of streams: their columns, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jetstream_client.reading.arrow_schemas import from_arrow
from jetstream_client.reading.avro_schemas import from_avro
from jetstream_client.reading.schema_files import following, from_file
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import parse, why_incompatible


def record(*fields: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields), **more})


def field(kind: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("int", "a int not null using avro <a int>"),
        (["null", "float"], "a double using avro <a union<null, float>>"),
        ({"type": "int", "logicalType": "date"}, "a date not null using avro <a date>"),
        ({"type": "long", "logicalType": "timestamp-millis"},
         "a timestamp not null using avro <a timestamp_millis>"),
        ({"type": "long", "logicalType": "time-micros"}, "a bigint not null using avro <a long>"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
         "a string not null using avro <a decimal(2)>"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"},
         "a string not null using avro <a fixed_uuid>"),
        ({"type": "enum", "name": "E", "symbols": ["X", "Y"]},
         "a string not null using avro <a enum(X, Y)>"),
        ({"type": "map", "values": ["null", "long"]},
         "a list<struct<key string not null, value bigint>> not null using avro "
         "<a array<record<key string, value union<null, long>>>>"),
        ({"type": "array", "items": json.loads(record(field("string", "s")).replace("R", "I"))},
         "a list<struct<s string not null>> not null using avro <a array<record<s string>>>"),
    ],
)  # fmt: skip
def test_columns_follow_from_a_schema_of_avro(kind: Any, columns: str) -> None:
    assert str(from_avro(record(field(kind)))) == columns
    assert str(parse(columns)) == columns


@pytest.mark.parametrize(
    ("kind", "default", "written"),
    [
        (["null", "int"], None, "int"),
        ("int", 3, "int not null default 3"),
        ("string", 'say "é"', 'string not null default "say \\"é\\""'),
        ({"type": "array", "items": "int"}, [], "list<int> not null default []"),
        ({"type": "int", "logicalType": "date"}, 1, 'date not null default "1970-01-02"'),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1500,
         'timestamp not null default "1970-01-01T00:00:01.500000Z"'),
        ("bytes", "\u00ff", 'binary not null default "/w=="'),
        ({"type": "bytes", "logicalType": "decimal", "scale": 1}, "\u00ff",
         'string not null default "-0.1"'),
    ],
)  # fmt: skip
def test_defaults_are_kept_as_the_column_has_them(kind: Any, default: Any, written: str) -> None:
    found = from_avro(record(field(kind, default=default)))
    assert str(found).partition(" using ")[0] == f"a {written}"
    assert parse(str(found)) == found


def test_a_type_with_a_name_is_used_again() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["X"]}
    fields = field(inner), field("E", "b"), field("space.E", "c")
    found = from_avro(record(*fields, namespace="space"), 7)
    assert str(found).endswith("using avro (7) <a enum(X), b enum(X), c enum(X)>")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ('"int"', "not of a record"),
        (record(field(["int", "string"])), "a is a union of other than null and one type"),
        (record(field("null")), "a has the type 'null'"),
        (record(field(["null", "R"])), "a holds R within itself"),
        (record(field("Missing")), "a has the type 'Missing'"),
        (record(), "at least one field"),
        (record(field("int", "a-b")), "cannot be a field's name"),
        (record(field("int"), field("int", "A")), "two fields A"),
        (record(field({"type": "record", "name": "I", "fields": [field("int")]}, default={"a": 1})),
         "a has a default that no column can have"),
        (record(field("bytes", default=5)), "a has a default that no column can have"),
        (record(field({"type": "long", "logicalType": "timestamp-millis"}, default="x" * 10_000)),
         "a has a default that no column can have"),
        (record(field("long", default="7")), "a has a default that does not fit its type"),
        (record(field(["null", "boolean"], default=1)), "a default that does not fit"),
        (record(field({"type": "bytes", "logicalType": "decimal", "scale": 50})), "at most 38"),
        (record(field({"type": "enum", "name": "E"})), "an enum without symbols"),
    ],
)  # fmt: skip
def test_what_columns_cannot_follow_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        from_avro(text)


def test_a_schema_of_avro_keeps_the_layouts_and_names_before_it() -> None:
    first = from_avro(record(field("int"), field("string", "s", aliases=["t"])), 7)
    second = from_avro(record(field("long", "b", aliases=["a"]), field("string", "s")), 8)
    found = following(first, second)
    assert str(found) == (
        "b bigint not null alias a, s string not null alias t "
        "using avro (7) <a int, s string>, (8) <b long, s string>"
    )
    assert why_incompatible(first, found) == ""


ORDERS = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Ignored { message Order { int64 id = 1; } }
message Order {
  enum State { NEW = 0; PAID = 5; }
  int64 id = 1;
  optional double price = 2;
  repeated Item items = 3;
  map<string, sint32> stock = 4;
  google.protobuf.Timestamp at = 5;
  State state = 6;
  oneof how { string card = 7; uint64 cash = 8; }
  message Item { string sku = 1; float weight = 2; }
}
"""


def proto(folder: Path, text: str) -> Path:
    path = folder / "orders.proto"
    path.write_text(text)
    return path


def test_columns_follow_from_a_message_of_protobuf(tmp_path: Path) -> None:
    found = from_file(proto(tmp_path, ORDERS), None, "shop.Order")
    fields, _, layout = str(found).partition(" using protobuf ")
    assert fields == (
        "id bigint, price double, items list<struct<sku string, weight double>>, "
        "stock list<struct<key string, value int>>, at timestamp, state string, card string, "
        "cash bigint"
    )
    assert layout == (
        "(1) <1 id int64, 2 price optional double, 3 items repeated message<1 sku string, 2 weight "
        "float>, 4 stock repeated message<1 key string, 2 value sint32>, 5 at optional timestamp, "
        "6 state enum(NEW, 0, PAID, 5), 7 card oneof1 string, 8 cash oneof1 uint64>"
    )
    assert parse(str(found)) == found
    renamed = ORDERS.replace("price", "cost").replace("sku", "article")
    after = following(found, from_file(proto(tmp_path, renamed), None, "shop.Order"))
    assert str(after).startswith(
        "id bigint, cost double alias price, items list<struct<article string alias sku, "
    )
    assert why_incompatible(found, after) == ""


@pytest.mark.parametrize(
    ("text", "message", "why"),
    [
        (ORDERS, None, "say which message: --message shop.Ignored or shop.Order"),
        (ORDERS, "Other", "say which message"),
        (ORDERS, "Order", "say which message: --message shop.Ignored.Order or shop.Order"),
        ('syntax = "proto3"; message A { A a = 1; }', None, "a holds A within itself"),
        ('syntax = "proto2"; message A { optional group G = 1 { optional int32 b = 1; } }', None,
         "g is a group"),
        ('syntax = "proto3"; message A {}', None, "at least one field"),
        ("message", None, "orders.proto cannot be read"),
    ],
)  # fmt: skip
def test_a_message_that_columns_cannot_follow_is_refused(
    tmp_path: Path, text: str, message: str | None, why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        from_file(proto(tmp_path, text), None, message)


KINDS = pa.schema(
    [
        pa.field("id", pa.int16(), nullable=False),
        pa.field("offset", pa.large_string()),
        pa.field("stock", pa.map_(pa.string(), pa.uint32())),
        pa.field("items", pa.list_(pa.struct([("at", pa.timestamp("ns", "CET"))]))),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("place", pa.list_(pa.float32(), 2)),
    ]
)


def in_stream(kinds: pa.Schema) -> bytes:
    return bytes(kinds.serialize())


def in_file(kinds: pa.Schema) -> bytes:
    into = pa.BufferOutputStream()
    with pa.ipc.new_file(into, kinds):
        pass
    return bytes(into.getvalue())


@pytest.mark.parametrize("written", [in_stream, in_file])
def test_columns_follow_from_a_schema_of_arrow(
    tmp_path: Path, written: Callable[[pa.Schema], bytes]
) -> None:
    path = tmp_path / "rows.arrow"
    path.write_bytes(written(KINDS))
    found = from_file(path, None, None)
    assert str(found) == (
        "id int not null, offset_ string alias offset, stock list<struct<key string not null, "
        "value bigint>>, items list<struct<at timestamp>>, price string, place list<double> using "
        "arrow <id int16, offset large_bytes, stock list<struct<key bytes, value uint32>>, items "
        "list<struct<at timestamp_ns>>, price fixed_decimal(16, 2), place fixed_list(2)<float>>"
    )
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (b"ARROW1", "the file is no Arrow IPC"),
        (b"", "the file is no Arrow IPC"),
        (
            in_stream(pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))])),
            "a has the type dict",
        ),
        (in_stream(pa.schema([("a", pa.list_(pa.float16()))])), r"a\[\] has the type halffloat"),
        (in_stream(pa.schema([("a-b", pa.int8())])), "cannot be a field's name"),
        (in_stream(pa.schema([])), "at least one field"),
    ],
)
def test_a_schema_of_arrow_that_columns_cannot_follow_is_refused(found: bytes, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        from_arrow(found)


def test_batches_without_a_schema_go_on_as_they_were() -> None:
    before = parse("id int, price double using arrow")
    after = following(before, parse("id bigint, cost double alias price, note string using arrow"))
    assert str(after) == (
        "id bigint, cost double alias price, note string "
        "using arrow <id int32, price double, note bytes>"
    )
    assert why_incompatible(before, after) == ""
    moved = following(before, parse("note string, id int, price double using arrow"))
    assert "put new ones behind them" in why_incompatible(before, moved)


def test_a_file_is_read_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    path.write_text(record(field("int")))
    for schema_id, message, why in ((7, None, "--id is for"), (None, "A", "--message is for")):
        with pytest.raises(InvalidRequestError, match=why):
            from_file(path, schema_id, message)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        from_file(tmp_path / "missing.avsc", None, None)
    broken = tmp_path / "orders.binpb"
    broken.write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match="no descriptors of Protobuf"):
        from_file(broken, None, None)
