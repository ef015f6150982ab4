"""Since when a metadata leader is sure to be the only one, and when its predecessors last were.

It pings every voter; a voter hands the ping back only while the ping's term is still its own. The
time at which the *last* of a majority's newest pings was sent is when the leader is sure.

**safety** Why: a later leader needs the votes of a majority, and so of one of the voters that have
echoed, or of this node itself. A voter echoed before it voted, for a vote makes the later term its
own; this node, had it voted, would lead no more. So whatever a later leader does, its claim to be
the controller included, it does after the echoed ping was sent.

With each echo a voter tells when it last *backed* a leader of an earlier term: echoed its ping, or
was it. **safety** A majority that has told knows when every earlier leader was sure for the last
time: whenever one was, all of a majority backed it, that very majority has a member in common with
the one that has told, and whoever has told backs nobody of an earlier term any more.

The pings are of one term; another term begins with another Quorum. Times are the leader's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_protocol.types import NodeId


class Backing:
    """When this voter last backed a leader, itself included; of which term, and before that."""

    __slots__ = ("_before_us", "_latest_us", "_term")

    def __init__(self, now_us: int) -> None:
        # An earlier run of this process has backed nobody since it ended.
        self._term = -1
        self._latest_us = self._before_us = now_us

    def back(self, term: int, now_us: int) -> None:
        """The leader of that term is backed now. Terms never fall: Raft's do not."""
        if term > self._term:
            self._term, self._before_us = term, self._latest_us
        self._latest_us = max(self._latest_us, now_us)

    def before_us(self, term: int) -> int:
        """The last time at which a leader of a term before that one was backed."""
        assert term >= self._term, "a later leader was backed already"
        return self._latest_us if term > self._term else self._before_us


class Quorum:
    """voters: of the metadata group, with this node, the leader, among them. backed_before_us: when
    this node last backed a leader of an earlier term."""

    __slots__ = ("_backed_before_us", "_echoed_us", "_needed", "_told_us", "term")

    def __init__(
        self, term: int, voters: Iterable[NodeId], node_id: NodeId, backed_before_us: int
    ) -> None:
        others = [voter for voter in voters if voter != node_id]
        self.term = term
        self._needed = (len(others) + 1) // 2
        """So many others and this node itself are a majority."""
        self._backed_before_us = backed_before_us
        self._echoed_us = dict.fromkeys(others, -1)
        self._told_us: dict[NodeId, int] = {}

    @property
    def others(self) -> tuple[NodeId, ...]:
        return tuple(self._echoed_us)

    def echoed(self, voter: NodeId, term: int, sent_at_us: int, backed_before_us: int) -> None:
        """A ping sent to that voter at that time came back; no leader of an earlier term has been
        backed by it after `backed_before_us`."""
        if term == self.term and voter in self._echoed_us:
            self._echoed_us[voter] = max(self._echoed_us[voter], sent_at_us)
            told_us = self._told_us.get(voter, backed_before_us)
            self._told_us[voter] = min(told_us, backed_before_us)

    def sure_at_us(self, now_us: int) -> int:
        """The latest time known at which a majority followed this leader; -1 before the first."""
        if not self._needed:
            return now_us
        return sorted(self._echoed_us.values(), reverse=True)[self._needed - 1]

    def earlier_sure_at_us(self) -> int | None:
        """No earlier leader was sure after this; None before a majority has told."""
        if not self._needed:
            return self._backed_before_us
        if len(self._told_us) < self._needed:
            return None
        return max(self._backed_before_us, sorted(self._told_us.values())[self._needed - 1])
