"""Measures how much time has passed in a log, independent of wall clocks. Message ids age by it.

Append timestamps come from the leaders' wall clocks, which may be hours apart. So the time between
two batches is taken from:

    appended here, or fetched at once   this node's monotonic clock; of several batches in one
                                        answer only the last one is new
    read back from disk, or copied      their timestamps, if one leader made both; else no time:
    long after they were appended       the difference may be that of two clocks
    since the last batch                this node's monotonic clock

Invariants.
* It never falls from batch to batch.
* **safety** It never runs ahead of real time: otherwise message ids would be forgotten within their
  window. It may run behind: a node does not count the time while it was down. (If a wall clock
  is set during a leadership, later copies of the log measure that time wrongly, and so does an
  answer with batches of before and after it.)

The time of the first batch is its own timestamp, only as an origin. This module reads no clock:
callers pass monotonic times (µs).
"""

from __future__ import annotations

from typing import NamedTuple, NewType

from jetstream_protocol.batch import BatchHeader
from jetstream_protocol.types import NO_EPOCH, MonotonicUs, WallUs

LogTimeUs = NewType("LogTimeUs", int)
"""The time of a log, in µs, see above. Only differences within one log have a meaning."""


class LogTimeImage(NamedTuple):
    """time_us: the log's time at the last batch that was looked at. timestamp, leader_epoch: of
    the newest batch that was looked at. **safety** That one may stand after the last one, if the
    log was cut, or the file `producers` was written while the log went on: the time up to it has
    been counted."""

    time_us: LogTimeUs = LogTimeUs(0)
    timestamp: WallUs = WallUs(0)
    leader_epoch: int = NO_EPOCH


def passed_between(one: BatchHeader, other: BatchHeader) -> int:
    """The µs between two batches of one leader; 0: they are of two."""
    if one.leader_epoch != other.leader_epoch:
        return 0
    return max(0, other.append_timestamp - one.append_timestamp)


class LogTime:
    """Receives the batches that matter, in order. Others may be left out."""

    __slots__ = ("_read_at_us", "image")

    def __init__(self, image: LogTimeImage | None = None) -> None:
        self.image = image or LogTimeImage()
        self._read_at_us: MonotonicUs | None = None  # from when on time has passed here

    def now(self, now_us: MonotonicUs) -> LogTimeUs:
        """The log's time when this node's clock shows `now_us`."""
        if self._read_at_us is None:
            self._read_at_us = now_us
        return LogTimeUs(self.image.time_us + max(0, now_us - self._read_at_us))

    def time_of_append(
        self, header: BatchHeader, now_us: MonotonicUs, age_us: int = 0
    ) -> LogTimeUs:
        """The time of a batch that was made `age_us` ago. **safety** That much must not count again
        when the batches after it are copied."""
        before_us = now_us if self._read_at_us is None else self._read_at_us
        made_us = max(before_us, MonotonicUs(now_us - age_us))
        time_us = self._origin(header) if self._is_new else self.now(made_us)
        self._follow(header, time_us, made_us)
        return time_us

    def time_of_copy(self, header: BatchHeader) -> LogTimeUs:
        """The time of a batch that was made some time ago."""
        before = self.image
        time_us = self._origin(header) if self._is_new else before.time_us
        if header.leader_epoch == before.leader_epoch:
            passed_us = max(0, header.append_timestamp - before.timestamp)
            time_us = LogTimeUs(time_us + passed_us)
        self._follow(header, time_us, None)
        return time_us

    @property
    def _is_new(self) -> bool:
        return self.image.leader_epoch == NO_EPOCH

    @staticmethod
    def _origin(header: BatchHeader) -> LogTimeUs:
        return LogTimeUs(header.append_timestamp)

    def _follow(
        self, header: BatchHeader, time_us: LogTimeUs, read_at_us: MonotonicUs | None
    ) -> None:
        before, epoch, timestamp = self.image, header.leader_epoch, header.append_timestamp
        if (epoch, timestamp) < (before.leader_epoch, before.timestamp):
            epoch, timestamp = before.leader_epoch, before.timestamp
        self.image = LogTimeImage(time_us, timestamp, epoch)
        self._read_at_us = read_at_us
