"""What a publisher asks for in NATS headers.

    NATS/1.0␍␊
    Name: value␍␊        any number of them
    ␍␊

| header | meaning |
|---|---|
| `Jetstream-Key` | the record's key, without an envelope |
| `Jetstream-Ack: none\\|leader\\|all` | this message's ack level instead of the stream's |
| `Jetstream-Tombstone: true` | the record's value is null; the payload must be empty |
| `Nats-Expected-Stream` | refuse the message unless the stream has this name |
| `Nats-Msg-Id` | kept with the record; at present duplicates are not recognised by it |
| `Nats-Expected-Last-Sequence` | parsed, but at present refused like the unsupported ones |

Every other header of `UNSUPPORTED` asks for something NATS JetStream would do and this server does
not: the message is refused, for ignoring a condition breaks the publisher's promise to itself.
Unknown `Jetstream-…` headers likewise. All further headers are the application's.

Header blocks are stored verbatim, whatever is in them; they are parsed only where one of the two
prefixes occurs, which a whole delivery is searched for at once. As in nats-server, names are
compared with their case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from jetstream_protocol.errors import InvalidRequestError, UnsupportedHeaderError

UNSUPPORTED: Final = re.compile(
    rb"Nats-(?:Expected-.*|TTL|Rollup|Incr|Schedule.*|Batch-.*)|Jetstream-.*"
)
"""Matched against names that are not supported: conditions, time to live, purging, counters,
schedules and atomic batches of NATS JetStream's publishers."""

_VERSION: Final = b"NATS/1.0"
# RFC 9110's token characters, as far as NATS clients agree on them, plus any non-ASCII byte.
_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z\x80-\xff]+)[ \t]*:[ \t]*([^\r\n\x00]*)")
_SEQUENCE_DIGITS_MAX: Final = 19


class AckLevel(StrEnum):
    """When a publisher is told that its message is safe."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Directives:
    """What one message's headers ask for; None where they do not say."""

    key: bytes | None = None
    ack_level: AckLevel | None = None
    tombstone: bool = False
    message_id: bytes | None = None
    expected_stream: bytes | None = None
    expected_last_sequence: int | None = None


NOTHING: Final = Directives()

Outcome = Directives | InvalidRequestError
"""What to do with a message, or why to refuse it."""


def inspect(header_blocks: Sequence[bytes], values: Sequence[bytes]) -> list[Outcome] | None:
    """One outcome for each message of a delivery; None when no header concerns this server."""
    joined = b"".join(header_blocks)
    if b"Jetstream-" not in joined and b"Nats-" not in joined:
        return None
    return [
        _outcome(block, value) if b"Jetstream-" in block or b"Nats-" in block else NOTHING
        for block, value in zip(header_blocks, values, strict=True)
    ]


def _outcome(block: bytes, value: bytes) -> Outcome:
    try:
        directives = parse_directives(block)
    except InvalidRequestError as error:
        return error
    if directives.expected_last_sequence is not None:
        return UnsupportedHeaderError("header Nats-Expected-Last-Sequence is not supported yet")
    if directives.tombstone and value:
        return InvalidRequestError("a message with Jetstream-Tombstone must have no payload")
    return directives


def parse_directives(block: bytes) -> Directives:
    """The directives of one header block.

    Raises InvalidRequestError for a block or a value out of shape, UnsupportedHeaderError for a
    directive this server does not know.
    """
    found: dict[bytes, bytes] = {}
    for name, value in parse_fields(block):
        if name in _SUPPORTED:
            if name in found:
                raise InvalidRequestError(f"header {name.decode()} is given twice")
            found[name] = value
        elif UNSUPPORTED.fullmatch(name):
            raise UnsupportedHeaderError(f"header {_text(name)} is not supported")
    if not found:
        return NOTHING
    level = found.get(b"Jetstream-Ack")
    sequence = found.get(b"Nats-Expected-Last-Sequence")
    return Directives(
        key=found.get(b"Jetstream-Key"),
        ack_level=None if level is None else _ack_level(level),
        tombstone=_flag(found.get(b"Jetstream-Tombstone", b"false")),
        message_id=found.get(b"Nats-Msg-Id"),
        expected_stream=found.get(b"Nats-Expected-Stream"),
        expected_last_sequence=None if sequence is None else _sequence(sequence),
    )


_SUPPORTED: Final = frozenset(
    (
        b"Jetstream-Key",
        b"Jetstream-Ack",
        b"Jetstream-Tombstone",
        b"Nats-Msg-Id",
        b"Nats-Expected-Stream",
        b"Nats-Expected-Last-Sequence",
    )
)


def parse_fields(block: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values in order, white space around values removed.

    Raises InvalidRequestError unless the whole block follows the grammar above.
    """
    lines = block.split(b"\r\n")
    # The block ends with an empty line: two empty pieces.
    if len(lines) < 3 or lines[-1] or lines[-2] or not _is_version_line(lines[0]):
        raise InvalidRequestError("malformed NATS header block")
    fields = []
    for line in lines[1:-2]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidRequestError(f"malformed NATS header line {_text(line)}")
        fields.append((match[1], match[2].rstrip(b" \t")))
    return fields


def _is_version_line(line: bytes) -> bool:
    """`NATS/1.0`, behind which NATS's own answers carry a status."""
    return line == _VERSION or line.startswith(_VERSION + b" ")


def _ack_level(value: bytes) -> AckLevel:
    for level in AckLevel:
        if value == level.encode():
            return level
    raise InvalidRequestError(f"Jetstream-Ack must be none, leader or all, not {_text(value)}")


def _flag(value: bytes) -> bool:
    if value in (b"true", b"1"):
        return True
    if value in (b"false", b"0"):
        return False
    raise InvalidRequestError(f"Jetstream-Tombstone must be true or false, not {_text(value)}")


def _sequence(value: bytes) -> int:
    if not value.isdigit() or len(value) > _SEQUENCE_DIGITS_MAX:
        raise InvalidRequestError(
            f"Nats-Expected-Last-Sequence must be a number, not {_text(value)}"
        )
    return int(value)


def _text(found: bytes) -> str:
    """What a stranger sent, safe and short enough to be quoted to them."""
    return ascii(found[:64].decode("utf-8", "backslashreplace"))
