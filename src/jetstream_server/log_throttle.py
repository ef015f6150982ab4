"""Limits repeated log lines, so that unknown callers cannot fill the disk."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEAT_SECONDS = 30.0
MESSAGES_MAX = 256
"""How many different messages are remembered. The oldest is forgotten first."""


class LogThrottle:
    """Allows the same message once in REPEAT_SECONDS."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made_at: dict[tuple[object, ...], float] = {}

    def is_due(self, *what: object) -> bool:
        """Whether to log a message now. what: the event and its subject, not the whole text."""
        now = self._clock()
        made_at = self._made_at.get(what)
        if made_at is not None and now - made_at < REPEAT_SECONDS:
            return False
        self._made_at.pop(what, None)
        self._made_at[what] = now
        if len(self._made_at) > MESSAGES_MAX:
            del self._made_at[next(iter(self._made_at))]
        return True

    def has_room_for(self, *what: object) -> bool:
        """Whether the message is remembered, or can be without forgetting one that is not due yet.
        Who asks this first logs at most MESSAGES_MAX different messages in REPEAT_SECONDS."""
        if what in self._made_at or len(self._made_at) < MESSAGES_MAX:
            return True
        return self._clock() - next(iter(self._made_at.values())) >= REPEAT_SECONDS
