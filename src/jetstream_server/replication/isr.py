"""The in-sync replicas as their leader may believe in them, and its one change under way.

    committed   what the metadata says, as far as it has been applied here
    pending     a change that was proposed and is not settled
    maximal     committed ∪ pending: everyone who may be in sync by now, and so has to count

**safety** A shrink counts only once it is committed, a member being added counts at once. Whatever
the metadata really says at this moment, it has no member outside `maximal`: others only ever
remove members, and the leader's own proposals are in it. A change is settled in one of two ways:
metadata with a later stream epoch arrives (ours, or one that makes ours void), or the group says
that a member may not join. An outcome that is not known settles nothing: the change stays pending
and is proposed again, under its first command id, for a second command with another id could be
applied long after this leader stopped counting the member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.streams import StreamMetadata

RETRY_US = 500_000
"""Between two proposals after one that came to nothing. Elections of the metadata group take about
that long, and so does a follower that was refused to become eligible."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A proposal: this ISR, if the stream is still at that epoch. `incarnations` one per member."""

    stream_id: StreamId
    leader: NodeId
    leader_epoch: int
    stream_epoch: int
    isr: tuple[NodeId, ...]
    incarnations: tuple[int, ...]

    def command(self) -> dict[str, Any]:
        """As the metadata log takes it."""
        return {
            "op": "change_isr",
            "stream_id": self.stream_id,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "stream_epoch": self.stream_epoch,
            "isr": list(self.isr),
            "incarnations": list(self.incarnations),
        }


class Outcome(Enum):
    """How a proposal ended, as far as is known."""

    ACCEPTED = auto()
    """It was applied; the metadata that says so is on its way or here already."""
    STALE = auto()
    """The stream has moved on, by stream or leader epoch; metadata that says how is on its way."""
    INELIGIBLE = auto()
    """Refused for good: a member is not alive, draining, or in another incarnation."""
    UNKNOWN = auto()
    """It may or may not be applied, now or later."""


class InSyncReplicas:
    """See the module. Lives as long as one leadership."""

    __slots__ = ("_awaits_metadata", "_not_before_us", "committed", "maximal", "pending")

    def __init__(self, stream: StreamMetadata) -> None:
        self.committed: tuple[NodeId, ...] = stream.isr
        self.maximal: tuple[NodeId, ...] = stream.isr
        self.pending: IsrChange | None = None
        self._awaits_metadata = False
        self._not_before_us = 0

    def commit(self, stream: StreamMetadata) -> None:
        """Newer metadata of the same leadership was applied here."""
        if self.pending is not None and stream.stream_epoch > self.pending.stream_epoch:
            self.pending = None
        self.committed = stream.isr
        self._follow()

    def may_propose(self, now_us: int) -> bool:
        return self.pending is None and now_us >= self._not_before_us

    def propose(self, change: IsrChange) -> None:
        assert self.pending is None, "one change is under way at a time"
        self.pending = change
        self._awaits_metadata = False
        self._not_before_us = 0
        self._follow()

    def settle(self, change: IsrChange, outcome: Outcome, now_us: int) -> None:
        """The proposal came to this. One that is not pending any more says nothing."""
        if change is not self.pending:
            return
        if outcome is Outcome.INELIGIBLE:
            self.pending = None
            self._follow()
        self._awaits_metadata = outcome in (Outcome.ACCEPTED, Outcome.STALE)
        self._not_before_us = now_us + RETRY_US

    def retry(self, now_us: int) -> IsrChange | None:
        """The change of unknown outcome that is due again: same command, same command id."""
        if self.pending is None or self._awaits_metadata or not self._not_before_us:
            return None
        if now_us < self._not_before_us:
            return None
        self._not_before_us = 0
        return self.pending

    def _follow(self) -> None:
        wished: Sequence[NodeId] = self.pending.isr if self.pending is not None else ()
        joining = tuple(node_id for node_id in wished if node_id not in self.committed)
        self.maximal = self.committed + joining
