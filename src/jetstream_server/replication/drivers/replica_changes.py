"""Waits for a condition of a replica, such as its flushed offset, log start, or role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica


class ReplicaChanges(RoleListener):
    """Call `until`."""

    def __init__(self) -> None:
        self._waiting: dict[Replica, list[asyncio.Future[None]]] = {}

    async def until(self, replica: Replica, condition: Callable[[], bool]) -> None:
        """Return once `condition()` holds. It is called at once, and after every flush, failure,
        change of role and rise of the log start. Raises what the condition raises."""
        while not condition():
            changed = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(replica, []).append(changed)
            try:
                await changed
            finally:
                self._forget(replica, changed)

    def _forget(self, replica: Replica, changed: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(replica, [])
        with suppress(ValueError):  # It was removed when it was woken.
            waiting.remove(changed)
        if not waiting:
            self._waiting.pop(replica, None)

    def _wake(self, replica: Replica) -> None:
        for changed in self._waiting.pop(replica, ()):
            if not changed.done():
                changed.set_result(None)

    # A RoleListener.

    def role_changed(self, replica: Replica) -> None:
        self._wake(replica)

    def flushed(self, replica: Replica) -> None:
        self._wake(replica)

    def failed(self, replica: Replica) -> None:
        self._wake(replica)

    def log_start_rose(self, replica: Replica) -> None:
        self._wake(replica)
