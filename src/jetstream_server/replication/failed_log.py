"""Decides what to do next with a replica whose log has failed, until the log is healthy again.

    DISTRUST ──(the metadata shows it)──> FETCH_ANEW ──(the log was emptied)──> ONLINE
                                      └─> REVIVE ──(no replica is trusted)──────> ONLINE

No I/O, no clock. **safety** The log is emptied only once the metadata does not count on it any
more, because a member of ISR or ELR may be elected. It is revived, that is, used with the records
that can be read, only when an election waits for every replica that may hold most.
"""

from __future__ import annotations

from enum import Enum, auto

from jetstream_protocol.types import MonotonicUs
from jetstream_server.replication.replica import Replica

PAUSE_US = 500_000
"""Pause before the first repetition. A proposal takes some milliseconds, an election about half a
second."""
PAUSE_US_MAX = 30_000_000
"""Longest pause. While the disk keeps failing, every attempt makes the leader read the whole
log."""


class Step(Enum):
    """The next step."""

    DISTRUST = auto()
    """Tell the metadata not to count on the log."""
    FETCH_ANEW = auto()
    """Ask the leader where to begin; the log is emptied then."""
    REVIVE = auto()
    """Use the log as far as it can be read."""
    WAIT = auto()
    """Wait for a leader; for ever if this is the only replica."""
    ONLINE = auto()
    """The log takes records again."""
    TRUSTED = auto()
    """Nothing: the log takes records, and the metadata counts on it."""


def next_step(replica: Replica) -> Step:
    """Return the next step for a replica whose log has failed, or whose disk has lost records.

    **safety** The metadata records each failure, even if it does not count on the replica. A leader
    may be about to add the replica to the ISR because of an earlier position. The record makes that
    proposal void; only then may the log be emptied.
    """
    if replica.must_be_distrusted:
        return Step.DISTRUST
    if not replica.has_failed:
        return Step.TRUSTED if replica.is_counted_on() else Step.ONLINE
    if replica.stream.is_alone(replica.node_id):
        return Step.WAIT
    if replica.is_counted_on() or not replica.is_failure_recorded:
        return Step.DISTRUST
    if replica.waits_for_election:
        # What a log holds that could not be opened is not known: it is no candidate.
        return Step.WAIT if replica.unreadable_reason else Step.REVIVE
    return Step.WAIT if replica.following is None else Step.FETCH_ANEW


class Attempts:
    """When the next attempt is due. Pauses grow while the disk keeps failing."""

    __slots__ = ("_distrust_at_us", "_due_at_us", "_pause_us")

    def __init__(self) -> None:
        self._distrust_at_us = MonotonicUs(0)
        self._due_at_us = MonotonicUs(0)
        self._pause_us = PAUSE_US

    def is_due(self, step: Step, now_us: MonotonicUs) -> bool:
        """Whether to take that step now. If so, it counts as an attempt."""
        if step is Step.DISTRUST:
            is_due = now_us >= self._distrust_at_us
            if is_due:
                self._distrust_at_us = MonotonicUs(now_us + PAUSE_US)
            return is_due
        if now_us < self._due_at_us:
            return False
        self._due_at_us = MonotonicUs(now_us + self._pause_us)
        self._pause_us = min(2 * self._pause_us, PAUSE_US_MAX)
        return True
