"""The fields of a schema as Python's own values, record by record: for those who look at a few.
Arrow is not needed, nor loaded."""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

from jetstream_protocol.columns import padded, plain_values
from jetstream_protocol.schema import ERROR, ListType, Schema, StructType, Type
from jetstream_protocol.times import timestamp_text, to_datetime
from jetstream_protocol.typed_json import decoded
from jetstream_protocol.typed_values import columns_of, errors_of

EXACT: Final = 2**53 - 1
"""The greatest number up to which JavaScript, and much that reads JSON, tells integers apart."""
VALUE_BYTES_MAX: Final = 64 * 1024
PLAIN_BYTES_MAX: Final = 4 * 1024
"""Where nothing was compiled, and values are made before they can be counted."""
VALUES_MAX: Final = 50_000
_EPOCH_DAY: Final = date(1970, 1, 1)
_CODES: Final = {"int": "i", "bigint": "q", "double": "d", "timestamp": "q", "date": "i"}
_CUT: Final = "…"


class TypedRows:
    """Reads values by a schema. For one thread at a time."""

    def __init__(self, schema: Schema) -> None:
        """Raises InvalidRequestError if this installation cannot read the format."""
        self._fields = schema.fields
        self._names = (*schema.names, ERROR)
        self._errors = (None, *errors_of(schema))
        self._compiled: Any = columns_of(schema)

    def of(self, values: Sequence[bytes | None]) -> list[dict[str, Any]]:
        """The fields of each by name, and `_error`: what of it does not fit; None: all fits."""
        if not values:
            return []
        if self._compiled is None:
            outcomes = [decoded(value, self._fields) for value in values]
            return [self._row(row, error) for row, error in outcomes]
        return self._rows(*self._columns(values))

    def _columns(self, values: Sequence[bytes | None]) -> tuple[int, Any, list[Any]]:
        """As compiled code makes them: how many rows, the numbers of errors, columns."""
        items = [value or b"" for value in values]
        present = array("B", bytes((len(items) + 7) // 8))
        for at, value in enumerate(values):
            present[at // 8] |= (value is not None) << at % 8
        offsets = array("i", accumulate(map(len, items), initial=0)).tobytes()
        body = b"".join((offsets.ljust(padded(len(offsets)), b"\0"), *items))
        column = plain_values(body, len(items))
        self._compiled.add(
            body, column.offsets, body, column.data, column.data_length, present, 0, 0, len(items)
        )
        found: tuple[int, Any, list[Any]] = self._compiled.take()
        return found

    def _rows(self, count: int, numbers: Any, columns: list[Any]) -> list[dict[str, Any]]:
        kinds = (field.type for field in self._fields)
        rows = zip(*map(_values, kinds, columns), strict=True)
        errors = [0] * count if numbers is None else _numbers(numbers, "i")
        return [
            self._row(row, self._errors[number]) for row, number in zip(rows, errors, strict=True)
        ]

    def _row(self, row: Sequence[Any], error: str | None) -> dict[str, Any]:
        return dict(zip(self._names, (*row, error), strict=True))


class BoundedRows(TypedRows):
    """The same for who reads what others have written: a record with more than VALUE_BYTES_MAX, or
    of which more than VALUES_MAX values would be made, has no fields, and an error.

    **safety** A list of structs makes hundreds of values of three bytes, each an object of Python.
    """

    def of(self, values: Sequence[bytes | None]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        some: list[bytes | None] = []
        length = 0
        for value in values:
            size = len(value or b"")
            if some and length + size > VALUE_BYTES_MAX:
                rows += self._some(some)
                some, length = [], 0
            some.append(value)
            length += size
        return rows + (self._some(some) if some else [])

    def _some(self, values: Sequence[bytes | None]) -> list[dict[str, Any]]:
        """Of values that are not long together, or of one."""
        is_one = len(values) == 1
        bytes_max = PLAIN_BYTES_MAX if self._compiled is None else VALUE_BYTES_MAX
        if is_one and len(values[0] or b"") > bytes_max:
            return [
                self._without(f"a value of more than {bytes_max} bytes is not taken apart here")
            ]
        if self._compiled is None:
            if is_one:
                return super().of(values)
            return [row for value in values for row in self._some([value])]
        columns = self._columns(values)
        if _count(columns[2]) <= VALUES_MAX:
            return self._rows(*columns)
        if is_one:
            return [self._without(f"a record of more than {VALUES_MAX} values is not shown here")]
        middle = len(values) // 2
        return self._some(values[:middle]) + self._some(values[middle:])

    def _without(self, error: str) -> dict[str, Any]:
        return self._row([None] * len(self._fields), error)


def _count(columns: Iterable[Any]) -> int:
    """How many values they have, also those within them."""
    return sum(rows + _count(within) for rows, _, _, within in columns)


def row_of(value: bytes | None, schema: Schema) -> dict[str, Any]:
    """The fields of one record. Raises InvalidRequestError if this installation cannot read the
    format."""
    if schema.format != "json":
        return TypedRows(schema).of([value])[0]
    values, error = decoded(value, schema.fields)  # A plan for compiled code would take longer.
    return dict(zip((*schema.names, ERROR), (*values, error), strict=True))


def _values(kind: Type, column: Any) -> list[Any]:
    """Of a column as compiled code makes it, in the form of Arrow's buffers."""
    count, nulls, (validity, *buffers), within = column
    if isinstance(kind, ListType):
        items, places = _values(kind.element, within[0]), _numbers(buffers[0], "i")
        found: list[Any] = [items[places[at] : places[at + 1]] for at in range(count)]
    elif isinstance(kind, StructType):
        names = [field.name for field in kind.fields]
        columns = [
            _values(*each) for each in zip((f.type for f in kind.fields), within, strict=True)
        ]
        found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    elif kind in ("string", "binary"):
        places, data = _numbers(buffers[0], "i"), bytes(buffers[1])
        parts = [data[places[at] : places[at + 1]] for at in range(count)]
        found = [part.decode() for part in parts] if kind == "string" else [*parts]
    elif kind == "boolean":
        bits = bytes(buffers[0])
        found = [bool(bits[at // 8] >> at % 8 & 1) for at in range(count)]
    else:
        found = list(_numbers(buffers[0], _CODES[kind])[:count])
    if nulls:
        there = bytes(validity)
        found = [each if there[at // 8] >> at % 8 & 1 else None for at, each in enumerate(found)]
    if kind == "timestamp":
        return [None if us is None else to_datetime(us) for us in found]
    if kind == "date":
        return [None if days is None else _EPOCH_DAY + timedelta(days) for days in found]
    return found


def _numbers(buffer: Any, code: str) -> memoryview[Any]:
    return memoryview(buffer).cast("B").cast(code)  # type: ignore[call-overload,no-any-return]


def json_of(row: Mapping[str, Any], bytes_max: int | None = None) -> dict[str, Any]:
    """A row for JSON. Integers beyond EXACT and doubles that are not finite are text; so are times,
    and binary values in base64. bytes_max: of all together, about: what is too long is the first
    part of its text, and ends in "…"."""
    found = {name: _json_of(value) for name, value in row.items()}
    if bytes_max is None:
        return found
    left = bytes_max
    for name, value in found.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text.encode("utf-8", "replace")) > left and name != ERROR:
            found[name] = text = text[: left // 4] + _CUT
        left = max(0, left - len(text.encode("utf-8", "replace")))
    return found


def _json_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json_of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json_of(each) for each in value]
    if isinstance(value, datetime):
        return timestamp_text(value.astimezone(UTC))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    is_inexact = isinstance(value, int) and abs(value) > EXACT
    if is_inexact or (isinstance(value, float) and not math.isfinite(value)):
        return json.dumps(value)  # NaN, Infinity
    return value
