"""Since when a metadata leader is sure to have been the only one.

It pings every voter; a voter hands the ping back only while the ping's term is still its own. The
time at which the *last* of a majority's newest pings was sent is when the leader is sure.

**safety** Why: a later leader needs the votes of a majority, and so of one of the voters that have
echoed, or of this node itself. A voter echoed before it voted, for a vote makes the later term its
own; this node, had it voted, would lead no more. So whatever a later leader does, its claim to be
the controller included, it does after the echoed ping was sent.

The pings are of one term; another term begins with another Quorum. Times are the leader's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_protocol.types import NodeId


class Quorum:
    """voters: of the metadata group, with this node, the leader, among them."""

    __slots__ = ("_echoed_us", "_needed", "term")

    def __init__(self, term: int, voters: Iterable[NodeId], node_id: NodeId) -> None:
        others = [voter for voter in voters if voter != node_id]
        self.term = term
        self._needed = (len(others) + 1) // 2
        """So many others and this node itself are a majority."""
        self._echoed_us = dict.fromkeys(others, -1)

    @property
    def others(self) -> tuple[NodeId, ...]:
        return tuple(self._echoed_us)

    def echoed(self, voter: NodeId, term: int, sent_at_us: int) -> None:
        """A ping sent to that voter at that time came back."""
        if term == self.term and voter in self._echoed_us:
            self._echoed_us[voter] = max(self._echoed_us[voter], sent_at_us)

    def sure_at_us(self, now_us: int) -> int:
        """The latest time known at which a majority followed this leader; -1 before the first."""
        if not self._needed:
            return now_us
        return sorted(self._echoed_us.values(), reverse=True)[self._needed - 1]
