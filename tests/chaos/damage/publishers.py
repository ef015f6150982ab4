"""Publishers with acks, and their books.

One thread publishes to all streams over one connection to NATS. Every message has an id. What is
not acknowledged, refused or unanswered, is published again under it, byte for byte, for ever; now
and then so is what was acknowledged, which must be told where it is and not stored again.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.chaos.damage.streams import Stream
from tests.support.nats_servers import NatsServers
from tests.support.sockets import is_readable

WINDOW = 8
"""Messages of a stream that wait for an answer at a time."""
RETRY_SECONDS = 1.0
REFUSED_SECONDS = 0.1
INBOX = "_INBOX.damage"


@dataclass
class Books:
    """What is known of one stream's messages, by their numbers."""

    sent: int = 0
    acked: dict[int, list[int]] = field(default_factory=dict)
    """The offsets its acks named: one, as long as all is well."""
    refusals: int = 0
    last_refusal: str = ""

    def note(self, number: int, offset: int) -> None:
        offsets = self.acked.setdefault(number, [])
        if offset not in offsets:
            offsets.append(offset)


class Publishers:
    """`start`, then `resume` and `pause` at will, and `close`.

    nats_urls: with commas between them. When one server closes the connection and there are others,
    the next is taken.
    """

    def __init__(
        self,
        nats_urls: str,
        streams: Sequence[Stream],
        pause_seconds: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._servers = NatsServers(nats_urls, first=1, tls=tls)
        self.books = {stream.name: Books() for stream in streams}
        self.failure = ""
        self._streams = {stream.name: stream for stream in streams}
        self.pause_seconds = pause_seconds
        self._due: dict[str, dict[int, float]] = {stream.name: {} for stream in streams}
        """When what is not answered is published again."""
        self._lock = threading.Lock()
        self._publishing = threading.Event()
        self._stopping = threading.Event()
        self._connect()
        self._thread = threading.Thread(target=self._guarded, name="publishers", daemon=True)

    def _connect(self) -> None:
        self._socket = self._servers.connect(
            b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
            b"SUB %b.> 1\r\n" % INBOX.encode()
        )
        self._received = b""

    def start(self) -> None:
        self._publishing.set()
        self._thread.start()

    def resume(self) -> None:
        self._publishing.set()

    def pause(self) -> None:
        """Nothing new is published; what is not acknowledged still is, again and again."""
        self._publishing.clear()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        self._socket.close()

    def waiting(self, name: str) -> int:
        """Messages of the stream that are not acknowledged."""
        with self._lock:
            return len(self._due[name])

    def repeat(self, name: str, dice: Random, count: int) -> None:
        """Publish again some of what was acknowledged."""
        with self._lock:
            known = sorted(self.books[name].acked)
            for number in dice.sample(known, min(count, len(known))):
                self._due[name].setdefault(number, 0.0)

    def acknowledged(self, name: str) -> int:
        return len(self.books[name].acked)

    # On the thread.

    def _guarded(self) -> None:
        try:
            self._run()
        except (OSError, AssertionError, ValueError, KeyError) as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _run(self) -> None:
        next_at = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= next_at:
                next_at = now + self.pause_seconds
                with self._lock:
                    lines = b"".join(self._turn(stream, now) for stream in self._streams.values())
            else:
                lines = b""
            try:
                self._socket.sendall(lines)
                self._receive()
            except (ConnectionError, TimeoutError, ssl.SSLError):
                if not self._servers.are_several:
                    raise
                self._socket.close()
                self._connect()

    def _turn(self, stream: Stream, now: float) -> bytes:
        """One new message if there is room, and what is to be sent again."""
        due, books = self._due[stream.name], self.books[stream.name]
        if self._publishing.is_set() and len(due) < WINDOW:
            due[books.sent] = 0.0
            books.sent += 1
        lines = []
        for number in sorted(number for number, at in due.items() if at <= now):
            due[number] = now + RETRY_SECONDS
            lines.append(_publish(stream, number))
        return b"".join(lines)

    def _receive(self) -> None:
        if not is_readable(self._socket, self.pause_seconds):
            return
        chunk = self._socket.recv(1 << 16)
        if not chunk:
            raise ConnectionError("NATS closed the connection")
        self._received += chunk
        while (end := self._received.find(b"\r\n")) >= 0:
            words = self._received[:end].split()
            if words[0] not in (b"MSG", b"HMSG"):
                if words[0] == b"PING":
                    self._socket.sendall(b"PONG\r\n")
                elif words[0] == b"-ERR":
                    raise OSError(self._received[:end].decode())
                self._received = self._received[end + 2 :]
                continue
            stop = end + 2 + int(words[-1])
            if len(self._received) < stop + 2:
                return
            payload = self._received[end + 2 : stop]
            self._received = self._received[stop + 2 :]
            self._answered(words[1].decode(), payload)

    def _answered(self, subject: str, payload: bytes) -> None:
        name, _, number = subject.removeprefix(f"{INBOX}.").rpartition(".")
        with self._lock:
            self._take(name, int(number), payload)

    def _take(self, name: str, number: int, payload: bytes) -> None:
        due, books = self._due[name], self.books[name]
        refusal = "no responders"
        if not payload.startswith(b"NATS/1.0"):
            answer = json.loads(payload)
            if "error" not in answer:
                books.note(number, answer["seq"] - 1)
                due.pop(number, None)
                return
            refusal = answer["error"]["description"]
        books.refusals += 1
        books.last_refusal = refusal
        if number in due:
            due[number] = time.monotonic() + REFUSED_SECONDS


def _publish(stream: Stream, number: int) -> bytes:
    key = stream.key(number)
    lines = [b"NATS/1.0", b"Nats-Msg-Id: %b-%d" % (stream.name.encode(), number)]
    if key is not None:
        lines.append(b"Jetstream-Key: %b" % key)
    block = b"\r\n".join([*lines, b"", b""])
    value = stream.value(number)
    head = (
        f"HPUB {stream.name} {INBOX}.{stream.name}.{number} {len(block)} {len(block) + len(value)}"
    )
    return head.encode() + b"\r\n" + block + value + b"\r\n"
