"""Nodes that were deposed although they live: their followers could not reach them.

Their sessions with the controller hold, so once they lead nothing, nothing speaks against them: by
balancing they would get leaderships again, lose them again, and each time nothing would commit
until the followers have reported them. So such a node gets none by balancing for a while, which
doubles each time. What is known of a node is forgotten when it restarts, is fenced or is drained.

No I/O, no clock. Times are µs of a monotonic clock.
"""

from __future__ import annotations

from jetstream_protocol.types import MonotonicUs, NodeId

PAUSE_US = 10_000_000
"""The first pause. A cause that passes, such as a frozen process, has usually passed by then."""
PAUSE_US_MAX = 640_000_000
"""A lasting cause, such as a firewall, costs a gap in ten minutes."""


class Depositions:
    """Which nodes get no leaderships by balancing at the moment."""

    __slots__ = ("_first_us", "_pauses")

    def __init__(self, first_us: int = PAUSE_US) -> None:
        self._first_us = first_us
        self._pauses: dict[NodeId, tuple[int, MonotonicUs]] = {}  # how long, and until when

    def note(self, node_id: NodeId, now_us: MonotonicUs) -> int:
        """Note that the node was deposed. Returns the length in µs of the pause that begins; 0: one
        is under way, for another of its streams."""
        length_us, until_us = self._pauses.get(node_id, (0, now_us))
        if now_us < until_us:
            return 0
        is_again = length_us and now_us - until_us < PAUSE_US_MAX
        length_us = min(2 * length_us, PAUSE_US_MAX) if is_again else self._first_us
        self._pauses[node_id] = (length_us, MonotonicUs(now_us + length_us))
        return length_us

    def forget(self, node_id: NodeId) -> None:
        self._pauses.pop(node_id, None)

    def pausing(self, now_us: MonotonicUs) -> list[NodeId]:
        """The nodes that get none now."""
        return [node_id for node_id, (_, until_us) in self._pauses.items() if now_us < until_us]
