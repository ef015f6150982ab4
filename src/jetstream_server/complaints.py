"""Which complaints are worth a line in the log: strangers must not be able to fill the disk."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEAT_SECONDS = 30.0
COMPLAINTS_MAX = 256
"""Different ones that are remembered; the oldest goes first."""


class Complaints:
    """The same complaint is due once in REPEAT_SECONDS."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made_at: dict[tuple[object, ...], float] = {}

    def is_due(self, *what: object) -> bool:
        """Whether to say it now. `what`: the event and whom it is about, not all it could say."""
        now = self._clock()
        made_at = self._made_at.get(what)
        if made_at is not None and now - made_at < REPEAT_SECONDS:
            return False
        self._made_at.pop(what, None)
        self._made_at[what] = now
        if len(self._made_at) > COMPLAINTS_MAX:
            del self._made_at[next(iter(self._made_at))]
        return True
