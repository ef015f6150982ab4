"""Whether a node still copies what it has missed while it was away.

Who restarts nodes one by one stops the next one when /readyz of this one says so. If the next one
held the only other replica in sync, publishers would be refused until this one has caught up. So
/readyz waits for that, once, after the start; a replica that leaves the ISR later is no reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.clocks import MonotonicClock
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata

LIMIT_US = 10 * 60 * 1_000_000
"""After this time the node is ready all the same: a replica that cannot catch up, because its disk
has failed for example, must not keep it away for ever."""


def out_of_sync(streams: Iterable[StreamMetadata], node_id: NodeId) -> int:
    """How many replicas of the node are to join the ISR again. Not counted: observers; replicas of
    a stream without a leader, which no replica can follow; and those of a stream that is being
    reassigned, because a restart waits for no move."""
    return sum(
        node_id in stream.replicas
        and node_id not in stream.isr
        and stream.leader != NO_NODE
        and not stream.target_replicas
        for stream in streams
    )


class CatchingUp:
    """registry, incarnation: the node counts once its registration is in the registry, which takes
    it out of every ISR. The limit begins now."""

    def __init__(
        self,
        registry: Registry,
        node_id: int,
        incarnation: Callable[[], int | None],
        monotonic_clock: MonotonicClock,
    ) -> None:
        self._registry = registry
        self._node_id = NodeId(node_id)
        self._incarnation = incarnation
        self._clock = monotonic_clock
        self._ends_us = monotonic_clock() + LIMIT_US
        self._is_over = False

    def reasons(self) -> list[str]:
        """Why /readyz should wait, in at most one line. Once empty, always empty."""
        if self._is_over:
            return []
        if self._clock() >= self._ends_us:
            self._is_over = True
            return []
        node = self._registry.nodes.get(self._node_id)
        if node is None or node.incarnation != self._incarnation():
            return ["catching up: not registered yet"]
        behind = out_of_sync(self._registry.streams_of(self._node_id), self._node_id)
        self._is_over = not behind
        if not behind:
            return []
        subject = "1 of its replicas is" if behind == 1 else f"{behind:,} of its replicas are"
        return [f"catching up: {subject} not in sync yet"]
