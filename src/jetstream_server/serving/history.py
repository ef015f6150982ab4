"""The last hour of a node's numbers, in bounded memory. Pure: the caller brings times and numbers.

A series has a place for each sample. All series share the times of the samples.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import TypeAlias

from jetstream_protocol.types import WallUs

EVERY_SECONDS = 15.0
SAMPLES = 240
"""An hour."""
SERIES_MAX = 4000
"""About 5 MB. More streams and cursors than fit are left out: those that came first stay."""

Key: TypeAlias = tuple[str | int, ...]
"""What a series is of, and last its name."""
_NEVER = -1


@dataclass(slots=True)
class _Series:
    """values: a ring, by the number of the sample. last: the number of its last sample. total: of
    a counter, as it was then."""

    values: array[float]
    last: int = _NEVER
    total: float = nan


class History:
    """`begin` a sample, `put` the numbers of it."""

    def __init__(self, samples: int = SAMPLES, series_max: int = SERIES_MAX) -> None:
        self._samples = samples
        self._series_max = series_max
        self._times: deque[WallUs] = deque(maxlen=samples)
        self._count = 0
        self._series: dict[Key, _Series] = {}
        self.left_out = 0
        """Numbers of the newest sample for which there was no room."""

    def begin(self, now_us: WallUs) -> None:
        """Begin the next sample, and forget series that have no number within the hour."""
        self._times.append(now_us)
        self._count += 1
        self.left_out = 0
        gone = self._count - self._samples
        self._series = {key: each for key, each in self._series.items() if each.last > gone}
        slot = self._count % self._samples
        for each in self._series.values():
            each.values[slot] = nan

    def put(self, key: Key, value: float) -> None:
        """Note a number of this sample."""
        series = self._found(key)
        if series is not None:
            series.values[self._count % self._samples] = value
            series.last = self._count

    def put_total(self, key: Key, total: float) -> None:
        """Note how much a counter has grown since the sample before, a second. One that shrinks has
        begun anew."""
        series = self._found(key)
        if series is None:
            return
        if series.last == self._count - 1 and total >= series.total:
            seconds = (self._times[-1] - self._times[-2]) / 1e6
            if seconds > 0:
                series.values[self._count % self._samples] = (total - series.total) / seconds
        series.last, series.total = self._count, total

    def _found(self, key: Key) -> _Series | None:
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._series_max:
                self.left_out += 1
                return None
            series = self._series[key] = _Series(array("f", [nan] * self._samples))
        return series

    @property
    def times(self) -> list[WallUs]:
        """Of the samples, the oldest first."""
        return list(self._times)

    def found(self, wanted: Callable[[Key], bool]) -> dict[Key, list[float]]:
        """The wanted series, a number for each of `times`; NaN: unknown."""
        known = len(self._times)
        slots = [(self._count - known + 1 + at) % self._samples for at in range(known)]
        return {
            key: [each.values[slot] for slot in slots]
            for key, each in self._series.items()
            if wanted(key)
        }
