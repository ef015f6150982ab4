"""A machine's monotonic clock, which need not be right."""

from __future__ import annotations


class MonotonicClock:
    """Faster than others by `rate`, slower if that is negative. It stands still while the machine
    is suspended; what counts from the boot (`since_boot`) goes on. All in µs."""

    __slots__ = ("_rate", "_suspended_until", "_suspended_us")

    def __init__(self, rate: float = 0.0) -> None:
        self._rate = rate
        self._suspended_us = 0
        self._suspended_until = 0

    @property
    def is_right(self) -> bool:
        """It always was, and shows the time of the world."""
        return not self._rate and not self._suspended_us

    def suspend(self, now: int, until: int) -> None:
        """From now on: nothing runs on the machine before then."""
        since = max(now, self._suspended_until)
        self._suspended_us += max(until - since, 0)
        self._suspended_until = max(until, self._suspended_until)

    def read(self, now: int) -> int:
        awake_us = now - self._suspended_us
        return awake_us + int(awake_us * self._rate)

    def since_boot(self, now: int) -> int:
        return now + int(now * self._rate)

    def when(self, shown: float) -> float:
        """At which time of the world it shows that, if the machine stays awake."""
        return shown / (1.0 + self._rate) + self._suspended_us
