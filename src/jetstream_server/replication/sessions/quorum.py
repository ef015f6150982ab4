"""Until when a metadata leader is sure to be the only one, and until when earlier leaders were.

It pings every voter. A voter returns the ping only while the ping's term is its own. The leader is
sure up to the earliest send time among the newest pings of a majority.

**safety** The reason: a later leader needs the votes of a majority, and so the vote of one of the
voters that have echoed, or of this node itself. A voter echoed before it voted, because a vote
makes the later term its own; this node would not lead any more if it had voted. So everything a
later leader does, including its claim to be the controller, happens after the echoed ping was sent.

With each echo a voter reports when it last *backed* a leader of an earlier term: echoed its ping,
or was the leader. **safety** A majority of reports bounds the time until which any earlier leader
was sure: it was sure only while a majority backed it; that majority and the reporting one share a
member; and a voter that has reported backs no leader of an earlier term any more.

All pings belong to one term and one set of voters. Another term, or another set in force at the
leader, begins with a new Quorum. **safety** Both proofs need a voter that two majorities share.
They do, because successive leaders are elected by the same set or by its neighbour
(metadata/raft/voter_change.py): a leader that changes the voters more than once is certain anew, by
each set, before it leaves that set. Times are the leader's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_protocol.types import BootUs, NodeId


class LeaderSupport:
    """When this voter last backed a leader (itself included), in which term; and when it last
    backed one of an earlier term."""

    __slots__ = ("_before_us", "_latest_us", "_term")

    def __init__(self, now_us: BootUs) -> None:
        # An earlier run of this process cannot have backed anybody after its end.
        self._term = -1
        self._latest_us = self._before_us = now_us

    def back(self, term: int, now_us: BootUs) -> None:
        """Back the leader of that term now. Terms never fall, as in Raft."""
        if term > self._term:
            self._term, self._before_us = term, self._latest_us
        self._latest_us = max(self._latest_us, now_us)

    def before_us(self, term: int) -> BootUs:
        """The last time at which a leader of an earlier term was backed."""
        assert term >= self._term, "a later leader was backed already"
        return self._latest_us if term > self._term else self._before_us


class Quorum:
    """voters: in force in the metadata group, including this node, which leads. backed_before_us:
    when this node last backed a leader of an earlier term."""

    __slots__ = ("_backed_before_us", "_echoed_us", "_needed", "_reported_us", "term", "voters")

    def __init__(
        self, term: int, voters: Iterable[NodeId], node_id: NodeId, backed_before_us: BootUs
    ) -> None:
        self.voters = tuple(voters)
        others = [voter for voter in self.voters if voter != node_id]
        self.term = term
        self._needed = (len(others) + 1) // 2
        """This many others and this node are a majority."""
        self._backed_before_us = backed_before_us
        self._echoed_us = dict.fromkeys(others, BootUs(-1))
        self._reported_us: dict[NodeId, BootUs] = {}

    @property
    def others(self) -> tuple[NodeId, ...]:
        return tuple(self._echoed_us)

    def echoed(
        self, voter: NodeId, term: int, sent_at_us: BootUs, backed_before_us: BootUs
    ) -> None:
        """Note that a ping sent to that voter at that time came back. The voter has backed no
        leader of an earlier term after `backed_before_us`."""
        if term == self.term and voter in self._echoed_us:
            self._echoed_us[voter] = max(self._echoed_us[voter], sent_at_us)
            reported_us = self._reported_us.get(voter, backed_before_us)
            self._reported_us[voter] = min(reported_us, backed_before_us)

    def sure_at_us(self, now_us: BootUs) -> BootUs:
        """The latest known time at which a majority followed this leader; -1 before the first."""
        if not self._needed:
            return now_us
        return sorted(self._echoed_us.values(), reverse=True)[self._needed - 1]

    def earlier_sure_at_us(self) -> BootUs | None:
        """The time after which no earlier leader was sure; None before a majority has reported."""
        if not self._needed:
            return self._backed_before_us
        if len(self._reported_us) < self._needed:
            return None
        return max(self._backed_before_us, sorted(self._reported_us.values())[self._needed - 1])
