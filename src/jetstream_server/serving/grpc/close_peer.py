"""Closes one gRPC connection from the server's side. gRPC's Python API has no call for it.

The peer's address, as gRPC gives it, identifies the connection among the descriptors of this
process. Shutting down the TCP connection looks like a network failure to gRPC: it cancels the calls
and frees their memory.
"""

from __future__ import annotations

import os
import socket
from urllib.parse import unquote


def close_peer(peer: str, port: int) -> bool:
    """Close the connection of `peer` ("ipv4:127.0.0.1:40000") to our `port`; whether there was one.

    Looks at every descriptor of the process, some microseconds each: only for emergencies.
    """
    host, _, digits = unquote(peer).partition(":")[2].rpartition(":")
    if not digits.isdecimal():
        return False
    wanted = (host.strip("[]"), int(digits))
    ended = False
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = os.dup(int(name))
        except OSError:
            continue  # Closed meanwhile.
        ended = _shut_down(fd, wanted, port) or ended
    return ended


def _shut_down(fd: int, wanted: tuple[str, int], port: int) -> bool:
    """Shut the socket down if it is the right one; closes `fd`, which is a copy."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)  # Not a socket.
        return False
    with sock:
        try:
            host, peer_port = sock.getpeername()[:2]
            # gRPC listens on IPv6 for IPv4 as well, and does not say so in the peer's address.
            if (host.removeprefix("::ffff:"), peer_port) != wanted:
                return False
            if sock.getsockname()[1] != port:
                return False
            sock.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            return False  # Not connected, or of another family.
    return True
