"""Any types of Arrow that columns can follow, with rows of them, and how pyarrow reads those."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from jetstream_protocol.schema import Field, ListType, StructType, Type

TICKS = {"s": 10**6, "ms": 10**3, "us": 1}
"""Microseconds of each unit; those of 1 ns are not whole."""


class MisfitError(Exception):
    """The column does not fit."""


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    least = -(2 ** (bits - 1)) if signed else 0
    return st.integers(least, least + 2**bits - 1)


def _times(unit: str) -> st.SearchStrategy[int]:
    most = 2**63 - 1 if unit == "ns" else 2534 * 10**14 // TICKS[unit]
    return st.integers(-most // 3, most) | _integers(64, True)


SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *((getattr(pa, f"int{bits}")(), _integers(bits, True)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), _integers(bits, False)) for bits in (8, 16, 32, 64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    *((kind, st.text(max_size=20)) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, st.binary(max_size=20)) for kind in (pa.binary(), pa.large_binary())),
    (pa.binary_view(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.binary(0), st.just(b"")),
    *((pa.timestamp(unit), _times(unit)) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("us", "Europe/Rome"), _times("us")),
    (pa.date32(), st.integers(-800_000, 3_000_000)),
    (pa.date64(), st.integers(-800_000, 3_000_000).map(lambda day: day * 86_400_000)),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.duration("s"), _integers(64, True)),
    (pa.decimal32(9, 2), st.decimals(-(10**7) + 1, 10**7 - 1, places=2)),
    (pa.decimal64(18, 18), st.decimals(-1 + Decimal("1e-18"), 1 - Decimal("1e-18"), places=18)),
    (pa.decimal128(38, 38), st.decimals(-1 + Decimal("1e-38"), 1 - Decimal("1e-38"), places=38)),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pa.decimal256(50, 0), st.integers(-(10**50) + 1, 10**50 - 1)),
]


def _types(depth: int) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    scalars = st.sampled_from(SCALARS)
    return scalars if depth > 2 else scalars | _nested(depth + 1)


@st.composite
def _nested(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    made = draw(st.sampled_from(("struct", "list", "large", "fixed", "map")))
    if made == "struct":
        schema, rows = draw(rows_of(depth))
        return pa.struct(list(schema)), rows
    kind, values = draw(_types(depth))
    values = st.none() | values
    if made == "map":
        pairs = st.tuples(st.text(max_size=3), values)
        return pa.map_(pa.string(), kind), st.lists(pairs, max_size=3)
    if made == "fixed":
        size = draw(st.integers(0, 2))
        return pa.list_(kind, size), st.lists(values, min_size=size, max_size=size)
    lists = {"list": pa.list_, "large": pa.large_list}
    return lists[made](kind), st.lists(values, max_size=3)


@st.composite
def rows_of(draw: st.DrawFn, depth: int = 0) -> tuple[pa.Schema, st.SearchStrategy[Any]]:
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    types = {name: draw(_types(depth)) for name in names}
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in types.items()])
    return schema, st.fixed_dictionaries(
        {name: st.none() | values for name, (_, values) in types.items()}
    )


def streamed(batch: pa.RecordBatch) -> bytes:
    into = pa.BufferOutputStream()
    with pa.ipc.new_stream(into, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(into.getvalue().to_pybytes())


def read(value: bytes, schema: pa.Schema, is_stream: bool) -> pa.Table | None:
    """None: pyarrow finds a fault, or it is not one row of that schema."""
    try:
        if is_stream:
            with pa.ipc.open_stream(value) as reader:
                table = reader.read_all()
        else:
            table = pa.Table.from_batches([pa.ipc.read_record_batch(value, schema)])
        table.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError):
        return None
    return table if table.schema == schema and len(table) == 1 else None


def expected(table: pa.Table, fields: tuple[Field, ...]) -> tuple[dict[str, Any], str | None]:
    """The columns of its only row, and the name of the first that does not fit."""
    found: dict[str, Any] = {}
    error = None
    for field in fields:
        try:
            found[field.name] = _plain(table[field.name][0], field.type)
        except MisfitError:
            found[field.name] = None
            error = error or field.name
    return found, error


def _plain(found: pa.Scalar, kind: Type) -> Any:
    if not found.is_valid:
        return None
    if isinstance(kind, ListType):
        return [_plain(each, kind.element) for each in found.values]
    if isinstance(kind, StructType):
        return {each.name: _plain(found[at], each.type) for at, each in enumerate(kind.fields)}
    if kind == "timestamp":
        whole = found.value
        unit = found.type.unit
        return _moment(whole // 1000 if unit == "ns" else whole * TICKS[unit])
    if kind == "date":
        return _day(found.value // (86_400_000 if pa.types.is_date64(found.type) else 1))
    if kind == "string" and pa.types.is_decimal(found.type):
        whole = int(found.as_py().scaleb(found.type.scale))
        if not -(2**127) <= whole < 2**127:
            raise MisfitError
        return format(found.as_py(), "f")
    made = found.value if kind in ("int", "bigint") and hasattr(found, "value") else found.as_py()
    if kind == "bigint" and made >= 2**63:
        raise MisfitError
    return made


def _moment(micros: int) -> datetime:
    day = 86_400 * 10**6
    if not -719161 * day <= micros <= 2932895 * day:
        raise MisfitError
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _day(days: int) -> date:
    if not -719161 <= days <= 2932895:
        raise MisfitError
    return date(1970, 1, 1) + timedelta(days=days)
