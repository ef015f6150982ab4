"""Closes gRPC connections from the server's side. gRPC's Python API has no call for it.

The peer's address, as gRPC gives it, identifies the connection among the descriptors of this
process. Shutting down the TCP connection looks like a network failure to gRPC: it cancels the calls
and frees their memory.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from urllib.parse import unquote


def close_peer(peer: str, port: int) -> bool:
    """Close the connection of `peer` ("ipv4:127.0.0.1:40000") to our `port`. Returns whether there
    was one."""
    return close_peers([peer], port) > 0


def close_peers(peers: Iterable[str], port: int) -> int:
    """Close several connections, and return how many there were.

    Looks at every descriptor of the process, some microseconds each: only for emergencies.
    """
    wanted = {address_of(peer) for peer in peers}
    closed = 0

    def close(address: tuple[str, int], sock: socket.socket) -> None:
        nonlocal closed
        if address in wanted:
            sock.shutdown(socket.SHUT_RDWR)
            closed += 1

    each_connection(port, close)
    return closed


def address_of(peer: str) -> tuple[str, int] | None:
    """Host and port of a peer, as a socket gives them; None: it has none."""
    host, _, digits = unquote(peer).partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(digits)) if digits.isdecimal() else None


def each_connection(port: int, do: Callable[[tuple[str, int], socket.socket], None]) -> None:
    """Call `do` for each connection to our `port`, by descriptor, with the peer's address and a
    copy of the socket. An OSError that it raises means that the connection has ended meanwhile."""
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            fd = os.dup(number)
        except OSError:
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
