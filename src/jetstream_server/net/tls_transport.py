"""An asyncio transport over a TlsSocket, for protocols of others (aiohttp's).

The loop's own would do: but it gives OpenSSL all that a read of the socket has brought, which holds
the loop for too long if the records are many and short (tls_records.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jetstream_server.net.tls_socket import TlsSocket

READ_BYTES = 64 * 1024
WRITE_BYTES = 64 * 1024
HIGH_WATER = 64 * 1024
"""Unsent bytes from which on the protocol is asked to pause."""
CLOSE_SECONDS = 30.0
"""How long the other end may take to read the unsent bytes of a closed transport."""


class TlsTransport(asyncio.Transport):
    """Owns the socket, whose handshake is complete."""

    def __init__(self, sock: TlsSocket, protocol: asyncio.Protocol) -> None:
        super().__init__(
            {
                "peername": sock.getpeername(),
                "peercert": sock.getpeercert(),
                "sslcontext": sock.context,
            }
        )
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._is_paused = self._asked_to_pause = False
        self._is_closing = self._has_ended = False
        self._closing: asyncio.TimerHandle | None = None
        protocol.connection_made(self)
        self._loop.call_soon(self._go_on)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # Reading.

    def is_reading(self) -> bool:
        return not (self._is_paused or self._is_closing)

    def pause_reading(self) -> None:
        self._is_paused = True
        self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Wait for the socket, or read what TLS has decrypted already."""
        if not self.is_reading():
            return
        if self._sock.pending():
            self._loop.remove_reader(self._fd)
            self._readable()
        else:
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            data = None
        except OSError as error:
            self._end(error)
            return
        if data:
            self._guarded(lambda: self._protocol.data_received(data))
        elif data is not None:
            self._guarded(self._protocol.eof_received)
            self.close()
            return
        if self.is_reading() and self._sock.pending():
            self._loop.remove_reader(self._fd)
            self._loop.call_soon(self._go_on)
        elif self.is_reading():
            self._loop.add_reader(self._fd, self._readable)

    def _guarded(self, call: Callable[[], object]) -> None:
        """Call the protocol. An error of it ends this connection, and nothing else."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  as asyncio's transports do
            self._loop.call_exception_handler(
                {"message": "a protocol over TLS failed", "exception": error}
            )
            self._end(error)

    # Writing.

    def write(self, data: Any) -> None:
        if self._is_closing or not data:
            return
        self._unsent += data
        if len(self._unsent) == len(data):
            self._flush()
        if len(self._unsent) > HIGH_WATER and not self._asked_to_pause:
            self._asked_to_pause = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def can_write_eof(self) -> bool:
        return False

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._sock.send(bytes(memoryview(self._unsent)[:WRITE_BYTES]))
                del self._unsent[:sent]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._flush)
            return
        except OSError as error:
            self._end(error)
            return
        self._loop.remove_writer(self._fd)
        if self._asked_to_pause:
            self._asked_to_pause = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._end(None)

    # The end.

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send what is unsent, and end."""
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.remove_reader(self._fd)
        if self._unsent:
            self._closing = self._loop.call_later(CLOSE_SECONDS, self.abort)
        else:
            self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._has_ended:
            return
        self._has_ended = self._is_closing = True
        if self._closing is not None:
            self._closing.cancel()
        if not self._unsent and error is None:
            self._sock.say_goodbye()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._loop.call_soon(self._protocol.connection_lost, error)
