"""Chooses the leader when neither ISR nor ELR has a member: the replica that holds most.

Every replica that surely held all committed records has then lost some, or is not trusted
(docs/replication.md, "Controller"). All of them (`last_known`) must be alive and report how far
their logs reach. The other replicas are asked too. One of them may hold more: a replica that went
down before the others, in the same outage, left the ISR while that was large enough. They are
waited for

* for OTHERS_WAIT_US, if a log in `last_known` has records, or never had any,
* otherwise without a limit: no log is cut to nothing. An operator can elect one by hand.

**safety** Of two logs, the one with the higher (last epoch, log end) holds everything in the other
one that can be committed. So if one of them is complete, nothing is lost. This holds for the
readable part of damaged logs too, because those bytes passed their CRCs. It also holds for a log
that lacks its beginning: followers keep their records in front of it. The election still counts as
possibly lossy.

The last epoch may be one without records: its leader may have committed records of earlier epochs,
which a longer log of an epoch in between lacks. Only its leader knows that epoch. It has noted it
on disk before it committed any of those (`CommitLog.note_epoch`).

A log that was begun anew where its leader's began, and has got no record since, has no last epoch.
Everything in front of its end was removed by then. So if it is in `last_known`, a replica outside
that ends before it is no candidate: the offsets between them would be given twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jetstream_protocol.types import NO_EPOCH, MonotonicUs, NodeId, StreamId
from jetstream_server.metadata.state.commands import ANY_REPLICA_LEVEL, ElectLeader
from jetstream_server.metadata.state.elections import asked_in_election
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.core.messages import LogView

OTHERS_WAIT_US = 30_000_000
"""For replicas outside `last_known`, once all in it have reported. Machines that lost power
together start within that time; one that is gone for good holds the stream up no longer."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """How far one replica's log can be read, as its node reports. last_epoch: the last one that
    has begun in the log. damaged: it held more, or the next power failure may lose readable
    records."""

    incarnation: int
    last_epoch: int
    log_end_offset: int
    damaged: bool


Reports = Mapping[NodeId, ReplicaReport]


def last_epoch_begun(log: LogView) -> int:
    """The last epoch by which logs are compared. An empty log has nothing to commit: that it has
    led does not count."""
    if not log.log_end_offset:
        return NO_EPOCH
    return max(log.epochs.latest_epoch, log.led_epoch.leader_epoch)


class UncleanElections:
    """Which streams without an eligible replica get which leader, and when. Owned by one
    controller: its successor waits anew."""

    def __init__(self) -> None:
        self._waits: dict[StreamId, tuple[int, MonotonicUs]] = {}
        """Stream epoch, and since when all the last known replicas have reported."""

    def due(
        self, tables: Tables, reports_of: Mapping[StreamId, Reports], now_us: MonotonicUs
    ) -> list[ElectLeader]:
        """Commands for the streams that have waited enough. reports_of: for the streams' present
        leader epochs."""
        asks_all = tables.settings.feature_level >= ANY_REPLICA_LEVEL
        commands = []
        before, self._waits = self._waits, {}
        for stream_id, reports in sorted(reports_of.items()):
            stream = tables.streams[stream_id]
            if not has_all_last_known(stream, tables.nodes, reports):
                continue
            epoch, since_us = before.get(stream_id, (-1, now_us))
            if epoch != stream.stream_epoch:
                since_us = now_us
            self._waits[stream_id] = stream.stream_epoch, since_us
            is_late = now_us - since_us >= OTHERS_WAIT_US
            command = choose_unclean(
                stream, tables.nodes, reports, is_late=is_late, asks_all=asks_all
            )
            if command is not None:
                commands.append(command)
        return commands


def choose_unclean(
    stream: StreamMetadata,
    nodes: Mapping[NodeId, NodeMetadata],
    reports: Reports,
    *,
    is_late: bool = False,
    asks_all: bool = True,
) -> ElectLeader | None:
    """The command that elects the replica which holds most; None while a report is waited for, or
    when the stream does not wait.

    It names the incarnations that reported: a node that has restarted since may hold less. is_late:
    OTHERS_WAIT_US have passed since all the last known replicas reported. asks_all: others than
    these are asked as well.
    """
    if not has_all_last_known(stream, nodes, reports):
        return None
    asked = stream.replicas if asks_all else stream.last_known
    heard = [node_id for node_id in asked if _is_current(node_id, nodes, reports)]
    known = [reports[node_id] for node_id in stream.last_known]
    if len(heard) < len(asked) and not (is_late and any(map(_is_worth_electing, known))):
        return None
    begun_at = max((each.log_end_offset for each in known if _is_begun_anew(each)), default=0)
    leader = max(
        (
            node_id
            for node_id in heard
            if node_id in stream.last_known or reports[node_id].log_end_offset >= begun_at
        ),
        key=lambda node_id: _rank(reports[node_id], node_id),
    )
    return ElectLeader(
        stream_id=stream.id,
        leader=leader,
        incarnations=tuple(nodes[each].incarnation for each in asked_in_election(stream, leader)),
    )


def has_all_last_known(
    stream: StreamMetadata, nodes: Mapping[NodeId, NodeMetadata], reports: Reports
) -> bool:
    """Whether the stream has no eligible replica, and all its last known replicas have reported."""
    known = stream.last_known
    has_all = bool(known) and all(_is_current(node_id, nodes, reports) for node_id in known)
    return has_all and stream.has_no_eligible_replica


def _rank(report: ReplicaReport, node_id: NodeId) -> tuple[int, int, bool, int]:
    return report.last_epoch, report.log_end_offset, not report.damaged, -node_id


def _is_current(node_id: NodeId, nodes: Mapping[NodeId, NodeMetadata], reports: Reports) -> bool:
    """Whether the run of that node which is alive now has reported."""
    node, report = nodes.get(node_id), reports.get(node_id)
    if node is None or node.fenced or report is None:
        return False
    return report.incarnation == node.incarnation


def _is_worth_electing(report: ReplicaReport) -> bool:
    """Whether the log has records, or has had some, or is not known to have lost any."""
    return report.log_end_offset > 0 or not report.damaged


def _is_begun_anew(report: ReplicaReport) -> bool:
    return report.last_epoch < 0 and not report.damaged
