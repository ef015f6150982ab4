"""A call over gRPC whose caller lets the server send nothing: its window is 0 for good."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

from google.protobuf.message import Message

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


class DeafCall:
    """A context manager: the call lasts as long as it. It begins once the server answers."""

    def __init__(self, address: tuple[str, int], method: str, request: Message, token: str) -> None:
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            "authorization": f"Bearer {token}",
        }
        block = b"".join(_literal(name) + _text(value) for name, value in headers.items())
        body = request.SerializeToString()
        self._sock = socket.create_connection(address, timeout=60)
        self._sock.sendall(
            PREFACE
            + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
            + _frame(HEADERS, END_HEADERS, 1, block)
            + _frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(body)) + body)
        )

    def __enter__(self) -> Self:
        while self._kind_of_next_frame() != HEADERS:
            pass
        return self

    def _kind_of_next_frame(self) -> int:
        head = self._received(9)
        self._received(int.from_bytes(head[:3]))
        return head[3]

    def _received(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            got = self._sock.recv(count - len(found))
            assert got, "the server has hung up"
            found += got
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sock.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str) -> bytes:
    """A field that no table has, as HPACK writes it."""
    return b"\x00" + _text(name)


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes((len(text),)) + text.encode()
