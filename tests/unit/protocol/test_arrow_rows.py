"""Values that are rows of Arrow IPC: what a row is, which columns it fills, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from jetstream_client.reading.arrow_schemas import from_arrow
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import parse
from jetstream_protocol.typed_json import compiled
from jetstream_protocol.typed_rows import row_of
from tests.property.arrow_rows import streamed

if compiled is None:
    pytest.skip("nothing is compiled here", allow_module_level=True)

NOT_ARROW = "the value is not Arrow IPC"
NOT_ONE = "the value is not one row of Arrow, uncompressed"
ORDER = pa.RecordBatch.from_pydict({"id": pa.array([7], pa.int32()), "note": pa.array(["pear"])})


def read(text: str, value: bytes) -> Any:
    """The columns; the error, if there is one."""
    row = row_of(value, parse(f"{text} using arrow"))
    error = row.pop("_error")
    return error or row


def batches(*given: pa.RecordBatch, **options: Any) -> bytes:
    into = pa.BufferOutputStream()
    with pa.ipc.new_stream(into, given[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as to:
        for each in given:
            to.write_batch(each)
    return bytes(into.getvalue())


def test_fields_and_columns_meet_by_name_whatever_their_order() -> None:
    value = streamed(ORDER)
    assert read("note string, id int", value) == {"note": "pear", "id": 7}
    assert read("id bigint, more date", value) == {"id": 7, "more": None}
    assert read("id double", value) == {"id": 7.0}
    assert read("number bigint alias id", value) == {"number": 7}
    assert read("id string, note string", value) == "id is not a string"
    assert read("id int, more int not null", value) == "more is missing"
    both = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], list("aab"))
    assert read("a bigint", streamed(both)) == {"a": 1}
    assert read("c int alias b alias a", streamed(both)) == {"c": 3}


def test_a_batch_alone_has_the_columns_of_the_schema_or_its_first_ones() -> None:
    kinds = [pa.int64(), pa.string(), pa.list_(pa.date32())]
    row = pa.RecordBatch.from_arrays(
        [pa.array([each], kind) for each, kind in zip((5, "x", [1]), kinds, strict=True)],
        list("xyz"),
    )
    text = "a bigint, b string, c list<date>"
    assert read(text, bytes(row.serialize()))["b"] == "x"
    assert read(text, bytes(row.select(["x", "y"]).serialize())) == {"a": 5, "b": "x", "c": None}
    assert read(f"{text} not null", bytes(row.select(["x"]).serialize())) == "c is missing"
    more = row.append_column("more", pa.array([1]))
    assert read(text, bytes(more.serialize())) == NOT_ARROW


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (batches(ORDER.slice(0, 0)), NOT_ONE),
        (batches(pa.concat_batches([ORDER, ORDER])), NOT_ONE),
        (batches(ORDER, ORDER), NOT_ONE),
        (bytes(ORDER.schema.serialize()), NOT_ONE),
        (batches(ORDER, compression="lz4"), NOT_ONE),
        (b"", NOT_ARROW),
        (b'{"id":7}', NOT_ARROW),
        (streamed(ORDER)[:-20], NOT_ARROW),
        (streamed(ORDER) + b"\0", NOT_ARROW),
        (batches(ORDER, use_legacy_format=True), NOT_ARROW),
    ],
)
def test_what_is_not_one_row_is_null_as_a_whole(value: bytes, why: str) -> None:
    assert read("id int", value) == why


def test_a_field_that_no_column_can_have_concerns_no_other() -> None:
    arrays = {
        "dictionary": pa.array(["x"]).dictionary_encode(),
        "view": pa.array([[1]], pa.list_view(pa.int64())),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([5])),
        "half": pa.array([1.5], pa.float16()),
        "union": pa.UnionArray.from_dense(
            pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1]), pa.array(["a"])]
        ),
        "nothing": pa.nulls(1),
        "id": pa.array([7]),
    }
    value = streamed(pa.RecordBatch.from_arrays([*arrays.values()], [*arrays]))
    assert read("id bigint, nothing date", value) == {"id": 7, "nothing": None}
    for name in [*arrays][:5]:
        assert read(f"{name} string, id bigint", value) == f"{name} is not a string"


def test_a_view_shows_what_is_in_further_buffers() -> None:
    long, views = "x" * 20, pa.string_view()
    row = pa.RecordBatch.from_arrays(
        [pa.array([long], views), pa.array([["short", None, long]], pa.list_(views))], list("ab")
    )
    wanted = {"a": long, "b": ["short", None, long]}
    assert read("a string, b list<string>", streamed(row)) == wanted


def test_an_extension_is_what_it_is_stored_as() -> None:
    kinds = {"id": pa.uuid(), "doc": pa.json_()}
    arrays = [pa.array([bytes(range(16))], kinds["id"]), pa.array(['{"a":1}'], kinds["doc"])]
    row = pa.RecordBatch.from_arrays(arrays, list(kinds))
    schema = from_arrow(bytes(row.schema.serialize()))
    assert str(schema).startswith("id binary, doc string")
    found = row_of(streamed(row), schema)
    assert found == {"id": bytes(range(16)), "doc": '{"a":1}', "_error": None}


def test_a_dictionary_is_refused_with_what_to_do() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    given = pa.schema([("a", pa.list_(kind))])
    with pytest.raises(InvalidRequestError, match=r"a\[\] .* dictionary_decode"):
        from_arrow(bytes(given.serialize()))


def test_numbers_count_by_their_value() -> None:
    def value(number: int, kind: pa.DataType) -> bytes:
        return streamed(pa.RecordBatch.from_arrays([pa.array([number], kind)], ["a"]))

    assert read("a int", value(-1, pa.int64())) == {"a": -1}
    assert read("a int", value(2**31, pa.int64())) == "a is not an int"
    assert read("a bigint", value(2**63, pa.uint64())) == "a is not a bigint"
    assert read("a bigint", value(255, pa.uint8())) == {"a": 255}


def patched(value: bytes, old: bytes, new: bytes) -> bytes:
    assert value.count(old) == 1
    return value.replace(old, new)


def test_the_bytes_of_a_value_are_in_one_column() -> None:
    """A short value would otherwise make any number of long columns."""
    row = pa.RecordBatch.from_pydict({"a": ["x" * 64], "b": ["y" * 64]})
    value = streamed(row)
    assert read("a string, b string", value)["b"] == "y" * 64
    # The text of `b` begins after the offsets of each and the text of `a`.
    text_of_b = struct.pack("<qq", 80, 64), struct.pack("<qq", 8, 64)
    assert read("a string, b string", patched(value, *text_of_b)) == NOT_ARROW


@pytest.mark.parametrize(("times", "fits"), [(1, True), (3, False)])
def test_views_may_show_as_many_bytes_as_the_value_has(times: int, fits: bool) -> None:
    text = "x" * 20_000
    once = pa.array([text], pa.string_view())
    _, views, shown = once.buffers()
    again = pa.py_buffer(bytes(views)[:16] * times)
    many = pa.Array.from_buffers(once.type, times, [None, again, shown])
    row = pa.RecordBatch.from_arrays(
        [pa.ListArray.from_arrays(pa.array([0, times], pa.int32()), many), pa.array([1])],
        list("ab"),
    )
    wanted = {"a": [text] * times, "b": 1} if fits else "a is not a list"
    assert read("a list<string>, b bigint", streamed(row)) == wanted


@pytest.mark.parametrize(("rows", "fits"), [(100, True), (4_000, False)])
def test_fields_that_no_column_wants_count(rows: int, fits: bool) -> None:
    """They take no byte, and time in each element."""
    nothing = {f"f{number}": pa.nulls(rows) for number in range(400)}
    arrays = {"x": pa.array([5] * rows, pa.int8()), **nothing}
    structs = pa.StructArray.from_arrays([*arrays.values()], [*arrays])
    array = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), structs)
    wanted = {"a": [{"x": 5}] * rows} if fits else "a is not a list"
    value = streamed(pa.RecordBatch.from_arrays([array], ["a"]))
    assert read("a list<struct<x int>>", value) == wanted


def nested(kind: Callable[[pa.DataType], pa.DataType], times: int) -> pa.DataType:
    found = pa.int64()
    for _ in range(times):
        found = kind(found)
    return found


@pytest.mark.parametrize("kind", [pa.list_, lambda inner: pa.struct([("a", inner)])])
def test_types_may_be_nested_so_deep(kind: Callable[[pa.DataType], pa.DataType]) -> None:
    for times, wanted in ((30, {"b": 1}), (40, NOT_ARROW)):
        row = pa.RecordBatch.from_arrays(
            [pa.nulls(1, nested(kind, times)), pa.array([1])], list("ab")
        )
        assert read("b bigint", streamed(row)) == wanted


def test_each_value_of_a_stream_has_a_schema_of_its_own() -> None:
    from jetstream_client.reading.typed import Decoder

    other = pa.RecordBatch.from_pydict({"note": ["fig"], "more": [1], "id": [8]})
    values = [streamed(each) for each in (ORDER, other, ORDER, other, other)]
    schema = parse("id bigint, note string using arrow")
    table = Decoder(schema, ["id", "note"]).decode(pa.table({"value": values}))
    assert table["id"].to_pylist() == [7, 8, 7, 8, 8]
    assert table["note"].to_pylist() == ["pear", "fig", "pear", "fig", "fig"]
