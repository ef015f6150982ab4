"""Whatever a record's bytes are: each column of any schema has what a simple decoder says, other
records are not touched, and `_error` names what does not fit."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetstream_client.reading.arrow import SCHEMA
from jetstream_client.reading.typed import Decoder
from jetstream_protocol import typed_json
from jetstream_protocol.fitting import Fitting
from jetstream_protocol.schema import Field, ListType, Schema, StructType, Type, parse
from jetstream_protocol.typed_json import compiled
from jetstream_protocol.typed_rows import TypedRows, json_of
from tests.property.typed_records import documents, schemas
from tests.support.examples import scaled

FORMS = ("plain", "compiled") if compiled else ("plain",)

MISFIT = object()
RANGES = {"int": range(-(2**31), 2**31), "bigint": range(-(2**63), 2**63)}


def first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    json.dumps(pairs, ensure_ascii=False).encode()  # Not half of a surrogate pair.
    return dict(reversed(pairs))


class Digits(float):
    """A number with a fraction or an exponent."""


DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
MOMENT = DAY + (
    r"[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
    r"(Z|[+-](0[0-9]|1[0-5]):[0-5][0-9])?"
)
"""As the page of typed streams says: the time of day is not left out, offsets are below 16 h."""


def document(value: bytes) -> Any:
    """The JSON; MISFIT: it is none. As `typed` says: a comma before a bracket is passed over."""
    try:
        text = value.decode()
        plain = re.sub(r'("(?:[^"\\]|\\.)*")|(?<![\[{:,]),(\s*[\]}])', lambda m: m[1] or m[2], text)
        found = json.loads(
            plain,
            object_pairs_hook=first_of_each,
            parse_float=Digits,
            parse_int=lambda digits: int(digits) if len(digits) < 40 else Digits(digits),
            parse_constant=lambda word: Digits("nan"),
        )
        json.dumps(found, ensure_ascii=False).encode()  # Not half of a surrogate pair.
    except ValueError:
        return MISFIT
    return found


def converted(found: Any, kind: Type) -> Any:
    """None: it is null. MISFIT: it does not fit."""
    if found is None:
        return None
    if isinstance(kind, ListType):
        if not isinstance(found, list):
            return MISFIT
        values = [converted(each, kind.element) for each in found]
        return MISFIT if any(each is MISFIT for each in values) else values
    if isinstance(kind, StructType):
        if not isinstance(found, dict):
            return MISFIT
        fields = {each.name: of_field(found, each) for each in kind.fields}
        return MISFIT if any(each is MISFIT for each in fields.values()) else fields
    return scalar(found, kind)


def of_field(found: dict[str, Any], field: Field) -> Any:
    given = next((found[key] for key in field.keys if key in found), None)
    return MISFIT if given is None and field.required else converted(given, field.type)


def scalar(found: Any, kind: str) -> Any:
    if kind == "boolean":
        return found if isinstance(found, bool) else MISFIT
    if isinstance(found, bool):
        return MISFIT
    if kind in RANGES:
        return found if isinstance(found, int) and found in RANGES[kind] else MISFIT
    if kind == "double":
        try:
            number = float(found) if isinstance(found, int | float) else math.nan
        except OverflowError:
            return MISFIT
        return number if math.isfinite(number) else MISFIT
    if not isinstance(found, str):
        return MISFIT
    if kind == "string":
        return found
    try:
        if kind == "binary":
            return MISFIT if len(found) % 4 else base64.b64decode(found, validate=True)
        if kind == "date":
            day = date.fromisoformat(found) if re.fullmatch(DAY, found) else date.min
            return day if date(1, 1, 2) <= day <= date(9999, 12, 30) else MISFIT
        if not re.fullmatch(MOMENT, found):
            return MISFIT
        moment = datetime.fromisoformat(found)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        least, most = (datetime(*day, tzinfo=UTC) for day in ((1, 1, 2), (9999, 12, 30)))
        return moment if least <= moment <= most else MISFIT
    except (ValueError, OverflowError):
        return MISFIT


def rows(values: list[bytes | None], schema: Schema) -> list[dict[str, Any]]:
    """The simple decoder."""
    made = []
    for value in values:
        row: dict[str, Any] = {**dict.fromkeys(schema.names), "_error": None}
        found = None if value is None else document(value)
        if value is not None and not isinstance(found, dict):
            row["_error"] = "not JSON" if found is MISFIT else "not an object"
        for field in schema.fields if isinstance(found, dict) else ():
            assert found is not None
            given = next((found[key] for key in field.keys if key in found), None)
            each = converted(given, field.type)
            row[field.name] = None if each is MISFIT else each
            if row["_error"] is None and (each is MISFIT or (given is None and field.required)):
                row["_error"] = field.name
        made.append(row)
    return made


def reason(error: str | None) -> str | None:
    whole = {"the value is not JSON": "not JSON", "the value is not a JSON object": "not an object"}
    return None if error is None else whole.get(error) or error.split()[0]


@contextmanager
def using(form: str) -> Iterator[None]:
    """The decoder in plain Python, or the compiled one."""
    one = compiled if form == "compiled" else None
    with patch.object(typed_json, "compiled", one):
        yield


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.lists(documents(), min_size=1, max_size=25), st.data())
def test_any_record_is_decoded_as_the_simple_decoder_does(
    schema: Schema, given_values: list[bytes | None], data: st.DataObject
) -> None:
    table = pa.table({"value": pa.array(given_values, pa.binary())})
    wanted = rows(given_values, schema)
    some = data.draw(st.lists(st.sampled_from([*schema.names, "_error"]), min_size=1, unique=True))
    for form in FORMS:
        with using(form):
            made = Decoder(schema, [*schema.names, "_error"]).decode(table)
            made.validate(full=True)
            found = made.to_pylist()
            assert Decoder(schema, some).decode(table) == made.select(some)
            assert TypedRows(schema).of(given_values) == found
            assert json.loads(json.dumps([json_of(row) for row in found], allow_nan=False))
            refused = Fitting(str(schema)).misfits(given_values)
        assert {at: str(error).partition(": ")[2] for at, error in refused.items()} == {
            at: row["_error"] for at, row in enumerate(found) if row["_error"] is not None
        }
        for row in found:
            row["_error"] = reason(row["_error"])
        assert found == wanted, form


@settings(max_examples=scaled(300), deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
)
def test_a_double_is_the_one_next_to_its_digits(digits: str) -> None:
    table = pa.table({"value": pa.array([f'{{"a":{digits}}}'.encode()], pa.binary())})
    for form in FORMS:
        with using(form):
            (found,) = Decoder(parse("a double"), ["a"]).decode(table)["a"].to_pylist()
        assert repr(found) == repr(float(digits) if math.isfinite(float(digits)) else None)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_let_through_is_a_finite_number(form: str) -> None:
    """Whether it is finite is found without converting it."""
    numbers = ["-0", "1.7976931348623157e308", "-1.79769313486231580793e308", "0e999999999999"]
    others = ["Infinity", "-Infinity", "NaN", "1.7976931348623159e308", "-1e309"]
    given_values: list[bytes | None] = [f'{{"a":{each}}}'.encode() for each in numbers + others]
    with using(form):
        assert [*Fitting("a double").misfits(given_values)] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("form", FORMS)
def test_an_exponent_counts_whole_however_many_zeros_are_in_front(form: str) -> None:
    """Too large for a double, and 1."""
    numbers = [f"0.{'0' * 20_000}1e{exponent}" for exponent in (200_000, 20_001)]
    given_values = [f'{{"a":{each}}}'.encode() for each in numbers]
    table = pa.table({"value": pa.array(given_values, pa.binary())})
    with using(form):
        assert Decoder(parse("a double"), ["a"]).decode(table)["a"].to_pylist() == [None, 1.0]


@pytest.mark.parametrize("form", FORMS)
def test_few_bytes_do_not_make_many_values(form: str) -> None:
    """A record of a megabyte would become a gigabyte of nulls, in each reader."""
    wide = ", ".join(f"f{number} int" for number in range(490))
    schema = parse(f"a list<struct<{wide}>>, b int")
    given_values = [
        b'{"a":[%s],"b":1}' % b",".join([each] * count)
        for each in (b"{}", b"null")
        for count in (20, 25)
    ]
    table = pa.table({"value": pa.array(given_values, pa.binary())})
    with using(form):
        found = Decoder(schema, ["a", "b", "_error"]).decode(table)
        refused = Fitting(str(schema)).misfits(given_values)
    assert [each and len(each) for each in found["a"].to_pylist()] == [20, None, 20, None]
    assert found["b"].to_pylist() == [1] * 4
    assert found["_error"].to_pylist() == [None, "a is not a list"] * 2
    assert list(refused) == [1, 3]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=20), st.sampled_from([b'{"a":"%s"}', b"%s"]))
def test_any_bytes_are_text_in_json_or_none(left: bytes, right: bytes, form: bytes) -> None:
    """Both forms take the same bytes for JSON, as Python does."""
    given_values = [form % (left + right), form % (left + b"\\" + right), form % (b"[" + left)]
    table = pa.table({"value": pa.array(given_values, pa.binary())})
    schema = parse("a string")
    wanted = [row["a"] for row in rows(list(given_values), schema)]
    for each in FORMS:
        with using(each):
            assert Decoder(schema, ["a"]).decode(table)["a"].to_pylist() == wanted


@pytest.mark.parametrize("form", FORMS)
def test_values_that_are_nested_a_million_deep_end_nothing(form: str) -> None:
    schema = parse("a list<list<int>>, b int")
    depth = 1_000_000 if form == "compiled" else 100_000  # As deep, in a tenth of the time.
    deep = b'{"a":' + b"[" * depth + b"]" * depth + b',"b":3}'
    table = pa.table({"value": pa.array([deep, deep[:-9], b'{"b":4}'], pa.binary())})
    with using(form):
        found = Decoder(schema, ["b", "_error"]).decode(table).to_pylist()
    assert found == [
        {"b": 3, "_error": "a is not a list"},
        {"b": None, "_error": "the value is not JSON"},
        {"b": 4, "_error": None},
    ]


def test_a_typed_schema_begins_with_the_columns_of_every_stream() -> None:
    assert Decoder(parse("a int")).schema.names == [*SCHEMA.names, "a", "_error"]
