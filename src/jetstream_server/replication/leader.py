"""What the leader of a stream decides: the high watermark (design 7). No I/O, no clock.

Invariants. The high watermark never decreases within a leadership, never passes the position of
any in-sync replica, and does not move while the in-sync set is below its minimum. With flush
`group` a position is the *flushed* offset, the leader's own included; otherwise the log end.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_protocol.errors import NotEnoughReplicasError


class LeaderState:
    """One leadership of one stream: it begins with an epoch and ends with the object."""

    __slots__ = ("_counts_flushed", "_min_insync", "_node_id", "_positions", "high_watermark")

    def __init__(
        self,
        *,
        node_id: int,
        isr: Iterable[int],
        min_insync_replicas: int,
        counts_flushed: bool,
        high_watermark: int,
    ) -> None:
        self._node_id = node_id
        self._min_insync = min_insync_replicas
        self._counts_flushed = counts_flushed
        # A replica not heard of holds nothing yet, as far as this leadership knows.
        self._positions = dict.fromkeys(isr, high_watermark)
        self.high_watermark = high_watermark

    def check_can_append(self) -> None:
        """Raise NotEnoughReplicasError while level `all` cannot be promised."""
        if len(self._positions) < self._min_insync:
            raise NotEnoughReplicasError(
                f"{len(self._positions)} replicas are in sync, {self._min_insync} are needed; "
                "wait for a replica to catch up"
            )

    def moved(self, *, log_end_offset: int, flushed_offset: int) -> bool:
        """The leader's own log grew or was flushed. Returns whether the high watermark rose."""
        position = flushed_offset if self._counts_flushed else log_end_offset
        self._positions[self._node_id] = position
        return self._advance()

    def _advance(self) -> bool:
        if len(self._positions) < self._min_insync:
            return False
        committed = min(self._positions.values())
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
