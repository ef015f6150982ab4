"""How far this node's replicas of leaderless streams reach: what an unclean election needs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from jetstream_protocol.types import NO_EPOCH, NO_NODE, NodeId, StreamId
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.messages import last_epoch_of
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.session_messages import LogEnd
from jetstream_server.replication.unclean import ReplicaReport


def leaderless_log_ends(
    node_id: NodeId,
    streams: Iterable[StreamMetadata],
    replica_of: Callable[[StreamId], Replica | None],
    suspects: Container[StreamId] = (),
) -> tuple[LogEnd, ...]:
    """Of the streams that wait for all their last known replicas, this node's among them. A log
    that has failed could not lead: it tells nothing before it is revived (mending.py).

    suspects: streams whose log here cannot be believed although it reads well (trust.py).
    """
    found = []
    for stream in streams:
        if stream.leader != NO_NODE or stream.isr or stream.elr or node_id not in stream.last_known:
            continue
        replica = replica_of(stream.id)
        # A replica that has not followed the metadata yet may still append.
        if replica is None or replica.stream.leader_epoch != stream.leader_epoch:
            continue
        if replica.has_failed:
            continue
        is_suspect = stream.id in suspects or replica.needs_rebuild
        found.append(LogEnd(stream.id, stream.leader_epoch, _report(replica, is_suspect)))
    return tuple(found)


def _report(replica: Replica, is_suspect: bool) -> ReplicaReport:
    if replica.unreadable_reason or replica.log.lacks_front:  # From its start on, nothing.
        return ReplicaReport(replica.incarnation, NO_EPOCH, 0, damaged=True)
    log = replica.log
    damaged = is_suspect or bool(log.offline_reason)
    return ReplicaReport(replica.incarnation, last_epoch_of(log), log.log_end_offset, damaged)
