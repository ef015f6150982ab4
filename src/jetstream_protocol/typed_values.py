"""Values by a schema, whatever its format: which decoder reads them, and what its errors mean.

JSON is read by `typed_json` and its compiled twin; other formats by compiled code only, which takes
a plan: what stands in the bytes, and which column is filled by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from jetstream_protocol import typed_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.layouts import FORMATS, IMPLICIT, KINDS, OPTIONAL, REPEATED, STRUCTS, Part
from jetstream_protocol.schema import Field, ListType, Schema, StructType, Type
from jetstream_protocol.typed_json import NO_OBJECT, NOT_JSON

_Op = tuple[int, int, int, int, int, Any, Any, Any]
_CODES: Final = {name: tuple(kinds) for name, kinds in KINDS.items()}
_LABELS: Final = (IMPLICIT, OPTIONAL, REPEATED)
_LISTS: Final = ("array", "list", "large_list", "fixed_list")
_WHOLE: Final = {
    "json": (NOT_JSON, NO_OBJECT),
    "avro": ("the value is not Avro of its schema", "the value begins with no schema id known"),
    "protobuf": ("the value is not Protobuf", "the value is another message of its file"),
    "arrow": ("the value is not Arrow IPC", "the value is not one row of Arrow, uncompressed"),
}


def columns_of(schema: Schema) -> Any:
    """The compiled decoder of all its fields, which makes columns; None: nothing was compiled, and
    `typed_json.decoded` does it. Raises InvalidRequestError if that cannot."""
    if why := why_unread(schema):
        raise InvalidRequestError(why)
    if typed_json.compiled is None:
        return None
    plan = typed_json.plan_of(schema.fields)
    return typed_json.compiled.Columns(plan, _layouts(schema) if schema.layouts else None)


def why_unread(schema: Schema) -> str:
    """Why this installation cannot read values of the format; "": it can."""
    if schema.format == "json" or typed_json.compiled is not None:
        return ""
    return (
        f"{schema.format} is read by compiled code, which this installation lacks: install a wheel "
        "of jetstream-log, or a C compiler before it"
    )


def errors_of(schema: Schema) -> list[str]:
    """What the numbers of the compiled decoder mean, from 1 on."""
    return [*_WHOLE[schema.format], *typed_json.field_errors_of(schema.fields)]


def _layouts(schema: Schema) -> tuple[int, tuple[tuple[tuple[int, ...], _Op], ...]]:
    whole, kind = StructType(schema.fields), STRUCTS[schema.format]
    return FORMATS.index(schema.format), tuple(
        (each.ids, _op(Part(kind, parts=each.parts), whole, -1, schema.format))
        for each in schema.layouts
    )


def _op(part: Part, kind: Type | None, place: int, format_: str) -> _Op:
    """kind: of the column that it fills; None: it fills none."""
    if part.label == REPEATED:
        kind = kind.element if isinstance(kind, ListType) else None
    is_struct = part.kind in STRUCTS.values()
    fields = kind.fields if is_struct and isinstance(kind, StructType) else ()
    chosen = _chosen(fields, (each.name for each in part.parts))
    parts = sorted(part.parts, key=lambda each: each.number)
    within: list[_Op] = []
    for each in parts:
        if is_struct:
            at = chosen.get(each.name, -1)
            within.append(_op(each, fields[at].type if at >= 0 else None, at, format_))
        elif part.kind in _LISTS:
            element = kind.element if isinstance(kind, ListType) else None
            within.append(_op(each, element, -1, format_))
        else:  # A branch of a union.
            within.append(_op(each, kind, -1, format_))
    missing = [
        (at, field.default.encode()) for at, field in enumerate(fields) if at not in chosen.values()
    ]
    size, scale = _sizes(part)
    code, label = _CODES[format_].index(part.kind), _label(part.label)
    symbols = _symbols(part) if part.kind == "enum" else ()
    return (code, place, part.number or size, scale, label, symbols, missing, within)


def _chosen(fields: Sequence[Field], names: Iterable[str]) -> dict[str, int]:
    """Which part fills which field: of the keys of a field that are there, the first."""
    there = set(names)
    found: dict[str, int] = {}
    for at, field in enumerate(fields):
        name = next((key for key in field.keys if key in there), None)
        if name is not None:
            found[name] = at
    return found


def _label(label: str) -> int:
    if label in _LABELS:
        return _LABELS.index(label)
    return len(_LABELS) + int(label.removeprefix("oneof"))


def _sizes(part: Part) -> tuple[int, int]:
    """Of what is fixed, and after the point of a decimal."""
    numbers = [int(each) for each in part.args] if part.kind != "enum" else []
    if part.kind == "decimal":
        return 0, numbers[0]
    return (*numbers, 0, 0)[0], (*numbers, 0, 0)[1]


def _symbols(part: Part) -> tuple[tuple[bytes, int], ...]:
    """By number; of several with one number the first."""
    if not part.number:  # Only fields of Protobuf have one.
        return tuple((name.encode(), at) for at, name in enumerate(part.args))
    found: dict[int, str] = {}
    for name, number in zip(part.args[::2], part.args[1::2], strict=True):
        found.setdefault(int(number), name)
    return tuple((found[number].encode(), number) for number in sorted(found))
