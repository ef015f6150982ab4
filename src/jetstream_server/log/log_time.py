"""How much time has passed in a log, whatever wall clocks say: what message ids age by.

Append timestamps are the leaders' wall clocks, which may be hours apart. So the time between two
batches is told by what knows it:

    appended here, or fetched at once   this node's monotonic clock
    read back from disk, or copied      their timestamps, if one leader made both; else no time:
    long after they were appended       the difference may be that of two clocks
    since the last batch                this node's monotonic clock

Invariants.
* It never falls from batch to batch.
* **safety** It never runs ahead of real time, or what is remembered for a while would be forgotten
  early: message ids within their window. It may run behind: a node does not count the time in which
  it was down. (A wall clock that is set during a leadership misleads who copies the log later.)

The first batch has its own timestamp as its time; that is only an origin. No clock here: monotonic
times (µs) come in.
"""

from __future__ import annotations

from typing import NamedTuple

from jetstream_protocol.batch import BatchHeader
from jetstream_protocol.types import NO_EPOCH


class LogTimeImage(NamedTuple):
    """time_us: of the last batch that was looked at; timestamp, leader_epoch: its own."""

    time_us: int = 0
    timestamp: int = 0
    leader_epoch: int = NO_EPOCH


class LogTime:
    """Told of the batches that matter, in order; others may be left out."""

    __slots__ = ("_read_at_us", "image")

    def __init__(self, image: LogTimeImage | None = None) -> None:
        self.image = image or LogTimeImage()
        self._read_at_us: int | None = None  # monotonic, from when on time has passed here

    def now(self, now_us: int) -> int:
        """The log's time at this node's monotonic time."""
        if self._read_at_us is None:
            self._read_at_us = now_us
        return self.image.time_us + max(0, now_us - self._read_at_us)

    def appended(self, header: BatchHeader, now_us: int) -> int:
        """The time of a batch that has just been made."""
        time_us = header.append_timestamp if self._is_new else self.now(now_us)
        self._follow(header, time_us, now_us)
        return time_us

    def copied(self, header: BatchHeader) -> int:
        """The time of a batch that was made some time ago."""
        before = self.image
        time_us = header.append_timestamp if self._is_new else before.time_us
        if header.leader_epoch == before.leader_epoch:
            time_us += max(0, header.append_timestamp - before.timestamp)
        self._follow(header, time_us, None)
        return time_us

    @property
    def _is_new(self) -> bool:
        return self.image.leader_epoch == NO_EPOCH

    def _follow(self, header: BatchHeader, time_us: int, read_at_us: int | None) -> None:
        self.image = LogTimeImage(time_us, header.append_timestamp, header.leader_epoch)
        self._read_at_us = read_at_us
