"""How closely a follower follows its leader, as far as it knows itself.

The leader decides which replicas are in sync. It says nothing of observers, so an observer judges
by the answers that it gets. Readers use it (serving/long_poll.py); nothing that counts does.

No I/O, no clock. Times are µs of the follower's monotonic clock.
"""

from __future__ import annotations

from jetstream_protocol.types import MonotonicUs


class Closeness:
    """It begins, after each change of the leader and each lost connection, once the follower has
    everything committed that the leader has reported to it. It ends when the follower has lacked
    something for longer than `lag_max_us`."""

    __slots__ = ("_behind_since_us", "_is_in_touch", "_lag_max_us", "_leader_high_watermark")

    def __init__(self, lag_max_us: int) -> None:
        self._lag_max_us = lag_max_us
        self._leader_high_watermark = 0
        self._is_in_touch = False
        self._behind_since_us: MonotonicUs | None = None

    def limit_lag(self, lag_max_us: int) -> None:
        self._lag_max_us = lag_max_us

    def heard(self, high_watermark: int, log_end_offset: int, now_us: MonotonicUs) -> None:
        """Note the leader's high watermark in an answer that is about to be applied."""
        self._leader_high_watermark = high_watermark
        if high_watermark > log_end_offset and self._behind_since_us is None:
            self._behind_since_us = now_us

    def reached(self, log_end_offset: int) -> None:
        """Note that the answer was applied: the log ends there."""
        if log_end_offset >= self._leader_high_watermark:
            self._is_in_touch = True
            self._behind_since_us = None

    def lost(self) -> None:
        """Note that the leader is not heard any more, or is another one."""
        self._is_in_touch = False
        self._behind_since_us = None

    def holds(self, now_us: MonotonicUs) -> bool:
        since = self._behind_since_us
        return self._is_in_touch and (since is None or now_us - since <= self._lag_max_us)
