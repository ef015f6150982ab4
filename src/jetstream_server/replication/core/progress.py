"""A leader's knowledge of one follower: its position, and since when it keeps up.

The position counts for the high watermark: it is the follower's log end, or its flushed offset
under flush `group`. It belongs to one incarnation. **safety** A new incarnation may have lost
records of the old one, so nothing is carried over.
"""

from __future__ import annotations

from jetstream_protocol.types import MonotonicUs

NO_POSITION = -1
"""Nothing is known of the follower: it counts as holding nothing."""
ANY_EPOCH = -1
"""As `counts_from`: every position in this leadership counts."""
NOT_AHEAD = -2
"""As `reported_ahead`: the follower has reported no metadata that the leader does not know."""


class FollowerProgress:
    """Times are µs of the leader's monotonic clock. counts_from: positions count from this stream
    epoch on. counts: whether `position` was sent since. reported_ahead: the stream epoch with which
    it was sent, if the leader has not applied that one yet. is_silent: its node was not heard for a
    while (liveness.py). cannot_append: it says so."""

    __slots__ = (
        "_mark_at_us", "_mark_offset", "cannot_append", "caught_up_at_us", "counts",
        "counts_from", "damaged", "incarnation", "is_silent", "position", "reported_ahead",
    )  # fmt: skip

    def __init__(self, incarnation: int, now_us: MonotonicUs, counts_from: int) -> None:
        self.counts_from = counts_from
        self.damaged: tuple[int, int] | None = None
        self.is_silent = False
        self.cannot_append = False
        self.renew(incarnation, now_us)

    def renew(self, incarnation: int, now_us: MonotonicUs) -> None:
        """Begin with a new incarnation, of which nothing is known."""
        self.incarnation = incarnation
        self.position = NO_POSITION
        self.reported_ahead = NOT_AHEAD
        self.counts = True
        self.caught_up_at_us = now_us
        self._mark_at_us = now_us
        self._mark_offset = 0

    def left(self, stream_epoch: int) -> None:
        """Note that metadata of that stream epoch has removed the follower from the ISR.

        **safety** The follower may distrust its earlier positions: it reports a failed fsync to the
        metadata, while an earlier position may still be in flight to the leader. So only positions
        count that it sent after it had applied this metadata, perhaps before its leader did.
        """
        self.counts_from = stream_epoch
        self.counts = self.counts and self.reported_ahead >= stream_epoch

    def learnt(self, stream_epoch: int) -> None:
        """Note that the leader has applied metadata of that stream epoch."""
        if self.reported_ahead <= stream_epoch:
            self.reported_ahead = NOT_AHEAD

    def fetched(
        self,
        position: int,
        log_end_offset: int,
        now_us: MonotonicUs,
        reported_ahead: int = NOT_AHEAD,
    ) -> None:
        """Note a fetch from `position` on, while the leader's log ended at `log_end_offset`."""
        if reported_ahead < self.reported_ahead:
            return  # A request with later metadata has overtaken this one.
        is_in_better_knowledge = reported_ahead > self.reported_ahead
        self.reported_ahead = reported_ahead
        if position >= self._mark_offset:
            # It has everything up to the mark, so it was caught up at that time.
            self.caught_up_at_us = max(self.caught_up_at_us, self._mark_at_us)
            self._mark_at_us = now_us
            self._mark_offset = log_end_offset
        if position >= log_end_offset:
            self.caught_up_at_us = now_us
        # A late request carries an earlier position.
        is_further = self.counts and not is_in_better_knowledge
        self.position = max(self.position, position) if is_further else position
        self.counts = True

    def copied(self, incarnation: int, position: int, now_us: MonotonicUs) -> None:
        """Note a position of an incomplete copy: it does not count yet."""
        if incarnation != self.incarnation:
            self.renew(incarnation, now_us)
        self.position = position
        self.counts = False

    def lags(self, log_end_offset: int, now_us: MonotonicUs, lag_max_us: int) -> bool:
        """Whether the follower is behind and has not caught up for `lag_max_us`. One that cannot
        append counts as late at once."""
        is_late = self.cannot_append or now_us - self.caught_up_at_us > lag_max_us
        return self.position < log_end_offset and is_late

    def excuse(self, slept_us: int, now_us: MonotonicUs) -> None:
        """Extend the follower's time: the leader itself did not run for this long."""
        self.caught_up_at_us = min(MonotonicUs(self.caught_up_at_us + slept_us), now_us)

    def ticked(self, log_end_offset: int, now_us: MonotonicUs) -> None:
        """Let time pass. A follower that has everything sends no requests and stays caught up."""
        if self.position >= log_end_offset:
            self.caught_up_at_us = now_us
