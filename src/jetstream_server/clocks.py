"""The clocks of a node, in µs. Whoever needs one is handed it: the simulation has its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def wall_clock_us() -> int:
    """The time of day: for people, and for the age of records."""
    return time.time_ns() // 1000


def monotonic_us() -> int:
    """For how long something takes; it stands still while the machine sleeps."""
    return time.monotonic_ns() // 1000


def session_clock_us() -> int:
    """Monotonic, and going on while the machine sleeps: a lease does not outlive a suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


@dataclass(frozen=True, slots=True)
class Clocks:
    """All three of them."""

    wall_us: Callable[[], int] = wall_clock_us
    now_us: Callable[[], int] = monotonic_us
    session_us: Callable[[], int] = session_clock_us
