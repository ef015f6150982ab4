"""Whose turn it is to copy, while the cluster limits copies: a queue of connections to followers.

    a stream has to be copied ─> `wait` ─> the debt is paid (copy_limit.py) ─> `copy_next` ─> `sent`

Each turn is one answer. A connection that has more to copy queues up again, at the end, and gives
its own streams their turns in the same way. So no follower and no stream can keep others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from jetstream_server.clocks import MonotonicClock
from jetstream_server.replication.core.copy_limit import CopyLimit

LOOK_SECONDS = 0.5
"""How long a connection waits at most before the limit, which may have changed, is looked at."""


class Copier(Protocol):
    """A connection to a follower."""

    def copy_next(self) -> None:
        """Send one answer, if there still is one, and queue up again if there are more."""


class CopyTurns:
    """The turns in which one node sends copies. Owned by the event loop."""

    def __init__(
        self, bytes_per_second: Callable[[], int], monotonic_clock: MonotonicClock
    ) -> None:
        """bytes_per_second: returns the limit; 0: none."""
        self._bytes_per_second = bytes_per_second
        self._limit = CopyLimit(bytes_per_second)
        self._clock = monotonic_clock
        self._waiting: dict[Copier, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._granting = False

    @property
    def are_limited(self) -> bool:
        return self._bytes_per_second() > 0

    def wait(self, copier: Copier) -> None:
        """Queue up, unless it waits already."""
        self._waiting.setdefault(copier)
        self._wake_later()

    def leave(self, copier: Copier) -> None:
        """Leave the queue: the connection is closed."""
        self._waiting.pop(copier, None)

    def sent(self, size: int) -> None:
        """Note bytes that are being sent."""
        self._limit.sent(size, self._clock())

    def _wake_later(self) -> None:
        if self._timer is None and self._waiting and not self._granting:
            wait_seconds = min(self._limit.wait_us(self._clock()) / 1e6, LOOK_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(wait_seconds, self._grant)

    def _grant(self) -> None:
        """Give turns until there is a debt. Who queues up meanwhile waits for the next time."""
        self._timer = None
        self._granting = True
        for copier in tuple(self._waiting):
            if self._limit.wait_us(self._clock()):
                break
            if copier in self._waiting:
                del self._waiting[copier]
                copier.copy_next()
        self._granting = False
        self._wake_later()
