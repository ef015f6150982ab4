"""Who may be elected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state import (
    elections,
    leadership_decisions,
    node_decisions,
    stream_decisions,
)
from jetstream_server.metadata.state.commands import ElectLeader
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core import unclean_election as unclean
from jetstream_server.replication.core.messages import last_epoch_of
from jetstream_server.replication.core.restart_trust import RunRecord
from jetstream_server.replication.core.unclean_election import ReplicaReport
from jetstream_server.replication.drivers import log_ends, membership
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.sessions.session_messages import LogEnd
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.scenarios import Collapses, EmptyEpochs, LateTails, LostDisks


@mutant(Collapses)
def forgets_who_left_below_the_minimum(patches: Patches) -> None:
    """There is no ELR, and nobody is remembered: the last replica standing is all that counts."""

    def last(stream: StreamMetadata, isr: Sequence[NodeId], elr: Sequence[NodeId]) -> Any:
        return () if isr else stream.isr or stream.last_known

    patches.set(elections, "next_elr", lambda stream, isr, distrusted=(): ())
    patches.set(elections, "_last_known", last)


@mutant()
def keeps_the_elr_under_a_new_minimum(patches: Patches) -> None:
    """Changing the minimum leaves those eligible that were so under the old one, although the ISR
    reaches the new one."""
    patches.set(stream_decisions, "without_elr", lambda stream: stream)
    patches.set(stream_decisions, "under_new_minimum", lambda stream: stream)


@mutant()
def resumes_leaderships(patches: Patches) -> None:
    """A node that registers anew keeps its leaderships and its place in every ISR."""
    ended = node_decisions._session_ended

    def keep(tables: Any, node: NodeMetadata, **rest: Any) -> list[Any]:
        return ended(tables, node, **rest) if node.fenced else []

    patches.set(node_decisions, "_session_ended", keep)


@mutant(Collapses)
def elects_without_waiting(patches: Patches) -> None:
    """With ISR and ELR empty, whoever is there is elected."""
    patches.set(leadership_decisions, "_check_all_reported", lambda *arguments: None)

    def choose(
        stream: StreamMetadata,
        nodes: Mapping[NodeId, NodeMetadata],
        reports: Mapping[NodeId, Any],
        **rest: bool,
    ) -> ElectLeader | None:
        alive = [r for r in stream.replicas if not nodes[r].fenced and r in reports]
        if not stream.has_no_eligible_replica or not alive:
            return None
        return ElectLeader(stream_id=stream.id, leader=alive[0])

    patches.set(unclean, "has_all_last_known", lambda stream, *_: stream.has_no_eligible_replica)
    patches.set(unclean, "choose_unclean", choose)


@mutant(LostDisks)
def asks_only_the_last_known(patches: Patches) -> None:
    """A replica that went down before the others, in the same outage, is not asked."""
    choose = unclean.choose_unclean

    def asks_few(*arguments: Any, asks_all: bool, **rest: Any) -> ElectLeader | None:
        return choose(*arguments, asks_all=False, **rest)

    patches.set(unclean, "choose_unclean", asks_few)


@mutant(LostDisks)
def gives_an_intact_log_up(patches: Patches) -> None:
    """A replica that is down is not waited for although nobody else has anything left."""
    patches.set(unclean, "_is_worth_electing", lambda report: True)


@mutant(Collapses)
def elects_the_shortest_log(patches: Patches) -> None:
    """With ISR and ELR empty, it is not the replica that holds most that is elected."""
    patches.set(unclean, "max", min)


@mutant(EmptyEpochs)
def forgets_epochs_without_records(patches: Patches) -> None:
    """A leader that has committed records of earlier epochs, and got none of its own, is not told
    from one that never led."""
    report = log_ends._report

    def told(replica: Replica, record: RunRecord) -> ReplicaReport:
        found = report(replica, record)
        is_known = found.last_epoch >= 0
        return replace(found, last_epoch=last_epoch_of(replica.log)) if is_known else found

    patches.set(log_ends, "_report", told)


@mutant(Collapses)
def elects_by_old_reports(patches: Patches) -> None:
    """A log's end counts although its node has lost power since it told."""
    patches.set(leadership_decisions, "_check_all_reported", lambda *arguments: None)


@mutant(LateTails)
def tells_log_ends_of_another_epoch(patches: Patches) -> None:
    """A replica that has not heard of an election tells how far it reached before, for the one that
    is asked about."""
    ends = log_ends.leaderless_log_ends

    def told(
        node_id: NodeId,
        streams: Iterable[StreamMetadata],
        replica_of: Callable[[StreamId], Replica | None],
        record: RunRecord,
    ) -> tuple[LogEnd, ...]:
        found: list[LogEnd] = []
        for stream in streams:
            replica = replica_of(stream.id)
            epoch = stream.leader_epoch if replica is None else replica.stream.leader_epoch
            known = replace(stream, leader_epoch=epoch)
            for end in ends(node_id, [known], replica_of, record):
                found.append(replace(end, leader_epoch=stream.leader_epoch))
        return tuple(found)

    patches.set(membership, "leaderless_log_ends", told)
