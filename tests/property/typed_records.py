"""Any schemas, and records that fit them or do not."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from jetstream_protocol.schema import SCALARS, Field, ListType, Schema, StructType, parse

NAMES = ("a", "b", "at", "select")

types = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.builds(ListType, inner) | st.builds(StructType, st.deferred(lambda: fields_of(inner)))
    ),
    max_leaves=4,
)


def fields_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Field, ...]]:
    field = st.builds(Field, st.sampled_from(NAMES), inner, st.booleans())
    return st.lists(field, min_size=1, max_size=3, unique_by=lambda each: each.name).map(tuple)


schemas = st.builds(Schema, fields_of(types)) | st.sampled_from(
    [parse("a int alias b alias c"), parse("x list<struct<a bigint alias b>>, b double")]
)
NUMBERS = (
    "1.5", "1.0", "-0", "1e2", "1e999", "-1E-2", "9223372036854775808", "2147483648", "NaN",
    "-Infinity", "-9223372036854775808", "01", "1.", ".5", "-", "+1", "1e", "0e999999999999",
    "123456789012345678901234567890", "1.7976931348623157e308", "1.7976931348623159e308",
    "5e-324", "0." + "0" * 400 + "1", "1" * 5000, "9007199254740993", "0.30000000000000004",
)  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
) | st.sampled_from(
    ["2026-01-31", "2026-02-30", "2026-01-31T10:00:00Z", "2026-01-31 23:59:59.123456+01:30", "YQ==",
     "YWI=", "YQ", "YQ=", "=", "====", "1.5", "7", "true", "null", "", "\0", '"', "[1]", "é\n", "𝄞",
     "0001-01-01", "0001-01-02", "9999-12-30", "9999-12-31", "2024-02-29", "1900-02-29",
     "0001-01-01T00:30:00-00:30", "9999-12-30T00:00:00Z", "9999-12-30 00:00:00.000001",
     "2026-01-31T24:00", "2026-01-31T10:00", "2026-01-31T10:00:00.1-15:59", "2026-01-31T10:00:60Z",
     "2026-01-31T10:00:00.1234567Z", "2026-01-31T10:00:00+16:00", "2026-01-31T10:00:00z"]
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(("a", "b", "c", "x", *NAMES)), values)


@st.composite
def documents(draw: st.DrawFn) -> bytes | None:
    """Mostly objects; some with odd numbers, repeated keys, commas too many, or damage."""
    text = json.dumps(draw(objects | values), ensure_ascii=draw(st.booleans()))
    odd = draw(st.integers(0, 9))
    if odd == 0:
        return draw(st.none() | st.binary(max_size=12))
    if odd == 1:
        text = text[:-1] + draw(st.sampled_from([",}", ',"a":1}', "", "]", ',"b":"\\ud800"}']))
    if odd == 2:
        text = '{"a":' + draw(st.sampled_from(NUMBERS)) + ',"b":[' + draw(st.sampled_from(NUMBERS))
        text += "]}"
    if odd == 3:
        depth = draw(st.sampled_from([1, 10, 200]))
        text = '{"b":1,"a":' + "[" * depth + "]" * depth + "}"
    return text.encode("utf-8", "surrogatepass")
