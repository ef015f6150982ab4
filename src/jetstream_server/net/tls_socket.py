"""TLS over a non-blocking socket, with the socket methods that frames need.

`recv`, `recv_into`, `send` and `sendfile` behave like the plain socket's: they do what is possible
without waiting, or raise BlockingIOError. A failure of TLS is a TlsError. `sendfile` does not use
the kernel's: bytes are read and encrypted in this process, PIECE_BYTES at a time.

OpenSSL may hold decrypted bytes that have not been read yet. No event announces them: check
`pending` before you wait for the socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Any

from jetstream_server.net.certificates import reason
from jetstream_server.net.handshake_turns import Turn
from jetstream_server.net.tls import PeerIdentity, of_certificate
from jetstream_server.net.tls_records import RecordGate, TooManyRecordsError

PIECE_BYTES = 128 * 1024
"""Bytes encrypted at a time, and read from a file. A piece that a full socket did not take is read
again."""
CIPHERTEXT_BYTES = 64 * 1024
"""Bytes received at a time."""
RECEIVE_BYTES = 256 * 1024
"""Upper bound on one call. OpenSSL itself returns at most 16 KiB."""
PIECES_AT_ONCE = 32
"""Pieces of records that one call takes if they hold data: a peer may send one byte in each."""


class TlsError(ConnectionError):
    """reason: without the word TLS."""

    def __init__(self, error: ssl.SSLError | TooManyRecordsError) -> None:
        self.reason = reason(error) if isinstance(error, ssl.SSLError) else str(error)
        super().__init__(f"TLS: {self.reason}")


class TlsSocket:
    """Made by `handshake`. Owns the socket: `close` it. identity: the identity in the other end's
    certificate.

    OpenSSL reads and writes memory, not the socket: see tls_records.py."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        """sock: non-blocking. Call `shake_hands` until it returns."""
        self.identity: PeerIdentity | None = None
        self.context = context
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._gate = RecordGate()
        self._unsent = b""  # Encrypted; the socket has not taken it.
        self._owed = 0  # Bytes of the caller that are in it: to be reported once all is sent.

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def shutdown(self, how: int) -> None:
        """Close without TLS's close message: frame lengths show whether a frame is complete."""
        self._sock.shutdown(how)

    def say_goodbye(self) -> socket.socket:
        """Send TLS's close message, if the socket takes it at once. Returns the socket, which is
        the caller's from now on."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # The other end has not answered, and need not.
        self._flush_quietly()
        return self._sock

    def getpeername(self) -> tuple[str, int]:
        host, port, *_ = self._sock.getpeername()
        return host, port

    def getpeercert(self) -> dict[str, Any] | None:
        return self._tls.getpeercert()

    def pending(self) -> int:
        """Whether `recv` would return, or end, without the socket: 0 if not."""
        return self._tls.pending() or self._incoming.pending or int(self._gate.has_more)

    # Reading.

    @property
    def wants_to_send(self) -> bool:
        """Whether the socket has not taken all of what is encrypted."""
        return bool(self._unsent)

    def shake_hands(self) -> None:
        """Go on with the handshake. Raises BlockingIOError if it has to wait, and TlsError."""
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._flush()
                    if not self._take_in():
                        self._incoming.write_eof()
            self._flush()
        except (ssl.SSLError, TooManyRecordsError) as error:
            self._flush_quietly()  # Tell the other end why.
            raise TlsError(error) from error
        self._gate.shook_hands()
        self.identity = of_certificate(self._tls.getpeercert())

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self.recv_into(memoryview(buffer))])

    def recv_into(self, room: memoryview) -> int:
        """Like the socket's. What many short records hold is returned by several calls."""
        room = room[:RECEIVE_BYTES]
        received, pieces = 0, PIECES_AT_ONCE
        try:
            while received < len(room):
                try:
                    count = self._read(room[received:])
                except ssl.SSLWantReadError:
                    pieces -= 1
                    if received and not pieces:
                        break
                    if self._take_in():
                        continue
                    break  # The next call finds the end again.
                if not count:
                    break
                self._gate.had_data()
                received += count
        except BlockingIOError:
            if not received:
                raise
        except (ssl.SSLError, TooManyRecordsError) as error:
            raise TlsError(error) from error
        finally:
            if self._outgoing.pending:
                self._flush_quietly()
        return received

    def _read(self, room: memoryview) -> int:
        count: Any = self._tls.read(len(room), room)
        return int(count)

    def _take_in(self) -> bool:
        """Give OpenSSL more of what the other end sent. False: it has hung up. Raises
        BlockingIOError: there is no more yet."""
        if not self._gate.has_more:
            data = self._sock.recv(CIPHERTEXT_BYTES)
            if not data:
                return False
            self._gate.received(data)
            if not self._gate.has_more:
                raise BlockingIOError
        self._incoming.write(self._gate.take())
        return True

    # Writing.

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """Send what is possible without waiting. After a BlockingIOError the next call must begin
        with the same data, of which a part was sent. flags: ignored; they only divide data into
        packets."""
        self._flush()
        if self._owed:
            owed, self._owed = self._owed, 0
            return owed
        try:
            taken = self._tls.write(data[:PIECE_BYTES])
        except ssl.SSLError as error:
            raise TlsError(error) from error
        self._owed = taken
        self._flush()
        self._owed = 0
        return taken

    def _flush(self) -> None:
        """Send what is encrypted. Raises BlockingIOError unless the socket has taken all."""
        while self._unsent or self._outgoing.pending:
            data = self._unsent or self._outgoing.read()
            self._unsent = data  # Also if the socket takes nothing.
            self._unsent = data[self._sock.send(data) :]

    def _flush_quietly(self) -> None:
        """Flush as much as the socket takes: the rest is sent with the next data."""
        try:
            self._flush()
        except OSError:
            pass

    def sendfile(self, fd: int, position: int, length: int) -> int:
        """Like os.sendfile: returns 0 at the end of the file."""
        piece = os.pread(fd, min(length, PIECE_BYTES), position)
        return self.send(piece) if piece else 0


StreamSocket = socket.socket | TlsSocket


async def handshake(
    sock: socket.socket,
    context: ssl.SSLContext,
    timeout_s: float,
    *,
    server_side: bool,
    turn: Turn | None = None,
) -> TlsSocket:
    """Begin TLS on a connected, non-blocking socket, which the result then owns.

    turn: waits until this one may make a step, among those that unknown callers may begin in large
    numbers.

    Raises OSError, with the socket closed: TimeoutError, or TlsError for a failure of the other end
    or an unsuitable certificate.
    """
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = TlsSocket(sock, context, server_side=server_side)
        async with asyncio.timeout(timeout_s):
            await _shake_hands(secured, turn)
    except BaseException:
        sock.close()
        raise
    return secured


async def _shake_hands(sock: TlsSocket, turn: Turn | None) -> None:
    loop = asyncio.get_running_loop()
    fd = sock.fileno()
    while True:
        try:
            await _step(sock, turn)
            return
        except BlockingIOError:
            if sock.wants_to_send:
                add, remove = loop.add_writer, loop.remove_writer
            else:
                add, remove = loop.add_reader, loop.remove_reader
        ready = asyncio.Event()
        add(fd, ready.set)
        try:
            await ready.wait()
        finally:
            remove(fd)


async def _step(sock: TlsSocket, turn: Turn | None) -> None:
    if turn is None:
        sock.shake_hands()
        return
    async with turn():
        sock.shake_hands()
