"""Accepts connections: all that wait at a listening socket, in one iteration of the loop.

With one connection per iteration, the last of a backlog would wait for a minute when iterations are
long, and a caller behind hundreds of clients would never be served.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog

AT_ONCE = 256
PAUSE_SECONDS = 0.1
"""After an error: out of descriptors, for example."""


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
            continue  # None is left for now.
        except OSError as error:
            # Out of descriptors, or a client that left at once: neither ends the listener.
            logger.warning("accept_failed", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)


async def _until_readable(sock: socket.socket) -> None:
    """The loop's own `sock_accept` loses the connection that it has taken when it is cancelled."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
