"""What attacks have in common: a target, steps drawn by seed, sockets that stay and say nothing."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

Step = Callable[[Random], None]

LINGERING_MAX = 150
SECONDS_MAX = 5.0
"""A server that leaves an attacker waiting for longer is given up on: that is its right."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where one server listens, and what it holds. `victims`: streams an attack may do all to.
    `token`: what attackers show; "" for strangers. `ca`: the authority of its certificates, PEM,
    where gRPC is spoken over TLS."""

    grpc: tuple[str, int]
    data: tuple[str, int]
    http: tuple[str, int]
    nats: tuple[str, int]
    raft: tuple[str, int]
    control: str
    bulk: str
    victims: tuple[str, ...]
    calls: tuple[str, int]
    """Where gRPC is spoken by a library: `grpc`, or the plain end of a tunnel to it."""
    token: str = ""
    ca: bytes | None = None


class Attack:
    """One way to be hostile. `steps` are drawn from; each ends by itself within seconds.
    lingering_max: connections that `linger` keeps."""

    lingering_max = LINGERING_MAX

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lingering: list[socket.socket] = []

    def steps(self) -> Sequence[Step]:
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything."""
        for sock in self._lingering:
            sock.close()
        self._lingering.clear()

    def linger(self, random: Random, sock: socket.socket) -> None:
        """Keep a connection open without another word, in place of an older one."""
        self._lingering.append(sock)
        while len(self._lingering) > self.lingering_max:
            self._lingering.pop(random.randrange(len(self._lingering))).close()


secured: dict[tuple[str, int], ssl.SSLContext] = {}
"""The ports that speak TLS. Of three connections to one of them two do as well."""
_connections = itertools.count()


def plain(address: tuple[str, int], *, receive_buffer: int = 0) -> socket.socket:
    """A connection without TLS, whatever is spoken there."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(SECONDS_MAX)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def connect(address: tuple[str, int], *, receive_buffer: int = 0) -> socket.socket:
    sock = plain(address, receive_buffer=receive_buffer)
    if address not in secured or next(_connections) % 3 == 0:
        return sock
    try:
        return secured[address].wrap_socket(sock, server_hostname="localhost")
    except OSError:
        sock.close()
        raise


def leave(random: Random, sock: socket.socket) -> None:
    """Close politely, or by a reset in the middle of everything."""
    if random.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def drain(sock: socket.socket, bytes_max: int = 1 << 20, seconds: float = 0.3) -> bytes:
    """What the server answers within a moment; b"" once it hung up."""
    sock.settimeout(seconds)
    received = b""
    try:
        while len(received) < bytes_max:
            chunk = sock.recv(65_536)
            if not chunk:
                break
            received += chunk
    except TimeoutError:
        pass  # It has nothing more to say.
    return received


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """Raises EOFError when the server hangs up before."""
    received = b""
    while len(received) < count:
        chunk = sock.recv(count - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return received


def send_in_pieces(random: Random, sock: socket.socket, data: bytes) -> None:
    """As a network would never do, except when asked to."""
    while data:
        size = random.choice((1, 2, 7, 64, 4096, len(data)))
        sock.sendall(data[:size])
        data = data[size:]
        if size < 64 and random.random() < 0.1:
            break  # The rest never comes.
