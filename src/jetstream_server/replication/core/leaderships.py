"""Counts the metadata's decisions about leaders and ISRs, for metrics.

The node that leads a stream after a change counts the change, so that a sum over all nodes counts
it once. Every node knows the streams without a leader; use the controller's number.
"""

from __future__ import annotations

from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.metadata.state.changes import (
    Change,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
    StreamForgotten,
)
from jetstream_server.metadata.state.streams import StreamMetadata


class Leaderships:
    """elections: leaderships that this node was given, hand-overs included. lossy_elections: those
    of them that may have lost committed records. isr_shrinks, isr_expands: changes that removed or
    added members. leaderless: the streams that have no leader."""

    __slots__ = (
        "_node_id", "elections", "isr_expands", "isr_shrinks", "leaderless", "lossy_elections",
    )  # fmt: skip

    def __init__(self, node_id: int) -> None:
        self._node_id = NodeId(node_id)
        self.elections = 0
        self.lossy_elections = 0
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.leaderless: dict[StreamId, None] = {}

    def apply(self, change: Change) -> None:
        """Count one change of the metadata."""
        match change:
            case StreamCreated(stream):
                self.know(stream)
            case StreamChanged(before, after):
                self.know(after)
                if after.leader == self._node_id:
                    self._count(before, after)
            case StreamDeleted(stream) | StreamForgotten(stream):
                self.leaderless.pop(stream.id, None)

    def know(self, stream: StreamMetadata) -> None:
        """Note whether a stream has a leader."""
        if stream.leader == NO_NODE:
            self.leaderless[stream.id] = None
        else:
            self.leaderless.pop(stream.id, None)

    def _count(self, before: StreamMetadata, after: StreamMetadata) -> None:
        if after.leader_epoch != before.leader_epoch:
            self.elections += 1
            self.lossy_elections += after.lossy_elections - before.lossy_elections
        known, now = frozenset(before.isr), frozenset(after.isr)
        self.isr_shrinks += bool(known - now)
        self.isr_expands += bool(now - known)
