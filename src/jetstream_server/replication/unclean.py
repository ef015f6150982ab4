"""Which replica leads on when neither ISR nor ELR has a member: the one that holds most.

Then every replica that could have held all committed records has lost some, or is not believed
(docs/replication.md, "Unclean elections"). All of them (`last_known`) have to be alive and to
tell how far their logs reach: **safety** of two logs, the one with the higher (last epoch, log
end) holds everything the other has that can be committed; so if one of them is complete after
all, nothing is lost. That goes for damaged logs too, as far as they can be read: what their bytes
hold passed its CRCs. It counts as possibly lossy all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.streams import NodeMetadata, StreamMetadata


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """How far one replica's log can be read, as its node says. damaged: there was more, or the
    next power failure may take what is readable now."""

    incarnation: int
    last_epoch: int
    log_end_offset: int
    damaged: bool


def choose_unclean(
    stream: StreamMetadata,
    nodes: Mapping[NodeId, NodeMetadata],
    reports: Mapping[NodeId, ReplicaReport],
) -> dict[str, Any] | None:
    """The elect_leader command for a stream that waits for its last known replicas; None while
    one of them is missing, or when the stream does not wait at all.

    It names the incarnations that reported: who has restarted since may hold less.
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
    return {
        "op": "elect_leader",
        "stream_id": stream.id,
        "leader": max(candidates)[-1],
        "incarnations": [nodes[node_id].incarnation for node_id in stream.last_known],
    }
