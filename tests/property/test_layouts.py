"""Whatever the bytes of Avro, Protobuf or Arrow are: the columns have what another decoder reads,
or null and `_error`; other records are not touched, and other columns have what they have without
it."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetstream_client.reading.arrow_schemas import from_arrow
from jetstream_client.reading.avro_schemas import from_avro
from jetstream_client.reading.protobuf_schemas import from_protobuf
from jetstream_client.reading.typed import Decoder
from jetstream_protocol.fitting import Fitting
from jetstream_protocol.schema import ListType, Schema, StructType, Type, parse
from jetstream_protocol.typed_json import compiled
from tests.property import arrow_rows, avro_records, protobuf_records
from tests.property.avro_records import Kind
from tests.property.protobuf_records import MISFIT

if compiled is None:
    pytest.skip("nothing is compiled here", allow_module_level=True)


EXAMPLES = int(os.environ.get("JETSTREAM_LAYOUT_EXAMPLES", "25"))
MANY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def decoded(schema: Schema, values: list[bytes | None], some: list[str]) -> list[dict[str, Any]]:
    """The rows; every reader has the same."""
    assert parse(str(schema)) == schema
    table = pa.table({"value": pa.array(values, pa.binary())})
    made = Decoder(schema, [*schema.names, "_error"]).decode(table)
    made.validate(full=True)
    assert str(Decoder(schema, some).decode(table).to_pylist()) == str(
        made.select(some).to_pylist()
    )
    found: list[dict[str, Any]] = made.to_pylist()
    misfits = Fitting(str(schema)).misfits(values)
    assert {at: str(error).partition(": ")[2] for at, error in misfits.items()} == {
        at: row["_error"] for at, row in enumerate(found) if row["_error"] is not None
    }
    return found


def damaged(data: st.DataObject, value: bytes) -> bytes:
    how = data.draw(st.integers(0, 3))
    at = data.draw(st.integers(0, max(len(value) - 1, 0)))
    if how == 0:
        return value[:at]
    if how == 1:
        return value + data.draw(st.binary(min_size=1, max_size=4))
    if how == 2:
        return data.draw(st.binary(max_size=20))
    return value[:at] + data.draw(st.binary(min_size=1, max_size=2)) + value[at + 1 :]


@MANY
@given(avro_records.whole_records, st.data())
def test_avro_is_read_as_another_decoder_reads_it(kind: Kind, data: st.DataObject) -> None:
    schema_id = data.draw(st.none() | st.integers(0, 2**32 - 1))
    schema = from_avro(json.dumps(kind.schema), schema_id)
    prefix = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
    written = data.draw(st.lists(kind.values, min_size=1, max_size=4))
    whole = [avro_records.written(kind.schema, value) for value in written]
    broken = [damaged(data, value) for value in whole]
    values = [None, *(prefix + each for pair in zip(whole, broken, strict=True) for each in pair)]
    found = decoded(schema, values, [data.draw(st.sampled_from((*schema.names, "_error")))])
    assert found[0] == dict.fromkeys((*schema.names, "_error"))
    for row, value in zip(found[1::2], written, strict=True):
        assert ordered(row) == ordered({**kind.expected(value), "_error": None})
    for row, each in zip(found[2::2], broken, strict=True):
        assert row["_error"] is not None or avro_records.is_read(kind.schema, each)


def maps_as_dicts(found: Any, kind: Type) -> Any:
    """Maps have no order, and of two equal keys the last counts."""
    if isinstance(kind, StructType) and isinstance(found, dict):
        return {each.name: maps_as_dicts(found[each.name], each.type) for each in kind.fields}
    if isinstance(kind, ListType) and isinstance(found, list):
        inner = kind.element
        if isinstance(inner, StructType) and [x.name for x in inner.fields] == ["key", "value"]:
            return {each["key"]: each["value"] for each in found}
        return [maps_as_dicts(each, inner) for each in found]
    return found


def ordered(found: Any) -> str:
    if isinstance(found, dict):
        return str(sorted((str(key), ordered(each)) for key, each in found.items()))
    if isinstance(found, datetime):
        found = found.astimezone(UTC)
    return str([ordered(each) for each in found]) if isinstance(found, list) else repr(found)


@MANY
@given(protobuf_records.messages(), st.data())
def test_protobuf_is_read_as_another_decoder_reads_it(
    given_class: tuple[bytes, Any], data: st.DataObject
) -> None:
    descriptors, cls = given_class
    with_entries = protobuf_records.with_entries(descriptors)
    schema = from_protobuf(descriptors, "Record")
    values: list[bytes] = []
    for _ in range(data.draw(st.integers(1, 4))):
        message = cls()
        protobuf_records.fill(data.draw, message)
        values.append(message.SerializeToString())
    values.append(values[0] + values[-1])  # Which merges them.
    values += [damaged(data, value) for value in values]
    values = [value for value in values if value[:1] != b"\0"]
    prefix = data.draw(st.sampled_from((b"", b"\0\0\0\0\7\0", b"\0\0\0\0\7\2\0")))
    found = decoded(
        schema,
        [prefix + value for value in values],
        [data.draw(st.sampled_from((*schema.names, "_error")))],
    )
    for row, value in zip(found, values, strict=True):
        error = row.pop("_error")
        message = protobuf_records.read(cls, value)
        if message is None:
            assert error is not None
            continue
        wanted = protobuf_records.expected(message)
        # An entry of a map that a later one replaces has to fit, too.
        entries = protobuf_records.expected(protobuf_records.read(with_entries, value))
        misfits = [name for name in schema.names if entries[name] is MISFIT]
        assert (error or "").split(" ")[0] == (misfits or [""])[0]
        wanted.update(dict.fromkeys(misfits))
        assert ordered(maps_as_dicts(row, StructType(schema.fields))) == ordered(wanted)


@MANY
@given(arrow_rows.rows_of(), st.booleans(), st.data())
def test_arrow_is_read_as_pyarrow_reads_it(
    given_types: tuple[pa.Schema, st.SearchStrategy[Any]], is_stream: bool, data: st.DataObject
) -> None:
    kinds, rows = given_types
    schema = from_arrow(kinds.serialize().to_pybytes())
    written = data.draw(st.lists(rows, min_size=1, max_size=3))
    whole = pa.RecordBatch.from_pylist(written, kinds)
    batches = [whole.slice(at, 1) for at in range(len(written))]
    values = [
        arrow_rows.streamed(each) if is_stream else bytes(each.serialize()) for each in batches
    ]
    values += [damaged(data, value) for value in values]
    values += [damaged(data, value) for value in values]
    found = decoded(schema, list(values), [data.draw(st.sampled_from((*schema.names, "_error")))])
    for at, (row, value) in enumerate(zip(found, values, strict=True)):
        error = row.pop("_error")
        table = arrow_rows.read(value, kinds, is_stream)
        if at < len(written):
            assert table is not None
            assert not (error or "").startswith("the value")
        elif table is None or (error or "").startswith("the value"):
            continue
        wanted, misfit = arrow_rows.expected(table, schema.fields)
        assert ((error or "").split(" ")[0] or None) == misfit
        assert ordered(row) == ordered(wanted)


WIDE = ", ".join(f"f{number} int" for number in range(490))
LONG = "x" * 12_000
MORE = ", ".join(f"{number} f{number} bool" for number in range(2, 900))
NONE = ", ".join(f"f{number} union<null, int>" for number in range(490))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # 2**62 elements of which none has a byte.
        ("a list<int> using avro <a array<null>>", b"\xfe" + b"\xff" * 8 + b"\x01"),
        # Blocks of any number of them.
        ("a list<int> using avro <a array<null>>", b"\xfe\xff\xff\xff\x0f" * 1_000),
        (f"a list<struct<{WIDE}>> using avro <a array<record<x null>>>", b"\xd0\x0f\0"),
        ("a int using avro <a int, b array<null>>", b"\x02\xfe" + b"\xff" * 8 + b"\x01"),
        (f"a list<struct<{WIDE}>> using protobuf (0) <1 a repeated message<1 x int32>>",
         b"\x0a\0" * 1_000),
        # A byte or none makes much text of the schema.
        (f"a list<string> using avro <a array<enum({LONG})>>", b"\xd0\x0f" + b"\0" * 1_001),
        (f"a list<string> using protobuf (0) <1 a repeated enum({LONG}, 0)>",
         b"\x0a\xe8\x07" + b"\0" * 1_000),
        (f'a list<struct<b string default "{LONG}">> using avro <a array<record<x null>>>',
         b"\xd0\x0f\0"),
        # What no column wants takes time.
        (f"a list<struct<x int>> using protobuf (0) <1 a repeated message<1 x int32, {MORE}>>",
         b"\x0a\0" * 1_000),
        ("a string using avro <a string>", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"x" * 99),
        ("a string using avro <a string>", b"\x01"),
        ("a binary using avro <a fixed(1048575)>", b"x" * 999),
        ("a int using avro (7) <a int>", b"\0\0\0\0"),
        ("a int using protobuf (0) <1 a int32>", b"\0\0\0\0\7"),
        ("a int using protobuf (0) <1 a int32>", b"\0\0\0\0\7\xfe" + b"\xff" * 8 + b"\1"),
        ("a int using protobuf (0) <1 a int32>", b"\x0b" * 5_000 + b"\x0c" * 5_000),
        ("a string using protobuf (0) <1 a string>", b"\x0a\xff\xff\xff\xff\x07" + b"x" * 99),
    ],
)  # fmt: skip
def test_a_hostile_value_is_an_error_soon(text: str, value: bytes) -> None:
    schema = parse(text)
    found = decoded(schema, [value, None, value], ["a"])
    assert [row["a"] for row in found] == [None] * 3
    assert found[0]["_error"] == found[2]["_error"] is not None


def test_any_bytes_end_nothing() -> None:
    chance = random.Random(45)
    schemas = [
        parse(
            "a list<struct<b string, c list<struct<key string, value double>>>>, d timestamp, "
            "e string, g boolean using avro <a array<record<b union<null, string>, c array<record<"
            "key string, value double>>>>, d union<timestamp_millis, null>, e decimal(3), "
            "f fixed_uuid, g boolean, h enum(A, B)>"
        ),
        parse(
            "a list<struct<b string, c struct<d list<int>>>>, e timestamp, f string using protobuf "
            "(0) <1 a repeated message<1 b string, 2 c message<3 d repeated sint32>>, "
            "2 e timestamp, 3 f oneof1 enum(A, 0, B, 5), 4 g oneof1 fixed64>"
        ),
    ]
    for schema in schemas:
        values = [
            bytes(
                chance.choice((0, 1, 2, 8, 10, 18, 26, chance.randrange(256))) for _ in range(size)
            )
            for size in range(40)
            for _ in range(8)
        ]
        decoded(schema, list(values), ["a"])


def test_numbers_that_lie_end_nothing() -> None:
    """Places, lengths and counts in a row of Arrow are whatever they are."""
    chance = random.Random(45)
    arrays = {
        "a": pa.array([{"b": ["x", None, "y" * 40], "c": {"d": 7}}]),
        "e": pa.array([["z" * 30, "short"]], pa.list_(pa.string_view())),
        "f": pa.array([[("key", 1.5)]], pa.map_(pa.string(), pa.float64())),
        "g": pa.array([b"abcd"], pa.binary(4)),
        "h": pa.array([[1, 2]], pa.list_(pa.int16(), 2)),
        "i": pa.array(["text"], pa.large_string()),
    }
    row = pa.RecordBatch.from_arrays([*arrays.values()], [*arrays])
    schema = from_arrow(bytes(row.schema.serialize()))
    numbers = [2**bits + more for bits in (0, 3, 7, 15, 31, 32, 40, 63) for more in (-1, 0, 1)]
    for whole in (arrow_rows.streamed(row), bytes(row.serialize())):
        values: list[bytes | None] = []
        for _ in range(EXAMPLES * 100):
            value = bytearray(whole)
            for _ in range(chance.choice((1, 1, 2, 4))):
                width = chance.choice((1, 2, 4, 8))
                at = chance.randrange(0, len(value), width)
                number = chance.choice((*numbers, chance.randrange(2**64)))
                value[at : at + width] = (number % 256**width).to_bytes(width, "little")
            values.append(bytes(value))
        found = decoded(schema, values, ["a", "e"])
        assert {row["_error"] is None for row in found} == {True, False}


@pytest.mark.parametrize(
    ("value", "is_read"),
    [
        (b"\n\2\xc2\x80\n\1a", True),
        (b"\n\2\0\x80\n\1a", False),  # What is replaced is no text.
        (b"\n\2\0\x80\x12\1a", False),  # By the other of a oneof.
    ],
)
def test_text_that_is_none_is_not_hidden_by_what_follows(value: bytes, is_read: bool) -> None:
    file = FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    record = file.message_type.add(name="Record")
    record.oneof_decl.add(name="one")
    for number, name in enumerate("ab", 1):
        record.field.add(name=name, number=number, label=1, type=9, oneof_index=0)
    schema = from_protobuf(FileDescriptorSet(file=[file]).SerializeToString(), "Record")
    (row,) = decoded(schema, [value], ["_error"])
    assert (row["_error"] is None) == is_read
    pool = DescriptorPool()
    pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName("t.Record"))
    assert (protobuf_records.read(message, value) is not None) == is_read
