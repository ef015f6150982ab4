"""How many publishes may wait for acknowledgements at a time: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Belongs to one event loop. Whoever has a place passes it on."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """A place, if there is one: else `wait` for it."""
        if self._taken >= self._count_max:
            return False
        self._taken += 1
        return True

    async def wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.pass_on()  # The place was ours already.
            raise

    def pass_on(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1
