"""The connections of the HTTP port, and which of them are closed.

At most CONNECTIONS_MAX. Above that, one is closed: of those without a request, if they are more
than a quarter, the oldest of the origin that has most; otherwise, of those that have had one, that
of the origin with most whose last request is longest ago. So neither silent clients nor those that
keep their connections keep others out: who comes has a place until it has asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from jetstream_server.origins import Strangers

CONNECTIONS_MAX = 192
SILENT_MAX = CONNECTIONS_MAX // 4
"""Connections without a request that may take the places of others."""
SILENT_SECONDS = 8.0
UNREAD_SECONDS = 30.0
"""Time after which a client that reads no answer is disconnected."""


class Connections:
    """Those that are open. `take` and `asked` are called for them, `look` is called again and
    again."""

    def __init__(self, refused: Counter[str]) -> None:
        """refused: counts the connections that were closed to make room."""
        self._refused = refused
        self._since: dict[asyncio.Transport, float] = {}
        self._silent: Strangers[asyncio.Transport] = Strangers()
        self._asked: Strangers[asyncio.Transport] = Strangers()  # longest ago first
        self._origins: dict[asyncio.Transport, str] = {}
        self._unread: dict[asyncio.Transport, tuple[int, float]] = {}  # how many bytes, since when

    def take(self, transport: asyncio.Transport, origin: str, now: float) -> None:
        """A new connection, which may make another one go."""
        self._origins[transport] = origin
        self._since[transport] = now
        self._silent.add(transport, origin)
        if len(self._origins) > CONNECTIONS_MAX:
            self._make_room()

    def asked(self, transport: asyncio.Transport) -> None:
        """Note a request."""
        origin = self._origins.get(transport)
        if origin is None:
            return
        self._silent.discard(transport)
        self._asked.discard(transport)
        self._asked.add(transport, origin)

    def look(self, now: float) -> None:
        """Close connections that have been silent, or have read nothing, for too long."""
        for transport in [each for each in self._origins if each.is_closing()]:
            self._forget(transport)
        for transport in list(self._origins):
            is_silent = transport in self._silent and now - self._since[transport] > SILENT_SECONDS
            if is_silent or self._reads_nothing(transport, now):
                self._forget(transport)
                transport.abort()

    def _reads_nothing(self, transport: asyncio.Transport, now: float) -> bool:
        """Whether as much is unsent as UNREAD_SECONDS ago."""
        size = transport.get_write_buffer_size()
        before, since = self._unread.get(transport, (0, now))
        if size and size == before:
            return now - since > UNREAD_SECONDS
        if size:
            self._unread[transport] = size, now
        else:
            self._unread.pop(transport, None)
        return False

    def _make_room(self) -> None:
        """Forget connections that have ended. If that is not enough, close some."""
        for transport in [each for each in self._origins if each.is_closing()]:
            self._forget(transport)
        while len(self._origins) > CONNECTIONS_MAX:
            first = self._asked.pop() if len(self._silent) <= SILENT_MAX else self._silent.pop()
            assert first is not None, "those that have asked are three quarters"
            self._forget(first)
            self._refused["http"] += 1
            first.abort()

    def _forget(self, transport: asyncio.Transport) -> None:
        del self._origins[transport]
        del self._since[transport]
        self._silent.discard(transport)
        self._asked.discard(transport)
        self._unread.pop(transport, None)
