"""Divides the work of long calls, so that it does not hold up the node's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Turns:
    """One turn at a time of the long calls, whatever the number of calls that share these turns. A
    call that needs no more than one turn waits for none: what comes together stays together."""

    def __init__(self, items: int) -> None:
        """items: handled in one turn."""
        self._items = items
        self._lock = asyncio.Lock()

    async def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """What `work` returns for each item, in order. Raises its errors."""
        if len(items) <= self._items:
            return list(map(work, items))
        results: list[Result] = []
        for start in range(0, len(items), self._items):
            async with self._lock:
                results += map(work, items[start : start + self._items])
                await asyncio.sleep(0)
        return results
