"""An asyncio transport over a socket, plain or with TLS, for protocols of others (aiohttp's).

The loop's own would do: but **safety** it gives the protocol 256 KiB at a time, which is a tenth of
a second of work in chunks of one byte, and OpenSSL all that came, however many and short the
records are (tls_records.py). Whoever sends what nobody wants would hold the loop for everybody.

A closed socket is read on for a moment, and what comes is thrown away (`Lingering`): a program that
still sends its body reads the answer that it was refused with, and not only that it was hung up on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from jetstream_server.net.tls_socket import StreamSocket, TlsSocket

READ_BYTES = 16 * 1024
"""A piece of what was sent: a few milliseconds of the loop, whatever it holds."""
FIRST_BYTES = 1024
"""The first piece; each that follows may be twice as long. aiohttp writes into its error, which it
answers, what it cannot read: garbage of strangers costs a millisecond by READ_BYTES."""
WRITE_BYTES = 64 * 1024
HIGH_WATER = 64 * 1024
"""Unsent bytes from which on the protocol is asked to pause."""
LOOK_SECONDS = 0.1
"""How long after a read the socket is read once more, to see whether a reset followed."""
CLOSE_SECONDS = 30.0
"""How long the other end may take to read the unsent bytes of a closed transport."""
LINGER_SECONDS = 3.0
LINGERING_MAX = 64
_DISCARDED_BYTES = 64 * 1024


class Lingering:
    """Sockets that have sent everything. What the other ends still send is thrown away, until they
    hang up or LINGER_SECONDS have passed."""

    def __init__(self) -> None:
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}

    def take(self, sock: socket.socket) -> None:
        """Owns the socket from now on. Of more than LINGERING_MAX the oldest is closed."""
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()  # The other end has gone.
            return
        loop = asyncio.get_running_loop()
        if len(self._timers) >= LINGERING_MAX:
            self._close(next(iter(self._timers)))
        self._timers[sock] = loop.call_later(LINGER_SECONDS, self._close, sock)
        loop.add_reader(sock.fileno(), self._discard, sock)

    def _discard(self, sock: socket.socket) -> None:
        try:
            if sock.recv(_DISCARDED_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # It hung up: so it ends, too.
        self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        self._timers.pop(sock).cancel()
        asyncio.get_running_loop().remove_reader(sock.fileno())
        sock.close()

    def close(self) -> None:
        for sock in list(self._timers):
            self._close(sock)


class SocketTransport(asyncio.Transport):
    """Owns the socket, whose handshake is complete. lingering: takes it after `close`."""

    def __init__(
        self, sock: StreamSocket, protocol: asyncio.Protocol, lingering: Lingering
    ) -> None:
        """Raises OSError if the other end has gone already."""
        extra: dict[str, Any] = {"peername": sock.getpeername()}
        if isinstance(sock, TlsSocket):
            extra |= {"peercert": sock.getpeercert(), "sslcontext": sock.context}
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(extra)
        self._sock = sock
        self._lingering = lingering
        self._fd = sock.fileno()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._read_bytes = FIRST_BYTES
        self._is_paused = self._asked_to_pause = False
        self._is_closing = self._has_ended = False
        self._closing: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
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
        if self._is_pending():
            self._loop.remove_reader(self._fd)
            self._readable()
        else:
            self._loop.add_reader(self._fd, self._readable)

    def _is_pending(self) -> bool:
        return isinstance(self._sock, TlsSocket) and bool(self._sock.pending())

    def _readable(self) -> None:
        try:
            data = self._sock.recv(self._read_bytes)
        except BlockingIOError:
            data = None
        except OSError as error:
            self._end(error)
            return
        if data:
            self._read_bytes = min(2 * self._read_bytes, READ_BYTES)
            if self._looking is None:
                self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
            self._guarded(lambda: self._protocol.data_received(data))
        elif data is not None:
            self._guarded(self._protocol.eof_received)
            self.close()
            return
        if self.is_reading() and self._is_pending():
            self._loop.remove_reader(self._fd)
            self._loop.call_soon(self._go_on)
        elif self.is_reading():
            self._loop.add_reader(self._fd, self._readable)

    def _look(self) -> None:
        """Read once more in a while. After a reset uvloop calls once, and not again: if the call
        took the bytes before the reset, nothing else would tell it."""
        self._looking = None
        if self.is_reading():
            self._loop.remove_reader(self._fd)  # Of a reset one uvloop has closed its handle.
            self._readable()

    def _guarded(self, call: Callable[[], object]) -> None:
        """Call the protocol. An error of it ends this connection, and nothing else."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  as asyncio's transports do
            self._loop.call_exception_handler(
                {"message": "a protocol over a socket failed", "exception": error}
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
            self._end(None, lingers=True)

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
            self._end(None, lingers=True)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None, *, lingers: bool = False) -> None:
        if self._has_ended:
            return
        self._has_ended = self._is_closing = True
        for timer in (self._closing, self._looking):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        sock = self._sock
        if isinstance(sock, TlsSocket) and not self._unsent and error is None:
            sock = sock.say_goodbye()
        if lingers and not isinstance(sock, TlsSocket):
            self._lingering.take(sock)
        else:
            sock.close()
        self._loop.call_soon(self._protocol.connection_lost, error)
