"""The NATS headers by which a publisher states what it wants.

    NATS/1.0␍␊
    Name: value␍␊        any number of them
    ␍␊

| header | meaning |
|---|---|
| `Jetstream-Key` | the record's key, without an envelope |
| `Jetstream-Ack: none\\|leader\\|all` | this message's ack level instead of the stream's |
| `Jetstream-Tombstone: true` | the record's value is null; the payload must be empty |
| `Nats-Expected-Stream` | refuse the message unless the stream has this name |
| `Nats-Msg-Id` | by this id a repetition of the message is recognised |
| `Nats-Expected-Last-Sequence` | refuse the message unless it gets this offset |
| `Nats-Expected-Last-Subject-Sequence` | refuse it unless that is its subject's last sequence |
| `Nats-Rollup: sub` | accepted where compaction keeps the last record of each subject anyway |
| `KV-Operation: DEL`, `PURGE` | a tombstone, where the record's key is its subject |

Every other header of `UNSUPPORTED` asks for something that NATS JetStream would do and this server
does not. Such a message is refused, because ignoring a condition would break what the publisher
relies on. Unknown `Jetstream-…` headers are refused too. All other headers are the application's.

Header blocks are stored verbatim, whatever they contain. They are parsed only if one of the two
prefixes occurs; one search covers a whole delivery. As in nats-server, names are case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from jetstream_protocol import header_names
from jetstream_protocol.errors import InvalidRequestError, UnsupportedHeaderError

_UNSUPPORTED_NAMES: Final = (
    rb"Nats-(?:Expected-[^\s:]*+|TTL|Rollup|Incr|Schedule[^\s:]*+|Batch-[^\s:]*+)"
    rb"|Jetstream-[^\s:]*+"
)
UNSUPPORTED: Final = re.compile(_UNSUPPORTED_NAMES)
"""Patterns of names that are not supported: conditions, time to live, purging, counters, schedules
and atomic batches of NATS JetStream's publishers."""

# RFC 9110's token characters, as far as NATS clients agree on them, plus any non-ASCII byte.
_NAME: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z\x80-\xff]++"
_VALUE: Final = rb"[^\r\n\x00]*+"
# NATS's own answers have a status after the version. Possessive: linear for any input.
_BLOCK: Final = re.compile(
    rb"NATS/1\.0(?: [^\r\n]*+)?\r\n(?:%b[ \t]*+:%b\r\n)*+\r\n" % (_NAME, _VALUE)
)
_OURS: Final = re.compile(rb"\r\n((?:Jetstream|Nats)-%b)[ \t]*+:[ \t]*+(%b)" % (_NAME, _VALUE))
_SEQUENCE_DIGITS_MAX: Final = 19
_ASKS: Final = re.compile(
    rb"\r\n((?:%b|%b))[ \t]*+:" % (_UNSUPPORTED_NAMES, header_names.MSG_ID.encode())
)

_DELETES: Final = re.compile(
    rb"\r\n" + header_names.KV_OPERATION.encode() + rb"[ \t]*+:[ \t]*+(?:DEL|PURGE)[ \t]*+\r\n"
)
_KEY: Final = header_names.KEY.encode()
_OTHERS: Final = rb"(?:(?!Jetstream-|Nats-)%b[ \t]*+:%b\r\n)*+" % (_NAME, _VALUE)
# At the first block of another kind it takes all the rest: were the next ones tried, a delivery
# that says "NATS/1.0" often would be read to its end as often.
_KEYED: Final = re.compile(
    rb"(NATS/1\.0\r\n%b%b[ \t]*+:[ \t]*+(%b)\r\n%b\r\n)|(?s:.++)" % (_OTHERS, _KEY, _VALUE, _OTHERS)
)


class AckLevel(StrEnum):
    """When a message is acknowledged."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


class Directives(NamedTuple):
    """What the headers of one message ask for; None for a field that they do not set."""

    key: bytes | None = None
    ack_level: AckLevel | None = None
    tombstone: bool = False
    message_id: bytes | None = None
    expected_stream: bytes | None = None
    expected_offset: int | None = None
    expected_subject_end: int | None = None
    """One after the offset of the subject's last record; 0: it has none."""
    rollup: bool = False


NOTHING: Final = Directives()

Outcome = Directives | InvalidRequestError
"""The directives of a message, or why to refuse it."""


def keys_only(header_blocks: list[bytes]) -> list[bytes] | None:
    """The keys of a delivery if every message has a key and asks for nothing else; otherwise None.

    A short cut for the traffic of a keyed stream, four times as fast as `inspect`. Linear in the
    bytes, whatever they are.
    """
    joined = b"".join(header_blocks)
    if joined.find(_KEY) < 0:  # Half as long as `in` takes, for the many that have no key.
        return None
    found = _KEYED.findall(joined)
    # Compared one by one: a block with two ends must not count as two messages.
    if [block for block, _ in found] != header_blocks:
        return None
    return [key.rstrip(b" \t") for _, key in found]


def asks_for(header_blocks: bytes) -> str:
    """A header in joined header blocks that asks this server for anything; "" for none.

    One search covers any number of records.
    """
    found = _ASKS.search(header_blocks)
    return "" if found is None else _text(found[1])


def inspect(header_blocks: Sequence[bytes], values: Sequence[bytes | None]) -> list[Outcome] | None:
    """One outcome for each message of a delivery; None when no header concerns this server."""
    joined = b"".join(header_blocks)
    if b"Jetstream-" not in joined and b"Nats-" not in joined:
        return None
    return [
        _outcome(block, value) if b"Jetstream-" in block or b"Nats-" in block else NOTHING
        for block, value in zip(header_blocks, values, strict=True)
    ]


def deletes(header_block: bytes, value: bytes | None) -> bool:
    """Whether a message deletes its key in a bucket of NATS's clients."""
    if value or b"KV-Operation" not in header_block:
        return False
    return _DELETES.search(header_block) is not None


def _outcome(block: bytes, value: bytes | None) -> Outcome:
    try:
        directives = parse_directives(block)
    except InvalidRequestError as error:
        return error
    if directives.tombstone and value:
        return InvalidRequestError(f"a message with {header_names.TOMBSTONE} must have no payload")
    return directives


def parse_directives(block: bytes) -> Directives:
    """Parse the directives of one header block.

    Raises InvalidRequestError for a malformed block or value, UnsupportedHeaderError for a
    directive that this server does not know.
    """
    _check_grammar(block)
    found: dict[str, bytes | AckLevel | bool | int] = {}
    for name, value in _OURS.findall(block):
        supported = _SUPPORTED.get(name)
        if supported is not None:
            field, read = supported
            if field in found:
                raise InvalidRequestError(f"header {name.decode()} is given twice")
            found[field] = read(value.rstrip(b" \t"))
        elif UNSUPPORTED.fullmatch(name):
            raise UnsupportedHeaderError(f"header {_text(name)} is not supported")
    return Directives(**found) if found else NOTHING  # type: ignore[arg-type]  # by _SUPPORTED


def _check_grammar(block: bytes) -> None:
    if _BLOCK.fullmatch(block) is None:
        raise InvalidRequestError("malformed NATS header block")


def _ack_level(value: bytes) -> AckLevel:
    for level in AckLevel:
        if value == level.encode():
            return level
    raise InvalidRequestError(f"{header_names.ACK} must be none, leader or all, not {_text(value)}")


def _flag(value: bytes) -> bool:
    if value in (b"true", b"1"):
        return True
    if value in (b"false", b"0"):
        return False
    raise InvalidRequestError(f"{header_names.TOMBSTONE} must be true or false, not {_text(value)}")


def _sequence(value: bytes) -> int:
    if not value.isdigit() or len(value) > _SEQUENCE_DIGITS_MAX:
        raise InvalidRequestError(f"an expected sequence must be a number, not {_text(value)}")
    return int(value)


def _rollup(value: bytes) -> bool:
    if value == b"sub":
        return True
    raise UnsupportedHeaderError(f"{header_names.ROLLUP} must be sub, not {_text(value)}")


_SUPPORTED: Final[dict[bytes, tuple[str, Callable[[bytes], bytes | AckLevel | bool | int]]]] = {
    _KEY: ("key", bytes),
    header_names.ACK.encode(): ("ack_level", _ack_level),
    header_names.TOMBSTONE.encode(): ("tombstone", _flag),
    header_names.MSG_ID.encode(): ("message_id", bytes),
    header_names.EXPECTED_STREAM.encode(): ("expected_stream", bytes),
    # The last sequence that JetStream would have. It counts from 1, so this is our next offset.
    header_names.EXPECTED_LAST_SEQUENCE.encode(): ("expected_offset", _sequence),
    header_names.EXPECTED_LAST_SUBJECT_SEQUENCE.encode(): ("expected_subject_end", _sequence),
    header_names.ROLLUP.encode(): ("rollup", _rollup),
}
"""The directive that a header sets, and the function that reads its value."""


def _text(found: bytes) -> str:
    """Text from a publisher, escaped and shortened so that it can be quoted."""
    return ascii(found[:64].decode("utf-8", "backslashreplace"))
