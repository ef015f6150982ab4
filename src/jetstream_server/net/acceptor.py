"""Accepts all connections that wait at a listening socket in one iteration of the loop.

With one connection per iteration, a client at the end of a long backlog would wait for a minute
while iterations are long, and a client behind hundreds of others would never be served.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog

AT_ONCE = 256
PAUSE_SECONDS = 0.1
"""Pause after an error, such as running out of descriptors."""


async def accept_each(
    listener: socket.socket,
    take: Callable[[socket.socket], None],
    logger: structlog.stdlib.BoundLogger,
    at_once: int = AT_ONCE,
) -> None:
    """Pass each new connection, non-blocking, to `take`; at most `at_once` in one iteration of the
    loop. Runs until it is cancelled."""
    while True:
        await _until_readable(listener)
        try:
            for _ in range(at_once):
                sock, _ = listener.accept()
                sock.setblocking(False)
                take(sock)
        except BlockingIOError:
            continue  # All waiting connections were accepted.
        except OSError as error:
            # Out of descriptors, or the client has left already: neither ends the listener.
            logger.warning("accept_failed", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)


async def _until_readable(sock: socket.socket) -> None:
    """Wait for a connection. The loop's own `sock_accept` would lose an accepted connection when it
    is cancelled."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
