"""Decides which nodes that do not vote have caught up with this leader, so that they may vote.

In rounds, as in Raft's dissertation (4.2.1). A round begins with the commit index of that moment.
It ends, a heartbeat later at the earliest, once the node has acknowledged everything up to there
and has answered since. A node that has done two rounds in a row, none of which took longer than an
election may wait, can be part of a majority without holding it up.

**safety** Rounds count only in one term of this leader and on one connection: a node that has begun
another run may have lost what an earlier one had acknowledged. All others would do without it; but
with two voters, the second is part of every majority at once.

Nothing here does I/O. Times are in seconds, of the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.timings import RaftTimings

ROUNDS = 2


@dataclass(slots=True)
class _Progress:
    target: int
    began_at: float
    rounds: int = 0


class CatchingUp:
    """See the module."""

    def __init__(self, timings: RaftTimings) -> None:
        self._timings = timings
        self._term = 0
        self._progress: dict[NodeId, _Progress] = {}

    def gone(self, peer: NodeId) -> None:
        """Note that the connection to that node has ended."""
        self._progress.pop(peer, None)

    def look(
        self,
        now: float,
        term: int,
        commit_index: int,
        matched: dict[NodeId, tuple[int, float]],
    ) -> None:
        """Look at the linked nodes that do not vote, as their leader in that term. matched: how far
        each has acknowledged the log, and when it last answered."""
        if term != self._term:
            self._term = term
            self._progress.clear()
        for peer in [known for known in self._progress if known not in matched]:
            del self._progress[peer]
        for peer, (index, answered_at) in matched.items():
            progress = self._progress.get(peer)
            if progress is None:
                self._progress[peer] = _Progress(commit_index, now)
                continue
            took = now - progress.began_at
            if took > self._timings.election_min:
                progress.rounds = 0
            if (
                index >= progress.target
                and answered_at >= progress.began_at
                and took >= self._timings.heartbeat
            ):
                rounds = progress.rounds + (took <= self._timings.election_min)
                self._progress[peer] = _Progress(commit_index, now, rounds)

    def is_done(self, peer: NodeId, term: int) -> bool:
        """Whether that node has caught up with the leader of that term."""
        progress = self._progress.get(peer)
        return progress is not None and term == self._term and progress.rounds >= ROUNDS
