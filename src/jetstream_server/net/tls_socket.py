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

from jetstream_server.net.certificates import reason
from jetstream_server.net.tls import PeerIdentity, of_certificate

PIECE_BYTES = 128 * 1024
"""Bytes read from a file at a time. A piece that a full socket did not take is read again."""
RECEIVE_BYTES = 256 * 1024
"""Upper bound on one call. OpenSSL itself returns at most 16 KiB."""


class TlsError(ConnectionError):
    """reason: without the word TLS."""

    def __init__(self, error: ssl.SSLError) -> None:
        self.reason = reason(error)
        super().__init__(f"TLS: {self.reason}")


class TlsSocket:
    """Made by `handshake`. Owns the socket: `close` it. identity: the identity in the other end's
    certificate."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.identity: PeerIdentity | None = of_certificate(sock.getpeercert())

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def shutdown(self, how: int) -> None:
        """Close without TLS's close message: frame lengths show whether a frame is complete."""
        socket.socket.shutdown(self._sock, how)

    def getpeername(self) -> tuple[str, int]:
        host, port, *_ = self._sock.getpeername()
        return host, port

    def pending(self) -> int:
        """Bytes that `recv` would return at once."""
        try:
            return self._sock.pending()
        except ValueError:  # The socket is closed.
            return 0

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self.recv_into(memoryview(buffer))])

    def recv_into(self, room: memoryview) -> int:
        room = room[:RECEIVE_BYTES]
        received = 0
        while received < len(room):
            try:
                count = self._sock.recv_into(room[received:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not received:
                    raise BlockingIOError from error
                break
            except ssl.SSLError as error:
                raise TlsError(error) from error
            if not count:
                break  # The next call raises it again.
            received += count
        return received

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """Send what is possible without waiting. flags: ignored; they only divide data into
        packets."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        except ssl.SSLError as error:
            raise TlsError(error) from error

    def sendfile(self, fd: int, position: int, length: int) -> int:
        """Like os.sendfile: returns 0 at the end of the file."""
        piece = memoryview(os.pread(fd, min(length, PIECE_BYTES), position))
        sent = 0
        while sent < len(piece):
            try:
                sent += self.send(piece[sent:])
            except BlockingIOError:
                if not sent:
                    raise
                break
        return sent


StreamSocket = socket.socket | TlsSocket


async def handshake(
    sock: socket.socket,
    context: ssl.SSLContext,
    timeout_s: float,
    *,
    server_side: bool,
    turn: asyncio.Lock | None = None,
) -> TlsSocket:
    """Begin TLS on a connected, non-blocking socket, which the result then owns.

    turn: a lock shared by handshakes that unknown callers may begin in large numbers. One of them
    makes one step per iteration of the loop: a step takes some milliseconds.

    Raises OSError, with the socket closed: TimeoutError, or TlsError for a failure of the other end
    or an unsuitable certificate.
    """
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.getpeername()  # `wrap_socket` would not close the socket of a peer that has left.
        wrapped = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        async with asyncio.timeout(timeout_s):
            await _shake_hands(wrapped, turn)
        return TlsSocket(wrapped)
    except ssl.SSLError as error:
        wrapped.close()
        raise TlsError(error) from error
    except BaseException:
        wrapped.close()
        raise


async def _shake_hands(sock: ssl.SSLSocket, turn: asyncio.Lock | None) -> None:
    loop = asyncio.get_running_loop()
    fd = sock.fileno()
    while True:
        try:
            await _step(sock, turn)
            return
        except ssl.SSLWantReadError:
            add, remove = loop.add_reader, loop.remove_reader
        except ssl.SSLWantWriteError:
            add, remove = loop.add_writer, loop.remove_writer
        ready = asyncio.Event()
        add(fd, ready.set)
        try:
            await ready.wait()
        finally:
            remove(fd)


async def _step(sock: ssl.SSLSocket, turn: asyncio.Lock | None) -> None:
    if turn is None:
        sock.do_handshake()
        return
    async with turn:
        try:
            sock.do_handshake()
        finally:
            await asyncio.sleep(0)
