"""Which follower nodes a leader node hears, over all streams.

A follower sends something every half second, at least a keep-alive. If it has sent nothing for
SILENCE_US, it probably cannot be reached, and every commit would wait until it counts as lagging.
It then leaves the ISR of the streams led here (`LeaderState.hear`), and may join again once heard.

No I/O, no clock. Times are µs of the leader's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_protocol.types import MonotonicUs, NodeId

SILENCE_US = 2_000_000
"""Longer than a session may be silent, because a dead node is fenced anyway. Four times the
interval of keep-alives."""
SLEEP_US = 1_000_000
"""Longest time between two checks. After a longer one, this process did not run."""


class Liveness:
    """The follower nodes, as of the last check."""

    __slots__ = ("_heard_at_us", "_looked_at_us", "_silent")

    def __init__(self) -> None:
        self._heard_at_us: dict[NodeId, MonotonicUs] = {}
        self._silent: dict[NodeId, None] = {}
        self._looked_at_us: MonotonicUs | None = None

    def heard(self, node_id: NodeId, now_us: MonotonicUs) -> None:
        """Note that the node sent something."""
        self._heard_at_us[node_id] = now_us

    def is_silent(self, node_id: NodeId) -> bool:
        return node_id in self._silent

    def look(self, followers: Iterable[NodeId], now_us: MonotonicUs) -> list[NodeId]:
        """Check whether these nodes are heard, and return those whose state has changed. A node
        that was not in the last check counts as just heard."""
        looked_for = dict.fromkeys(followers)
        for table in (self._heard_at_us, self._silent):
            for node_id in [each for each in table if each not in looked_for]:
                del table[node_id]
        slept = self._looked_at_us is not None and now_us - self._looked_at_us > SLEEP_US
        self._looked_at_us = now_us
        changed = []
        for node_id in looked_for:
            heard_at_us = self._heard_at_us.setdefault(node_id, now_us)
            if slept and not self.is_silent(node_id):
                self._heard_at_us[node_id] = heard_at_us = now_us
            is_silent = now_us - heard_at_us > SILENCE_US
            if is_silent == self.is_silent(node_id):
                continue
            changed.append(node_id)
            if is_silent:
                self._silent[node_id] = None
            else:
                del self._silent[node_id]
        return changed
