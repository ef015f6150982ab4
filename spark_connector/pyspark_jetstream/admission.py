"""Decides when the next micro-batch runs and where it ends, by waiting records and limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the offsets in a micro-batch, over all streams; 0: no limit. max_delay: longest
    time in seconds that a batch waits for `offsets_min`."""

    offsets_max: int
    offsets_min: int
    max_delay: float


def admitted(
    starts: Mapping[int, int], latest: Mapping[int, int], offsets_max: int
) -> dict[int, int]:
    """The end of each stream: a share in proportion to the records that wait, as in Kafka's source.

    Every stream with records gets at least one, so that small streams do not starve beside large
    ones.
    """
    sizes = {number: max(0, end - starts.get(number, end)) for number, end in latest.items()}
    total = sum(sizes.values())
    if not offsets_max or total <= offsets_max:
        return dict(latest)
    return {
        number: starts[number] + max(1, sizes[number] * offsets_max // total)
        if sizes[number]
        else end
        for number, end in latest.items()
    }


def is_delayed(
    starts: Mapping[int, int], latest: Mapping[int, int], limits: Limits, waited: float
) -> bool:
    """Whether to wait for more records. waited: seconds since the last batch."""
    waiting = sum(max(0, end - starts.get(number, end)) for number, end in latest.items())
    return waiting < limits.offsets_min and waited < limits.max_delay


AT_ONCE_SECONDS = 0.1
"""Seconds. Without an interval, Spark asks again after 10 ms."""

AT_ONCE_TIMES = 2
"""Quick questions in a row. A trigger with an interval asks again at once after a batch that took
longer than the interval, but not twice."""


class Pace:
    """Whether Spark asks again at once after the answer that there is nothing new.

    Then this source has to wait. A trigger with an interval waits by itself, and Spark would warn
    that it falls behind if an answer took longer than the interval. Times are seconds of any clock.
    """

    def __init__(self) -> None:
        self._idle_at: float | None = None
        self._times = 0

    @property
    def is_pressing(self) -> bool:
        return self._times >= AT_ONCE_TIMES

    def asked(self, now: float) -> None:
        if self._idle_at is not None:
            self._times = self._times + 1 if now - self._idle_at < AT_ONCE_SECONDS else 0

    def answered(self, now: float, *, is_idle: bool) -> None:
        self._idle_at = now if is_idle else None
        if not is_idle and not self.is_pressing:
            self._times = 0
