"""Schemas of Avro as schemas of streams: the columns, and how the values stand in bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.layouts import DEPTH_MAX, PARTS_MAX, SCALE_MAX, Layout, Part
from jetstream_protocol.schema import (
    Field,
    ListType,
    Schema,
    StructType,
    Type,
    checked,
    renamed,
)
from jetstream_protocol.typed_json import decoded

_SCALARS = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "double", "double": "double",
    "bytes": "binary", "string": "string",
}  # fmt: skip
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp_millis",
    ("long", "timestamp-micros"): "timestamp_micros",
    ("long", "timestamp-nanos"): "timestamp_nanos",
    ("long", "local-timestamp-millis"): "timestamp_millis",
    ("long", "local-timestamp-micros"): "timestamp_micros",
    ("long", "local-timestamp-nanos"): "timestamp_nanos",
}
_A_SECOND = {"timestamp_millis": 10**3, "timestamp_micros": 10**6, "timestamp_nanos": 10**9}


class _Value(NamedTuple):
    type: Type
    part: Part
    may_be_null: bool = False


def from_avro(text: str | bytes, schema_id: int | None = None) -> Schema:
    """schema_id: what a registry has for it, and puts in front of each value; None: nothing is
    there. Raises InvalidRequestError for what columns cannot follow."""
    try:
        found = bounded_json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"the file is not JSON: {error}") from error
    value = _Reader().value(found, "the schema", "", 1)
    if not isinstance(value.type, StructType) or value.may_be_null:
        raise InvalidRequestError("the Avro schema is not of a record")
    layout = Layout(() if schema_id is None else (schema_id,), value.part.parts)
    return checked(Schema(tuple(map(renamed, value.type.fields)), "avro", (layout,)))


class _Reader:
    """Reads one schema. Named types are written out wherever they are used."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._open: set[str] = set()
        self._count = 0

    def value(self, found: Any, where: str, namespace: str, depth: int) -> _Value:
        self._count += 1
        if depth > DEPTH_MAX or self._count > PARTS_MAX:
            raise InvalidRequestError(f"{where}: the Avro schema is too large or too deep")
        if isinstance(found, list):
            return self._union(found, where, namespace, depth)
        if isinstance(found, str):
            if found in _SCALARS:
                return _Value(_SCALARS[found], Part(found))
            return self._used(found, where, namespace, depth)
        if not isinstance(found, dict):
            raise InvalidRequestError(f"{where} is no Avro schema of a type")
        kind = found.get("type")
        if kind == "record":
            return self._record(found, where, namespace, depth)
        if kind in ("enum", "fixed"):
            self._named[_full_name(found, namespace, where)] = found, namespace
            return _enum(found, where) if kind == "enum" else _fixed(found, where)
        if kind == "array":
            each = self.value(found.get("items"), f"{where}[]", namespace, depth + 1)
            return _Value(ListType(each.type), Part("array", parts=(each.part,)))
        if kind == "map":
            return self._map(found, where, namespace, depth)
        if isinstance(kind, str) and kind in _SCALARS:
            return _scalar(kind, found, where)
        return self.value(kind, where, namespace, depth + 1)

    def _used(self, name: str, where: str, namespace: str, depth: int) -> _Value:
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self._open:
                raise InvalidRequestError(
                    f"{where} holds {name} within itself, which columns cannot follow"
                )
            if full in self._named:
                found, outer = self._named[full]
                return self.value(found, where, outer, depth + 1)
        raise InvalidRequestError(f"{where} has the type {name!r}, which no column could have")

    def _union(self, found: list[Any], where: str, namespace: str, depth: int) -> _Value:
        others = [each for each in found if each != "null"]
        if len(others) != 1:
            raise InvalidRequestError(f"{where} is a union of other than null and one type")
        value = self.value(others[0], where, namespace, depth + 1)
        parts = tuple(Part("null") if each == "null" else value.part for each in found)
        return _Value(value.type, Part("union", parts=parts), "null" in found)

    def _record(self, found: Mapping[str, Any], where: str, namespace: str, depth: int) -> _Value:
        name = _full_name(found, namespace, where)
        if name in self._open:
            raise InvalidRequestError(f"{where} holds {name} within itself")
        self._named[name] = found, namespace
        self._open.add(name)
        given = found.get("fields")
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise InvalidRequestError(f"{where} is a record without fields")
        fields, parts = [], []
        for each in given:
            inner = f"{where}.{each.get('name')}" if depth > 1 else str(each.get("name"))
            value = self.value(each.get("type"), inner, name.rpartition(".")[0], depth + 1)
            aliases = each.get("aliases", ())
            if not isinstance(aliases, list | tuple) or not all(
                isinstance(one, str) for one in (each.get("name"), *aliases)
            ):
                raise InvalidRequestError(f"{inner} has names that are no text")
            default = _default(each.get("default"), value, inner)
            fields.append(
                Field(each["name"], value.type, not value.may_be_null, tuple(aliases), default)
            )
            parts.append(replace(value.part, name=each["name"]))
        self._open.remove(name)
        return _Value(StructType(tuple(fields)), Part("record", parts=tuple(parts)))

    def _map(self, found: Mapping[str, Any], where: str, namespace: str, depth: int) -> _Value:
        """Its bytes are those of an array of keys and values."""
        value = self.value(found.get("values"), f"{where}[]", namespace, depth + 1)
        fields = (
            Field("key", "string", True),
            Field("value", value.type, not value.may_be_null),
        )
        pair = Part("record", parts=(Part("string", "key"), replace(value.part, name="value")))
        return _Value(ListType(StructType(fields)), Part("array", parts=(pair,)))


def _full_name(found: Mapping[str, Any], namespace: str, where: str) -> str:
    name, space = found.get("name"), found.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(space, str):
        raise InvalidRequestError(f"{where} has no name")
    return name if "." in name or not space else f"{space}.{name}"


def _enum(found: Mapping[str, Any], where: str) -> _Value:
    symbols = found.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
        raise InvalidRequestError(f"{where} is an enum without symbols")
    return _Value("string", Part("enum", args=tuple(symbols)))


def _fixed(found: Mapping[str, Any], where: str) -> _Value:
    size = found.get("size")
    if not isinstance(size, int):
        raise InvalidRequestError(f"{where} is fixed, without a size")
    if found.get("logicalType") == "decimal":
        return _Value("string", Part("fixed_decimal", args=(str(size), _scale(found, where))))
    if found.get("logicalType") == "uuid" and size == 16:
        return _Value("string", Part("fixed_uuid"))
    return _Value("binary", Part("fixed", args=(str(size),)))


def _scalar(kind: str, found: Mapping[str, Any], where: str) -> _Value:
    """A logical type that is not known is the type that it is made of, as Avro has it."""
    logical = found.get("logicalType")
    if kind == "bytes" and logical == "decimal":
        return _Value("string", Part("decimal", args=(_scale(found, where),)))
    part = _LOGICAL.get((kind, str(logical)))
    if part is None:
        return _Value(_SCALARS[kind], Part(kind))
    return _Value("date" if part == "date" else "timestamp", Part(part))


def _scale(found: Mapping[str, Any], where: str) -> str:
    scale = found.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= SCALE_MAX:
        raise InvalidRequestError(f"{where}: a decimal has at most {SCALE_MAX} digits")
    return str(scale)


def _default(given: Any, value: _Value, where: str) -> str:
    """As a schema of a stream has it: JSON of what the column holds. "": none, or null."""
    if given is None:
        return ""
    part = value.part
    if part.kind == "union":
        part = next(each for each in part.parts if each.kind != "null")
    try:
        text = json.dumps(_of_column(given, part), ensure_ascii=False)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{where} has a default that no column can have") from error
    _, misfit = decoded(f'{{"x": {text}}}'.encode(), (Field("x", value.type),))
    if misfit is not None:
        raise InvalidRequestError(f"{where} has a default that does not fit its type")
    return text


def _of_column(given: Any, part: Part) -> Any:
    if part.kind in ("array", "record"):
        if given:
            raise ValueError("only an empty array or map")
        if part.kind == "array":
            return []
        raise ValueError("a record")
    if part.kind == "date":
        return (date(1970, 1, 1) + timedelta(days=given)).isoformat()
    if part.kind in _A_SECOND:
        if not isinstance(given, int):  # A text times a million takes all memory.
            raise TypeError("no number")
        moment = timedelta(microseconds=given * 10**6 // _A_SECOND[part.kind])
        return (datetime(1970, 1, 1, tzinfo=UTC) + moment).isoformat().replace("+00:00", "Z")
    if part.kind in ("decimal", "fixed_decimal"):
        number = int.from_bytes(given.encode("latin-1"), "big", signed=True)
        return format(Decimal(f"{number}E-{part.args[-1]}"), "f")
    if part.kind in ("bytes", "fixed"):
        return base64.b64encode(given.encode("latin-1")).decode()
    if not isinstance(given, bool | int | float | str):
        raise TypeError("another kind of value")
    return given
