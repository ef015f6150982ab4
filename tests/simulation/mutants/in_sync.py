"""Who is in sync."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state import leadership_decisions
from jetstream_server.metadata.state.commands import ChangeIsr
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.pending_isr import InSyncReplicas, Outcome
from jetstream_server.replication.core.progress import FollowerProgress
from jetstream_server.replication.drivers.isr_driver import IsrDriver
from jetstream_server.replication.replica import Replica
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.scenarios import FailingJoiners, LateJoiners, UnknownOutcomes


@mutant()
def shrinks_before_the_commit(patches: Patches) -> None:
    """A member that is being removed counts no more, before the metadata says so."""
    follow = InSyncReplicas._recompute_maximal

    def shrink(self: InSyncReplicas) -> None:
        follow(self)
        if self.pending is not None:
            self.maximal = self.pending.isr

    patches.set(InSyncReplicas, "_recompute_maximal", shrink)


@mutant()
def counts_joiners_late(patches: Patches) -> None:
    """A member that is being added counts only once the leader has heard that it was."""

    def follow(self: InSyncReplicas) -> None:
        self.maximal = self.agreed

    patches.set(InSyncReplicas, "_recompute_maximal", follow)


@mutant()
def adds_followers_that_lag(patches: Patches) -> None:
    """A follower joins the ISR before it has reached the high watermark."""

    def may_join(self: LeaderState, replica: NodeId, progress: FollowerProgress) -> bool:
        node = self._nodes.get(replica)
        alive = node is not None and not node.fenced and node.incarnation == progress.incarnation
        return alive and progress.position >= self.epoch_start_offset

    patches.set(LeaderState, "_may_join", may_join)


@mutant()
def adds_followers_behind_the_epoch(patches: Patches) -> None:
    """A follower joins the ISR before it has reached the start of the leader's epoch."""

    def may_join(self: LeaderState, replica: NodeId, progress: FollowerProgress) -> bool:
        node = self._nodes.get(replica)
        alive = node is not None and not node.fenced and node.incarnation == progress.incarnation
        return alive and progress.position >= self.high_watermark

    patches.set(LeaderState, "_may_join", may_join)


@mutant(LateJoiners)
def adds_any_incarnation(patches: Patches) -> None:
    """The registry does not ask which run of a node the leader means."""
    check = leadership_decisions._check_isr_member

    def lenient(tables: Any, stream: StreamMetadata, node_id: NodeId, incarnation: int) -> None:
        node = tables.nodes.get(node_id)
        check(tables, stream, node_id, incarnation if node is None else node.incarnation)

    patches.set(leadership_decisions, "_check_isr_member", lenient)


@mutant(FailingJoiners)
def counts_what_who_is_not_eligible_said_before(patches: Patches) -> None:
    """Of a replica that the metadata trusts no more, what it said before counts unless it was in
    the ISR until then."""
    update = LeaderState.update

    def lenient(self: LeaderState, stream: StreamMetadata, nodes: Any) -> bool:
        members = self._in_sync.agreed
        others = [p for f, p in self._followers.items() if f not in members]
        before = [(progress, progress.counts_from, progress.counts) for progress in others]
        rose = update(self, stream, nodes)
        for progress, counts_from, counts in before:
            progress.counts_from, progress.counts = counts_from, counts
        return rose

    patches.set(LeaderState, "update", lenient)


@mutant(LateJoiners)
def takes_unknown_for_refused(patches: Patches) -> None:
    """A change of unknown outcome is taken for one that did not happen."""
    settle = InSyncReplicas.settle

    def revert(self: InSyncReplicas, change: ChangeIsr, outcome: Outcome, now_us: int) -> None:
        if outcome is Outcome.UNKNOWN:
            outcome = Outcome.INELIGIBLE
        settle(self, change, outcome, now_us)

    patches.set(InSyncReplicas, "settle", revert)


@mutant(UnknownOutcomes)
def retries_under_another_id(patches: Patches) -> None:
    """A change of unknown outcome is proposed again as another command."""
    propose = IsrDriver._propose

    async def anew(self: IsrDriver, replica: Replica, change: ChangeIsr) -> None:
        self._unknown.clear()
        await propose(self, replica, change)

    patches.set(IsrDriver, "_propose", anew)


@mutant(LateJoiners)
def changes_isr_without_comparing(patches: Patches) -> None:
    """The registry takes an ISR from a leader that acted on older metadata."""
    patches.set(leadership_decisions, "check_stream_epoch", lambda stream, stream_epoch: None)
