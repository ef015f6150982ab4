"""Requests of unknown callers that wait for their turn, by origin: one origin never keeps others
out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from jetstream_protocol.errors import JetstreamError


class Waiting:
    """A request that waits. `turn` is done when its turn has come."""

    __slots__ = ("origin", "turn", "what")

    def __init__(self, origin: str, what: str) -> None:
        self.origin = origin
        self.what = what
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class WaitingRoom:
    """full: returns the error for a request that finds no room, or must make some."""

    def __init__(self, full: Callable[[], JetstreamError]) -> None:
        self._full = full
        self._by_origin: dict[str, dict[Waiting, None]] = {}  # whose turn is next comes first
        self._count = 0

    def __iter__(self) -> Iterator[Waiting]:
        return (each for waiting in self._by_origin.values() for each in waiting)

    def enter(self, origin: str, what: str, most: int) -> Waiting:
        """Wait for a turn. Of more than `most` requests, the newest one of the origin that has most
        gets the error. Call `leave` in the end."""
        if self._count >= most:
            crowd = max(self._by_origin.values(), key=len)
            if len(self._by_origin.get(origin, ())) >= len(crowd):
                raise self._full()
            newest = next(reversed(crowd))
            self.leave(newest)
            if not newest.turn.done():
                newest.turn.set_exception(self._full())
                newest.turn.exception()  # Mark it as retrieved: it may have been given up.
        waiting = Waiting(origin, what)
        self._by_origin.setdefault(origin, {})[waiting] = None
        self._count += 1
        return waiting

    def leave(self, waiting: Waiting) -> None:
        of_origin = self._by_origin.get(waiting.origin, {})
        if waiting not in of_origin:
            return
        del of_origin[waiting]
        self._count -= 1
        if not of_origin:
            del self._by_origin[waiting.origin]

    def take_next(self) -> Waiting | None:
        """Take out the request whose turn it is: each origin has its turn. None: no request
        waits."""
        for origin, waiting in self._by_origin.items():
            first = next(iter(waiting))
            self.leave(first)
            if waiting:
                self._by_origin[origin] = self._by_origin.pop(origin)
            return first
        return None
