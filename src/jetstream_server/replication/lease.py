"""A node's session lease: for how long it may believe that it is not fenced.

The node sends a heartbeat; the controller answers with a grant. The lease runs from when the
heartbeat was *sent*, and is shorter than the controller waits after it was *received*:

    node        sent ├───────── lease ─────────┤ silent from here on
    controller       ·  heard ├───────────── timeout ─────────────┤ fences, elects others

It begins earlier by as much as the controller's certainty of its own role is old (quorum.py): so
every lease ends at the latest a lease's length after its controller was last sure, and a successor
that knows when that was need not wait any longer.

**safety** Only a current leader speaks. `holds` is asked before anything is said to a publisher
and before another byte of theirs is taken: also right after a sleep, when the process wakes up
in the middle of its work and does not know how late it is. The clock is monotonic, and goes on
during sleep.
"""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.types import NodeId


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Times in µs; the same on every node.

    lease_us: less than the timeout, by more than clocks drift apart within it. authority_us: how
    long a metadata leader goes on granting after it was last sure of its majority. greeting_us:
    how long a new controller waits for the first heartbeats, whatever leases there can be.
    """

    timeout_us: int = 1_500_000
    heartbeat_us: int = 300_000
    lease_us: int = 1_300_000
    authority_us: int = 500_000
    greeting_us: int = 500_000


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From a node to the controller. `sent_at_us` is of the node's clock; the grant goes by it.

    applied_revision: how much of the metadata the node has applied.
    """

    node_id: NodeId
    incarnation: int
    sent_at_us: int
    applied_revision: int


class SessionLease:
    """What the controller has granted to this process."""

    __slots__ = ("_lease_us", "ends_at_us")

    def __init__(self, settings: SessionSettings) -> None:
        self._lease_us = settings.lease_us
        self.ends_at_us = -1

    def granted(self, runs_from_us: int) -> None:
        """A lease from that time on was granted. Late and doubled grants change nothing."""
        self.ends_at_us = max(self.ends_at_us, runs_from_us + self._lease_us)

    def holds(self, now_us: int) -> bool:
        return now_us < self.ends_at_us
