"""The schema of a stream's values: fields with names and types, their text, and how they change.

The text is that of Spark's DDL, with aliases: `id bigint not null, price double, name string alias
title, items list<struct<sku string, count int>>`. **safety** The metadata keeps the text and
decides by it: all nodes must read one alike, so nothing here depends on anything but its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.layouts import (
    FORMATS,
    KINDS,
    REPEATED,
    STRUCTS,
    Layout,
    Part,
    Tokens,
    check_layouts,
    read_layouts,
    scalar_of_json,
)

TEXT_LENGTH_MAX: Final = 16 * 1024
FIELDS_MAX: Final = 500
"""Those within structs count as well."""
DEPTH_MAX: Final = 8
ALIASES_MAX: Final = 8
SCALARS: Final = (
    "int", "bigint", "double", "boolean", "string", "timestamp", "date", "binary",
)  # fmt: skip
RESERVED: Final = (
    "stream", "subject", "offset", "timestamp", "key", "value", "headers", "_error",
    "append_timestamp", "leader_epoch", "append_day",
    "_file", "_pos", "_deleted", "_partition", "_spec_id",
)  # fmt: skip
"""Columns that every stream has beside its fields, then those of its table in the lake, and what
engines have in each table of Iceberg."""
ERROR: Final = "_error"

_WIDER: Final[Mapping[str, tuple[str, ...]]] = {"int": ("bigint", "double")}
"""The types that hold every value of a type exactly."""
_AS_BYTES: Final[Mapping[str, tuple[str, ...]]] = {
    "int32": ("int64",), "uint32": ("uint64", "int64"), "sint32": ("sint64",),
}  # fmt: skip
"""The kinds of Protobuf that read the bytes of a kind as the same values."""
_IN_ARROW: Final[Mapping[str, str]] = {
    "int": "int32", "bigint": "int64", "string": "bytes", "binary": "bytes", "date": "date32",
    "timestamp": "timestamp_us",
}  # fmt: skip
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SYNONYMS: Final = {"long": "bigint", "integer": "int", "array": "list", "bool": "boolean"}


@dataclass(frozen=True, slots=True)
class ListType:
    element: Type

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class StructType:
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(map(str, self.fields))}>"


Type = str | ListType | StructType
"""One of SCALARS, or what is made of them."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field. aliases: names under which records have it that lack `name`. required: a record
    without it does not fit. default: of a field of Avro, as JSON: what records have whose layout
    lacks it."""

    name: str
    type: Type
    required: bool = False
    aliases: tuple[str, ...] = ()
    default: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in records, the first that is there counts."""
        return (self.name, *self.aliases)

    def __str__(self) -> str:
        aliases = "".join(f" alias {alias}" for alias in self.aliases)
        default = f" default {self.default}" if self.default else ""
        required = " not null" if self.required else ""
        return f"{self.name} {self.type}{required}{default}{aliases}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a stream's values, which are objects of JSON, records of Avro, messages of
    Protobuf or rows of Arrow. `parse` or `checked` make it. layouts: how all but the first stand in
    bytes."""

    fields: tuple[Field, ...]
    format: str = "json"
    layouts: tuple[Layout, ...] = ()

    def __str__(self) -> str:
        text = ", ".join(map(str, self.fields))
        if not self.layouts:
            return text
        return f"{text} using {self.format} {', '.join(map(str, self.layouts))}"

    @property
    def using(self) -> str:
        """The format and the ids of its layouts; "": JSON."""
        ids = ", ".join(".".join(map(str, layout.ids)) for layout in self.layouts)
        return f"{self.format} {ids}".strip() if self.layouts else ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def parse(text: str) -> Schema:
    """Read the text of a schema. Raises InvalidRequestError that says what is wrong."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidRequestError(f"a schema has at most {TEXT_LENGTH_MAX} characters")
    return checked(_Reader(text).schema())


def checked(schema: Schema) -> Schema:
    """The schema, if it is within the limits. Raises InvalidRequestError."""
    _check_fields(schema.fields, 1)
    for field in schema.fields:
        if field.name.lower() in RESERVED:
            other = f"{field.name}_ {field.type} alias {field.name}"
            raise InvalidRequestError(
                f"{field.name} is a column that every stream has, here or in the lake: give the "
                f"field another name, with the key in its records as an alias: {other}"
            )
    if schema.format != "json":
        check_layouts(schema.layouts, schema.format)
    if schema.format != "avro" and any(each.default for each in _all_fields(schema.fields)):
        raise InvalidRequestError("only fields of Avro have a default")
    count = sum(1 for _ in _all_fields(schema.fields))
    if count > FIELDS_MAX:
        raise InvalidRequestError(f"a schema has at most {FIELDS_MAX} fields, not {count}")
    if len(str(schema)) > TEXT_LENGTH_MAX:
        raise InvalidRequestError(f"a schema has at most {TEXT_LENGTH_MAX} characters")
    return schema


def renamed(field: Field) -> Field:
    """A field with the name of a column that every stream has is found by an alias."""
    if field.name.lower() not in RESERVED:
        return field
    aliases = (field.name, *field.aliases)
    return replace(field, name=f"{field.name}_", aliases=aliases)


def _check_fields(fields: tuple[Field, ...], depth: int) -> None:
    if not fields:
        raise InvalidRequestError("a schema, and each struct in it, has at least one field")
    names: set[str] = set()
    for field in fields:
        if len(field.aliases) > ALIASES_MAX:
            raise InvalidRequestError(f"{field.name}: at most {ALIASES_MAX} aliases")
        for name in field.keys:
            if not _NAME.fullmatch(name):
                raise InvalidRequestError(
                    f"{name!r} cannot be a field's name: letters, digits and _ can, at most 64"
                )
            if name.lower() in names:
                raise InvalidRequestError(f"there are two fields {name} (case does not count)")
            names.add(name.lower())
        _check_type(field.name, field.type, depth)


def _check_type(name: str, kind: Type, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise InvalidRequestError(f"{name}: types are nested at most {DEPTH_MAX} levels deep")
    if isinstance(kind, ListType):
        _check_type(name, kind.element, depth + 1)
    elif isinstance(kind, StructType):
        _check_fields(kind.fields, depth + 1)
    elif kind not in SCALARS:
        raise InvalidRequestError(
            f"{name}: there is no type {kind!r}: {', '.join(SCALARS)}, list<…>, struct<…>"
        )


def _all_fields(fields: tuple[Field, ...]) -> Iterator[Field]:
    for field in fields:
        yield field
        kind = field.type
        while isinstance(kind, ListType):
            kind = kind.element
        if isinstance(kind, StructType):
            yield from _all_fields(kind.fields)


def shown(text: str) -> str:
    """A schema for people, with the ids of its layouts in their place."""
    if not text:
        return "none"
    schema = parse(text)
    fields = ", ".join(map(str, schema.fields))
    return f"{fields} using {schema.using}" if schema.using else fields


def changes(before: Schema, after: Schema) -> list[str]:
    """What has changed, a line for each field, without a judgement."""
    was = {field.name: field for field in before.fields}
    now = {field.name: field for field in after.fields}
    lines = [f"- {field}" for name, field in was.items() if name not in now]
    for name, field in now.items():
        if name not in was:
            lines.append(f"+ {field}")
        elif field != was[name]:
            lines.append(f"~ {was[name]}  ->  {field}")
    if before.fields and before.format != after.format:
        lines.append(f"~ {before.format}  ->  {after.format}")
    was_read = {layout.ids for layout in before.layouts}
    added = [each.ids for each in after.layouts if each.ids not in was_read]
    lines += [f"+ {after.format} {'.'.join(map(str, ids))}".rstrip() for ids in added]
    return lines


def why_incompatible(before: Schema, after: Schema) -> str:
    """Why programs that use the first could break with the second; "": they go on."""
    if before.format != after.format:
        return f"its format cannot change from {before.format} to {after.format}"
    why = _fields_changed(before.fields, after.fields, "")
    return why or _layouts_changed(before, after)


def _layouts_changed(before: Schema, after: Schema) -> str:
    now = {layout.ids: layout for layout in after.layouts}
    for layout in before.layouts:
        kept = now.get(layout.ids)
        ids = ".".join(map(str, layout.ids))
        if before.format == "arrow":
            return _columns_changed(layout, after.layouts[0])
        if before.format == "protobuf":
            if kept is None:
                return f"message {ids} of its file cannot become another one"
            return _numbers_changed(layout.parts, kept.parts, after.fields, "")
        if kept is None:
            return f"the layout {ids or 'without an id'} is gone: stored records have it"
        if kept != layout:
            return f"the layout {ids or 'without an id'} cannot change: give a new one a new id"
    return ""


def _columns_changed(before: Layout, after: Layout) -> str:
    """A record batch without a schema says by its place alone what a column is."""
    if after.parts[: len(before.parts)] == before.parts:
        return ""
    columns = ", ".join(map(str, before.parts))
    return f"the columns of batches without a schema stay {columns[:200]}: put new ones behind them"


def _numbers_changed(
    before: tuple[Part, ...], after: tuple[Part, ...], fields: tuple[Field, ...], path: str
) -> str:
    """fields: what the parts fill afterwards."""
    numbered = {part.number: part for part in after}
    keyed = {key: field for field in fields for key in field.keys}
    for part in before:
        where, now, field = f"{path}{part.name}", numbered.get(part.number), keyed.get(part.name)
        if now is None or field is None or now.name not in field.keys:
            return f"{where} must keep the number {part.number}: stored records have it so"
        was_list, is_list = (each.label == REPEATED for each in (part, now))
        if was_list != is_list or now.kind not in (part.kind, *_AS_BYTES.get(part.kind, ())):
            return f"{where} cannot change from '{part}' to '{now}': stored records have it so"
        kind = field.type.element if isinstance(field.type, ListType) else field.type
        if isinstance(kind, StructType) and (
            why := _numbers_changed(part.parts, now.parts, kind.fields, f"{where}.")
        ):
            return why
    return ""


def _fields_changed(before: tuple[Field, ...], after: tuple[Field, ...], path: str) -> str:
    by_key = {key: field for field in after for key in field.keys}
    kept = set()
    for field in before:
        where = f"{path}{field.name}"
        found = by_key.get(field.name)
        if found is None:
            return (
                f"{where} is gone: keep it, or name it as the alias of the field that replaces it"
            )
        if found.name in kept:
            return f"{where} would be one field with another that there was"
        kept.add(found.name)
        if missing := [alias for alias in field.aliases if alias not in found.keys]:
            return f"{where} has lost its alias {missing[0]}: older records have it"
        if field.default and not found.default:
            return f"{where} has lost its default: older records lack it"
        if found.required and not field.required:
            return f"{where} cannot become not null: older records may lack it"
        if why := _type_changed(field.type, found.type, where):
            return why
    for field in after:
        if field.name not in kept and field.required and not field.default:
            return f"{path}{field.name} is new, so it cannot be not null: older records lack it"
    return ""


def _type_changed(before: Type, after: Type, where: str) -> str:
    if isinstance(before, ListType) and isinstance(after, ListType):
        return _type_changed(before.element, after.element, f"{where}[]")
    if isinstance(before, StructType) and isinstance(after, StructType):
        return _fields_changed(before.fields, after.fields, f"{where}.")
    if before == after or (isinstance(before, str) and after in _WIDER.get(before, ())):
        return ""
    wider = _WIDER.get(before, ()) if isinstance(before, str) else ()
    can = f": {before} can become {' or '.join(wider)}" if wider else ""
    return f"{where} cannot change from {before} to {after}{can}"


def _arrow_part(name: str, kind: Type) -> Part:
    """What a type is in a record batch, where nothing else is said."""
    if isinstance(kind, ListType):
        return Part("list", name, parts=(_arrow_part("", kind.element),))
    if isinstance(kind, StructType):
        parts = tuple(_arrow_part(each.name, each.type) for each in kind.fields)
        return Part(STRUCTS["arrow"], name, parts=parts)
    return Part(_IN_ARROW.get(kind, kind), name)


class _Reader(Tokens):
    """Takes the parts of a schema's text, one after the other."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = 0

    def schema(self) -> Schema:
        fields, format_ = self._fields(1), "json"
        layouts: tuple[Layout, ...] = ()
        if self.takes("using"):
            format_ = self.take().lower()
            if format_ not in KINDS:
                raise InvalidRequestError(f"there is no format {format_!r}: {', '.join(FORMATS)}")
            if format_ == "arrow" and not self.peek():
                layouts = (Layout((), tuple(_arrow_part(each.name, each.type) for each in fields)),)
            else:
                layouts = read_layouts(self, format_)
        if self.peek():
            raise InvalidRequestError(f"the schema goes on with {self.peek()!r} after a field")
        return Schema(fields, format_, layouts)

    def _fields(self, depth: int) -> tuple[Field, ...]:
        found = [self._field(depth)]
        while self.takes(","):
            found.append(self._field(depth))
        return tuple(found)

    def _field(self, depth: int) -> Field:
        self._count += 1
        if self._count > FIELDS_MAX:
            raise InvalidRequestError(f"a schema has at most {FIELDS_MAX} fields")
        name = self.take()
        if not _NAME.fullmatch(name):
            raise InvalidRequestError(f"the schema has {name or 'its end'!r} in place of a name")
        self.takes(":")
        kind = self._type(name, depth)
        required, default, aliases = False, "", []
        if self.takes("not"):
            self.expect("null")
            required = True
        if self.takes("default"):
            default = scalar_of_json(self.take())
        while self.takes("alias"):
            aliases.append(self.take())
        return Field(name, kind, required, tuple(aliases), default)

    def _type(self, name: str, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise InvalidRequestError(f"{name}: types are nested at most {DEPTH_MAX} levels deep")
        word = self.take().lower()
        word = _SYNONYMS.get(word, word)
        if word == "list":
            self.expect("<")
            element = self._type(name, depth + 1)
            self.expect(">")
            return ListType(element)
        if word == "struct":
            self.expect("<")
            fields = self._fields(depth + 1)
            self.expect(">")
            return StructType(fields)
        if not word:
            raise InvalidRequestError(
                f"{name} has no type: {', '.join(SCALARS)}, list<…>, struct<…>"
            )
        return word
