"""What a stranger may do to a port before it is authenticated, with TLS or without."""

from __future__ import annotations

import random
import socket
import ssl
import struct
from collections.abc import Callable

from jetstream_server.metadata.raft.handshake import MAGIC

Stranger = Callable[[socket.socket], object]
"""Does something on a connection. Raises OSError when it was hung up on."""

H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("nobody has answered")


def half_open(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def reset_amid_the_handshake(sock: socket.socket) -> None:
    sock.sendall(client_hello())
    reset(sock)


STRANGERS: dict[str, Stranger] = {
    "silent": lambda sock: None,
    "a byte of TLS": lambda sock: sock.sendall(b"\x16"),
    "half a hello": lambda sock: sock.sendall(client_hello()[:100]),
    "an unfinished handshake": lambda sock: sock.sendall(client_hello()),
    "half open": half_open,
    "reset": reset,
    "reset amid the handshake": reset_amid_the_handshake,
    "garbage": lambda sock: sock.sendall(random.Random(1).randbytes(60_000)),
    "half an HTTP request": lambda sock: sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n"),
    "the preface of gRPC": lambda sock: sock.sendall(H2_PREFACE),
    "the magic of Raft": lambda sock: sock.sendall(MAGIC),
    "a frame of Raft of zeros": lambda sock: sock.sendall(MAGIC + bytes(200)),
}
