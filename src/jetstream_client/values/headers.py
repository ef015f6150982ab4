"""NATS header blocks: read for people, written for nats-py.

A block is `NATS/1.0`, optionally a status, then `Name: value` lines, each ended by CR LF, and an
empty line. Names are case-sensitive, as in NATS. Streams keep the block byte for byte
(`Message.header_block`); this is a view of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from jetstream_client.values.checks import check_text
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.header_names import HEADER_NAME
from jetstream_protocol.record_json import header_values

HeadersLike: TypeAlias = (
    Mapping[str, "str | bytes | Sequence[str | bytes]"] | Sequence[tuple[str, "str | bytes"]]
)
"""Header values by name: one, or several of the same name. Or pairs of name and value, as clients
of Kafka take them. Values are text, or bytes that are UTF-8."""


class Headers(Mapping[str, str]):
    """The headers of one message, in order. `headers[name]` is the first value of that name.

    Values that are not UTF-8 keep their bytes as surrogate escapes.
    """

    __slots__ = ("_values",)

    def __init__(self, block: bytes = b"") -> None:
        self._values = header_values(block)

    def __getitem__(self, name: str) -> str:
        return self._values[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get_all(self, name: str) -> list[str]:
        """Every value of that name, in order; empty where there is none."""
        return list(self._values.get(name, ()))

    def multi_items(self) -> list[tuple[str, str]]:
        """Every name with every value; values of one name are adjacent."""
        return [(name, value) for name, values in self._values.items() for value in values]

    def __repr__(self) -> str:
        return f"Headers({self.multi_items()!r})"


class OutgoingHeaders(dict[str, str]):
    """Headers as nats-py takes them: it only calls `items()`. A dict has one value per name, but
    NATS allows several, so `items()` may repeat a name.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> list[tuple[str, str]]:  # type: ignore[override]
        return self._pairs


def by_name(headers: HeadersLike | None) -> Mapping[str, Any]:
    """The headers as a mapping: pairs are collected by their names. Raises TypeError."""
    if headers is None or isinstance(headers, Mapping):
        return headers or {}
    values: dict[str, list[Any]] = {}
    for pair in headers if isinstance(headers, list | tuple) else (None,):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(
                "headers must be a dict, or a list of pairs (name, value), not "
                + (repr(headers) if pair is None else f"a list with {pair!r}")
            )
        values.setdefault(_name(pair[0]), []).append(pair[1])
    return values


def outgoing(headers: HeadersLike | None) -> list[tuple[str, str]]:
    """The pairs to send. Raises InvalidRequestError for headers that NATS would alter or refuse,
    TypeError for what is no text."""
    pairs: list[tuple[str, str]] = []
    for name, given in by_name(headers).items():
        if not HEADER_NAME.fullmatch(_name(name)):
            raise InvalidRequestError(
                f"invalid header name {name!r}: use letters, digits and !#$%&'*+-.^_`|~"
            )
        is_one = isinstance(given, str | bytes) or not isinstance(given, Iterable)
        for each in (given,) if is_one else given:
            value = each if isinstance(each, str) else _text(name, each)
            check_value(f"header {name!r}", value)
            pairs.append((name, value))
    return pairs


def _name(given: object) -> str:
    if isinstance(given, str):
        return given
    raise TypeError(f"the name of a header must be a str, not {type(given).__name__}: {given!r}")


def _text(name: str, given: object) -> str:
    if not isinstance(given, bytes):
        raise TypeError(
            f"header {name!r} must be str, bytes or a list of them, not {type(given).__name__}"
        )
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"header {name!r} must be UTF-8 text: encode it, e.g. as hex"
        ) from error


def check_value(what: str, value: str) -> None:
    """Raise InvalidRequestError unless `value` passes through a header unaltered."""
    check_text(what, value)
    if "\r" in value or "\n" in value or "\0" in value:
        raise InvalidRequestError(
            f"{what} holds a line break or NUL, which NATS headers cannot carry"
        )
    if value != value.strip():
        raise InvalidRequestError(
            f"{what} begins or ends with white space, which NATS headers do not keep"
        )
