"""TLS over a non-blocking socket, with the methods of a socket that frames need.

`recv`, `recv_into`, `send` and `sendfile` do what the plain socket's do: what they can without
waiting, else BlockingIOError. A failure of TLS is a ConnectionError. There is no sendfile of the
kernel's here: bytes are read and encrypted in this process, PIECE_BYTES at a time.

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
"""Read from a file at a time; the last one before a full socket is read again."""
RECEIVE_BYTES = 256 * 1024
"""Taken from one call at most. OpenSSL itself gives at most 16 KiB."""


class TlsSocket:
    """Made by `handshake`. Owns the socket: `close` it. identity: the other end's, by its
    certificate."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.identity: PeerIdentity | None = of_certificate(sock.getpeercert())

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def shutdown(self, how: int) -> None:
        """Without TLS's goodbye: lengths tell whether a frame is whole."""
        socket.socket.shutdown(self._sock, how)

    def getpeername(self) -> tuple[str, int]:
        host, port, *_ = self._sock.getpeername()
        return host, port

    def pending(self) -> int:
        """Bytes that `recv` would return at once."""
        try:
            return self._sock.pending()
        except ValueError:  # Closed.
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
                raise ConnectionError(f"TLS: {reason(error)}") from error
            if not count:
                break  # The next call says so again.
            received += count
        return received

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """flags: ignored. They only say how to divide what is sent into packets."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        except ssl.SSLError as error:
            raise ConnectionError(f"TLS: {reason(error)}") from error

    def sendfile(self, fd: int, position: int, length: int) -> int:
        """As os.sendfile: 0 at the end of the file."""
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
    """Begin TLS on a connected, non-blocking socket, which the answer owns then.

    turn: shared by handshakes of which strangers may begin many. One step of one of them is made
    in an iteration of the loop: it takes some milliseconds.

    Raises OSError, with the socket closed: TimeoutError, or ConnectionError for what the other end
    did or what its certificate lacks.
    """
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        raise ConnectionError(f"TLS: {reason(error)}") from error
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
