"""A stream of bytes over a non-blocking socket, plain or with TLS.

Nothing that the other end does raises anything but EOFError and OSError, and only to whoever reads
or waits: no error reaches the event loop.
"""

from __future__ import annotations

import asyncio
import socket

from jetstream_server.net.frame_socket import peer_of
from jetstream_server.net.tls import PeerIdentity
from jetstream_server.net.tls_socket import StreamSocket, TlsSocket

READ_BYTES = 64 * 1024
WRITE_BYTES = 256 * 1024
"""Bytes given to the socket at a time."""
CHUNKS_MAX = 4
"""Reads in a row without a turn for others."""


class ByteStream:
    """Owns the socket: `close` it. One task reads at a time."""

    def __init__(self, sock: StreamSocket) -> None:
        self.bytes_received = 0
        if not isinstance(sock, TlsSocket):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._unsent = bytearray()
        self._failure: Exception | None = None
        self._reading: asyncio.Future[None] | None = None
        self._is_watched = self._is_writing = False
        self._chunks = 0
        self._sending: asyncio.Future[None] | None = None

    @property
    def peer(self) -> str:
        """The other end's host; "" when it has gone."""
        return peer_of(self._sock)

    @property
    def peer_identity(self) -> PeerIdentity | None:
        """Identity in the other end's certificate; None without TLS or without a certificate."""
        return self._sock.identity if isinstance(self._sock, TlsSocket) else None

    @property
    def is_closed(self) -> bool:
        return self._failure is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return len(self._unsent)

    async def read_exactly(self, length: int) -> bytes:
        """The next bytes. Raises EOFError or OSError when the stream ends before."""
        while len(self._received) < length:
            await self._receive()
        data = bytes(memoryview(self._received)[:length])
        del self._received[:length]
        return data

    async def read_to_end(self) -> None:
        """Wait until the other end hangs up; drop what it sends."""
        try:
            while True:
                self._received.clear()
                await self._receive()
        except EOFError:
            pass

    async def _receive(self) -> None:
        """Read once. Other tasks get a turn, however much there is to read."""
        if self._failure is not None:
            raise self._failure
        try:
            chunk = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            await self._readable()
            return
        if not chunk:
            raise EOFError("the other end hung up")
        self._received += chunk
        self.bytes_received += len(chunk)
        self._chunks += 1
        if self._chunks >= CHUNKS_MAX:
            self._chunks = 0
            await asyncio.sleep(0)

    async def _readable(self) -> None:
        """Wait for bytes. The socket stays watched meanwhile and afterwards, until bytes come that
        no task waits for."""
        self._chunks = 0
        self._reading = ready = self._loop.create_future()
        if not self._is_watched:
            self._is_watched = True
            self._loop.add_reader(self._sock.fileno(), self._bytes_came)
        try:
            await ready
        finally:
            self._reading = None

    def _bytes_came(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)
        else:
            self._is_watched = False
            self._loop.remove_reader(self._sock.fileno())

    def write(self, data: bytes) -> None:
        """Send the data, after all before it. It is dropped if the stream has ended."""
        if self._failure is not None:
            return
        self._unsent += data
        if len(self._unsent) == len(data):
            self._flush()

    async def sent(self) -> None:
        """Wait until the socket has taken everything. Raises EOFError or OSError when the stream
        ends before."""
        while self._unsent:
            self._sending = ready = self._loop.create_future()
            await ready
        if self._failure is not None:
            raise self._failure

    def _flush(self) -> None:
        fd = self._sock.fileno()
        try:
            while self._unsent:
                with memoryview(self._unsent)[:WRITE_BYTES] as piece:
                    sent = self._sock.send(piece)
                del self._unsent[:sent]
        except BlockingIOError:
            self._is_writing = True
            self._loop.add_writer(fd, self._flush)
            return
        except OSError as error:
            self._fail(error)
            return
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(fd)
        if self._sending is not None:
            _wake(self._sending)

    def close_sending(self) -> None:
        """Tell the other end that no more follows. Whatever was sent reaches it."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # It has gone.

    def close(self) -> None:
        """End the stream at once. Whoever reads or waits gets an EOFError."""
        self._fail(EOFError("the connection was closed here"))

    def _fail(self, failure: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self._unsent.clear()
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        self._sock.close()
        for waiting in (self._reading, self._sending):
            if waiting is not None:
                _wake(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
