"""The ingest load: publish with reply, a bounded number unacknowledged, count the acks.

One process, one raw socket, identical bytes for every server under test. The messages are prepared
once and sent in runs, and acks are counted without parsing them, so the loader takes little of the
processor that it shares with the servers. Prints one JSON object. Run by `benchmarks.ingest`.

    python -m benchmarks.load --port 4222 --subject bench.load --size 128 --seconds 4
"""

from __future__ import annotations

import argparse
import json
import random
import select
import time
from typing import NamedTuple

from benchmarks.nats_socket import RECEIVE_BYTES, NatsSocket

WINDOW = 16_384
RUN = 256
"""Messages written at once: few system calls, and small against the window."""
WARM_UP_MESSAGES = 20_000
STALL_SECONDS = 30.0
_ACK = b'"seq"'
_NACK = b'"error"'


class Result(NamedTuple):
    messages: int
    seconds: float
    """From the first byte sent to the last ack received."""
    processor_seconds: float
    """Of this process, within these seconds."""


class Loader:
    """One connection and its prepared messages."""

    def __init__(self, client: NatsSocket, subject: str, size: int, window: int = WINDOW) -> None:
        inbox = "_INBOX.benchmark.load"
        payload = random.Random(size).randbytes(size)
        message = f"PUB {subject} {inbox} {size}\r\n".encode() + payload + b"\r\n"
        client.subscribe(inbox, 1)
        self._socket = client.socket
        self._socket.setblocking(False)
        self._run = memoryview(message * RUN)
        self._message_length = len(message)
        self._window = window
        self._tail = b""

    def drive(self, messages: int | None, seconds: float | None) -> Result:
        """Publish that many, or for that long, and wait for every ack.

        Raises RuntimeError for a refused message, TimeoutError when acks stop coming.
        """
        sent = acked = 0
        out = self._run[:0]
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        start, processor = time.perf_counter(), time.process_time()
        end = start + seconds if seconds is not None else float("inf")
        limit = messages if messages is not None else float("inf")
        while acked < limit:
            room = sent < limit and sent - acked + RUN <= self._window
            if not out and room and time.perf_counter() >= end:
                limit = sent
                continue
            if not out and room:
                count = int(min(RUN, limit - sent))
                out = self._run[: count * self._message_length]
                sent += count
            if out:
                out = self._send(out)
            more = not out and sent < limit and sent - acked + RUN <= self._window
            poller.modify(self._socket, select.POLLIN | (select.POLLOUT if out else 0))
            ready = poller.poll(0 if more else STALL_SECONDS * 1000)
            if not ready and not more:
                raise TimeoutError(f"{sent - acked} acks missing after {STALL_SECONDS:g} s")
            if ready and ready[0][1] & ~select.POLLOUT:
                acked += self._receive_acks()
        return Result(acked, time.perf_counter() - start, time.process_time() - processor)

    def _send(self, out: memoryview) -> memoryview:
        """What the socket did not take."""
        try:
            return out[self._socket.send(out) :]
        except BlockingIOError:
            return out

    def _receive_acks(self) -> int:
        """How many acks arrived. Raises RuntimeError for a nack or a lost connection."""
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise RuntimeError("the NATS server closed the connection")
        text = self._tail + data
        if _NACK in text or b"-ERR" in text or b" 503\r\n" in text:
            raise RuntimeError(f"a message was refused: {text[-300:]!r}")
        self._tail = text[1 - len(_ACK) :]  # Too short to hold a whole mark.
        return text.count(_ACK)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--warm-up", type=int, default=WARM_UP_MESSAGES)
    options = parser.parse_args()
    if (options.seconds is None) == (options.messages is None):
        parser.error("give --seconds or --messages")
    with NatsSocket(options.host, options.port) as client:
        loader = Loader(client, options.subject, options.size)
        if options.warm_up:
            loader.drive(options.warm_up, None)
        result = loader.drive(options.messages, options.seconds)
    print(json.dumps(result._asdict() | {"warm_up": options.warm_up}))


if __name__ == "__main__":
    main()
