"""What one principal may take of a node: connections to the data plane, and bytes read a second.

Reading faster than that is delayed, not refused: an answer waits until those before it are paid
for. A principal that has read less may run ahead by BURST_US. Pure: the time comes in.
"""

from __future__ import annotations

from collections import Counter

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import MonotonicUs

BURST_US = 1_000_000
PRINCIPALS_MAX = 10_000


class Limits:
    """Of one node. connections: per principal. bytes_per_second: per principal; 0: any number."""

    def __init__(self, connections: int, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._connections_max = connections
        self._connections: Counter[str] = Counter()
        self._paid_at: dict[str, int] = {}

    def connected(self, principal: str) -> None:
        """Count a connection. Raises UnavailableError, uncounted, beyond the limit."""
        if self._connections[principal] >= self._connections_max:
            raise UnavailableError(
                f"{principal} has {self._connections_max} connections open to this node, as many "
                "as it may: close some, or share one client"
            )
        self._connections[principal] += 1

    def disconnected(self, principal: str) -> None:
        """One that was counted has ended."""
        self._connections[principal] -= 1
        if not self._connections[principal]:
            del self._connections[principal]

    def delay_us(self, principal: str, length: int, now_us: MonotonicUs) -> int:
        """Charge an answer of `length` bytes; how long it is to wait for those before it."""
        if not self.bytes_per_second:
            return 0
        paid_at = max(self._paid_at.pop(principal, 0), now_us - BURST_US)
        self._paid_at[principal] = paid_at + length * 1_000_000 // self.bytes_per_second
        if len(self._paid_at) > PRINCIPALS_MAX:
            del self._paid_at[next(iter(self._paid_at))]
        return max(0, paid_at - now_us)
