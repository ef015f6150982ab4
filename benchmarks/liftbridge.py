"""Publishing to Liftbridge by PublishAsync of its gRPC API, which is what its clients use.

Its messages are written by hand: it takes three fields. An answer that begins with field 1 is an
ack; any other is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import grpc

CREATE = "/proto.API/CreateStream"
DELETE = "/proto.API/DeleteStream"
PUBLISH = "/proto.API/PublishAsync"
CALL_SECONDS = 30.0
ACK = b"\x0a"
"""Field 1, with a length."""
_ACK_OF_ALL = b"\x40\x01"
"""Field 8, ackPolicy: ALL."""


def _field(number: int, value: bytes) -> bytes:
    """A field with a length."""
    length, rest = b"", len(value)
    while rest > 0x7F:
        length += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return bytes([number << 3 | 2]) + length + bytes([rest]) + value


class Liftbridge:
    """A new stream, and one PublishAsync call into it; `close` deletes the stream."""

    def __init__(self, address: str, stream: str, replicas: int, window: int) -> None:
        """window: how many messages may be unacknowledged. Raises grpc.RpcError."""
        self._channel = cast(Any, grpc.insecure_channel(address))  # Its calls take bytes.
        self._stream = stream.encode()
        subject, name = _field(1, self._stream), _field(2, self._stream)
        request = subject + name + bytes([4 << 3, replicas])
        self._channel.unary_unary(CREATE)(request, timeout=CALL_SECONDS, wait_for_ready=True)
        self._window = window
        self._sent = self._acked = 0
        self._more = threading.Condition()
        self._failure = ""
        self._is_over = False
        self._values: list[bytes] = []
        self._answers = self._channel.stream_stream(PUBLISH)(self._requests())
        self._taking = threading.Thread(target=self._take, daemon=True)
        self._taking.start()

    def publish(self, value: bytes) -> None:
        """Blocks while the window is full. Raises RuntimeError if a message was not stored."""
        with self._more:
            self._more.wait_for(lambda: self._sent - self._acked < self._window or self._failure)
            self._check()
            self._values.append(value)
            self._sent += 1
            self._more.notify_all()

    def flush(self) -> None:
        """Wait for all acks. Raises RuntimeError, TimeoutError."""
        with self._more:
            if not self._more.wait_for(
                lambda: self._acked == self._sent or self._failure, CALL_SECONDS
            ):
                raise TimeoutError(f"{self._sent - self._acked} acks are missing")
            self._check()

    def close(self) -> None:
        with self._more:
            self._is_over = True
            self._more.notify_all()
        self._taking.join(CALL_SECONDS)
        self._channel.unary_unary(DELETE)(_field(1, self._stream), timeout=CALL_SECONDS)
        self._channel.close()

    def _check(self) -> None:
        if self._failure:
            raise RuntimeError(f"Liftbridge: {self._failure}")

    def _requests(self) -> Iterator[bytes]:
        stream = _field(3, self._stream)
        while True:
            with self._more:
                self._more.wait_for(lambda: self._values or self._is_over)
                values, self._values = self._values, []
            if not values:
                return
            for value in values:
                yield _field(2, value) + stream + _ACK_OF_ALL

    def _take(self) -> None:
        failure = "the call has ended"
        try:
            for answer in self._answers:
                if not answer.startswith(ACK):
                    failure = f"a message was refused: {answer!r}"
                    break
                with self._more:
                    self._acked += 1
                    self._more.notify_all()
        except grpc.RpcError as error:
            failure = str(error)
        with self._more:
            self._failure = failure
            self._more.notify_all()
