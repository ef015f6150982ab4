"""A machine's monotonic clock, which need not be right."""

from __future__ import annotations


class MonotonicClock:
    """Faster than others by `rate`, slower if that is negative. It stands still while the machine
    is suspended; what counts from the boot (`since_boot`) goes on, but not when a hypervisor stops
    the machine, as if that time had never been. All in µs."""

    __slots__ = ("_rate", "_stopped_us", "_suspended_until", "_suspended_us")

    def __init__(self, rate: float = 0.0) -> None:
        self._rate = rate
        self._suspended_us = 0
        self._stopped_us = 0
        self._suspended_until = 0

    @property
    def is_right(self) -> bool:
        """It always was, and shows the time of the world."""
        return not self._rate and not self._suspended_us

    def suspend(self, now: int, until: int, *, by_hypervisor: bool = False) -> None:
        """From now on: nothing runs on the machine before then."""
        lasting_us = max(until - max(now, self._suspended_until), 0)
        self._suspended_us += lasting_us
        self._suspended_until = max(until, self._suspended_until)
        if by_hypervisor:
            self._stopped_us += lasting_us

    def read(self, now: int) -> int:
        awake_us = now - self._suspended_us
        return awake_us + int(awake_us * self._rate)

    def since_boot(self, now: int) -> int:
        counted_us = now - self._stopped_us
        return counted_us + int(counted_us * self._rate)

    def when(self, shown: float) -> float:
        """At which time of the world it shows that, if the machine stays awake."""
        return shown / (1.0 + self._rate) + self._suspended_us
