"""Which stream a member of a consumer group begins next, and when.

Pure: takes the time.

    assigned     ──(next)──> being begun ──> begun
         ^                        │
         └── after a pause ── failed

One stream is begun after the other, as long as that goes quickly: so streams that are taken away
meanwhile are not begun. A beginning that takes long holds no other up: from then on many are begun
at a time, and the reader goes on with what it has. A beginning that failed is repeated after a
pause that grows, and those that wait for longer come first.
"""

from __future__ import annotations

from collections.abc import Set

LONG_SECONDS = 3.0
"""A beginning that has not ended by then takes long."""
AT_A_TIME = 16
"""At most so many are begun at a time, once one takes long."""
_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 10.0


class Beginnings:
    """Of one member. missing: the streams that were assigned to it, and has not begun."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        """When each beginning was started."""
        self._failed: dict[int, tuple[int, float]] = {}
        """How often it failed, and when it may be begun again."""

    def only(self, missing: Set[int]) -> list[int]:
        """Forget the others: they were taken away, and begin anew if they come back. Returns those
        of them that are being begun."""
        for number in self._failed.keys() - missing:
            del self._failed[number]
        gone = sorted(self._since.keys() - missing)
        for number in gone:
            del self._since[number]
        return gone

    def next(self, missing: Set[int], now: float) -> int | None:
        """The stream to be begun now, which is being begun from now on; None: none."""
        ready = [each for each in missing - self._since.keys() if self._ready_at(each) <= now]
        if not ready or not self._has_place(now):
            return None
        number = min(ready, key=lambda each: (self._ready_at(each), each))
        self._since[number] = now
        return number

    def _ready_at(self, number: int) -> float:
        return self._failed[number][1] if number in self._failed else float("-inf")

    def _has_place(self, now: float) -> bool:
        takes_long = any(since + LONG_SECONDS <= now for since in self._since.values())
        return len(self._since) < (AT_A_TIME if takes_long else 1)

    def ended(self, number: int, now: float, *, has_failed: bool) -> None:
        """Note that the beginning of a stream has succeeded, or failed."""
        self._since.pop(number, None)
        if has_failed:
            count = self._failed.get(number, (0, 0.0))[0] + 1
            self._failed[number] = count, now + _pause(count)
        else:
            self._failed.pop(number, None)

    def is_awaited(self, now: float) -> bool:
        """Whether the reader should wait for what is being begun before it reads on: so that it
        mostly has all its streams at once. Not for what takes long, or has failed twice."""
        return any(
            now < since + LONG_SECONDS and self._failed.get(number, (0, 0.0))[0] < 2
            for number, since in self._since.items()
        )

    def due_at(self, missing: Set[int], now: float) -> float | None:
        """When to ask again, if nothing ends before; None: not."""
        times = [since + LONG_SECONDS for since in self._since.values()]
        times += [self._ready_at(each) for each in missing - self._since.keys()]
        return min((each for each in times if each > now), default=None)


def _pause(count: int) -> float:
    """After so many failures: none after the first, then ever more."""
    if count < 2:
        return 0.0
    return min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2.0 ** min(count - 1, 10))
