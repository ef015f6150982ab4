"""Data-plane frames: how message heads and raw batches share one TCP connection.

    u32  length       of everything that follows, little-endian
    u8   kind         one of Kind
    u8   reserved     0
    u16  head_length
    u32  correlation  chosen by the caller, repeated in the answer
    head              a protobuf message of proto/jetstream/v1/dataplane.proto; the FIXED kinds have
                      the layout of jetstream_server/replication/core/fixed_layout.py
    tail              whole batches, as stored, or a producer's batch; only in kinds in TAILED

A connection starts with HELLO and its reply. Then requests may be pipelined, and answers come in
any order. A frame from a client is at most REQUEST_BYTES_MAX long, or PRODUCE_FRAME_BYTES_MAX if it
carries a batch: a longer, malformed or unknown frame closes the connection. docs/protocol.md, "Data
plane", is the normative text.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from jetstream_protocol.errors import InvalidRequestError

PROTOCOL_VERSION = 1
REQUEST_BYTES_MAX = 64 * 1024  # Requests name streams and positions; most carry no records.
PRODUCE_BYTES_MAX = 16 * 1024 * 1024
"""Longest batch that a producer may send; what a compressed one may hold is limited likewise."""
PRODUCE_FRAME_BYTES_MAX = PRODUCE_BYTES_MAX + REQUEST_BYTES_MAX
KEEP_ALIVE_SECONDS = 2.0
"""A server answers a follow at least so often, and wants to hear from its reader as often."""
RESPONSE_BYTES_MAX = 128 * 1024 * 1024  # A batch is at most 64 MiB; see batch.BATCH_BYTES_MAX.

_PREFIX = struct.Struct("<IBBHI")  # length, kind, reserved, head_length, correlation
PREFIX_BYTES = _PREFIX.size
_LENGTH_COVERS = PREFIX_BYTES - 4  # `length` does not count itself
_HEAD_BYTES_MAX = 2**16 - 1


class Kind(IntEnum):
    HELLO = 1
    HELLO_REPLY = 2
    FETCH = 3
    FETCH_REPLY = 4
    NODE_HELLO = 5
    NODE_HELLO_REPLY = 6
    POSITIONS = 7
    RECORDS = 8
    PRODUCE = 9
    PRODUCE_REPLY = 10
    FOLLOW = 11
    FOLLOWED = 12
    CREDIT = 13
    FIXED_POSITIONS = 14
    FIXED_RECORDS = 15


TAILED = frozenset(
    (Kind.FETCH_REPLY, Kind.RECORDS, Kind.PRODUCE, Kind.FIXED_RECORDS, Kind.FOLLOWED)
)
"""The kinds of frames that carry batches."""


class Prefix(NamedTuple):
    kind: int
    correlation: int
    head_length: int
    tail_length: int


def encode(kind: Kind, correlation: int, head: bytes, tail_length: int = 0) -> bytes:
    """Prefix and head of a frame; the caller sends `tail_length` bytes of batches after it. Raises
    InvalidRequestError."""
    if len(head) > _HEAD_BYTES_MAX:
        raise InvalidRequestError("the names and keys of the request are longer than a frame holds")
    length = _LENGTH_COVERS + len(head) + tail_length
    return _PREFIX.pack(length, kind, 0, len(head), correlation) + head


def decode_prefix(
    data: bytes | bytearray | memoryview, bytes_max: int, position: int = 0
) -> Prefix:
    """Decode the first PREFIX_BYTES of the frame at `position`. Raises InvalidRequestError unless
    they are a valid prefix.

    bytes_max: the most bytes that the whole frame may have, if it carries no producer's batch.
    """
    length, kind, reserved, head_length, correlation = _PREFIX.unpack_from(data, position)
    most = bytes_max if kind != Kind.PRODUCE else PRODUCE_FRAME_BYTES_MAX
    if length + 4 > most:
        raise InvalidRequestError(f"frame of {length + 4} bytes; at most {most} are allowed")
    tail_length = length - _LENGTH_COVERS - head_length
    if reserved or tail_length < 0:
        raise InvalidRequestError("malformed frame prefix: this is not the data-plane protocol")
    return Prefix(kind, correlation, head_length, tail_length)
