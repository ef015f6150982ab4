"""The clocks of a node. They are passed in; the simulation has its own.

A clock is called `wall_clock`, `monotonic_clock` or `boot_clock`. A reading of the wall clock is
called `wall_us`, a reading of another clock `now_us`. Their types keep them apart (WallUs,
MonotonicUs and BootUs in jetstream_protocol/types.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from jetstream_protocol.types import BootUs, MonotonicUs, WallUs

WallClock = Callable[[], WallUs]
MonotonicClock = Callable[[], MonotonicUs]
BootClock = Callable[[], BootUs]

LOOP_SECONDS = 0.002
"""A bit more than the resolution of a uvloop timer. One of less is none: it has no `when`."""


def wall_clock() -> WallUs:
    """The time of day, in µs: for people, and for the age of records."""
    return WallUs(time.time_ns() // 1000)


def monotonic_clock() -> MonotonicUs:
    """µs for measuring durations. Stands still while the machine is suspended."""
    return MonotonicUs(time.monotonic_ns() // 1000)


def boot_clock() -> BootUs:
    """µs that go on while the machine is suspended, so that a lease does not outlive a
    suspension."""
    return BootUs(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The three clocks of a node."""

    wall: WallClock = wall_clock
    monotonic: MonotonicClock = monotonic_clock
    boot: BootClock = boot_clock
