"""Whether this node can serve the publishers of what it leads, and for how long it could or not.

It cannot while it does not hear NATS, or has no room on its disk. After PATIENCE_US of that its
leaderships go to nodes that can (resigning.py). One that could not a moment ago is given none for
the sake of balance before it has been able to for STEADY_US: else a connection that comes and goes
would take leaderships along, back and forth. Where others cannot, it is as good as any.

No I/O, no clock. Times are µs of a monotonic clock.
"""

from __future__ import annotations

PATIENCE_US = 300_000
"""More than one look: after a pause of this process nothing has been heard, and is about to be."""
STEADY_US = 10_000_000
"""A few times as long as it takes to notice that it is not."""


class Fitness:
    """`problem` says why not, as of the last look; "": it can."""

    __slots__ = ("_since_us", "problem")

    def __init__(self) -> None:
        self.problem = ""
        self._since_us: int | None = None  # None: it has always been as it is

    def look(self, problem: str, now_us: int) -> bool:
        """Look again. Returns whether it can serve now and could not before, or the reverse."""
        has_changed = bool(problem) != bool(self.problem)
        if has_changed:
            self._since_us = now_us
        self.problem = problem
        return has_changed

    def must_resign(self, now_us: int) -> bool:
        """Whether its leaderships are better led by others."""
        return bool(self.problem) and now_us - (self._since_us or 0) >= PATIENCE_US

    def is_steady(self, now_us: int) -> bool:
        """Whether it may be given leaderships that nobody has to give away."""
        if self.problem:
            return False
        return self._since_us is None or now_us - self._since_us >= STEADY_US
