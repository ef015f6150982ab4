"""Whose turn it is to write to a connection: one answer at a time, in the order of asking."""

from __future__ import annotations

import asyncio
from collections import deque


class SendingTurn:
    """Like asyncio.Lock, and can also be taken without a task."""

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take it if it is free. Returns whether it was taken; `give` it back then."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    def give(self) -> None:
        """Pass it on to the one that has waited longest."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._is_taken = False

    async def __aenter__(self) -> None:
        if self.take():
            return
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(passed)
        try:
            await passed
        except asyncio.CancelledError:
            if not passed.cancelled():
                self.give()  # It was passed to this task, which does not want it any more.
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give()
