"""Closes gRPC connections from the server's side. gRPC's Python API has no call for it.

Why this is here, and only here: without it strangers could hold all connections, and whoever reads
nothing the memory of its answers (docs/adr/0035-strangers.md has what else was tried). A test tells
when gRPC's API has grown: tests/unit/serving/test_close_peer.py.

The peer's address, as gRPC gives it, identifies the connection among the descriptors of this
process. Shutting down the TCP connection looks like a network failure to gRPC: it cancels the calls
and frees their memory.

Looking takes two descriptors. They are kept for that: when there is none left, it is needed most.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from jetstream_server.disk_errors import lacks_descriptors

Address = tuple[str, int]

_KEPT = 2
_kept: list[int] = []
"""Descriptors that are given up while somebody looks."""


def close_peer(peer: str, port: int) -> bool:
    """Close the connection of `peer` ("ipv4:127.0.0.1:40000") to our `port`. Returns whether there
    was one. Raises OSError like `close_peers`."""
    return close_peers([peer], port) > 0


def close_peers(peers: Iterable[str], port: int) -> int:
    """Close several connections, and return how many there were.

    Looks at every descriptor of the process, some microseconds each: only for emergencies. Raises
    OSError if there is no descriptor left to look with: some are perhaps closed then.
    """
    found = map(address_of, peers)
    return close_addresses({address for address in found if address is not None}, port)


def close_addresses(wanted: set[Address], port: int) -> int:
    """Like `close_peers`, for peers as a socket gives them."""
    closed = 0

    def close(address: Address, sock: socket.socket) -> None:
        nonlocal closed
        if address in wanted:
            sock.shutdown(socket.SHUT_RDWR)
            closed += 1

    each_connection(port, close)
    return closed


def address_of(peer: str) -> Address | None:
    """Host and port of a peer, as a socket gives them; None: it has none."""
    host, _, digits = unquote(peer).partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(digits)) if digits.isdecimal() else None


def descriptors() -> list[int]:
    """The open descriptors of this process. Raises OSError if there is none left to look with."""
    try:
        found = os.listdir("/proc/self/fd")
    except OSError:
        with _room():
            found = os.listdir("/proc/self/fd")
    return sorted(map(int, found))


@contextmanager
def _room() -> Iterator[None]:
    """Gives up the kept descriptors for a moment."""
    with suppress(IndexError):
        while True:
            os.close(_kept.pop())
    try:
        yield
    finally:
        with suppress(OSError):  # Others have taken them: the next look takes them back.
            while len(_kept) < _KEPT:
                _kept.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))


def each_connection(port: int, do: Callable[[Address, socket.socket], None]) -> None:
    """Call `do` for each connection to our `port`, by descriptor, with the peer's address and a
    copy of the socket. An OSError that it raises means that the connection has ended meanwhile.
    Raises OSError if there is no descriptor left to look with."""
    numbers = descriptors()
    with _room():
        _each_of(numbers, port, do)


def _each_of(
    numbers: Iterable[int], port: int, do: Callable[[Address, socket.socket], None]
) -> None:
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            fd = os.dup(number)
        except OSError as error:
            if lacks_descriptors(error):
                raise
            continue  # The descriptor was closed meanwhile.
        try:
            sock = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)  # It is not a socket.
            continue
        with sock:
            try:
                host, peer_port = sock.getpeername()[:2]
                if sock.getsockname()[1] == port:
                    # gRPC listens on IPv6 for IPv4 as well, and does not say so elsewhere.
                    do((host.removeprefix("::ffff:"), peer_port), sock)
            except (OSError, ValueError):
                continue  # It is not connected, or of another family.
