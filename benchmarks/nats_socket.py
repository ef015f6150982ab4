"""A NATS client that costs as little as possible: a blocking socket and no per-message work.

Only what the measurements need: connect, write prepared bytes, take in bytes, one request at a
time for setting up. No authentication, no TLS, no reconnecting.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from typing import Any, Self

RECEIVE_BYTES = 1 << 20
FIRST_REQUEST_SID = 1000
"""A subscription number is used once: NATS ignores a SUB with a number it knows."""
SOCKET_BUFFER_BYTES = 4 << 20
"""Room for a whole window of acks, so that neither side of the measurement waits for the loader."""

_CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'
)


class NatsSocket:
    """A connected client; `socket` is free for bulk reading and writing between requests."""

    def __init__(self, host: str, port: int, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = 0
        self.socket.sendall(_CONNECT)
        self._receive_until(b"PONG\r\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _receive_until(self, mark: bytes) -> bytes:
        """What arrives up to and with `mark`. Raises ConnectionError, TimeoutError."""
        received = b""
        while mark not in received:
            received += self._receive()
        return received

    def subscribe(self, subject: str, subscription: int) -> None:
        """SUB, confirmed by a round trip. Only while nothing else arrives on this connection."""
        self.socket.sendall(f"SUB {subject} {subscription}\r\nPING\r\n".encode())
        self._receive_until(b"PONG\r\n")

    def request_json(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request and its JSON reply. Raises RuntimeError for an error reply, TimeoutError.

        Only while nothing but a late reply to an earlier request can arrive.
        """
        inbox = f"_INBOX.{secrets.token_hex(8)}".encode()
        payload = json.dumps(body).encode()
        self._requests += 1
        sid = FIRST_REQUEST_SID + self._requests
        self.socket.sendall(
            b"SUB %b %d\r\nUNSUB %d 1\r\nPUB %b %b %d\r\n%b\r\n"
            % (inbox, sid, sid, subject.encode(), inbox, len(payload), payload)
        )
        received = self._receive_until(b"MSG " + inbox)
        start = received.index(b"MSG " + inbox)
        while b"\r\n" not in received[start:]:
            received += self._receive()
        has_headers = received[start - 1 : start] == b"H"
        line, _, rest = received[start:].partition(b"\r\n")
        length = int(line.rpartition(b" ")[2])
        while len(rest) < length + 2:
            rest += self._receive()
        if has_headers:
            raise RuntimeError(f"{subject}: nobody answers ({rest[:length]!r})")
        reply: dict[str, Any] = json.loads(rest[:length])
        if "error" in reply:
            raise RuntimeError(f"{subject}: {reply['error']}")
        return reply

    def _receive(self) -> bytes:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data or b"-ERR" in data:
            raise ConnectionError(f"the NATS server said {data!r}")
        return data


def wait_for_port(host: str, port: int, seconds: float) -> None:
    """Return once something accepts connections. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing listens on {host}:{port}") from error
            time.sleep(0.02)
