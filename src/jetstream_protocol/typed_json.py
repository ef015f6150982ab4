"""The fields of a schema, as they are in the JSON of a record's value: the rules of what fits.

A field whose value does not fit is None, as a whole, and the error names the first such field; the
others have their values. The JSON is that of RFC 8259, in UTF-8; a comma before a closing bracket
is passed over, NaN and Infinity fit no type, and of keys that are there twice the first counts.
From a few bytes, lists of structs make many nulls: a field of which more values are made than
PARTS_MIN and PARTS_PER_BYTE for each byte of the record does not fit.

`_typed_json.pyx` has the same rules in C, for many records at once, if the extension was built.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

from jetstream_protocol import bounded_json
from jetstream_protocol.schema import SCALARS, Field, ListType, StructType, Type

compiled: Any = None
"""The compiled twin's module."""
try:
    from jetstream_protocol import _typed_json
except ImportError:  # Built without a C compiler, or JETSTREAM_PURE is set.
    pass
else:
    compiled = _typed_json

PARTS_MIN: Final = 10_000
PARTS_PER_BYTE: Final = 8
"""Three bytes, `{},`, make 500 values where a list has structs of 499 fields. Without a limit a
record of a megabyte would take a gigabyte of its reader's memory."""

NOT_JSON: Final = "the value is not JSON"
NO_OBJECT: Final = "the value is not a JSON object"

_TOKEN: Final = re.compile(
    r"[ \t\n\r]*+(?:(?P<bracket>[\[\]{}:,])"
    r'|(?P<string>"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+")'
    r"|(?P<number>-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|Infinity)|NaN)"
    r"|(?P<word>true|false|null))"
)
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_WORDS: Final = {"true": True, "false": False, "null": None}
_DIGITS: Final = re.compile(r"-?[0-9]{1,19}")
_RANGES: Final = {"int": range(-(2**31), 2**31), "bigint": range(-(2**63), 2**63)}
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]"
    r"(?::[0-5][0-9](?:\.[0-9]{1,6})?)?(?:Z|[+-](?:0[0-9]|1[0-5]):[0-5][0-9])?"
)
_BASE64: Final = re.compile(
    "(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII
)
_DATES: Final = date(1, 1, 2), date(9999, 12, 30)
_TIMES: Final = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


class Number(str):
    """A number, as it is written."""

    __slots__ = ()


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_first_of_each, parse_int=Number, parse_float=Number, parse_constant=Number
)


class _Misfit:
    """What stands for a value that does not fit."""


_MISFIT: Final = _Misfit()


def decoded(value: bytes | None, fields: Sequence[Field]) -> tuple[list[Any], str | None]:
    """The fields of a record, and its first error; None: it has none."""
    nothing: list[Any] = [None] * len(fields)
    if value is None:
        return nothing, None
    try:
        found = parsed(value)
    except ValueError:
        return nothing, NOT_JSON
    if not isinstance(found, dict):
        return nothing, NO_OBJECT
    error = None
    for place, field in enumerate(fields):
        given = _given(found, field)
        made = _converted(given, field.type)
        if _parts(made, field.type) > PARTS_MIN + PARTS_PER_BYTE * len(value):
            made = _MISFIT
        if made is not _MISFIT:
            nothing[place] = made
        if error is None and (made is _MISFIT or (given is None and field.required)):
            error = _field_errors(field)[0 if given is None else 1]
    return nothing, error


def field_errors_of(fields: Sequence[Field]) -> list[str]:
    """The errors that fields can have: two of each."""
    return [each for field in fields for each in _field_errors(field)]


def plan_of(fields: Sequence[Field]) -> tuple[tuple[int, bool, tuple[bytes, ...], Any], ...]:
    """The fields as the compiled twin takes them."""
    return tuple(
        (_number(each.type), each.required, tuple(map(str.encode, each.keys)), _within(each.type))
        for each in fields
    )


def _within(kind: Type) -> Any:
    if isinstance(kind, ListType):
        return ((_number(kind.element), False, (), _within(kind.element)),)
    return plan_of(kind.fields) if isinstance(kind, StructType) else ()


def _number(kind: Type) -> int:
    if isinstance(kind, str):
        return SCALARS.index(kind)
    return len(SCALARS) + isinstance(kind, StructType)


def _field_errors(field: Field) -> tuple[str, str]:
    kind = field.type
    word = kind if isinstance(kind, str) else "list" if isinstance(kind, ListType) else "struct"
    article = "an" if word == "int" else "a"
    return f"{field.name} is missing", f"{field.name} is not {article} {word}"


def parsed(value: bytes) -> Any:
    """The JSON, however deeply it is nested, with numbers as they are written. Raises
    ValueError."""
    text = value.decode()
    if "\\u" not in text:  # Half of a surrogate pair would be one.
        try:
            return _DECODER.decode(text)
        except (ValueError, RecursionError):
            pass  # A comma before a bracket is passed over below, and depth has no limit.
    return _parsed(text)


def _parsed(text: str) -> Any:
    open_: list[Any] = []  # The objects and arrays around.
    keys: list[Any] = []  # The key that waits for its value in each of them.
    at, whole, goes_on = 0, None, True
    while goes_on:
        at, made, is_bracket = _next(text, at)
        if is_bracket and made in "]}":
            if not open_ or isinstance(open_[-1], dict) is (made == "]"):
                raise ValueError("a bracket is closed that was not opened")
            made = open_.pop()
            keys.pop()
        else:
            if open_ and isinstance(open_[-1], dict) and keys[-1] is None:
                if is_bracket or type(made) is not str:
                    raise ValueError("a key is expected")
                keys[-1] = made
                at, made, is_bracket = _next(text, at)
                if not is_bracket or made != ":":
                    raise ValueError("a colon is expected")
                at, made, is_bracket = _next(text, at)
            if is_bracket and made not in "[{":
                raise ValueError("a value is expected")
            if is_bracket:
                open_.append([] if made == "[" else {})
                keys.append(None)
                continue
        if not open_:
            whole, goes_on = made, False
        elif isinstance(open_[-1], list):
            open_[-1].append(made)
        else:
            open_[-1].setdefault(keys[-1], made)  # The first of each counts.
            keys[-1] = None
        if open_:
            after, made, is_bracket = _next(text, at)
            if is_bracket and made == ",":
                at = after
            elif not is_bracket or made not in "]}":
                raise ValueError("a comma is expected")
    found = _SPACE.match(text, at)
    if found is None or found.end() != len(text):
        raise ValueError("there is something after the end")
    return whole


def _next(text: str, at: int) -> tuple[int, Any, bool]:
    """The place after the next token, the token, and whether it is a bracket, colon or comma."""
    found = _TOKEN.match(text, at)
    if found is None:
        raise ValueError(f"it cannot be read at character {at}")
    kind, token = found.lastgroup, found[found.lastgroup or 0]
    if kind == "string":
        string = bounded_json.loads(token)
        string.encode()  # Not half of a surrogate pair.
        return found.end(), string, False
    if kind == "word":
        return found.end(), _WORDS[token], False
    return found.end(), Number(token) if kind == "number" else token, kind == "bracket"


def _given(found: dict[str, Any], field: Field) -> Any:
    return next((found[key] for key in field.keys if key in found), None)


def _converted(found: Any, kind: Type) -> Any:
    if found is None:
        return None
    if isinstance(kind, ListType):
        if not isinstance(found, list):
            return _MISFIT
        values = [_converted(each, kind.element) for each in found]
        return _MISFIT if any(each is _MISFIT for each in values) else values
    if isinstance(kind, StructType):
        return _struct(found, kind) if isinstance(found, dict) else _MISFIT
    if kind == "boolean":
        return found if isinstance(found, bool) else _MISFIT
    if isinstance(found, Number):
        return _of_number(found, kind)
    return _of_text(found, kind) if isinstance(found, str) else _MISFIT


def _struct(found: dict[str, Any], kind: StructType) -> Any:
    made = {}
    for field in kind.fields:
        given = _given(found, field)
        value = _converted(given, field.type)
        if value is _MISFIT or (given is None and field.required):
            return _MISFIT
        made[field.name] = value
    return made


def _parts(made: Any, kind: Type) -> int:
    """How many values are made, those of structs that are null as well."""
    if isinstance(kind, ListType) and isinstance(made, list):
        return 1 + sum(_parts(each, kind.element) for each in made)
    if isinstance(kind, StructType):
        fields = made if isinstance(made, dict) else {}
        return 1 + sum(_parts(fields.get(each.name), each.type) for each in kind.fields)
    return 1


def _of_number(found: Number, kind: str) -> Any:
    if kind == "double":
        number = float(found)
        return number if math.isfinite(number) else _MISFIT
    if kind in _RANGES and _DIGITS.fullmatch(found) and int(found) in _RANGES[kind]:
        return int(found)
    return _MISFIT


def is_text_of(found: str, kind: str) -> bool:
    """Whether the text of a value fits one of SCALARS."""
    return _of_text(found, kind) is not _MISFIT


def _of_text(found: str, kind: str) -> Any:
    if kind == "string":
        return found
    try:
        if kind == "binary" and _BASE64.fullmatch(found):
            return base64.b64decode(found)
        if kind == "date" and _DATE.fullmatch(found):
            day = date.fromisoformat(found)
            return day if _DATES[0] <= day <= _DATES[1] else _MISFIT
        if kind == "timestamp" and _TIME.fullmatch(found):
            return _moment(found)
    except (ValueError, OverflowError):  # There is no such day, or it is beyond the years.
        pass
    return _MISFIT


def _moment(text: str) -> Any:
    moment = datetime.fromisoformat(text)
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment if _TIMES[0] <= moment <= _TIMES[1] else _MISFIT
