"""HTTP/2 frames by hand, for what no gRPC library would send."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM = 0x1
END_HEADERS = 0x4
ACK = 0x1


class FrameType(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


def frame(kind: int, flags: int, stream: int, payload: bytes, *, claim: int | None = None) -> bytes:
    """One frame; `claim`: the length it says it has."""
    length = len(payload) if claim is None else claim
    head = length.to_bytes(3, "big") + bytes([kind, flags]) + (stream % 2**32).to_bytes(4, "big")
    return head + payload


def settings(**values: int) -> bytes:
    """SETTINGS of the given identifiers, as `id_4=0`."""
    payload = b"".join(
        struct.pack(">HI", int(name.removeprefix("id_")), value) for name, value in values.items()
    )
    return frame(FrameType.SETTINGS, 0, 0, payload)


def _integer(value: int, prefix_bits: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([value])
    encoded = bytearray([limit])
    value -= limit
    while value >= 128:
        encoded.append(value % 128 + 128)
        value //= 128
    encoded.append(value)
    return bytes(encoded)


def field(name: bytes, value: bytes) -> bytes:
    """A literal header field, not indexed, not compressed."""
    return b"\x00" + _integer(len(name), 7) + name + _integer(len(value), 7) + value


def call_headers(path: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    fields = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"fuzz"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc"), *extra,
    )  # fmt: skip
    return b"".join(field(name, value) for name, value in fields)


def call(stream: int, path: bytes, message: bytes, *, end: bool = True) -> bytes:
    """A whole gRPC call on one stream."""
    body = struct.pack(">BI", 0, len(message)) + message
    data = b"".join(
        frame(FrameType.DATA, 0, stream, body[at : at + 16_384])
        for at in range(0, len(body), 16_384)
    )
    return (
        frame(FrameType.HEADERS, END_HEADERS, stream, call_headers(path))
        + data
        + (frame(FrameType.DATA, END_STREAM, stream, b"") if end else b"")
    )
