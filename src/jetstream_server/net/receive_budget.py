"""How many bytes of long frames a node receives at a time, over all its connections.

A producer's batch may have megabytes, and thousands of connections may each send one. What finds no
room is not read from its socket, so that its sender waits. No holder has more than its share while
it has several frames, so that one principal leaves the others theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

SHARES = 4
"""One holder may have one part in so many."""
_WOKEN = 16
"""So many try again when there is room: thousands may wait."""


class ReceiveBudget:
    """Belongs to the event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: Counter[str] = Counter()
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def held(self) -> int:
        """Bytes of frames that are being received."""
        return self._held.total()

    def take(self, holder: str, length: int, wake: Callable[[], None]) -> bool:
        """Count a frame of that length until it is given back. False: there is no room; `wake` is
        called once when there may be. A frame that is alone always has room."""
        held, own = self.held, self._held[holder]
        has_room = not held or held + length <= self._bytes_max
        if has_room and (not own or own + length <= self._bytes_max // SHARES):
            self._held[holder] += length
            return True
        self._waiting[wake] = None
        return False

    def give(self, holder: str, length: int) -> None:
        self._held[holder] -= length
        if not self._held[holder]:
            del self._held[holder]
        self._wake()

    def leave(self, wake: Callable[[], None]) -> None:
        """Wait no longer. It may have been woken and not have asked again: then others may."""
        self._waiting.pop(wake, None)
        self._wake()

    def _wake(self) -> None:
        for wake in list(islice(self._waiting, _WOKEN)):
            del self._waiting[wake]
            wake()
