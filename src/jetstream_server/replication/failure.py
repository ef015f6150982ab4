"""What to do next with a replica whose log has failed, until it is whole again.

    DISTRUST ──(the metadata shows it)──> FETCH_ANEW ──(the log was emptied)──> MENDED
                                      └─> REVIVE ──(nobody is believed)───────> MENDED

No I/O, no clock. **safety** The log is emptied only once the metadata does not count on it, for
whoever is in ISR or ELR may be elected; and revived, which is to say taken for what can be read of
it, only where an election waits for all who may hold most.
"""

from __future__ import annotations

from enum import Enum, auto

from jetstream_server.replication.replica import Replica

PAUSE_US = 500_000
"""Before the first attempt is repeated: a proposal takes some milliseconds, an election about half
a second."""
PAUSE_US_MAX = 30_000_000
"""A disk that goes on failing costs its leader a reading of the whole log at every attempt."""


class Step(Enum):
    """What is due."""

    DISTRUST = auto()
    """Tell the metadata not to count on it."""
    FETCH_ANEW = auto()
    """Have the leader say where to begin: the log is emptied then."""
    REVIVE = auto()
    """Have the log be there as far as it can be read."""
    WAIT = auto()
    """For a leader; or for ever, with the only replica there is."""
    MENDED = auto()
    """The log takes records again."""
    TRUSTED = auto()
    """And the metadata counts on it."""


def next_step(replica: Replica, *, is_told: bool) -> Step:
    """Of a replica whose log has failed once, or whose disk has lost records.

    is_told: whether the metadata has been told so since, also where it does not count on the
    replica. **safety** A leader may be about to add it to the ISR, by what it said before: what the
    metadata is told voids that, and only then may the log be emptied.
    """
    if replica.must_step_back:
        return Step.DISTRUST
    if not replica.has_failed:
        return Step.TRUSTED if replica.claims() else Step.MENDED
    if len(replica.stream.replicas) == 1:
        return Step.WAIT
    if replica.claims() or not is_told:
        return Step.DISTRUST
    if replica.waits_for_election:
        return Step.REVIVE
    return Step.WAIT if replica.following is None else Step.FETCH_ANEW


class Attempts:
    """When the next one is due. A disk that fails again and again is tried less and less often."""

    __slots__ = ("_distrust_at_us", "_due_at_us", "_pause_us")

    def __init__(self) -> None:
        self._distrust_at_us = 0
        self._due_at_us = 0
        self._pause_us = PAUSE_US

    def is_due(self, step: Step, now_us: int) -> bool:
        """Whether to take that step now; if so, it counts as taken."""
        if step is Step.DISTRUST:
            is_due = now_us >= self._distrust_at_us
            if is_due:
                self._distrust_at_us = now_us + PAUSE_US
            return is_due
        if now_us < self._due_at_us:
            return False
        self._due_at_us = now_us + self._pause_us
        self._pause_us = min(2 * self._pause_us, PAUSE_US_MAX)
        return True
