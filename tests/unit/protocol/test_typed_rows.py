"""Fields as Python's values and as JSON, without Arrow."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from datetime import UTC, date, datetime
from typing import Any

import pytest

from jetstream_protocol import typed_json, typed_rows
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import parse
from jetstream_protocol.typed_rows import (
    EXACT,
    VALUE_BYTES_MAX,
    BoundedRows,
    TypedRows,
    json_of,
    row_of,
)

AVRO = parse("id bigint, x double using avro <id long, x double>")
WITHOUT_ARROW = """
import sys
from jetstream_protocol.schema import parse
from jetstream_protocol.typed_rows import row_of
assert row_of(b"\\x04", parse("id bigint using avro <id long>"))["id"] == 2
sys.exit("pyarrow" in sys.modules)
"""


@pytest.mark.skipif(typed_json.compiled is None, reason="only compiled code reads Avro")
def test_values_of_other_formats_need_no_arrow() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_ARROW], check=True, timeout=60)
    rows = TypedRows(AVRO).of([b"\x02" + struct.pack("<d", float("inf")), None, b"?"])
    assert [(row["id"], row["x"]) for row in rows] == [(1, float("inf")), (None,) * 2, (None,) * 2]
    assert [row["_error"] for row in rows[:2]] == [None, None]
    assert rows[2]["_error"] == "the value is not Avro of its schema"
    assert json_of(rows[0]) == {"id": 1, "x": "Infinity", "_error": None}
    assert TypedRows(AVRO).of([]) == []


def test_an_installation_without_compiled_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_json, "compiled", None)
    for read in (TypedRows, lambda schema: row_of(b"", schema)):
        with pytest.raises(InvalidRequestError, match="compiled code"):
            read(AVRO)
    found: Any = {"a": 1, "b": None, "_error": "b is not a string"}
    assert TypedRows(parse("a int, b string")).of([b'{"a": 1, "b": 2}']) == [found]


@pytest.mark.parametrize("form", ["plain", "compiled"])
def test_few_bytes_do_not_make_many_values_in_a_node(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "plain" or typed_json.compiled is None:
        monkeypatch.setattr(typed_json, "compiled", None)
    most = typed_rows.PLAIN_BYTES_MAX if typed_json.compiled is None else VALUE_BYTES_MAX
    fields = ", ".join(f"f{number} int" for number in range(60))
    lists = ", ".join(f"{name} list<struct<{fields}>>" for name in "acd")
    schema = parse(f"{lists}, b int")
    empty = b",".join([b"{}"] * 330)
    many = b'{"b": 1, "a": [%b], "c": [%b], "d": [%b]}' % (empty, empty, empty)
    values = [many, b'{"b": 2}', None, b'{"b": 3, "x": "' + b"x" * most + b'"}', b'{"b": 4}']
    whole, bounded = TypedRows(schema).of(values), BoundedRows(schema).of(values)
    assert [row["b"] for row in whole] == [1, 2, None, 3, 4]
    assert [bounded[at] for at in (1, 2, 4)] == [whole[at] for at in (1, 2, 4)]
    assert (bounded[3]["b"], f"more than {most} bytes" in bounded[3]["_error"]) == (None, True)
    if most == VALUE_BYTES_MAX:
        assert not any(bounded[0][name] for name in "abcd")
        assert "more than 50000 values" in bounded[0]["_error"]
    small = [b'{"b": %d}' % number for number in range(2000)]
    assert BoundedRows(schema).of(small) == TypedRows(schema).of(small)
    assert BoundedRows(schema).of([]) == []


def test_what_json_cannot_hold_is_text_and_what_is_long_is_cut() -> None:
    row = {
        "most": EXACT, "more": EXACT + 1, "less": -EXACT - 1, "nan": float("nan"), "yes": True,
        "at": datetime(2026, 1, 31, 10, tzinfo=UTC), "day": date(2026, 1, 31), "bytes": b"\xff",
        "list": [{"x": 2**60}], "_error": None,
    }  # fmt: skip
    found = json_of(row)
    assert found == {
        "most": EXACT, "more": "9007199254740992", "less": "-9007199254740992", "nan": "NaN",
        "yes": True, "at": "2026-01-31T10:00:00.000000Z", "day": "2026-01-31", "bytes": "/w==",
        "list": [{"x": str(2**60)}], "_error": None,
    }  # fmt: skip
    json.dumps(found, allow_nan=False)
    long = {"a": "ä" * 100, "b": list(range(100)), "c": 7, "_error": "d is missing"}
    assert json_of(long, 40) == {
        "a": "ä" * 10 + "…", "b": "[0, …", "c": 7, "_error": "d is missing",
    }  # fmt: skip
