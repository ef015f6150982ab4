"""How many bytes several consumers may have fetched and not handed out, all together.

A fetch begins only while there is room, and asks for a share of it. So the sum exceeds the budget
by at most one share for each consumer, or by one batch where that is longer: a server sends whole
batches. Only bytes that have arrived count, and they are handed out next, so room comes back. What
a long poll has asked for does not count: an idle stream would block the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

BUFFER_BYTES = 64 * 1024 * 1024
"""Upper bound on the buffers of one member of a consumer group."""
_SHARE_MIN = 64 * 1024


class ByteBudget:
    """Belongs to one event loop. bytes_max: the budget."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._used: dict[Hashable, int] = {}  # by consumer
        self._sum = 0
        self._changed = asyncio.Event()

    @property
    def used(self) -> int:
        """Bytes that were fetched, and not handed out."""
        return self._sum

    def fetch_bytes(self, bytes_max: int) -> int:
        """What one fetch may bring, at most `bytes_max`: each consumer hands out one fetch while
        the next comes."""
        share = self.bytes_max // (2 * max(1, len(self._used)))
        return max(1, min(bytes_max, max(share, min(_SHARE_MIN, self.bytes_max))))

    def set_used(self, consumer: Hashable, count: int) -> None:
        """This consumer has so many bytes now."""
        before = self._used.get(consumer, 0)
        self._used[consumer] = count
        self._sum += count - before
        if count < before:
            self._changed.set()

    def remove(self, consumer: Hashable) -> None:
        """The consumer is closed."""
        self._sum -= self._used.pop(consumer, 0)
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Return once there is room."""
        while self._sum >= self.bytes_max:
            self._changed.clear()
            await self._changed.wait()
