"""How far this node's replicas of leaderless streams reach, for unclean elections."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NO_EPOCH, NodeId, StreamId
from jetstream_server.metadata.state.model import StreamMetadata
from jetstream_server.replication.core.messages import last_epoch_of
from jetstream_server.replication.core.replica import Replica
from jetstream_server.replication.core.unclean_election import ReplicaReport
from jetstream_server.replication.sessions.messages import LogEnd


def leaderless_log_ends(
    node_id: NodeId,
    streams: Iterable[StreamMetadata],
    replica_of: Callable[[StreamId], Replica | None],
    suspects: Container[StreamId] = (),
) -> tuple[LogEnd, ...]:
    """The log ends for streams that have nobody eligible, of this node's replicas.

    A failed log cannot lead: it reports nothing before it is revived (log_replacement.py). A log
    that could not be opened reports nothing either. **safety** It may hold everything, and a later
    start may read it.

    suspects: streams whose log here is not trusted although it is readable (restart_trust.py).
    """
    found = []
    for stream in streams:
        if not stream.has_nobody_eligible or node_id not in stream.replicas:
            continue
        replica = replica_of(stream.id)
        # A replica that has not applied this metadata yet may still append.
        if replica is None or replica.stream.leader_epoch != stream.leader_epoch:
            continue
        if replica.has_failed or replica.unreadable_reason:
            continue
        is_suspect = stream.id in suspects or replica.needs_rebuild
        found.append(LogEnd(stream.id, stream.leader_epoch, _report(replica, is_suspect)))
    return tuple(found)


def _report(replica: Replica, is_suspect: bool) -> ReplicaReport:
    if replica.log.is_lost:
        return ReplicaReport(replica.incarnation, NO_EPOCH, 0, damaged=True)
    log = replica.log
    damaged = is_suspect or bool(log.offline_reason) or _is_incomplete_copy(replica)
    return ReplicaReport(replica.incarnation, last_epoch_of(log), log.log_end_offset, damaged)


def _is_incomplete_copy(replica: Replica) -> bool:
    """Whether records are missing whose later versions its leader had, but not this copy."""
    log = replica.log
    try:
        return replica.stream.was_compacted and log.log_end_offset < log.copied_under
    except StorageError:
        return True
