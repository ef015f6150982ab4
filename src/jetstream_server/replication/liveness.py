"""Which follower nodes a leader node hears, whatever streams they follow.

A follower says something every half second, if only that it is there. One that has said nothing
for SILENCE_US most likely cannot be reached: every commit would wait for it until it is found to
lag. It leaves the ISR of what is led here then (`LeaderState.hear`), and may join again once heard.

No I/O, no clock. Times are µs of the leader's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_protocol.types import NodeId

SILENCE_US = 2_000_000
"""Longer than a session may be silent: a node that died is fenced by then, which needs no leader's
finding; and four times the pause between two signs of life."""
SLEEP_US = 1_000_000
"""Between two looks. After a longer pause it is this process that did not run."""


class Liveness:
    """Of the follower nodes, as of the last look."""

    __slots__ = ("_heard_at_us", "_looked_at_us", "_silent")

    def __init__(self) -> None:
        self._heard_at_us: dict[NodeId, int] = {}
        self._silent: dict[NodeId, None] = {}
        self._looked_at_us: int | None = None

    def heard(self, node_id: NodeId, now_us: int) -> None:
        """It said something."""
        self._heard_at_us[node_id] = now_us

    def is_silent(self, node_id: NodeId) -> bool:
        return node_id in self._silent

    def look(self, followers: Iterable[NodeId], now_us: int) -> list[NodeId]:
        """Look whether these are heard; returns those of whom that has changed. Whoever was not
        looked for the last time has just been heard."""
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
