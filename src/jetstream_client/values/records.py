"""Turns values, keys and headers given by a program into the bytes of a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jetstream_client.values.headers import HeadersLike, outgoing
from jetstream_client.values.record_objects import is_record_class
from jetstream_client.values.types import Payload, Value
from jetstream_protocol.errors import InvalidRequestError

_T = TypeVar("_T")
_SERVER_HEADER = re.compile(
    r"Jetstream-.*|Nats-(?:Msg-Id|TTL|Rollup|Incr|Expected-.*|Schedule.*|Batch-.*)"
)


def speaks_to_the_server(header: str) -> bool:
    """Whether a header of this name asks the server for something, and is not the record's own."""
    return _SERVER_HEADER.fullmatch(header) is not None


def value_to_bytes(given: Value | None) -> bytes | None:
    """As `to_bytes`; an object of a program's class becomes JSON. Raises what RecordType.dumps
    raises: what a class could not read again would stop its consumers later."""
    cls: Any = type(given)
    if is_record_class(cls):
        from jetstream_client.values.record_types import record_type

        return record_type(cls).dumps(given)
    return to_bytes("a value", given)


def to_bytes(what: str, given: Value | None) -> bytes | None:
    """The bytes to store. Raises TypeError for anything but bytes and text: `bytes(5)` would be
    five zeros, and `bytes([65])` the letter A."""
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{what} is not valid Unicode") from error
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise TypeError(
        f"{what} must be bytes, bytearray, memoryview, str or None, not {type(given).__name__}: "
        "encode it first, for example by json.dumps"
    )


def columns_of(
    values: Iterable[Value | None], keys: Iterable[Payload | None] | None
) -> tuple[Sequence[bytes | None], Sequence[bytes | None] | None]:
    """The same for many, each of which is one record. Raises InvalidRequestError, TypeError."""
    found = _column("value", values)
    by = None if keys is None else _column("key", keys)
    if by is not None and len(by) != len(found):
        raise InvalidRequestError(f"{len(found)} values and {len(by)} keys")
    return found, by


def one_a_record(what: str, given: Iterable[_T]) -> Sequence[_T]:
    """As a list, because a generator can be gone through only once. Raises TypeError."""
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError(f"{what}s must be a list with one {what} a record, not one of them alone")
    return given if isinstance(given, list | tuple) else list(given)


def _column(what: str, given: Iterable[Value | None]) -> Sequence[bytes | None]:
    """Nothing is done for each of them where all are bytes or None."""
    given = one_a_record(what, given)
    if set(map(type, given)) <= {bytes, type(None)}:
        return given  # type: ignore[return-value]
    if what == "value":
        return [value_to_bytes(each) for each in given]
    return [to_bytes(f"a {what}", each) for each in given]


def record_of(
    value: Value | None, key: Payload | None, headers: HeadersLike | None
) -> tuple[bytes | None, bytes | None, bytes]:
    """Value, key and header block. Raises InvalidRequestError, TypeError."""
    block = block_of(headers)
    return value_to_bytes(value), to_bytes("a key", key), block


def block_of(headers: HeadersLike | None) -> bytes:
    """The header block as NATS writes it; b"": there are none. The server refuses a batch with
    headers that are meant for it, so here they raise InvalidRequestError."""
    if not headers:
        return b""
    pairs = outgoing(headers)
    for name, _ in pairs:
        if speaks_to_the_server(name):
            raise InvalidRequestError(
                f"header {name!r} speaks to the server and cannot travel in a batch: use publish()"
            )
    return block_of_pairs(pairs)


def block_of_pairs(pairs: Sequence[tuple[str, str]]) -> bytes:
    """As NATS writes it."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"NATS/1.0\r\n{lines}\r\n".encode()
