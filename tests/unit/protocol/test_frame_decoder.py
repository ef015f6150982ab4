"""Frames out of a byte stream: any split, any size, no more memory than frames need."""

from __future__ import annotations

import struct

import pytest

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frame_decoder import IN_PLACE_BYTES, FrameDecoder
from jetstream_protocol.frames import REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, Kind
from tests.support.frame_stream import feed


def decoder() -> FrameDecoder:
    return FrameDecoder(RESPONSE_BYTES_MAX)


def frame(correlation: int, head: bytes, tail: bytes) -> bytes:
    return frames.encode(Kind.FETCH_REPLY, correlation, head, len(tail)) + tail


@pytest.mark.parametrize("step", [1, 7, 4096, 10**9])
def test_frames_come_out_as_they_went_in(step: int) -> None:
    sent = [(1, b"", b""), (2, b"head", b""), (3, b"h" * 300, b"t" * 50_000), (4, b"", b"t")]
    found = feed(decoder(), b"".join(frame(*each) for each in sent), step)
    assert [(f.correlation, f.head, bytes(f.tail)) for f in found] == sent


def test_a_large_tail_is_received_into_its_own_buffer() -> None:
    receiving = decoder()
    tail = bytes(range(256)) * 4096
    data = frame(1, b"head", tail)
    assert feed(receiving, data[:1000], 1000) == []
    room = receiving.room()
    assert room is not None
    assert len(room) == len(data) - 1000
    (found,) = feed(receiving, data[1000:], 10**9)
    assert isinstance(found.tail, bytearray)
    assert found.tail == tail


def test_what_a_tail_still_lacks_is_known() -> None:
    receiving = decoder()
    data = frame(1, b"head", bytes(300_000))
    missing = [receiving.missing]
    for start in range(0, len(data), 50_000):
        feed(receiving, data[start : start + 50_000], 50_000)
        missing.append(receiving.missing)
    assert missing[0] == missing[-1] == 0
    assert missing[1] == len(data) - 50_000
    assert missing[1:] == sorted(missing[1:], reverse=True)


def test_a_head_as_long_as_heads_get_fits() -> None:
    head = b"h" * 65_535
    data = frame(1, b"x", b"y") + frame(2, head, b"tail")
    found = feed(decoder(), data, 64 * 1024)
    assert [(f.correlation, f.head) for f in found] == [(1, b"x"), (2, head)]


def test_what_is_not_taken_yet_is_known() -> None:
    receiving = decoder()
    data = frame(1, b"head", b"tail")
    receiving.feed(data + data[:5])
    assert receiving.held == len(data) + 5
    assert receiving.next() is not None
    assert receiving.next() is None
    assert receiving.held == 5
    assert not receiving.is_empty
    receiving.feed(data[5:])
    assert receiving.next() is not None
    assert receiving.is_empty


def test_what_comes_after_a_tail_in_its_own_memory_is_not_forgotten() -> None:
    receiving = decoder()
    data = frame(1, b"head", bytes(50_000))
    receiving.feed(data[:1_000])
    assert receiving.next() is None
    room = receiving.room()
    assert room is not None
    room[:] = data[1_000:]
    receiving.filled(len(room))
    receiving.feed(data[:9])
    assert receiving.next() is not None
    assert (receiving.held, receiving.is_empty) == (9, False)


def test_a_stranger_on_the_port_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        feed(decoder(), b"HTTP/1.1 400 Bad Request\r\n\r\n", 100)


@pytest.mark.parametrize("bytes_max", [REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX])
def test_a_frame_longer_than_any_is_refused_before_memory_is_taken(bytes_max: int) -> None:
    prefix = struct.pack("<IBBHI", bytes_max, Kind.FETCH_REPLY, 0, 0, 1)
    with pytest.raises(InvalidRequestError, match="at most"):
        feed(FrameDecoder(bytes_max), prefix, 100)


def test_a_kind_that_is_not_wanted_is_refused_by_its_prefix() -> None:
    receiving = decoder()
    receiving.wanted = (Kind.HELLO_REPLY,)
    receiving.feed(frame(1, b"", bytes(IN_PLACE_BYTES + 1))[: frames.PREFIX_BYTES])
    with pytest.raises(InvalidRequestError, match="kind 4"):
        receiving.next()


def test_a_tail_where_none_belongs_is_refused_by_its_prefix() -> None:
    receiving = decoder()
    receiving.feed(frames.encode(Kind.HELLO_REPLY, 1, b"", 5))
    with pytest.raises(InvalidRequestError, match="tail"):
        receiving.next()
