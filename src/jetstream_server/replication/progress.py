"""What a leader knows of one follower: where it stands, and since when it keeps up.

The position is what counts for the high watermark: the follower's log end, or under flush `group`
what it has flushed. It is of one incarnation; **safety** a new incarnation may have lost what the
old one held, so nothing is carried over.
"""

from __future__ import annotations

NO_POSITION = -1
"""The follower has not been heard of: it holds nothing, as far as this leadership knows."""
ANY_EPOCH = -1
"""As `counts_from`: whatever it says under this leadership counts."""
NOT_AHEAD = -2
"""As `said_ahead`: it knows no metadata that the leader does not, as far as it has said."""


class FollowerProgress:
    """Times are µs of the leader's monotonic clock. counts_from: the stream epoch of the metadata
    from whose knowledge on what it says counts. counts: whether `position` was said since.
    said_ahead: the stream epoch of the metadata it was said by, if the leader has not applied
    that yet. is_silent: its node has not been heard for a while (liveness.py)."""

    __slots__ = (
        "_mark_at_us", "_mark_offset", "caught_up_at_us", "counts", "counts_from", "damaged",
        "incarnation", "is_silent", "position", "said_ahead",
    )  # fmt: skip

    def __init__(self, incarnation: int, now_us: int, counts_from: int) -> None:
        self.counts_from = counts_from
        self.damaged: tuple[int, int] | None = None
        self.is_silent = False
        self.renew(incarnation, now_us)

    def renew(self, incarnation: int, now_us: int) -> None:
        """Begin with another incarnation, of which nothing is known."""
        self.incarnation = incarnation
        self.position = NO_POSITION
        self.said_ahead = NOT_AHEAD
        self.counts = True
        self.caught_up_at_us = now_us
        self._mark_at_us = now_us
        self._mark_offset = 0

    def left(self, stream_epoch: int) -> None:
        """The metadata of that stream epoch has it no more in sync. **safety** It may not believe
        what it said it has: a failed fsync is told to the metadata, and what it had told the leader
        before may still be on the way. So what counts is what it says once it knows; which it may
        have known before its leader."""
        self.counts_from = stream_epoch
        self.counts = self.counts and self.said_ahead >= stream_epoch

    def learnt(self, stream_epoch: int) -> None:
        """The leader has applied metadata of that stream epoch."""
        if self.said_ahead <= stream_epoch:
            self.said_ahead = NOT_AHEAD

    def fetched(
        self, position: int, log_end_offset: int, now_us: int, said_ahead: int = NOT_AHEAD
    ) -> None:
        """It asked from `position` on, while the leader's log ended at `log_end_offset`."""
        if said_ahead < self.said_ahead:
            return  # It was overtaken on the way by what was said in better knowledge.
        is_in_better_knowledge = said_ahead > self.said_ahead
        self.said_ahead = said_ahead
        if position >= self._mark_offset:
            # It has everything that was there at the mark: then, it was caught up.
            self.caught_up_at_us = max(self.caught_up_at_us, self._mark_at_us)
            self._mark_at_us = now_us
            self._mark_offset = log_end_offset
        if position >= log_end_offset:
            self.caught_up_at_us = now_us
        # A request that was overtaken on the way tells of an earlier position.
        is_further = self.counts and not is_in_better_knowledge
        self.position = max(self.position, position) if is_further else position
        self.counts = True

    def copied(self, incarnation: int, position: int, now_us: int) -> None:
        """Its log is a copy that is complete up to there only: nothing of it counts yet."""
        if incarnation != self.incarnation:
            self.renew(incarnation, now_us)
        self.position = position
        self.counts = False

    def lags(self, log_end_offset: int, now_us: int, lag_max_us: int) -> bool:
        """Whether it has been behind for too long. One that has everything never is."""
        return self.position < log_end_offset and now_us - self.caught_up_at_us > lag_max_us

    def excuse(self, slept_us: int, now_us: int) -> None:
        """The leader itself did not look for so long: that is no fault of the follower."""
        self.caught_up_at_us = min(self.caught_up_at_us + slept_us, now_us)

    def ticked(self, log_end_offset: int, now_us: int) -> None:
        """Time went by. Who has everything asks for nothing more, and is caught up all along."""
        if self.position >= log_end_offset:
            self.caught_up_at_us = now_us
