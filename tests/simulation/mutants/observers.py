"""Observers: that they never count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state import elections, reassignment_decisions, registry
from jetstream_server.metadata.state.commands import ReassignStream
from jetstream_server.metadata.state.decision import Decision, decision_for, stream_at_epoch
from jetstream_server.metadata.state.operations import Operation
from jetstream_server.metadata.state.placement import Election
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.core.leader import LeaderState
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import OBSERVED


@mutant(kind=OBSERVED)
def proposes_observers(patches: Patches) -> None:
    """A leader wants its observers in sync, and waits for them."""
    wanted = LeaderState._members_due

    def all_copies(self: LeaderState, now_us: Any) -> tuple[NodeId, ...]:
        stream = self.stream
        self.stream = replace(stream, replicas=stream.copies)
        try:
            return wanted(self, now_us)
        finally:
            self.stream = stream

    patches.set(LeaderState, "_members_due", all_copies)


@mutant(kind=OBSERVED)
def elects_observers(patches: Patches) -> None:
    """Where no replica can lead without a loss, an observer does."""
    elected = elections._election_of

    def anybody(stream: StreamMetadata, leaderless: Any, election: Election) -> Any:
        state = elected(stream, leaderless, election)
        if state.leader != NO_NODE:
            return state
        leader = election.choose(stream.observers)
        return state if leader == NO_NODE else state._replace(isr=(leader,), leader=leader)

    patches.set(elections, "_election_of", anybody)


@mutant(kind=OBSERVED)
def takes_promoted_observers_for_replicas_in_sync(patches: Patches) -> None:
    """An observer that is promoted is in the ISR at once: it has followed all the time."""

    def reassign(tables: Tables, command: ReassignStream) -> Decision:
        before = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
        decision = reassignment_decisions.reassign_stream(tables, command)
        if not decision.changes:
            return decision
        after: StreamMetadata = decision.changes[-1].after  # type: ignore[union-attr]
        promoted = [
            each
            for each in before.observers
            if each in after.replicas and each not in before.replicas and tables.is_alive(each)
        ]
        if before.leader == NO_NODE or not promoted:
            return decision
        isr = tuple(each for each in after.replicas if each in (*after.isr, *promoted))
        return decision_for(tables, before, replace(after, isr=isr, elr=()))

    _decide_by(patches, reassign)


@mutant(kind=OBSERVED)
def demotes_before_the_others_are_in_sync(patches: Patches) -> None:
    """A replica that is to be an observer counts no more, although the new ones do not yet."""

    def reassign(tables: Tables, command: ReassignStream) -> Decision:
        before = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
        decision = reassignment_decisions.reassign_stream(tables, command)
        if not decision.changes:
            return decision
        after: StreamMetadata = decision.changes[-1].after  # type: ignore[union-attr]
        demoted = [each for each in after.observers if each in after.replicas]
        if not demoted or before.leader in demoted:
            return decision
        replicas = tuple(each for each in after.replicas if each not in demoted)
        return decision_for(
            tables, before, reassignment_decisions._in_order(replace(after, replicas=replicas))
        )

    _decide_by(patches, reassign)


def _decide_by(patches: Patches, reassign: Any) -> None:
    by = {**registry.OPERATIONS, "reassign_stream": Operation(ReassignStream, reassign)}
    patches.set(registry, "OPERATIONS", by)
