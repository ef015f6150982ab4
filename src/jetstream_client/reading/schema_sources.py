"""Where schemas come from: a file of JSON Schema, or the records that a stream has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import (
    DEPTH_MAX,
    FIELDS_MAX,
    Field,
    ListType,
    Schema,
    StructType,
    Type,
    checked,
    renamed,
)
from jetstream_protocol.typed_json import is_text_of

_LEFT_OUT_MAX = 100
"""Names to tell. A map with other keys in each record has any number."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_BIGINT = range(-(2**63), 2**63)
_OF_JSON_SCHEMA = {"integer": "bigint", "number": "double", "boolean": "boolean"}
_FORMATS = {"date-time": "timestamp", "date": "date"}


def from_json_schema(text: str | bytes) -> Schema:
    """The schema that a JSON Schema describes, as far as types can say it. Raises
    InvalidRequestError for what they cannot."""
    try:
        found = bounded_json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"the file is not JSON: {error}") from error
    kind = _type_of(found, "the schema", 0)
    if not isinstance(kind, StructType):
        raise InvalidRequestError("the JSON Schema is not of an object with properties")
    return checked(Schema(tuple(renamed(field) for field in kind.fields)))


def _type_of(found: Any, where: str, depth: int) -> Type:
    if depth > DEPTH_MAX:
        raise InvalidRequestError(f"{where}: types are nested at most {DEPTH_MAX} levels deep")
    if not isinstance(found, dict):
        raise InvalidRequestError(f"{where} is no JSON Schema of a type")
    for word in ("$ref", "oneOf", "anyOf", "allOf"):
        if word in found:
            raise InvalidRequestError(f"{where} has {word}, which columns cannot follow")
    kinds = found.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    kinds = [each for each in kinds if each != "null"] if isinstance(kinds, list) else []
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "string":
        if found.get("contentEncoding") == "base64":
            return "binary"
        return _FORMATS.get(str(found.get("format")), "string")
    if kind == "array":
        return ListType(_type_of(found.get("items"), f"{where}[]", depth + 1))
    if kind == "object":
        properties = found.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise InvalidRequestError(f"{where} is an object without properties")
        wanted = found.get("required")
        required = wanted if isinstance(wanted, list) else ()
        fields = [
            Field(name, _type_of(each, name, depth + 1), name in required and not _nullable(each))
            for name, each in properties.items()
        ]
        return StructType(tuple(fields))
    if not isinstance(kind, str) or kind not in _OF_JSON_SCHEMA:
        raise InvalidRequestError(f"{where} has no type that a column could have: {kinds}")
    return _OF_JSON_SCHEMA[kind]


def _nullable(found: Any) -> bool:
    return isinstance(found, dict) and "null" in (found.get("type") or ())


def no_schema(stream: str) -> str:
    """What is wrong, and how to set one."""
    command = f"jetstream schema set {shlex.quote(stream)} --infer 10000"
    return f"{stream} has no schema: {command} makes one of its records"


class Inference:
    """Learns a schema from records. left_out: keys that no column can have, with the reasons; the
    first ones, if has_more."""

    def __init__(self) -> None:
        self._fields: dict[str, Type | None] = {}
        self.left_out: dict[str, str] = {}
        self.has_more = False
        self._mixed: set[str] = set()
        self.records = 0

    def add(self, values: Iterable[bytes | None]) -> None:
        """What is not a JSON object counts for nothing."""
        for value in values:
            try:
                found = None if value is None else bounded_json.loads(value)
            except ValueError:
                continue
            if isinstance(found, dict):
                self.records += 1
                self._fields = self._merged(self._fields, found, "", 1)

    def schema(self) -> Schema:
        """Raises InvalidRequestError if there is none."""
        fields = tuple(
            Field(name, kind)
            for name, each in self._fields.items()
            if (kind := _complete(each)) is not None
        )
        if not fields:
            raise InvalidRequestError("no record is a JSON object with fields: say the schema")
        return checked(Schema(tuple(map(renamed, fields))))

    def _merged(
        self, before: Mapping[str, Any], found: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        after = dict(before)
        for name, value in found.items():
            where = f"{path}{name}"
            if where in self._mixed:
                continue
            if name not in after and (why := _why_no_field(name, after)):
                self._leave_out(where, why)
                continue
            try:
                after[name] = self._with(after.get(name), value, where, depth)
            except _MixedError as error:
                self._mixed.add(where)
                self._leave_out(where, str(error))
                after.pop(name, None)
        return after

    def _leave_out(self, where: str, why: str) -> None:
        if len(self.left_out) < _LEFT_OUT_MAX:
            self.left_out[where] = why
        else:
            self.has_more = True

    def _with(self, before: Any, value: Any, where: str, depth: int) -> Any:
        """The type of what was there before and of the value. None: only nulls were there; a dict
        is a struct, a list of one type a list."""
        if value is None:
            return before
        if depth > DEPTH_MAX:
            raise _MixedError(f"it is nested deeper than {DEPTH_MAX} levels")
        if isinstance(value, dict):
            if not isinstance(before, dict | None):
                raise _MixedError("it is sometimes an object")
            return self._merged(before or {}, value, f"{where}.", depth + 1)
        if isinstance(value, list):
            if not isinstance(before, list | None):
                raise _MixedError("it is sometimes an array")
            element = before[0] if before else None
            for each in value:
                element = self._with(element, each, f"{where}[]", depth + 1)
            return [element]
        return _joined(before, _scalar_of(value))


class _MixedError(Exception):
    """Its values have no type in common."""


def _why_no_field(name: str, others: Collection[str]) -> str:
    """ "": it can be one."""
    if not _NAME.fullmatch(name):
        return "its name has other than letters, digits and _"
    if len(others) >= FIELDS_MAX // 2:
        return "there are too many fields"
    if any(name.lower() == each.lower() for each in others):
        return "another field has its name but for the case"
    return ""


def _scalar_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if value in _BIGINT else "double"
    if isinstance(value, float):
        return "double"
    return next((kind for kind in ("timestamp", "date") if is_text_of(value, kind)), "string")


def _joined(before: Any, kind: str) -> str:
    if before is None or before == kind:
        return kind
    both = {kind, before} if isinstance(before, str) else set()
    if both == {"bigint", "double"}:
        return "double"
    if both and both <= {"string", "timestamp", "date"}:
        return "string"
    raise _MixedError(
        f"it is sometimes {before if both else 'an object or array'}, sometimes {kind}"
    )


def _complete(found: Any) -> Type | None:
    """None: nothing is known of it."""
    if isinstance(found, dict):
        fields = [(name, _complete(each)) for name, each in found.items()]
        known = tuple(Field(name, kind) for name, kind in fields if kind is not None)
        return StructType(known) if known else None
    if isinstance(found, list):
        element = _complete(found[0])
        return None if element is None else ListType(element)
    return found if isinstance(found, str) else None
