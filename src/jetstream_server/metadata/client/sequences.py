"""Numbers the commands of this process, within bounds that let every retry find its result
(metadata/state/results.py)."""

from __future__ import annotations

import asyncio
from collections import deque

from jetstream_server.metadata.state.results import SPAN


class Sequences:
    """Numbers commands so that no pending one is SPAN or more behind the newest (results.py)."""

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[int, None] = {}
        self._waiting: deque[asyncio.Future[int]] = deque()

    async def take(self) -> int:
        if self._has_room() and not self._waiting:
            return self._number()
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result())
            raise

    def give_back(self, sequence: int) -> None:
        del self._open[sequence]
        while self._waiting and self._has_room():
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._number())

    def _has_room(self) -> bool:
        return not self._open or self._next - next(iter(self._open)) < SPAN

    def _number(self) -> int:
        sequence = self._next
        self._next += 1
        self._open[sequence] = None
        return sequence
