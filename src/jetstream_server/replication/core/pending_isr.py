"""The in-sync replicas as their leader counts them, and its one pending change.

    agreed      the ISR in the metadata as applied here
    pending     a proposed change whose outcome is not known yet
    maximal     agreed ∪ pending: every replica that may be in sync, and so must count

**safety** A removal counts only once it is committed; an added member counts at once. Whatever the
metadata says at this moment, it has no member outside `maximal`: others only remove members, and
the leader's own proposals are included. A change is settled in one of two ways: metadata with a
later stream epoch arrives (with the change, or making it void), or the group refuses the member. An
unknown outcome settles nothing: the change stays pending and is proposed again under the same
command id, because a second command with another id could be applied long after this leader stopped
counting the member.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.metadata.state.commands import ChangeIsr
from jetstream_server.metadata.state.streams import StreamMetadata

RETRY_US = 500_000
"""Pause after a failed proposal. An election of the metadata group takes about that long, and so
does a refused follower until it is eligible again."""


class Outcome(Enum):
    """The known outcome of a proposal."""

    ACCEPTED = auto()
    """It was applied. The metadata with it is in flight or already here."""
    STALE = auto()
    """The stream has a later stream or leader epoch. The metadata with it is in flight."""
    INELIGIBLE = auto()
    """It was refused for good: a member is not alive, draining, or in another incarnation."""
    UNKNOWN = auto()
    """It may be applied now, or later, or never."""


class InSyncReplicas:
    """See the module. Lives as long as one leadership."""

    __slots__ = ("_awaits_metadata", "_not_before_us", "agreed", "maximal", "pending")

    def __init__(self, stream: StreamMetadata) -> None:
        self.agreed: tuple[NodeId, ...] = stream.isr
        self.maximal: tuple[NodeId, ...] = stream.isr
        self.pending: ChangeIsr | None = None
        self._awaits_metadata = False
        self._not_before_us = MonotonicUs(0)

    def update(self, stream: StreamMetadata) -> None:
        """Apply newer metadata of the same leadership."""
        if self.pending is not None and stream.stream_epoch > self.pending.stream_epoch:
            self.pending = None
        self.agreed = stream.isr
        self._recompute_maximal()

    def may_propose(self, now_us: MonotonicUs) -> bool:
        return self.pending is None and now_us >= self._not_before_us

    def propose(self, change: ChangeIsr) -> None:
        assert self.pending is None, "one change is under way at a time"
        self.pending = change
        self._awaits_metadata = False
        self._not_before_us = MonotonicUs(0)
        self._recompute_maximal()

    def settle(self, change: ChangeIsr, outcome: Outcome, now_us: MonotonicUs) -> None:
        """Take the outcome of a proposal. Ignored if the proposal is not pending any more."""
        if change is not self.pending:
            return
        if outcome is Outcome.INELIGIBLE:
            self.pending = None
            self._recompute_maximal()
        self._awaits_metadata = outcome in (Outcome.ACCEPTED, Outcome.STALE)
        self._not_before_us = MonotonicUs(now_us + RETRY_US)

    def retry(self, now_us: MonotonicUs) -> ChangeIsr | None:
        """The change with unknown outcome that is due again: same command, same command id."""
        if self.pending is None or self._awaits_metadata or not self._not_before_us:
            return None
        if now_us < self._not_before_us:
            return None
        self._not_before_us = MonotonicUs(0)
        return self.pending

    def _recompute_maximal(self) -> None:
        wished: Sequence[NodeId] = self.pending.isr if self.pending is not None else ()
        joining = tuple(node_id for node_id in wished if node_id not in self.agreed)
        self.maximal = self.agreed + joining
