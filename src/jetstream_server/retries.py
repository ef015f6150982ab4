"""When to try again what was refused: a table of due times, with pauses that grow.

    refused ─> waits for its due time ─> due: tried again ─┬─ refused: waits twice as long
                                                           └─ forgotten: it worked, or is over

`Retries` is pure: time and randomness are passed in. A key waits once, however often it is refused
meanwhile. `RetryTimer` lets the event loop look at it when a key is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from typing import Generic, TypeVar

from jetstream_server.clocks import LOOP_SECONDS

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Retry:
    pause: float
    due: float
    is_waiting: bool = True


class Retries(Generic[Key]):
    """Keys are tried again after `pause` seconds, then twice as many, up to `pause_max`."""

    def __init__(self, pause_max: float, random: Random | None = None) -> None:
        """random: shortens each pause by up to a half, so that what failed together does not come
        back together; None: pauses are exact."""
        self._pause_max = pause_max
        self._random = random
        self._retries: dict[Key, _Retry] = {}
        self._queue: list[tuple[float, int, Key]] = []
        self._number = 0

    def __len__(self) -> int:
        """How many keys have been refused and not forgotten."""
        return len(self._retries)

    def waits(self, key: Key) -> bool:
        """Whether the key is to be left alone until its due time."""
        retry = self._retries.get(key)
        return retry is not None and retry.is_waiting

    def refused(self, key: Key, now: float, pause: float) -> None:
        """Note a refusal. pause: of the first retry. A key that waits already goes on waiting."""
        known = self._retries.get(key)
        if known is not None and known.is_waiting:
            return
        if known is not None:
            pause = max(pause, min(2 * known.pause, self._pause_max))
        spread = 1.0 if self._random is None else self._random.uniform(0.5, 1.0)
        self._retries[key] = _Retry(pause, now + pause * spread)
        self._push(key)

    def forget(self, key: Key) -> None:
        """Its next refusal will be the first one."""
        self._retries.pop(key, None)

    def clear(self) -> None:
        self._retries.clear()
        self._queue.clear()

    @property
    def next_due(self) -> float | None:
        """When the next key is due; None: no key waits."""
        self._drop_stale()
        return self._queue[0][0] if self._queue else None

    def due(self, now: float) -> list[Key]:
        """The keys to try again now. They wait no longer."""
        found = []
        while (due := self.next_due) is not None and due <= now:
            _, _, key = heappop(self._queue)
            self._retries[key].is_waiting = False
            found.append(key)
        return found

    def _push(self, key: Key) -> None:
        self._number += 1
        heappush(self._queue, (self._retries[key].due, self._number, key))
        if len(self._queue) > 2 * len(self._retries) + 64:
            self._queue = [each for each in self._queue if self._is_current(each)]
            heapify(self._queue)

    def _drop_stale(self) -> None:
        """Forget the entries of keys that were forgotten meanwhile."""
        while self._queue and not self._is_current(self._queue[0]):
            heappop(self._queue)

    def _is_current(self, entry: tuple[float, int, Key]) -> bool:
        due, _, key = entry
        retry = self._retries.get(key)
        return retry is not None and retry.is_waiting and retry.due == due


class RetryTimer(Generic[Key]):
    """Calls `retry` with the keys that are due, on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        retries: Retries[Key],
        retry: Callable[[list[Key]], None],
    ) -> None:
        self._loop = loop
        self._retries = retries
        self._retry = retry
        self._timer: asyncio.TimerHandle | None = None

    def refused(self, key: Key, pause: float) -> None:
        """See `Retries.refused`."""
        self._retries.refused(key, self._loop.time(), pause)
        self._set()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        due = self._retries.next_due
        if due is None or (self._timer is not None and self._timer.when() <= due):
            return
        self.cancel()
        pause = max(due - self._loop.time(), LOOP_SECONDS)
        self._timer = self._loop.call_later(pause, self._is_due, due)

    def _is_due(self, due: float) -> None:
        self._timer = None
        # A loop may call a little early, by less than its clock shows.
        if keys := self._retries.due(max(due, self._loop.time())):
            self._retry(keys)
        self._set()
