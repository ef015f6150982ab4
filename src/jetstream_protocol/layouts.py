"""How values stand in bytes, for the formats that do not say it themselves: Avro, Protobuf, and
record batches of Arrow without a schema.

A layout is part of a schema's text: `… using avro (7) <id long, note union<null, string>>`. It
has what a decoder needs, and nothing of what a program that writes needs. **safety** All nodes must
read one alike (schema.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError

DEPTH_MAX: Final = 32
"""An array of records that may be null has three levels for two of a column."""
PARTS_MAX: Final = 2_000
SCALE_MAX: Final = 38
"""Of a decimal."""
IMPLICIT: Final = ""
OPTIONAL: Final = "optional"
REPEATED: Final = "repeated"
_ONEOF: Final = re.compile(r"oneof[1-9][0-9]{0,2}")

_TOKEN: Final = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_]*|-?[0-9][0-9.eE+-]*"
    r'|"(?:[^"\\\x00-\x1f]|\\["\\/bfnrtu])*"|[<>,:()]|\[\]|\Z)'
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,10}")
_SYMBOLS: Final = -1
AVRO: Final[Mapping[str, tuple[int, int]]] = {
    "null": (0, 0), "boolean": (0, 0), "int": (0, 0), "long": (0, 0), "float": (0, 0),
    "double": (0, 0), "bytes": (0, 0), "string": (0, 0), "fixed": (1, 0), "enum": (_SYMBOLS, 0),
    "array": (0, 1), "union": (0, -1), "record": (0, -1), "date": (0, 0),
    "timestamp_millis": (0, 0), "timestamp_micros": (0, 0), "timestamp_nanos": (0, 0),
    "decimal": (1, 0), "fixed_decimal": (2, 0), "fixed_uuid": (0, 0),
}  # fmt: skip
"""How many arguments and parts each kind has; -1: one or more. The compiled decoder numbers them in
this order. A map is an array of records: its bytes are the same."""
PROTOBUF: Final[Mapping[str, tuple[int, int]]] = {
    "bool": (0, 0), "int32": (0, 0), "int64": (0, 0), "uint32": (0, 0), "uint64": (0, 0),
    "sint32": (0, 0), "sint64": (0, 0), "fixed32": (0, 0), "fixed64": (0, 0), "sfixed32": (0, 0),
    "sfixed64": (0, 0), "float": (0, 0), "double": (0, 0), "string": (0, 0), "bytes": (0, 0),
    "enum": (_SYMBOLS, 0), "message": (0, -1), "timestamp": (0, 0),
}  # fmt: skip
ARROW: Final[Mapping[str, tuple[int, int]]] = {
    "null": (0, 0), "boolean": (0, 0), "int8": (0, 0), "int16": (0, 0), "int32": (0, 0),
    "int64": (0, 0), "uint8": (0, 0), "uint16": (0, 0), "uint32": (0, 0), "uint64": (0, 0),
    "float": (0, 0), "double": (0, 0), "bytes": (0, 0), "large_bytes": (0, 0),
    "bytes_view": (0, 0), "fixed": (1, 0), "fixed_decimal": (2, 0), "date32": (0, 0),
    "date64": (0, 0), "timestamp_s": (0, 0), "timestamp_ms": (0, 0), "timestamp_us": (0, 0),
    "timestamp_ns": (0, 0), "list": (0, 1), "large_list": (0, 1), "fixed_list": (1, 1),
    "struct": (0, -1),
}  # fmt: skip
"""Text is bytes, a map is a list of structs."""
KINDS: Final = {"avro": AVRO, "protobuf": PROTOBUF, "arrow": ARROW}
FORMATS: Final = ("json", *KINDS)
STRUCTS: Final = {"avro": "record", "protobuf": "message", "arrow": "struct"}
"""What has fields, in each format."""


@dataclass(frozen=True, slots=True)
class Part:
    """A value in the bytes, and what is within it. kind: of AVRO or PROTOBUF. name: of a field.
    number, label: of a field of Protobuf; label: IMPLICIT: what is not there is zero; OPTIONAL,
    REPEATED, or the oneof that it belongs to, as "oneof1". args: the symbols of an enum, and for
    Protobuf the number after each; the size of what is fixed, the scale of a decimal."""

    kind: str
    name: str = ""
    number: int = 0
    label: str = ""
    args: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        number = str(self.number) if self.number else ""
        args = f"({', '.join(self.args)})" if self.args else ""
        words = " ".join(filter(None, (number, self.name, self.label, self.kind)))
        return f"{words}{args}{_inner(self.parts)}"


@dataclass(frozen=True, slots=True)
class Layout:
    """ids: Avro: what a registry has for it, which is in front of each value; (): nothing is in
    front. Protobuf: which message of its file it is, as in a registry's prefix. Arrow: ()."""

    ids: tuple[int, ...]
    parts: tuple[Part, ...]

    def __str__(self) -> str:
        ids = f"({', '.join(map(str, self.ids))}) " if self.ids else ""
        return f"{ids}{_inner(self.parts)}"


def _inner(parts: tuple[Part, ...]) -> str:
    return f"<{', '.join(map(str, parts))}>" if parts else ""


class Tokens:
    """The words of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _match(self) -> re.Match[str]:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            rest = self._text[self._at :].strip()
            raise InvalidRequestError(f"the schema cannot be read at {rest[:20]!r}")
        return found

    def peek(self) -> str:
        return self._match()[1]

    def take(self) -> str:
        found = self._match()
        self._at = found.end()
        return found[1]

    def takes(self, wanted: str) -> bool:
        """Take the word if it is the next."""
        if self.peek().lower() != wanted:
            return False
        self.take()
        return True

    def expect(self, wanted: str) -> None:
        token = self.take()
        if token.lower() != wanted:
            raise InvalidRequestError(
                f"the schema has {token or 'its end'!r} in place of {wanted!r}"
            )

    def words(self) -> tuple[str, ...]:
        """Those in the brackets that come next; (): none come."""
        found: list[str] = []
        if self.takes("("):
            found.append(self.take())
            while self.takes(","):
                found.append(self.take())
            self.expect(")")
        return tuple(found)


def read_layouts(tokens: Tokens, format_: str) -> tuple[Layout, ...]:
    """What is after `using` and the format. Raises InvalidRequestError."""
    found = [_layout(tokens, format_)]
    while tokens.takes(","):
        found.append(_layout(tokens, format_))
    return tuple(found)


def _layout(tokens: Tokens, format_: str) -> Layout:
    ids = tuple(_number(word) for word in tokens.words())
    return Layout(ids, _parts(tokens, format_, 1))


def _parts(tokens: Tokens, format_: str, depth: int) -> tuple[Part, ...]:
    if depth > DEPTH_MAX:
        raise InvalidRequestError(f"a layout is nested at most {DEPTH_MAX} levels deep")
    found = []
    if tokens.takes("<"):
        found.append(_part(tokens, format_, depth))
        while tokens.takes(","):
            found.append(_part(tokens, format_, depth))
        tokens.expect(">")
    return tuple(found)


def _part(tokens: Tokens, format_: str, depth: int) -> Part:
    number = _number(tokens.take()) if _NUMBER.fullmatch(tokens.peek()) else 0
    words = []
    while _NAME.fullmatch(tokens.peek()):
        words.append(tokens.take())
    *names, kind = words or [tokens.peek()]
    if len(names) > 2 or kind not in KINDS[format_]:
        raise InvalidRequestError(f"{format_} has no kind {kind!r}")
    name, label = (*names, "", "")[:2]
    return Part(kind, name, number, label, tokens.words(), _parts(tokens, format_, depth + 1))


def _number(word: str) -> int:
    if not _NUMBER.fullmatch(word) or int(word) >= 2**32:
        raise InvalidRequestError(f"the schema has {word or 'its end'!r} in place of a number")
    return int(word)


def check_layouts(layouts: tuple[Layout, ...], format_: str) -> None:
    """Raises InvalidRequestError for what no decoder could follow."""
    named = [layout.ids for layout in layouts]
    if format_ == "avro":
        if len(set(named)) != len(named) or (len(named) > 1 and () in named):
            raise InvalidRequestError("each layout has an id of its own, or there is only one")
        if any(len(ids) > 1 or min(ids, default=0) < 0 for ids in named):
            raise InvalidRequestError("a layout of Avro has one id")
    elif format_ == "arrow":
        if named != [()]:
            raise InvalidRequestError("arrow has one layout, without an id")
    elif len(layouts) != 1 or min(named[0], default=-1) < 0:
        raise InvalidRequestError("protobuf has one layout, of one message")
    count = 0
    for layout in layouts:
        count += _check_parts(layout.parts, format_, format_ == "protobuf", True)
    if count > PARTS_MAX:
        raise InvalidRequestError(f"layouts have at most {PARTS_MAX} parts together, not {count}")


def _check_parts(parts: tuple[Part, ...], format_: str, numbered: bool, named: bool) -> int:
    """How many there are. named: they are fields."""
    if not parts:
        raise InvalidRequestError("a layout, and each record in it, has at least one part")
    count = len(parts)
    for part in parts:
        args, within = KINDS[format_][part.kind]
        label_fits = part.label in (IMPLICIT, OPTIONAL, REPEATED) or _ONEOF.fullmatch(part.label)
        if (
            (within >= 0 and len(part.parts) != within)
            or bool(part.name) is not named
            or (not 1 <= part.number < 2**29 or not label_fits if numbered else part.number)
            or (not numbered and part.label)
            or not _args_fit(part, args, numbered)
        ):
            raise InvalidRequestError(f"a layout cannot have {str(part)[:80]!r}")
        if within:
            fields = part.kind in STRUCTS.values()
            count += _check_parts(part.parts, format_, numbered, fields)
    for each in ([part.name for part in parts], [part.number for part in parts]):
        if len(set(each)) != len(each) and any(each):
            raise InvalidRequestError("two parts of a layout have one name or number")
    return count


def _args_fit(part: Part, wanted: int, numbered: bool) -> bool:
    if wanted != _SYMBOLS:
        sizes = [int(each) if _NUMBER.fullmatch(each) else -1 for each in part.args]
        scales = sizes[-1:] if part.kind in ("decimal", "fixed_decimal") else []
        return (
            len(sizes) == wanted
            and all(0 <= each < 2**20 for each in sizes)
            and all(each <= SCALE_MAX for each in scales)
        )
    names, numbers = (part.args[::2], part.args[1::2]) if numbered else (part.args, ())
    return (
        bool(names)
        and all(map(_NAME.fullmatch, names))
        and all(map(_NUMBER.fullmatch, numbers))
        and (not numbered or len(names) == len(numbers))
    )


def scalar_of_json(token: str) -> str:
    """The text of a field's default, as JSON has it: a number, a string, true, false or []. Raises
    InvalidRequestError."""
    try:
        found = bounded_json.loads(token)
        if found not in ([], True, False) and not isinstance(found, int | float | str):
            raise ValueError("another kind of value")
        str(found).encode()  # Not half of a surrogate pair.
    except ValueError as error:
        raise InvalidRequestError(f"{token!r} cannot be the default of a field") from error
    return token
