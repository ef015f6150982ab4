"""Schemas of files, and what one must keep of the schema before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from jetstream_client.reading.avro_schemas import from_avro
from jetstream_client.reading.protobuf_schemas import compiled, from_protobuf
from jetstream_client.reading.schema_sources import from_json_schema
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.layouts import Layout, Part
from jetstream_protocol.schema import Field, ListType, Schema, StructType, Type, checked

_DESCRIPTORS = (".binpb", ".pb", ".desc")
_ARROW = (".arrow", ".arrows", ".feather")


def from_file(path: Path, schema_id: int | None, message: str | None) -> Schema:
    """The schema that a file has: of JSON Schema, Avro (`.avsc`), Protobuf (`.proto`, or a set
    of descriptors) or Arrow (`.arrow`). Raises InvalidRequestError."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from error
    is_avro = path.suffix == ".avsc"
    is_protobuf = path.suffix in (".proto", *_DESCRIPTORS)
    if schema_id is not None and not is_avro:
        raise InvalidRequestError(f"--id is for a schema of Avro, a file .avsc, not {path.name}")
    if message is not None and not is_protobuf:
        raise InvalidRequestError(
            f"--message is for Protobuf, a file .proto or {', '.join(_DESCRIPTORS)}, not "
            f"{path.name}"
        )
    if is_avro:
        return from_avro(found, schema_id)
    if is_protobuf:
        return from_protobuf(compiled(path) if path.suffix == ".proto" else found, message)
    if path.suffix in _ARROW:
        return _from_arrow(found)
    return from_json_schema(found)


def _from_arrow(found: bytes) -> Schema:
    from jetstream_client.reading.arrow_schemas import from_arrow

    return from_arrow(found)


def following(before: Schema, after: Schema) -> Schema:
    """The new schema, with what it must keep of the one before: earlier layouts, earlier names of
    fields, of Protobuf those that a number had, of Arrow the columns of batches without a
    schema."""
    if before.format != after.format or after.format == "json":
        return after
    layouts = after.layouts
    was: tuple[Part, ...] = ()
    if after.format == "arrow":
        fields = _following(before.fields, after.fields, (), ())
        return checked(Schema(fields, "arrow", _batches_following(before, layouts, fields)))
    if after.format == "avro":
        new = {layout.ids for layout in layouts}
        layouts = (*(each for each in before.layouts if each.ids not in new), *layouts)
    else:
        was = before.layouts[0].parts
    fields = _following(before.fields, after.fields, was, after.layouts[0].parts)
    return checked(Schema(fields, after.format, layouts))


def _batches_following(
    before: Schema, after: tuple[Layout, ...], fields: tuple[Field, ...]
) -> tuple[Layout, ...]:
    """In batches without a schema only the place of a column counts: they go on as they were, with
    new columns behind, if the others are the same under whatever names and types."""
    was, now = before.layouts[0].parts, after[0].parts
    keyed = {key: field for field in fields for key in field.keys}
    for old, new in zip(was, now, strict=False):
        if old.name not in keyed or keyed[old.name] is not keyed.get(new.name):
            return after
    return (Layout((), (*was, *now[len(was) :])),)


def _following(
    before: tuple[Field, ...],
    after: tuple[Field, ...],
    was: tuple[Part, ...],
    now: tuple[Part, ...],
) -> tuple[Field, ...]:
    """was, now: of Protobuf, what fills the fields."""
    earlier = {key: field for field in before for key in field.keys}
    by_number = {part.number: part for part in was}
    taken = {key for field in after for key in field.keys}
    found = []
    for field in after:
        new = next((part for part in now if part.name in field.keys), None)
        old = by_number.get(new.number) if new else None
        keys = (old.name, *field.keys) if old else field.keys
        known = next((earlier[key] for key in keys if key in earlier), None)
        if known is None:
            found.append(field)
            continue
        aliases = (*field.aliases, *(key for key in known.keys if key not in taken))
        inner = (old.parts, new.parts) if old and new else ((), ())
        kind = _type_following(known.type, field.type, *inner)
        found.append(replace(field, type=kind, aliases=aliases))
    return tuple(found)


def _type_following(
    before: Type, after: Type, was: tuple[Part, ...], now: tuple[Part, ...]
) -> Type:
    if isinstance(before, ListType) and isinstance(after, ListType):
        return ListType(_type_following(before.element, after.element, was, now))
    if isinstance(before, StructType) and isinstance(after, StructType):
        return StructType(_following(before.fields, after.fields, was, now))
    return after
