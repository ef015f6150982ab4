"""Whether this node can serve publishers, and since when.

It cannot while it does not hear NATS or has no free disk space. After PATIENCE_US its leaderships
go to nodes that can (resignation.py). A node that has recovered gets no leaderships for balance
until it has been able to serve for STEADY_US: otherwise an unstable connection would move
leaderships back and forth. If no other node can serve, the recovered node gets leaderships at once.

No I/O, no clock. Times are µs of a monotonic clock.
"""

from __future__ import annotations

from jetstream_protocol.types import MonotonicUs

PATIENCE_US = 300_000
"""Longer than one check: after a pause of this process, messages are about to arrive."""
STEADY_US = 10_000_000
"""A few times as long as it takes to notice a failure."""


class Fitness:
    """`problem`: why the node cannot serve, as of the last check; "" when it can."""

    __slots__ = ("_since_us", "problem")

    def __init__(self) -> None:
        self.problem = ""
        self._since_us: MonotonicUs | None = None  # None: it has not changed yet

    def look(self, problem: str, now_us: MonotonicUs) -> bool:
        """Record a check. Returns whether the answer has changed."""
        has_changed = bool(problem) != bool(self.problem)
        if has_changed:
            self._since_us = now_us
        self.problem = problem
        return has_changed

    def must_resign(self, now_us: MonotonicUs) -> bool:
        """Whether this node's leaderships should go to other nodes."""
        return bool(self.problem) and now_us - (self._since_us or 0) >= PATIENCE_US

    def is_steady(self, now_us: MonotonicUs) -> bool:
        """Whether this node may receive leaderships for balance."""
        if self.problem:
            return False
        return self._since_us is None or now_us - self._since_us >= STEADY_US
