"""Callbacks for every change of the metadata, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetstream_server.metadata.state.changes import Change

Watcher = Callable[[Change], None]


class Watchers:
    """Passes changes to callbacks on the loop, in order; a failing callback does not affect the
    others."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Watcher] = {}
        self._next = 0

    def add(self, callback: Watcher) -> Callable[[], None]:
        token = self._next
        self._next += 1
        self._callbacks[token] = callback

        def stop() -> None:
            self._callbacks.pop(token, None)

        return stop

    def notify(self, changes: list[Change]) -> None:
        # As loop callbacks they run in this order, each under the loop's exception handler, and
        # before the proposer that waits for the result continues.
        loop = asyncio.get_running_loop()
        for change in changes:
            for token in tuple(self._callbacks):
                loop.call_soon(self._call, token, change)

    def _call(self, token: int, change: Change) -> None:
        callback = self._callbacks.get(token)
        if callback is not None:
            callback(change)
