"""Objects of a program's own classes as records: their JSON, as typed streams read it.

A class is a dataclass, a model of pydantic or a struct of msgspec. Neither library is imported.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias
from uuid import UUID

from jetstream_protocol.errors import InvalidRequestError


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Struct(Protocol):
    __struct_fields__: ClassVar[tuple[str, ...]]


class _Model(Protocol):
    def model_dump_json(self) -> str: ...


RecordObject: TypeAlias = _Dataclass | _Model | _Struct
"""An object of a dataclass, of a pydantic model or of a msgspec struct."""


def is_record_class(cls: Any) -> bool:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or is_model_class(cls) or is_struct_class(cls)
    )


def is_model_class(cls: type) -> bool:
    return hasattr(cls, "model_validate") and isinstance(getattr(cls, "model_fields", None), dict)


def is_struct_class(cls: type) -> bool:
    return hasattr(cls, "__struct_encode_fields__")


def to_json(given: object) -> bytes:
    """Raises InvalidRequestError for what JSON cannot say, TypeError for other types."""
    try:
        text = json.dumps(
            given, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode()
    except ValueError as error:
        kind = type(given).__name__
        raise InvalidRequestError(f"an object of {kind} cannot be JSON: {error}") from error


def _plain(given: Any) -> object:
    """What json.dumps does not know by itself, one level of it."""
    if is_record_class(type(given)):
        return _items(given)
    if isinstance(given, date):  # A datetime is one, too.
        return given.isoformat()
    if isinstance(given, bytes | bytearray | memoryview):
        return base64.b64encode(given).decode()
    if isinstance(given, Decimal | UUID):
        return str(given)
    if isinstance(given, Enum):
        return given.value
    raise TypeError(f"a field of type {type(given).__name__} cannot be JSON")


def _items(given: Any) -> Mapping[str, object]:
    cls = type(given)
    if is_struct_class(cls):
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        return {key: getattr(given, name) for key, name in names}
    if is_model_class(cls):
        fields = cls.model_fields.items()
        return {each.alias or name: getattr(given, name) for name, each in fields}
    return {each.name: getattr(given, each.name) for each in dataclasses.fields(given)}


SCALARS: Mapping[type, str] = {
    bool: "boolean", int: "bigint", float: "double", str: "string", bytes: "binary",
    datetime: "timestamp", date: "date", Decimal: "string", UUID: "string",
}  # fmt: skip
"""The types of columns for those of fields."""
