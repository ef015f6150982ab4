"""Frames out of a byte stream: any split, any size, no more memory than frames need."""

from __future__ import annotations

import struct

import pytest

from jetstream_client._frames import SCRATCH_BYTES, Frame, FrameReader
from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import RESPONSE_BYTES_MAX, Kind


def feed(reader: FrameReader, data: bytes, step: int) -> list[Frame]:
    """Give `data` as a socket would: into the reader's buffer, at most `step` bytes at a time."""
    found = []
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), step, len(data))
        assert count > 0
        buffer[:count] = data[:count]
        found += list(reader.received(count))
        data = data[count:]
    return found


def frame(correlation: int, head: bytes, tail: bytes) -> bytes:
    return frames.encode(Kind.FETCH_REPLY, correlation, head, len(tail)) + tail


@pytest.mark.parametrize("step", [1, 7, 4096, 10**9])
def test_frames_come_out_as_they_went_in(step: int) -> None:
    sent = [(1, b"", b""), (2, b"head", b""), (3, b"h" * 300, b"t" * 5000), (4, b"", b"t")]
    found = feed(FrameReader(), b"".join(frame(*each) for each in sent), step)
    assert [(f.correlation, f.head, bytes(f.tail)) for f in found] == sent


def test_a_large_tail_is_received_into_its_own_buffer() -> None:
    reader = FrameReader()
    tail = bytes(range(256)) * 4096
    data = frame(1, b"head", tail)
    assert feed(reader, data[:1000], 1000) == []
    assert len(reader.buffer()) == len(data) - 1000
    (found,) = feed(reader, data[1000:], 10**9)
    assert bytes(found.tail) == tail


def test_what_a_tail_still_lacks_is_known() -> None:
    reader = FrameReader()
    data = frame(1, b"head", bytes(300_000))
    missing = [reader.missing]
    for start in range(0, len(data), 50_000):
        feed(reader, data[start : start + 50_000], 50_000)
        missing.append(reader.missing)
    assert missing[0] == missing[-1] == 0
    assert missing[1] == len(data) - 50_000
    assert missing[1:] == sorted(missing[1:], reverse=True)


def test_a_head_longer_than_the_scratch_fits() -> None:
    head = b"h" * 65_535
    data = frame(1, b"x", b"y") + frame(2, head, b"tail")
    found = feed(FrameReader(), data, SCRATCH_BYTES)
    assert [(f.correlation, f.head) for f in found] == [(1, b"x"), (2, head)]


def test_a_stranger_on_the_port_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        feed(FrameReader(), b"HTTP/1.1 400 Bad Request\r\n\r\n", 100)


def test_a_frame_longer_than_any_answer_is_refused_before_memory_is_taken() -> None:
    prefix = struct.pack("<IBBHI", RESPONSE_BYTES_MAX, Kind.FETCH_REPLY, 0, 0, 1)
    with pytest.raises(InvalidRequestError, match="at most"):
        feed(FrameReader(), prefix, 100)
