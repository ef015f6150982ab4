"""A publisher that keeps books, and the checker of what became of its messages.

Every message is published once, under its number, with a reply subject of its own. Afterwards:

* acknowledged ⊆ read: an acknowledged message is at the offset its ack named;
* no message is stored twice, and what is stored of one publisher is in the order it was sent in;
* nacked and unanswered messages may or may not be there: nobody was promised anything.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.nats_servers import NatsServers

WINDOW = 128
ANSWER_SECONDS = 0.25
"""A message not answered by then makes room in the window; a later answer still counts."""
HURRY_SECONDS = 0.2
"""How long the load stays at full speed once it has the acks that were waited for: what happens
next meets a full window."""
LATE_SECONDS = 4.0
"""So long the end waits for an answer that has not come."""
PAUSE_SECONDS, PAUSED_WINDOW = 0.05, 16
"""At other times it goes on with so few at once, and leaves the processors to the cluster."""


@dataclass
class Books:
    """What is known of each message, by its number."""

    sent: int = 0
    acked: dict[int, int] = field(default_factory=dict)  # number -> offset
    nacked: dict[int, str] = field(default_factory=dict)
    acked_at: list[float] = field(default_factory=list)

    def longest_gap(self, since: float) -> float:
        """Seconds of the longest time without an ack after `since`, up to the last ack."""
        times = [since, *(at for at in self.acked_at if at > since)]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def check(self, values: list[bytes | None]) -> None:
        """Hold the books against the log, read from offset 0."""
        numbers = [int(value) for value in values if value is not None]
        assert len(numbers) == len(values), "a tombstone was never published"
        assert len(set(numbers)) == len(numbers), "a message was stored twice"
        lost = {n: offset for n, offset in self.acked.items() if values_at(values, offset) != n}
        assert not lost, f"{len(lost)} acknowledged messages are not where their acks say: {lost}"


def values_at(values: list[bytes | None], offset: int) -> int | None:
    value = values[offset] if offset < len(values) else None
    return None if value is None else int(value)


class Load:
    """Publishes to `subject` from a thread of its own until `stop`, as fast as it can while
    `wait_for_acks` waits.

    nats_urls: with commas between them. When one server closes the connection and there are others,
    the next is taken; nothing is published again.
    """

    def __init__(
        self,
        nats_urls: str,
        subject: str,
        *,
        window: int = WINDOW,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._servers = NatsServers(nats_urls, tls=tls)
        self.books = Books()
        self._subject = subject
        self._window = window
        self._stopping = threading.Event()
        self._waiting: dict[int, float] = {}
        self._late: dict[int, float] = {}
        self._hurries_until = 0.0
        # Its own: an answer to one before, held up on its way, is none of ours.
        self._inbox = f"_INBOX.load-{os.urandom(6).hex()}"
        self._connect()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def _connect(self) -> None:
        lines = f'CONNECT {{"verbose":false,"headers":true}}\r\nSUB {self._inbox}.> 1\r\n'
        self._sock = self._servers.connect(lines.encode())
        self._sock.settimeout(0.02)
        self._received = b""

    def start(self) -> Load:
        self._thread.start()
        return self

    def stop(self) -> Books:
        """Send nothing more, wait for the answers still due, and close the books."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._sock.close()
        return self.books

    def wait_for_acks(self, count: int, seconds: float = 120.0) -> None:
        """Until `count` more acks have come."""
        wanted = len(self.books.acked) + count
        deadline = time.monotonic() + seconds
        self._hurries_until = deadline
        while len(self.books.acked) < wanted:
            assert time.monotonic() < deadline, f"no acks: {self.books.nacked}"
            time.sleep(0.005)
        self._hurries_until = time.monotonic() + HURRY_SECONDS

    def _run(self) -> None:
        sent_at = 0.0
        while not self._stopping.is_set() or self._are_due():
            now = time.monotonic()
            lines = b""
            hurries = now < self._hurries_until
            window = self._window if hurries else min(self._window, PAUSED_WINDOW)
            room = window - len(self._waiting)
            is_due = hurries or now > sent_at + PAUSE_SECONDS
            if is_due and room > 0 and not self._stopping.is_set():
                lines = self._turn(room)
                sent_at = now
            try:
                self._sock.sendall(lines)
                self._receive()
            except (ConnectionError, ssl.SSLError):
                if not self._servers.are_several:
                    raise
                self._sock.close()
                self._connect()
            limit = time.monotonic() - ANSWER_SECONDS
            for number in [n for n, at in self._waiting.items() if at < limit]:
                self._late[number] = self._waiting.pop(number)

    def _are_due(self) -> bool:
        """Whether answers may still come."""
        limit = time.monotonic() - LATE_SECONDS
        return any(at > limit for at in (*self._waiting.values(), *self._late.values()))

    def _turn(self, count: int) -> bytes:
        lines = []
        for number in range(self.books.sent, self.books.sent + count):
            value = b"%d" % number
            line = f"PUB {self._subject} {self._inbox}.{number} {len(value)}\r\n".encode()
            lines.append(line + value + b"\r\n")
            self._waiting[number] = time.monotonic()
        self.books.sent += count
        return b"".join(lines)

    def _receive(self) -> None:
        try:
            chunk = self._sock.recv(1 << 16)
        except TimeoutError:
            return
        if not chunk:
            raise ConnectionError("NATS closed the connection")
        self._received += chunk
        while (end := self._received.find(b"\r\n")) >= 0:
            fields = self._received[:end].split()
            if fields[0] == b"PING":
                self._sock.sendall(b"PONG\r\n")
            if fields[0] != b"MSG":
                self._received = self._received[end + 2 :]
                continue
            stop = end + 2 + int(fields[-1])
            if len(self._received) < stop + 2:
                return
            self._answered(int(fields[1].rpartition(b".")[2]), self._received[end + 2 : stop])
            self._received = self._received[stop + 2 :]

    def _answered(self, number: int, payload: bytes) -> None:
        answer = json.loads(payload)
        self._waiting.pop(number, None)
        self._late.pop(number, None)
        if "error" in answer:
            self.books.nacked[number] = answer["error"]["description"]
        else:
            assert number not in self.books.acked, "a message was acknowledged twice"
            self.books.acked[number] = answer["seq"] - 1
            self.books.acked_at.append(time.monotonic())
