"""How fast a node copies: how many bytes a second it sends to replicas that are not in sync.

Copies have no burst: whoever has sent more than its share waits until the time has paid for it. The
debt is kept in bytes, so a changed limit counts at once. No I/O, no clock: callers pass times (µs,
monotonic).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jetstream_protocol.types import MonotonicUs

CREDIT_US = 50_000
"""Idle time that may be saved up as burst credit, because timers fire late."""


class CopyLimit:
    """The state of one node, which all its followers share. bytes_per_second: returns the limit;
    0: none."""

    __slots__ = ("_bytes_per_second", "_debt", "_settled_at_us")

    def __init__(self, bytes_per_second: Callable[[], int]) -> None:
        self._bytes_per_second = bytes_per_second
        self._debt = 0.0  # bytes; below zero: credit
        self._settled_at_us = MonotonicUs(0)

    def wait_us(self, now_us: MonotonicUs) -> int:
        """Microseconds until more may be sent; 0: now."""
        rate = self._settle(now_us)
        return math.ceil(self._debt * 1e6 / rate) if rate and self._debt > 0 else 0

    def sent(self, size: int, now_us: MonotonicUs) -> None:
        """Note bytes that are being sent."""
        if self._settle(now_us):
            self._debt += size

    def _settle(self, now_us: MonotonicUs) -> int:
        """Pay for the time that has passed. Returns the limit."""
        rate = self._bytes_per_second()
        passed_us = max(now_us - self._settled_at_us, 0)
        self._settled_at_us = now_us
        left = self._debt - passed_us * rate / 1e6
        # Without a limit nothing is owed, and nothing is saved up.
        self._debt = max(left, -CREDIT_US * rate / 1e6) if rate else 0.0
        return rate
