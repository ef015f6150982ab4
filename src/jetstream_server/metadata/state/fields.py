"""Reads a command's fields: checks every value's type and range, and refuses unknown keys.

A command is JSON written by this software. But it may come from a journal, a peer, or a newer
version, so everything is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NODE_ID_MAX, NodeId, StreamId

INTEGER_MAX = (1 << 63) - 1
TEXT_LENGTH_MAX = 4096
LIST_LENGTH_MAX = 100_000

ChoiceT = TypeVar("ChoiceT", bound=str)


class Fields:
    """Typed access to one JSON object. Every method raises InvalidRequestError, naming the key.

    A field without a default is required. `finish` refuses unknown fields.
    """

    __slots__ = ("_requested", "_values", "_where")

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._requested: dict[str, None] = {}

    def integer(self, name: str, default: int | None = None, *, minimum: int = 0) -> int:
        value = self._get(name, default)
        if type(value) is not int or not minimum <= value <= INTEGER_MAX:
            raise self._field_error(name, f"an integer from {minimum} on", value)
        return value

    def text(
        self, name: str, default: str | None = None, *, length_max: int = TEXT_LENGTH_MAX
    ) -> str:
        value = self._get(name, default)
        if type(value) is not str or len(value) > length_max:
            raise self._field_error(name, f"text of at most {length_max} characters", value)
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        if type(value) is not bool:
            raise self._field_error(name, "true or false", value)
        return value

    def choice(self, name: str, options: tuple[ChoiceT, ...]) -> ChoiceT:
        value = self._get(name, None)
        if value not in options:
            raise self._field_error(name, f"one of {', '.join(options)}", value)
        return cast("ChoiceT", value)

    def node(self, name: str) -> NodeId:
        value = self.integer(name)
        if value > NODE_ID_MAX:
            raise self._field_error(name, "a node id", value)
        return NodeId(value)

    def stream_id(self) -> StreamId:
        return StreamId(self.integer("stream_id"))

    def nodes(self, name: str) -> tuple[NodeId, ...]:
        """Node ids, each at most once."""
        values = self.integers(name)
        if len(dict.fromkeys(values)) != len(values) or max(values, default=0) > NODE_ID_MAX:
            raise self._field_error(name, "different node ids", list(values))
        return tuple(NodeId(value) for value in values)

    def integers(self, name: str, default: list[int] | None = None) -> tuple[int, ...]:
        values = self._list(name, default)
        for value in values:
            if type(value) is not int or not 0 <= value <= INTEGER_MAX:
                raise self._field_error(name, "a list of integers from 0 on", values)
        return tuple(values)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._list(name, None)
        for value in values:
            if type(value) is not str or len(value) > TEXT_LENGTH_MAX:
                raise self._field_error(name, "a list of texts", values)
        return tuple(values)

    def mapping(self, name: str) -> dict[str, Any]:
        """An object whose content is not checked."""
        value = self._get(name, None)
        if type(value) is not dict:
            raise self._field_error(name, "an object", value)
        return value

    def object(self, name: str) -> Fields:
        return Fields(self.mapping(name), f"{self._where}.{name}")

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        self._requested[name] = None
        return self._values.get(name) is not None

    def finish(self) -> None:
        unknown = [name for name in self._values if name not in self._requested]
        if unknown:
            raise InvalidRequestError(
                f"{self._where} has unknown fields {', '.join(map(repr, unknown[:5]))}: "
                "written by newer software?"
            )

    def _list(self, name: str, default: Any) -> list[Any]:
        values = self._get(name, default)
        if type(values) is not list or len(values) > LIST_LENGTH_MAX:
            raise self._field_error(name, "a list", values)
        return values

    def _get(self, name: str, default: Any) -> Any:
        self._requested[name] = None
        value = self._values.get(name)
        return default if value is None else value

    def _field_error(self, name: str, wanted: str, value: Any) -> InvalidRequestError:
        given = "is missing" if value is None else f"is {str(value)[:100]!r}"
        return InvalidRequestError(f"{self._where}: {name!r} {given}; it must be {wanted}")
