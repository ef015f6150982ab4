"""Chooses the leader when neither ISR nor ELR has a member: the replica that holds most.

Every replica that could hold all committed records has then lost some, or is not trusted
(docs/replication.md, "Controller"). All of them (`last_known`) must be alive and report how far
their logs reach. **safety** Of two logs, the one with the higher (last epoch, log end) holds
everything in the other one that can be committed. So if one of them is complete, nothing is lost.
This holds for the readable part of damaged logs too, because those bytes passed their CRCs. It also
holds for a log that lacks its beginning: followers keep their records in front of it. The election
still counts as possibly lossy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state.commands import ElectLeader
from jetstream_server.metadata.state.model import NodeMetadata, StreamMetadata


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """How far one replica's log can be read, as its node reports. damaged: it held more, or the
    next power failure may lose readable records."""

    incarnation: int
    last_epoch: int
    log_end_offset: int
    damaged: bool


def choose_unclean(
    stream: StreamMetadata,
    nodes: Mapping[NodeId, NodeMetadata],
    reports: Mapping[NodeId, ReplicaReport],
) -> ElectLeader | None:
    """The command for a stream that waits for its last known replicas; None while one of them is
    missing, or when the stream does not wait.

    It names the incarnations that reported: a node that has restarted since may hold less.
    """
    if stream.leader != NO_NODE or stream.isr or stream.elr:
        return None
    candidates: list[tuple[int, int, bool, int, NodeId]] = []
    for node_id in stream.last_known:
        node, report = nodes.get(node_id), reports.get(node_id)
        if node is None or node.fenced or report is None:
            return None
        if report.incarnation != node.incarnation:
            return None
        candidates.append(
            (report.last_epoch, report.log_end_offset, not report.damaged, -node_id, node_id)
        )
    if not candidates:
        return None
    return ElectLeader(
        stream_id=stream.id,
        leader=max(candidates)[-1],
        incarnations=tuple(nodes[node_id].incarnation for node_id in stream.last_known),
    )
