"""Classes of a program as schemas, and records as their objects: `RecordType(Order)`."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of
from uuid import UUID

from jetstream_client.values.record_objects import (
    SCALARS,
    is_model_class,
    is_record_class,
    is_struct_class,
    to_json,
)
from jetstream_protocol.errors import InvalidRequestError, SchemaMismatchError
from jetstream_protocol.schema import (
    DEPTH_MAX,
    Field,
    ListType,
    Schema,
    StructType,
    Type,
    checked,
    renamed,
)
from jetstream_protocol.typed_json import decoded

T = TypeVar("T")
_Make = Callable[[Any], Any]


class RecordType(Generic[T]):
    """The records that are objects of one class: a dataclass, a pydantic model or a msgspec struct.

    It is a deserialiser, `client.consume("orders", value_deserializer=RecordType(Order))`, and has
    the schema of the class, `client.set_schema("orders", Order)`. Types of fields: bool, int,
    float, str, bytes, datetime, date, Decimal, UUID, enums, lists and tuples of one type, and such
    classes. A field without a default that may not be None is `not null`. Raises
    InvalidRequestError for other types.
    """

    def __init__(self, cls: type[T]) -> None:
        if not is_record_class(cls):
            raise InvalidRequestError(
                f"{cls!r} is neither a dataclass nor a pydantic model nor a msgspec struct"
            )
        self.cls = cls
        self._plans = _plans(cls, 1)
        fields = tuple(renamed(each.field) for each in self._plans)
        self._fields = checked(Schema(fields)).fields

    def __repr__(self) -> str:
        return f"RecordType({self.cls.__name__})"

    @property
    def schema(self) -> str:
        """Its text, as `set_schema` takes it."""
        return str(Schema(self._fields))

    def __call__(self, value: bytes) -> T:
        """The object of a record. Raises SchemaMismatchError for one that does not fit, and what
        the class raises."""
        if isinstance(value, self.cls):
            raise TypeError(f"{self!r} is a deserializer: as value_serializer take {self!r}.dumps")
        values, error = decoded(value, self._fields)
        if error is not None:
            raise SchemaMismatchError(f"the record is no {self.cls.__name__}: {error}")
        made: T = _made(self.cls, self._plans, values)
        return made

    def dumps(self, given: T) -> bytes:
        """The record of an object. Raises SchemaMismatchError for one that could not be read
        again, InvalidRequestError for what JSON cannot say."""
        record = to_json(given)
        if error := decoded(record, self._fields)[1]:
            raise SchemaMismatchError(f"it could not be read again as {self.cls.__name__}: {error}")
        return record


@lru_cache(maxsize=256)
def record_type(cls: Any) -> RecordType[Any]:
    """The same, remembered for each class."""
    return RecordType(cls)


class _Plan(NamedTuple):
    """A field of a class. argument: its name when an object is made. make: of what a column has."""

    field: Field
    argument: str
    make: _Make | None
    has_default: bool


def _made(cls: Any, plans: Sequence[_Plan], values: Iterable[Any]) -> Any:
    arguments: dict[str, Any] = {}
    for plan, value in zip(plans, values, strict=True):
        if value is None:
            if not plan.has_default:
                arguments[plan.argument] = None
        else:
            arguments[plan.argument] = value if plan.make is None else plan.make(value)
    return cls(**arguments)


def _plans(cls: Any, depth: int) -> tuple[_Plan, ...]:
    if depth > DEPTH_MAX:
        raise InvalidRequestError(
            f"{cls.__name__}: types are nested at most {DEPTH_MAX} levels deep"
        )
    try:
        hints = hints_of(cls)
    except NameError as error:
        raise InvalidRequestError(f"{cls.__name__}: a type of its fields: {error}") from error
    found = []
    for key, name, has_default in _fields_of(cls):
        kind, make, nullable = _type_of(hints[name], f"{cls.__name__}.{name}", depth)
        field = Field(key, kind, not nullable and not has_default)
        argument = key if is_model_class(cls) else name
        found.append(_Plan(field, argument, make, has_default))
    return tuple(found)


def _fields_of(cls: Any) -> list[tuple[str, str, bool]]:
    """The key in records, the name in the class, and whether there is a default."""
    if is_struct_class(cls):
        fields = sys.modules["msgspec"].structs.fields(cls)
        return [(each.encode_name, each.name, not each.required) for each in fields]
    if is_model_class(cls):
        items = cls.model_fields.items()
        return [(each.alias or name, name, not each.is_required()) for name, each in items]
    nothing = dataclasses.MISSING
    return [
        (each.name, each.name, (each.default, each.default_factory) != (nothing, nothing))
        for each in dataclasses.fields(cls)
        if each.init
    ]


def _type_of(hint: Any, where: str, depth: int) -> tuple[Type, _Make | None, bool]:
    """The type of the column, what makes the field's value of it, and whether it may be None."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        others = [each for each in arguments if each is not type(None)]
        if len(others) == 1:
            kind, make, _ = _type_of(others[0], where, depth)
            return kind, make, len(others) < len(arguments)
    elif origin is Literal:
        (kinds, *more) = {type(each) for each in arguments}
        if not more and kinds in (str, int, bool):
            return SCALARS[kinds], None, False
    elif origin in (list, tuple, Sequence):
        if origin is not tuple or arguments[1:] == (...,):
            kind, make, _ = _type_of(arguments[0], f"{where}[]", depth + 1)
            return ListType(kind), _list_of(make, tuple if origin is tuple else list), False
    elif is_record_class(hint):
        plans = _plans(hint, depth + 1)
        keys = [plan.field.name for plan in plans]
        kind = StructType(tuple(plan.field for plan in plans))
        return kind, lambda found: _made(hint, plans, [found[key] for key in keys]), False
    elif isinstance(hint, type) and issubclass(hint, Enum):
        (kinds, *more) = {type(each.value) for each in hint} or {object}
        if not more and kinds in (str, int):
            return SCALARS[kinds], hint, False
    elif isinstance(hint, type) and hint in SCALARS:
        return SCALARS[hint], hint if hint in (Decimal, UUID) else None, False
    raise InvalidRequestError(
        f"{where}: no column can have the type {hint}; values of other classes are bytes or text, "
        "as json.dumps makes them"
    )


def _list_of(make: _Make | None, cls: Callable[[Iterable[Any]], Any]) -> _Make | None:
    if make is None:
        return None if cls is list else cls
    return lambda found: cls(None if each is None else make(each) for each in found)
