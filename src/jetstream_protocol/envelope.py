"""The envelope: wraps a NATS payload so that it carries more than the value.

An envelope holds one record (with a key, a header block, a null value) or one whole batch. It may
ask for an ack at its own inbox. docs/protocol.md is the normative text.

    0   8s  cookie 89 "JSENV" 0d 0a      24  u32 key_length
    8   u32 crc, CRC32C of all after    28  u32 header_block_length
    12  u8  version                      32  u16 ack_inbox_length
    13  u8  kind: 1 record, 2 batch      34  u16 correlation_length
    14  u16 flags                        36  ack inbox, correlation, key, header block,
    16  i64 expected_offset, -1 none         then up to the end the value, or the batch

Invariants. Only an exact envelope counts as one: a payload that merely begins with the cookie is a
plain message, so `parse` returns None and does not raise. A returned envelope can be answered
safely: **safety** its ack inbox cannot inject a second protocol line and is not too long for NATS,
and its correlation id is text. The content of a batch is not checked here: see producer_batch.py.

The cookie begins with a byte that never begins UTF-8 text, so text and JSON are recognised as plain
messages at once.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from itertools import accumulate
from typing import Final, NamedTuple

from jetstream_protocol.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from jetstream_protocol.batch import EncodedBatch, crc32c, extend_crc32c
from jetstream_protocol.errors import InvalidRequestError

COOKIE: Final = b"\x89JSENV\r\n"
VERSION: Final = 1
NO_EXPECTATION: Final = -1
TEXT_BYTES_MAX: Final = 255
"""Upper bound on an ack inbox and on a correlation id. NATS closes a connection whose control line
exceeds its limit (4 KiB by default); here that would be the server's connection."""

_HEADER: Final = struct.Struct("<8sIBBHqIIHH")
HEADER_BYTES: Final = _HEADER.size
_CRC_AT: Final = 8
_CHECKED_FROM: Final = 12
_RECORD: Final = 1
_BATCH: Final = 2

# A literal subject: tokens without white space, control characters and wildcards.
_INBOX: Final = re.compile(rb"[^\x00-\x20\x7f*>.]+(?:\.[^\x00-\x20\x7f*>.]+)*")


class Flags(IntEnum):
    """What the fields alone do not say."""

    KEY = 1
    """The record has a key, perhaps an empty one."""
    TOMBSTONE = 2
    """The value is null, and takes no bytes."""
    ACK_LEADER = 4
    """Send the ack once the leader has appended the record, not once it is committed."""


_KNOWN_FLAGS: Final = 7


class RecordEnvelope(NamedTuple):
    """One record. value: None: a tombstone. key: None: no key. header_block: b"": none.

    ack_inbox: the subject of the ack, b"": none. correlation: repeated in the ack, b"": none.
    expected_offset: store the record only at this offset; -1: at any.
    """

    value: bytes | None
    key: bytes | None = None
    header_block: bytes = b""
    ack_inbox: bytes = b""
    correlation: bytes = b""
    expected_offset: int = NO_EXPECTATION
    ack_leader: bool = False


class BatchEnvelope(NamedTuple):
    """One batch, as its producer sent it. Nothing in it has been checked.

    header, body: the batch cut after the length of a batch's header, however long it is.
    expected_offset: store the batch only if its first record gets this offset.
    """

    header: bytes
    body: bytes
    ack_inbox: bytes = b""
    correlation: bytes = b""
    expected_offset: int = NO_EXPECTATION
    ack_leader: bool = False


Envelope = RecordEnvelope | BatchEnvelope


def encode_record(
    value: bytes | None,
    *,
    key: bytes | None = None,
    header_block: bytes = b"",
    ack_inbox: bytes = b"",
    correlation: bytes = b"",
    expected_offset: int = NO_EXPECTATION,
    ack_leader: bool = False,
) -> bytes:
    """The payload to publish; see RecordEnvelope. Raises InvalidRequestError for an ack inbox,
    correlation id or expected offset that servers refuse."""
    flags = 0 if key is None else Flags.KEY
    flags |= Flags.TOMBSTONE if value is None else 0
    flags |= Flags.ACK_LEADER if ack_leader else 0
    key, value = key or b"", value or b""
    _check(ack_inbox, correlation, expected_offset)
    return _sealed(
        _HEADER.pack(
            COOKIE, 0, VERSION, _RECORD, flags, expected_offset,
            len(key), len(header_block), len(ack_inbox), len(correlation),
        ),
        ack_inbox, correlation, key, header_block, value,
    )  # fmt: skip


def encode_batch(
    batch: EncodedBatch,
    *,
    ack_inbox: bytes = b"",
    correlation: bytes = b"",
    expected_offset: int = NO_EXPECTATION,
    ack_leader: bool = False,
) -> bytes:
    """The payload to publish; see BatchEnvelope. Raises the same errors as `encode_record`."""
    _check(ack_inbox, correlation, expected_offset)
    return _sealed(
        _HEADER.pack(
            COOKIE, 0, VERSION, _BATCH, Flags.ACK_LEADER if ack_leader else 0, expected_offset,
            0, 0, len(ack_inbox), len(correlation),
        ),
        ack_inbox, correlation, batch.header, batch.body,
    )  # fmt: skip


def _sealed(header: bytes, *parts: bytes | bytearray) -> bytes:
    """The envelope, with its checksum in place."""
    crc = crc32c(header[_CHECKED_FROM:])
    for part in parts:
        crc = extend_crc32c(crc, bytes(part))  # Copies the header of a batch, but not its body.
    return b"".join((COOKIE, struct.pack("<I", crc), header[_CHECKED_FROM:], *parts))


def _check(ack_inbox: bytes, correlation: bytes, expected_offset: int) -> None:
    if not _may_be_inbox(ack_inbox):
        raise InvalidRequestError(
            f"an ack inbox is a subject without wildcards of at most {TEXT_BYTES_MAX} bytes"
        )
    if not _may_be_correlation(correlation):
        raise InvalidRequestError(
            f"a correlation id is UTF-8 text of at most {TEXT_BYTES_MAX} bytes"
        )
    if not NO_EXPECTATION <= expected_offset < 1 << 63:
        raise InvalidRequestError("an expected offset must not be negative")


def _may_be_inbox(found: bytes) -> bool:
    return not found or (len(found) <= TEXT_BYTES_MAX and _INBOX.fullmatch(found) is not None)


def _may_be_correlation(found: bytes) -> bool:
    try:
        found.decode()
    except UnicodeDecodeError:
        return False
    return len(found) <= TEXT_BYTES_MAX


def parse(payload: bytes) -> Envelope | None:
    """Parse an envelope; None if the payload is a plain message. Never raises for its content."""
    if len(payload) < HEADER_BYTES or not payload.startswith(COOKIE):
        return None
    (
        _, crc, version, kind, flags, expected_offset,
        key_length, header_block_length, ack_inbox_length, correlation_length,
    ) = _HEADER.unpack_from(payload)  # fmt: skip
    if version != VERSION or flags & ~_KNOWN_FLAGS:
        return None
    lengths = (ack_inbox_length, correlation_length, key_length, header_block_length)
    at, to_correlation, to_key, to_block, to_rest = accumulate(lengths, initial=HEADER_BYTES)
    ack_inbox, correlation = payload[at:to_correlation], payload[to_correlation:to_key]
    # Nearly all of a batch's payload lies after the cut, and is copied only once.
    cut = to_rest + BATCH_HEADER_BYTES if kind == _BATCH else to_rest
    rest = payload[cut:]
    if (
        to_rest > len(payload)
        or extend_crc32c(crc32c(payload[_CHECKED_FROM:cut]), rest) != crc
        or expected_offset < NO_EXPECTATION
        or not _may_be_inbox(ack_inbox)
        or not _may_be_correlation(correlation)
    ):
        return None
    ack_leader = bool(flags & Flags.ACK_LEADER)
    if kind == _BATCH:
        if key_length or header_block_length or flags & (Flags.KEY | Flags.TOMBSTONE):
            return None
        header = payload[to_rest:cut]
        return BatchEnvelope(header, rest, ack_inbox, correlation, expected_offset, ack_leader)
    has_key, is_tombstone = flags & Flags.KEY, flags & Flags.TOMBSTONE
    if kind != _RECORD or (key_length and not has_key) or (rest and is_tombstone):
        return None
    return RecordEnvelope(
        None if is_tombstone else rest,
        payload[to_key:to_block] if has_key else None,
        payload[to_block:to_rest],
        ack_inbox,
        correlation,
        expected_offset,
        ack_leader,
    )
