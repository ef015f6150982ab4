"""Which of two ways the batches of one sender take, decided without I/O.

    straight   to the leader, while that is where NATS would bring them (`goes_straight`)
    NATS       else, and while the leader does not answer

The first batch in flight decides. If it has to be sent again, and its last attempt went by the
present way, all go by the other way from there on, if that one is ready. Straight is looked for
again after RETURN_SECONDS.

It does not matter for what is stored: both ways carry the same producer id and sequence, and the
leader stores each batch once, in its place, whichever way it comes first.
"""

from __future__ import annotations

from collections.abc import Callable

from jetstream_client.publishing.in_flight import Sending

RETURN_SECONDS = 10.0


class WayChoice:
    """Belongs to one sender."""

    def __init__(self, *, is_straight: bool) -> None:
        self.is_straight = is_straight
        self._changed_after = 0
        """The last attempt before the way was changed, by its number."""
        self._return_at = 0.0

    def choose(
        self,
        sending: Sending,
        *,
        is_first: bool,
        goes_straight: bool,
        is_ready: Callable[[bool], bool],
        now: float,
    ) -> bool:
        """Whether this attempt goes straight. is_first: the batch is the first in flight. is_ready:
        whether a way (straight: True) can be taken at once; may begin to open it."""
        if not goes_straight:
            if self.is_straight:
                self._change(sending, now)
        elif is_first and self._has_failed(sending):
            if is_ready(not self.is_straight):
                self._change(sending, now)
        elif (
            not self.is_straight
            and sending.batch.attempt == 1
            and now >= self._return_at
            and is_ready(True)
        ):
            self._change(sending, now)
        return self.is_straight

    def _has_failed(self, sending: Sending) -> bool:
        """Whether the present way has been tried for this batch."""
        before = sending.batch.tokens[-2:-1]
        return bool(before) and int(before[0], 16) > self._changed_after

    def _change(self, sending: Sending, now: float) -> None:
        self.is_straight = not self.is_straight
        self._changed_after = int(sending.token, 16) - 1
        self._return_at = now + RETURN_SECONDS
