"""A TCP connection to a host name that may stand for several addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from jetstream_protocol.host_names import impossible_host_error


async def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect, and return a non-blocking socket. Raises OSError, of which TimeoutError is one."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise impossible_host_error(host) from error
    return await dial_any([(each[0], each[4]) for each in found], timeout_s)


async def dial_any(
    places: Sequence[tuple[socket.AddressFamily, Any]], timeout_s: float
) -> socket.socket:
    """Connect to the first address that answers, in the order given. Raises OSError.

    The addresses share the time evenly, so that one that drops packets does not use up the time of
    the others.
    """
    loop = asyncio.get_running_loop()
    failure = OSError("the name has no address")
    for family, place in places:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # For example: this machine has no IPv6.
            failure = error
            continue
        sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s / len(places)):
                await loop.sock_connect(sock, place)
        except OSError as error:  # TimeoutError is one
            sock.close()
            failure = error
        except asyncio.CancelledError:
            sock.close()
            raise
        else:
            return sock
    raise failure
