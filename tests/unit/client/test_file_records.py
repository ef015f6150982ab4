"""Files of records that other systems wrote: JSON lines and Parquet."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jetstream_client.migration import json_lines, parquet
from jetstream_client.migration.file_records import Defaults
from jetstream_client.migration.records import Records
from jetstream_protocol.errors import InvalidRequestError

TIME = 1_700_000_000_000_000
DEFAULTS = Defaults("orders.new", TIME)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_US = 1_769_860_800_000_000


def columns(records: Records) -> dict[str, list[Any]]:
    return {name: list(getattr(records, name)) for name in Records.__slots__}


def of_lines(
    folder: Path, *lines: str, defaults: Defaults = DEFAULTS, begin: str = ""
) -> dict[str, list[Any]]:
    file = folder / "file.jsonl"
    file.write_bytes((begin + "\n".join(lines)).encode())
    (records,) = json_lines.read(file, defaults)
    return columns(records)


def of_table(folder: Path, defaults: Defaults = DEFAULTS, **table: Any) -> dict[str, list[Any]]:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    file = folder / "file.parquet"
    files.write_table(arrow.table(table), file)
    (records,) = parquet.read(file, defaults)
    return columns(records)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ('"text"', b"text"),
        ('"\\u00e4 \\"\\n"', 'ä "\n'.encode()),
        ("null", None),
        ('{"price": 12345678901234567.10, "of" : [1, "}"]}', None),
        ('[ 1,{"a":"\\u00e4"} ]', None),
        ("1e400", None),
        ("true", None),
    ],
)
def test_a_text_is_stored_as_it_is_and_other_json_as_it_stands_in_the_line(
    tmp_path: Path, value: str, stored: bytes | None
) -> None:
    found = of_lines(tmp_path, f'{{"a": "{{", "value" : {value} , "z": [1]}}')
    wanted = stored if stored is not None or value == "null" else value.encode()
    assert found["values"] == [wanted]


def test_a_block_of_an_export_is_kept_whatever_a_publisher_has_sent(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    line = '{"value": "a", "headers": {}, "header_block": "odd"}'
    assert of_lines(tmp_path, line)["header_blocks"] == [b"odd"]
    assert of_table(tmp_path, value=["a"], headers=[b"odd"])["header_blocks"] == [b"odd"]


def test_what_lines_lack_is_filled_in(tmp_path: Path) -> None:
    found = of_lines(
        tmp_path,
        '{"value": "a"}',
        "",
        '{"value": "b", "key": 7, "subject": null, "timestamp": "2026-01-31T13:00:00+01:00"}',
        '{"value": "/w==", "value_encoding": "base64", "key": "k", "subject": "orders.eu"}',
        '{"value": "d", "headers": {"X": ["1", "2"], "Y": "ä"}}',
        "",
        begin="\ufeff",
    )
    assert found == {
        "offsets": [0, 1, 2, 3],
        "timestamps": [TIME, NOON_US, TIME, TIME],
        "subjects": [b"orders.new", b"orders.new", b"orders.eu", b"orders.new"],
        "keys": [None, b"7", b"k", None],
        "values": [b"a", b"b", b"\xff", b"d"],
        "header_blocks": [b"", b"", b"", "NATS/1.0\r\nX: 1\r\nX: 2\r\nY: ä\r\n\r\n".encode()],
    }


def test_offsets_go_on_from_one_part_of_a_file_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "ROWS", 2)
    file = tmp_path / "file.jsonl"
    file.write_text('{"value": 1}\n' * 5)
    parts = list(json_lines.read(file, DEFAULTS))
    assert [list(part.offsets) for part in parts] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"value": 1}', "{"], "line 2: it is no JSON: .* at column 2"),
        (["[" * 100_000], "line 1: "),
        (["[1]"], "line 1: it is no JSON object"),
        (['{"value": NaN}'], "line 1: it is no JSON: NaN"),
        (['{"value": 1}', '{"key": "k"}'], 'line 2: it has no field "value"'),
        (['{"value": "\\ud800"}'], "line 1: value holds half"),
        (['{"value": "%", "value_encoding": "base64"}'], "line 1: value is not base64"),
        (['{"value": 1, "value_encoding": "base64"}'], "line 1: value must be text"),
        (['{"value": "a", "value_encoding": "hex"}'], "line 1: value_encoding 'hex': it must be"),
        (['{"value": 1, "timestamp": 1700000000}'], "line 1: timestamp 1700000000: it must be"),
        (['{"value": 1, "timestamp": "2026-01-31T12:00:00"}'], "has no time zone"),
        (['{"value": 1, "subject": 5}'], "line 1: subject 5: it must be text"),
        (['{"value": 1}', '{"value": 1, "subject": "a b"}'], "line 2: subject b'a b': a subject"),
        (['{"value": 1, "headers": {"X": 5}}'], "line 1: header 'X': it must be text"),
        (['{"value": 1, "headers": {"a b": "c"}}'], "line 1: invalid header name 'a b'"),
        (['{"value": 1, "header_block": "X: 1"}'], "line 1: header_block: it is no header block"),
        (['{"value": 1, "header_block": {"X": "1"}}'], "line 1: header_block: it is no header"),
        (['{"value": 1, "headers": []}'], r"line 1: headers \[\]: it must be an object"),
        (['{"value": 1, "offset": "1"}'], "line 1: offset '1': it must be a whole number"),
        (['{"value": 1, "offset": -1}'], "line 1: offset -1 is below 0"),
        (['{"value": 1, "offset": 3}', "", '{"value": 1, "offset": 3}'],
         "line 3: offset 3 comes after 3"),
        (['{"value": 1, "offset": 3}', '{"value": 1}'], 'line 2: it has no "offset"'),
        (['{"value": 1}', '{"value": 1, "offset": 3}'], 'line 2: it has an "offset"'),
    ],
)  # fmt: skip
def test_an_error_names_the_line_and_the_field(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        of_lines(tmp_path, *lines)


def test_a_line_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_bytes('{"value": "ä"}\n'.encode() + '{"value": "ä"}\n'.encode("latin-1"))
    with pytest.raises(InvalidRequestError, match="line 2: it is not UTF-8, at byte 12"):
        list(json_lines.read(file, DEFAULTS))


def test_a_record_without_a_subject_needs_that_of_a_stream_without_wildcards(
    tmp_path: Path,
) -> None:
    wild = Defaults("orders.>", TIME)
    with_subject = '{"value": 1, "subject": "orders.eu"}'
    assert of_lines(tmp_path, with_subject, defaults=wild)["subjects"] == [b"orders.eu"]
    with pytest.raises(InvalidRequestError, match=r'line 2: it has no "subject".* orders.>, has'):
        of_lines(tmp_path, with_subject, '{"value": 1}', defaults=wild)
    with pytest.raises(InvalidRequestError, match='row 1: it has no "subject"'):
        of_table(tmp_path, wild, value=["a"])


def test_what_columns_lack_is_filled_in(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    assert of_table(tmp_path, value=["ä", None]) == {
        "offsets": [0, 1],
        "timestamps": [TIME, TIME],
        "subjects": [b"orders.new"] * 2,
        "keys": [None, None],
        "values": ["ä".encode(), None],
        "header_blocks": [b"", b""],
    }
    found = of_table(
        tmp_path,
        value=[{"x": 1, "y": ["ä", None]}, None],
        key=arrow.array(["a", "b"]).dictionary_encode(),
        offset=[4, 9],
        subject=["orders.eu", None],
        timestamp=arrow.array([NOON_US * 1000 + 1, None], arrow.timestamp("ns")),
        headers=arrow.array([[("X", "1")], None], arrow.map_(arrow.string(), arrow.string())),
    )
    assert found == {
        "offsets": [4, 9],
        "timestamps": [NOON_US, TIME],
        "subjects": [b"orders.eu", b"orders.new"],
        "keys": [b"a", b"b"],
        "values": ['{"x":1,"y":["ä",null]}'.encode(), None],
        "header_blocks": [b"NATS/1.0\r\nX: 1\r\n\r\n", b""],
    }
    found = of_table(
        tmp_path,
        value=[1.5, 2.0],
        timestamp=["2026-01-31T12:00:00Z", None],
        headers=[{"X": "1", "Y": None}, None],
        offset=arrow.array([None, None]),
    )
    assert found["values"] == [b"1.5", b"2.0"]
    assert found["timestamps"] == [NOON_US, TIME]
    assert found["header_blocks"] == [b"NATS/1.0\r\nX: 1\r\n\r\n", b""]
    assert found["offsets"] == [0, 1]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Decimal("1.50"), "1.50"),
        (NOON, "2026-01-31T12:00:00+00:00"),
        (NOON.date(), "2026-01-31"),
        ({"at": NOON, "cost": Decimal("1.50")},
         '{"at":"2026-01-31T12:00:00+00:00","cost":"1.50"}'),
        ([True, None], "[true,null]"),
    ],
)  # fmt: skip
def test_what_is_no_json_has_a_text(tmp_path: Path, value: Any, stored: str) -> None:
    assert of_table(tmp_path, value=[value, None])["values"] == [stored.encode(), None]


def test_json_and_uuids_as_duckdb_writes_them(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    file = tmp_path / "file.parquet"
    number = "f" * 8 + "-1111-2222-3333-" + "0" * 12
    duckdb.sql(f"copy (select '{{\"a\": 1}}'::json as value, '{number}'::uuid as key) to '{file}'")
    (records,) = parquet.read(file, DEFAULTS)
    assert (records.values, records.keys) == ([b'{"a": 1}'], [number.encode()])


@pytest.mark.parametrize(
    "kind", ["binary", "large_binary", "string", "large_string", "string_view", "fixed"]
)
def test_bytes_and_texts_of_every_kind_of_column_are_stored_as_they_are(
    tmp_path: Path, kind: str
) -> None:
    arrow = pytest.importorskip("pyarrow")
    column = arrow.array([b"abc", b"xyz"], arrow.binary(3) if kind == "fixed" else None)
    if kind != "fixed":
        column = column.cast(getattr(arrow, kind)())
    assert of_table(tmp_path, value=column)["values"] == [b"abc", b"xyz"]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"key": ["a"]}, 'has no column "value"'),
        ({"value": [{"x": b"y"}]}, "row 1: column 'value': bytes has no JSON text"),
        ({"value": [[1.0], [float("nan")]]}, "row 2: column 'value': "),
        ({"value": ["a"], "timestamp": [1]}, "row 1: column 'timestamp': a timestamp is a time"),
        ({"value": ["a"] * 2, "timestamp": ["2026-01-31T12:00:00Z", "noon"]},
         "row 2: column 'timestamp': timestamp 'noon': it must be"),
        ({"value": ["a"], "subject": [1]}, "row 1: column 'subject': a subject is text"),
        (
            {"value": ["a"] * 2, "headers": ["NATS/1.0\r\nX: 1\r\n\r\n", '{"X": "1"}']},
            "row 2: column 'headers': it is no header block of NATS",
        ),
        ({"value": ["a"], "headers": [1]}, "row 1: column 'headers': headers are"),
        ({"value": ["a"] * 2, "headers": [{"X": "1"}, {"X": "\n"}]}, "row 2: column 'headers': "),
        ({"value": ["a"], "offset": ["1"]}, "row 1: column 'offset': an offset is a whole number"),
        ({"value": ["a"] * 2, "offset": [1.0, 2.5]}, "row 2: column 'offset': "),
        ({"value": ["a"] * 2, "offset": [1, 1]}, "row 2: offset 1 comes after 1"),
        ({"value": ["a"] * 2, "offset": [1, None]}, 'row 2: it has no "offset"'),
    ],
)  # fmt: skip
def test_an_error_names_the_row_and_the_column(
    tmp_path: Path, table: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        of_table(tmp_path, **table)


@pytest.mark.parametrize("offset", [2**42, 2**63 - 1, 2**63, 10**30])
def test_an_offset_that_no_import_reaches_is_refused(tmp_path: Path, offset: int) -> None:
    first, second = (f'{{"offset": {each}, "value": "x"}}' for each in (2**42 - 1, offset))
    assert of_lines(tmp_path, first)["offsets"] == [2**42 - 1]
    with pytest.raises(InvalidRequestError, match=f"line 2: offset {offset} is too large"):
        of_lines(tmp_path, first, second)
