"""Data-plane frames: the prefix says what follows, and nothing malformed gets past it."""

from __future__ import annotations

import struct

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import (
    PREFIX_BYTES,
    REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    Kind,
    decode_prefix,
    encode,
)


def test_a_frame_is_laid_out_as_documented() -> None:
    assert encode(Kind.FETCH, 0x01020304, b"head", tail_length=16) == (
        b"\x1c\x00\x00\x00\x03\x00\x04\x00\x04\x03\x02\x01head"
    )


def test_an_answer_may_carry_the_longest_batch() -> None:
    frame = encode(Kind.FETCH_REPLY, 1, b"", tail_length=64 * 1024 * 1024)
    assert decode_prefix(frame, RESPONSE_BYTES_MAX).tail_length == 64 * 1024 * 1024


def test_a_frame_beyond_the_bound_is_refused() -> None:
    fits = struct.pack("<IBBHI", REQUEST_BYTES_MAX - 4, Kind.FETCH, 0, 0, 1)
    assert decode_prefix(fits, REQUEST_BYTES_MAX).tail_length == REQUEST_BYTES_MAX - PREFIX_BYTES
    beyond = struct.pack("<IBBHI", REQUEST_BYTES_MAX - 3, Kind.FETCH, 0, 0, 1)
    with pytest.raises(InvalidRequestError, match="at most"):
        decode_prefix(beyond, REQUEST_BYTES_MAX)


@pytest.mark.parametrize(
    "prefix",
    [
        struct.pack("<IBBHI", 7, Kind.FETCH, 0, 0, 1),
        struct.pack("<IBBHI", 8, Kind.FETCH, 0, 1, 1),
        struct.pack("<IBBHI", 8, Kind.FETCH, 1, 0, 1),
    ],
    ids=["shorter than its own prefix", "head longer than frame", "reserved byte set"],
)
def test_a_malformed_prefix_is_refused(prefix: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="malformed"):
        decode_prefix(prefix, REQUEST_BYTES_MAX)


def test_another_protocol_on_the_port_is_refused() -> None:
    for hello in (
        b"GET / HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ):
        with pytest.raises(InvalidRequestError):
            decode_prefix(hello.ljust(PREFIX_BYTES, b"\x00"), REQUEST_BYTES_MAX)
