"""Decides whether a voter may call an election, and whether it may help others to one.

A voter that misses its leader first asks the others whether they would elect it (*pre-vote*), in a
term that no voter enters by that. Only when a majority would, it calls the election. A voter grants
neither pre-vote nor vote while it hears a leader. So a member that is cut off, or comes back, moves
no term and ends no leadership.

**Mixed releases.** Earlier releases neither ask nor answer. While one of their voters is linked,
this node calls elections without asking; their requests for a vote are judged as they expect it,
whether this node hears a leader or not. Otherwise a voter with a later term, whose appends they
ignore, could not join again.

Nothing here does I/O. Times are in seconds, of the caller's monotonic clock.
"""

from __future__ import annotations

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.timings import RaftTimings


class PreVote:
    """See the module. now: a process that has just started may have heard a leader before."""

    def __init__(self, timings: RaftTimings, now: float) -> None:
        self._timings = timings
        self._hears_until = now + timings.election_min
        # Linked members, and whether they know the pre-vote.
        self._linked: dict[NodeId, bool] = {}
        self._asked = 0
        self._granted: set[NodeId] = set()

    def linked(self, peer: NodeId, *, has_pre_vote: bool) -> None:
        self._linked[peer] = has_pre_vote

    def unlinked(self, peer: NodeId) -> None:
        self._linked.pop(peer, None)

    def is_known_to(self, peer: NodeId) -> bool:
        """Whether that member has reported that it understands the messages of the pre-vote."""
        return self._linked.get(peer, False)

    def is_known_to_all(self, voters: set[NodeId]) -> bool:
        """Whether all linked voters know the pre-vote."""
        return all(known for peer, known in self._linked.items() if peer in voters)

    # As a voter.

    def heard_leader(self, now: float) -> None:
        self._hears_until = now + self._timings.election_min
        self.end()

    def lost_leader(self, now: float) -> None:
        """Note that the connection to the leader has broken. It may be back at once."""
        self._hears_until = min(self._hears_until, now + self._timings.gone_min)

    def found_leader(self, now: float) -> None:
        """Note that the connection to the last leader is back: its heartbeat is due."""
        self._hears_until = max(self._hears_until, now + 2 * self._timings.heartbeat)

    def hears_leader(self, now: float) -> bool:
        return now < self._hears_until

    # As one who would be a candidate.

    def ask(self, term: int) -> None:
        """Begin a round: whether the others would elect this node in that term."""
        self._asked = term
        self._granted.clear()

    def granted(self, peer: NodeId, term: int) -> None:
        if term == self._asked:
            self._granted.add(peer)

    def is_won(self, term: int, majority: int) -> bool:
        """Whether a majority, this node included, would elect it in that term."""
        return self._asked == term and 1 + len(self._granted) >= majority

    def end(self) -> None:
        self.ask(0)
