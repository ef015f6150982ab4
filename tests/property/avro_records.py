"""Any schemas of Avro that columns can follow, with values, and what the columns then have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
from hypothesis import strategies as st


class Kind(NamedTuple):
    """schema: as fastavro takes it. values: to be written. expected: what a column has of one."""

    schema: Any
    values: st.SearchStrategy[Any]
    expected: Callable[[Any], Any] = lambda value: value


def in_millis(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


MOMENTS = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)).map(
    lambda moment: moment.replace(tzinfo=UTC, fold=0)
)
DECIMALS = st.integers(-(10**37), 10**37).map(lambda number: Decimal(f"{number}E-3"))
# Not uuid: the other decoder refuses text that is none, and here it is text.
SCALARS = [
    Kind("boolean", st.booleans()),
    Kind("int", st.integers(-(2**31), 2**31 - 1)),
    Kind("long", st.integers(-(2**63), 2**63 - 1)),
    Kind("float", st.floats(width=32)),
    Kind("double", st.floats()),
    Kind("bytes", st.binary(max_size=20)),
    Kind("string", st.text(max_size=12)),
    Kind({"type": "int", "logicalType": "date"}, st.dates(date(1, 1, 2), date(9999, 12, 30))),
    Kind({"type": "long", "logicalType": "timestamp-millis"}, MOMENTS, in_millis),
    Kind({"type": "long", "logicalType": "timestamp-micros"}, MOMENTS),
    Kind(
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
        DECIMALS,
        lambda value: format(value, "f"),
    ),
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 0) -> Kind:
    made = draw(st.integers(0, 5 if depth < 2 else 2))
    name = "N"
    if made == 0:
        return draw(st.sampled_from(SCALARS))
    if made == 1:
        symbols = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
        return Kind({"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols))
    if made == 2:
        size = draw(st.integers(1, 20))
        values = st.binary(min_size=size, max_size=size)
        return Kind({"type": "fixed", "name": name, "size": size}, values)
    if made == 3:
        return draw(records(depth + 1))
    inner = draw(nullable(depth + 1))
    if made == 4:
        return Kind(
            {"type": "array", "items": inner.schema},
            st.lists(inner.values, max_size=3),
            lambda value: [inner.expected(each) for each in value],
        )
    return Kind(
        {"type": "map", "values": inner.schema},
        st.dictionaries(st.text(max_size=3), inner.values, max_size=3),
        lambda value: [{"key": key, "value": inner.expected(each)} for key, each in value.items()],
    )


@st.composite
def nullable(draw: st.DrawFn, depth: int) -> Kind:
    kind = draw(kinds(depth))
    if draw(st.booleans()):
        return kind
    union = draw(st.permutations(["null", kind.schema]))
    expected = kind.expected
    return Kind(
        union,
        st.none() | kind.values,
        lambda value: None if value is None else expected(value),
    )


@st.composite
def records(draw: st.DrawFn, depth: int = 0) -> Kind:
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    fields = {name: draw(nullable(depth + 1)) for name in names}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind.schema} for name, kind in fields.items()],
    }
    return Kind(
        schema,
        st.fixed_dictionaries({name: kind.values for name, kind in fields.items()}),
        lambda value: {name: fields[name].expected(value[name]) for name in fields},
    )


def written(schema: Any, value: Any) -> bytes:
    into = BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), value)
    return into.getvalue()


def is_read(schema: Any, value: bytes) -> bool:
    """Whether the other decoder reads these bytes, to their end."""
    source = BytesIO(value)
    try:
        fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
    except (ArithmeticError, EOFError, LookupError, TypeError, ValueError, MemoryError):
        return False
    return source.read() == b""


def numbered(schema: Any, names: Iterator[int]) -> Any:
    """The same, with a name of its own for each type that has one."""
    if isinstance(schema, list):
        return [numbered(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: numbered(each, names) for key, each in schema.items() if key != "name"}
    if "name" in schema:
        is_type = schema.get("type") in ("record", "enum", "fixed")
        made["name"] = f"N{next(names)}" if is_type else schema["name"]
    return made


whole_records = records().map(
    lambda kind: kind._replace(schema=numbered(kind.schema, itertools.count()))
)
