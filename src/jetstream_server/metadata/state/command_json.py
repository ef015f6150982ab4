"""Writes metadata commands as JSON, and reads them.

    {"op": "create_stream", …fields, "controller_epoch": n, "made_at": n, "id": [incarnation, n]}

The fields are those of the command's class (commands.py), in their order. A field that equals its
default need not be written; a field that is absent or null has its default. Reading is strict:
types, ranges and unknown fields are checked (fields.py).

Invariant: at a feature level, all versions refuse what that level does not have, in the same words.
So a node with newer software decides like the others until the level is raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from types import NoneType
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_type_hints

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import BootUs, LeaderEpoch, NodeId, StreamId, WallUs
from jetstream_server.metadata.state.fields import Fields
from jetstream_server.metadata.state.nodes import Addresses, FeatureLevel
from jetstream_server.metadata.state.streams import SETTING_LEVELS, RequestedSettings

COMMAND_LENGTH_MAX = 1 << 20
"""A command names streams and nodes; nothing legitimate comes near a megabyte."""


ALWAYS_WRITTEN = {"always_written": True}
"""Metadata of a field that is written even if it equals its default."""


def since(level: int) -> dict[str, Any]:
    """Metadata of a field that a command has from this feature level on. It needs a default."""
    return {"since": level}


def text_of(length_max: int) -> dict[str, Any]:
    """Metadata of a field that is longer text than others."""
    return {"read": partial(Fields.text, length_max=length_max)}


@dataclass(frozen=True, slots=True)
class Command:
    """The base of all commands. op: its name in JSON. level: the feature level it needs."""

    op: ClassVar[str]
    level: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"op": self.op}
        for each in _fields_of(type(self)):
            value = getattr(self, each.name)
            if each.is_always_written or value != each.absent:
                values[each.name] = value.to_dict() if isinstance(value, Addresses) else value
        return values

    @property
    def needed_level(self) -> int:
        """The feature level from which every node understands this command with these fields."""
        written = self.to_dict()
        levels = [each.since for each in _fields_of(type(self)) if each.name in written]
        settings = written.get("config", {})
        levels += [SETTING_LEVELS.get(setting, FeatureLevel(1)) for setting in settings]
        return max(self.level, *levels) if levels else self.level

    @classmethod
    def parse(cls, values: Mapping[str, Any], level: int) -> Self:
        """The command with these fields, at a feature level. Raises InvalidRequestError, naming the
        wrong field."""
        given = Fields(values, cls.op)
        parsed = {
            each.name: each.read(given, each.name)
            if each.absent is MISSING or given.has(each.name)
            else each.absent
            for each in _fields_of(cls)
            if each.since <= level
        }
        given.finish()
        return cls(**parsed)


class Envelope(NamedTuple):
    """The parts of a command's JSON. Neither `fields`, which hold `made_at`, nor `op` is checked
    yet."""

    op: object
    fields: dict[str, Any]
    controller_epoch: object
    id: tuple[int | str, int] | None


def encode_command(
    command: Command,
    *,
    controller_epoch: int | None = None,
    made_at: int = 0,
    command_id: tuple[int | str, int] | None = None,
) -> str:
    """Write a command. controller_epoch, made_at, command_id: see registry.py."""
    values = command.to_dict()
    if controller_epoch is not None:
        values["controller_epoch"] = controller_epoch
    if made_at:
        values["made_at"] = made_at
    if command_id is not None:
        values["id"] = command_id
    return json.dumps(values, separators=(",", ":"))


def decode_command(text: str) -> Envelope:
    """Read a command's envelope. Raises InvalidRequestError for text that cannot be a command."""
    if len(text) > COMMAND_LENGTH_MAX:
        raise InvalidRequestError(f"metadata command longer than {COMMAND_LENGTH_MAX} characters")
    try:
        # As all versions do: what they said of a command is in journals.
        values = bounded_json.loads(text, finite=False)
    except ValueError as error:
        raise InvalidRequestError("metadata command is not JSON") from error
    if not isinstance(values, dict):
        raise InvalidRequestError("metadata command is not a JSON object")
    op, command_id = values.pop("op", None), values.pop("id", None)
    controller_epoch = values.pop("controller_epoch", None)
    return Envelope(op, values, controller_epoch, _checked_id(command_id))


def _checked_id(command_id: object) -> tuple[int | str, int] | None:
    match command_id:
        case None:
            return None
        case [(int() | str()) as incarnation, int(sequence)] if sequence >= 0:
            return incarnation, sequence
    raise InvalidRequestError("a command's id is [incarnation, sequence]")


class _Field(NamedTuple):
    """absent: the value of a field that is not there; MISSING: the field is required."""

    name: str
    read: Callable[[Fields, str], Any]
    absent: Any
    is_always_written: bool
    since: int


_known: dict[type[Command], tuple[_Field, ...]] = {}


def _fields_of(command: type[Command]) -> tuple[_Field, ...]:
    if command not in _known:
        _known[command] = _read_fields_of(command)
    return _known[command]


def _read_fields_of(command: type[Command]) -> tuple[_Field, ...]:
    hints = get_type_hints(command)
    return tuple(
        _Field(
            name=each.name,
            read=each.metadata.get("read") or _READERS[_without_none(hints[each.name])],
            absent=each.default if each.default_factory is MISSING else each.default_factory(),
            is_always_written=each.metadata.get("always_written", False),
            since=each.metadata.get("since", 1),
        )
        for each in fields(command)
    )


def _without_none(hint: Any) -> Any:
    options = [each for each in get_args(hint) if each is not NoneType]
    return options[0] if NoneType in get_args(hint) else hint


def _addresses(values: Fields, name: str) -> Addresses:
    given = values.object(name)
    addresses = Addresses(
        grpc=given.text("grpc"),
        data=given.text("data"),
        raft=given.text("raft"),
        http=given.text("http"),
    )
    given.finish()
    return addresses


_READERS: dict[Any, Callable[[Fields, str], Any]] = {
    bool: Fields.flag,
    int: Fields.integer,
    str: Fields.text,
    BootUs: Fields.integer,
    WallUs: Fields.integer,
    FeatureLevel: lambda values, name: values.integer(name, minimum=1),
    LeaderEpoch: Fields.integer,
    NodeId: Fields.node,
    StreamId: Fields.integer,
    tuple[int, ...]: Fields.integers,
    tuple[str, ...]: Fields.texts,
    tuple[NodeId, ...]: Fields.nodes,
    tuple[StreamId, ...]: Fields.integers,
    Addresses: _addresses,
    RequestedSettings: Fields.mapping,
}
"""The function that reads a field, by its type."""
