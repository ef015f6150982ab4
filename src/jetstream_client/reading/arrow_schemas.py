"""A schema of Arrow as that of a stream: its columns, and how a record batch has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.extras import needed_by
from jetstream_protocol.layouts import SCALE_MAX, Layout, Part
from jetstream_protocol.schema import Field, ListType, Schema, StructType, Type, checked, renamed

with needed_by("a schema of Arrow", "arrow"):
    import pyarrow as pa
    from pyarrow import types as kinds

_FILE = b"ARROW1"
_SCALARS: dict[str, tuple[str, str]] = {
    "bool": ("boolean", "boolean"),
    "int8": ("int", "int8"), "int16": ("int", "int16"), "int32": ("int", "int32"),
    "uint8": ("int", "uint8"), "uint16": ("int", "uint16"), "uint32": ("bigint", "uint32"),
    "int64": ("bigint", "int64"), "uint64": ("bigint", "uint64"),
    "float": ("double", "float"), "double": ("double", "double"),
    "string": ("string", "bytes"), "large_string": ("string", "large_bytes"),
    "string_view": ("string", "bytes_view"),
    "binary": ("binary", "bytes"), "large_binary": ("binary", "large_bytes"),
    "binary_view": ("binary", "bytes_view"),
    "date32[day]": ("date", "date32"), "date64[ms]": ("date", "date64"),
    "time32[s]": ("int", "int32"), "time32[ms]": ("int", "int32"),
    "time64[us]": ("bigint", "int64"), "time64[ns]": ("bigint", "int64"),
}  # fmt: skip
"""By the names of types: the column's, and the one in a batch."""
_LISTS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (kinds.is_list, "list"),
    (kinds.is_large_list, "large_list"),
    (kinds.is_fixed_size_list, "fixed_list"),
)


def from_arrow(found: bytes) -> Schema:
    """Of a file or a stream of Arrow IPC, of which only the schema counts. Raises
    InvalidRequestError."""
    try:
        if found.startswith(_FILE):
            schema = pa.ipc.open_file(pa.py_buffer(found)).schema
        else:
            schema = pa.ipc.read_schema(pa.py_buffer(found))
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidRequestError(f"the file is no Arrow IPC: {error}") from error
    fields, parts = _fields(schema, "")
    return checked(Schema(tuple(map(renamed, fields)), "arrow", (Layout((), parts),)))


def _fields(found: Any, path: str) -> tuple[tuple[Field, ...], tuple[Part, ...]]:
    fields, parts = [], []
    for each in found:
        kind, part = _value(each.type, f"{path}{each.name}")
        fields.append(Field(each.name, kind, not each.nullable))
        parts.append(replace(part, name=each.name))
    return tuple(fields), tuple(parts)


def _value(found: pa.DataType, where: str) -> tuple[Type, Part]:
    if str(found) in _SCALARS:
        kind, in_batch = _SCALARS[str(found)]
        return kind, Part(in_batch)
    if isinstance(found, pa.BaseExtensionType):
        return _value(found.storage_type, where)
    if kinds.is_dictionary(found):
        raise InvalidRequestError(
            f"{where} has the type {found}: publish its values, as dictionary_decode() makes them"
        )
    if kinds.is_timestamp(found):
        return "timestamp", Part(f"timestamp_{found.unit}")
    if kinds.is_duration(found):
        return "bigint", Part("int64")
    if kinds.is_decimal(found) and 0 <= found.scale <= SCALE_MAX:
        args = str(found.bit_width // 8), str(found.scale)
        return "string", Part("fixed_decimal", args=args)
    if kinds.is_fixed_size_binary(found):
        return "binary", Part("fixed", args=(str(found.byte_width),))
    if kinds.is_struct(found):
        fields, parts = _fields(found, f"{where}.")
        return StructType(fields), Part("struct", parts=parts)
    if kinds.is_map(found):
        given = [pa.field("key", found.key_type, False), pa.field("value", found.item_type)]
        pair, part = _value(pa.struct(given), f"{where}[]")
        return ListType(pair), Part("list", parts=(part,))
    for is_one, name in _LISTS:
        if is_one(found):
            element, part = _value(found.value_type, f"{where}[]")
            size = (str(found.list_size),) if name == "fixed_list" else ()
            return ListType(element), Part(name, args=size, parts=(part,))
    raise InvalidRequestError(f"{where} has the type {found}, which no column could have")
