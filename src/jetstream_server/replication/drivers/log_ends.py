"""How far this node's replicas of leaderless streams reach, for unclean elections."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NO_EPOCH, NodeId, StreamId
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.restart_trust import RunRecord
from jetstream_server.replication.core.unclean_election import ReplicaReport, last_epoch_begun
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.sessions.session_messages import LogEnd


def leaderless_log_ends(
    node_id: NodeId,
    streams: Iterable[StreamMetadata],
    replica_of: Callable[[StreamId], Replica | None],
    record: RunRecord,
) -> tuple[LogEnd, ...]:
    """The log ends for streams that have no eligible replica, of this node's replicas.

    A failed log cannot lead: it reports nothing before it is revived (log_replacement.py). A log
    that could not be opened reports nothing either. **safety** It may hold everything, and a later
    start may read it.

    record: of the node's runs: which logs are not trusted although they are readable.
    """
    found = []
    for stream in streams:
        if not stream.has_no_eligible_replica or node_id not in stream.replicas:
            continue
        replica = replica_of(stream.id)
        # A replica that has not applied this metadata yet may still append.
        if replica is None or replica.stream.leader_epoch != stream.leader_epoch:
            continue
        if replica.has_failed or replica.unreadable_reason:
            continue
        found.append(LogEnd(stream.id, stream.leader_epoch, _report(replica, record)))
    return tuple(found)


def _report(replica: Replica, record: RunRecord) -> ReplicaReport:
    log, stream_id, incarnation = replica.log, replica.stream.id, replica.incarnation
    if log.is_lost:
        return ReplicaReport(incarnation, NO_EPOCH, 0, damaged=True)
    if _is_incomplete_copy(replica):
        # Of each key it may lack the value that an older log still has: any other log is better.
        return ReplicaReport(incarnation, NO_EPOCH, log.log_end_offset, damaged=True)
    damaged = (
        bool(log.offline_reason)
        or replica.needs_rebuild
        or stream_id in record.suspects
        or (log.log_end_offset == 0 and stream_id <= record.replaced_through)
    )
    return ReplicaReport(incarnation, last_epoch_begun(log), log.log_end_offset, damaged)


def _is_incomplete_copy(replica: Replica) -> bool:
    """Whether the copying of a compacted log has not come as far as its leader had removed
    tombstones when it began."""
    log = replica.log
    try:
        return replica.stream.was_compacted and log.log_end_offset < log.copied_under
    except StorageError:
        return True
