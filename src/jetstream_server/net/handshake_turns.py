"""Whose TLS handshake goes on next, on a port where strangers may begin many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from jetstream_server.origins import origin_of

Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Around one step."""


class HandshakeTurns:
    """One step for each iteration of the loop: it takes some milliseconds. The networks take turns:
    whoever comes from another one waits for one step of each, however many it has begun."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._of_origin: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, host: str) -> Turn:
        """For the handshake with that host."""
        of_origin = self._of_origin.setdefault(origin_of(host), asyncio.Lock())
        return partial(self._step, of_origin)

    @asynccontextmanager
    async def _step(self, of_origin: asyncio.Lock) -> AsyncIterator[None]:
        async with of_origin, self._turn:
            try:
                yield
            finally:
                await asyncio.sleep(0)
