"""Limits what one principal may use of a node and of the cluster.

    connections, requests    at once, of one node; further ones are refused until others end
    bytes read a second      of one node; an answer waits until the answers before it are within
                             the rate. A principal that has read less may run ahead by BURST_US
    bytes written a second   likewise
    streams, groups, cursors of the cluster; counted where they are created
                             (stream_decisions.py, coordinator.py, table.py)

Pure: callers pass the time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from weakref import WeakValueDictionary

from jetstream_protocol.errors import TooManyRequestsError
from jetstream_protocol.types import MonotonicUs

BURST_US = 1_000_000
"""For how long a principal may use what it has not used before, of bytes read and written."""
PRINCIPALS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits for each principal. connections: to the data plane of a node. requests: on each of the
    ports gRPC and data of a node. streams: that the principal has created. groups: with members,
    that it has begun. cursors: that it has created. consumers: that it has created, of one node.
    bytes_per_second: that it reads; written_bytes_per_second: that it writes. Of all but
    connections and requests 0 is any number."""

    connections: int = 1024
    requests: int = 2048
    streams: int = 10_000
    groups: int = 1_000
    cursors: int = 50_000
    consumers: int = 5_000
    bytes_per_second: int = 0
    written_bytes_per_second: int = 0


class OpenRequests:
    """The open requests of one principal on one port of a node."""

    __slots__ = ("__weakref__", "_count", "_max", "_principal")

    def __init__(self, principal: str, requests_max: int) -> None:
        self._principal = principal
        self._max = requests_max
        self._count = 0

    def begin(self) -> None:
        """Count a request until `end`. Above the limit, raises TooManyRequestsError without
        counting it."""
        if self._count >= self._max:
            raise TooManyRequestsError(
                f"{self._principal} has {self._max} requests open to this node, as many as it may: "
                "wait for answers, and try again"
            )
        self._count += 1

    def end(self) -> None:
        """Note that a counted request was answered or abandoned."""
        self._count -= 1


class Limits:
    """What the principals use of one node."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._connections: Counter[str] = Counter()
        self._requests: WeakValueDictionary[tuple[str, str], OpenRequests] = WeakValueDictionary()
        self._read = _Paid(quotas.bytes_per_second)
        self._written = _Paid(quotas.written_bytes_per_second)

    def connected(self, principal: str) -> None:
        """Count a connection. Above the limit, raises TooManyRequestsError without counting it."""
        if self._connections[principal] >= self.quotas.connections:
            raise TooManyRequestsError(
                f"{principal} has {self.quotas.connections} connections open to this node, as many "
                "as it may: close some, or share one client"
            )
        self._connections[principal] += 1

    def disconnected(self, principal: str) -> None:
        """Note that a counted connection has ended."""
        self._connections[principal] -= 1
        if not self._connections[principal]:
            del self._connections[principal]

    def requests_of(self, principal: str, port: str) -> OpenRequests:
        """The requests of the principal on that port. All its connections share them."""
        found = self._requests.get((principal, port))
        if found is None:
            found = OpenRequests(principal, self.quotas.requests)
            self._requests[principal, port] = found
        return found

    def read_delay_us(self, principal: str, length: int, now_us: MonotonicUs) -> int:
        """Charge an answer of `length` bytes. Returns how long it must wait for earlier ones, in
        µs."""
        return self._read.delay_us(principal, length, now_us)

    def write_delay_us(self, principal: str, length: int, now_us: MonotonicUs) -> int:
        """Charge a batch of `length` bytes that is stored already. Returns how long the next one
        must wait, in µs."""
        self._written.delay_us(principal, length, now_us)
        return self._written.delay_us(principal, 0, now_us)


class _Paid:
    """Until when each principal has paid for its bytes. bytes_per_second: 0: they are free."""

    __slots__ = ("_paid_at", "_rate")

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._paid_at: dict[str, int] = {}

    def delay_us(self, principal: str, length: int, now_us: MonotonicUs) -> int:
        """Charge that many bytes. Returns how long they must wait for earlier ones, in µs."""
        if not self._rate:
            return 0
        paid_at = max(self._paid_at.pop(principal, 0), now_us - BURST_US)
        self._paid_at[principal] = paid_at + length * 1_000_000 // self._rate
        if len(self._paid_at) > PRINCIPALS_MAX:
            del self._paid_at[next(iter(self._paid_at))]
        return max(0, paid_at - now_us)
