"""Accepts all connections that wait at a listening socket in one iteration of the loop.

With one connection per iteration, a client at the end of a long backlog would wait for a minute
while iterations are long, and a client queued after hundreds of others would never be served.

Whoever connects is a stranger: no error of a connection ends the listener or makes it pause. Want
of descriptors makes it pause: the connections wait in the backlog meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

from jetstream_server.log_throttle import LogThrottle

AT_ONCE = 256
BACKLOG = 512
PAUSE_SECONDS = 0.1
"""Pause after an error, such as running out of descriptors."""

# Errors of the connection, not of the listener (accept(2)).
_CLIENT_HAS_LEFT = frozenset(
    {
        errno.ECONNABORTED, errno.ECONNRESET, errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT,
        errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENONET,
        errno.EOPNOTSUPP, errno.EINTR,
    }
)  # fmt: skip


async def accept_each(
    listener: socket.socket,
    take: Callable[[socket.socket], None],
    logger: structlog.stdlib.BoundLogger,
    at_once: int = AT_ONCE,
) -> None:
    """Pass each new connection, non-blocking, to `take`; at most `at_once` in one iteration of the
    loop. Runs until it is cancelled."""
    throttle = LogThrottle()
    while True:
        await _until_readable(listener)
        for _ in range(at_once):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                break  # All waiting connections were accepted.
            except OSError as error:
                if error.errno in _CLIENT_HAS_LEFT:
                    continue
                if throttle.is_due(error.errno):
                    logger.warning("accept_failed", error=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
                break
            _pass_on(sock, take, logger)


def _pass_on(
    sock: socket.socket,
    take: Callable[[socket.socket], None],
    logger: structlog.stdlib.BoundLogger,
) -> None:
    try:
        sock.setblocking(False)
        take(sock)
    except OSError:
        sock.close()  # The client has left already.
    except Exception as error:  # noqa: BLE001  a stranger: its connection ends, nothing else
        _failed(sock, error, logger)


def _failed(sock: socket.socket, error: Exception, logger: structlog.stdlib.BoundLogger) -> None:
    logger.error("connection_failed", exc_info=error)
    sock.close()


async def listen_on(host: str, port: int, backlog: int = BACKLOG) -> list[socket.socket]:
    """Listen on every address of the host of whose family this machine has any. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    try:
        for family, place in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                listener = socket.create_server(place, family=family, backlog=backlog)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                continue
            listeners.append(listener)
            listener.setblocking(False)
        if not listeners:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} has no address here")
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


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
