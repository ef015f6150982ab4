"""A node's session lease: how long the node may assume that it is not fenced.

The node sends a heartbeat, and the controller answers with a grant. The lease runs from when the
heartbeat was *sent*. It is shorter than the time the controller waits after it was *received*:

    node        sent ├───────── lease ─────────┤ silent from here on
    controller       ·  heard ├───────────── timeout ─────────────┤ fences, elects others

It begins earlier by the age of the controller's proof of its own role (quorum.py). So every lease
ends at most one lease length after its controller was last sure of its role. A successor that knows
that time need not wait longer.

**safety** Only a current leader answers publishers. `holds` is checked before anything is sent to a
publisher and before more of its bytes are read, even right after the process was suspended. The
clock is monotonic and continues during sleep.
"""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.types import BootUs, NodeId


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Times in µs; the same on every node.

    lease_us: less than the timeout by more than clocks can drift within it. authority_us: how long
    a metadata leader may grant leases after it was last sure of its majority. greeting_us: how long
    a new controller waits for the first heartbeats in any case.
    """

    timeout_us: int = 1_500_000
    heartbeat_us: int = 300_000
    lease_us: int = 1_300_000
    authority_us: int = 500_000
    greeting_us: int = 500_000


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat from a node to the controller. sent_at_us: the node's time; the lease runs from
    it.

    applied_revision: the metadata revision that the node has applied.
    """

    node_id: NodeId
    incarnation: int
    sent_at_us: BootUs
    applied_revision: int


class SessionLease:
    """The lease that the controller has granted to this process."""

    __slots__ = ("_lease_us", "ends_at_us")

    def __init__(self, settings: SessionSettings) -> None:
        self._lease_us = settings.lease_us
        self.ends_at_us = BootUs(-1)

    def granted(self, runs_from_us: BootUs) -> None:
        """Take a grant from that time on. Late and repeated grants change nothing."""
        self.ends_at_us = max(self.ends_at_us, BootUs(runs_from_us + self._lease_us))

    def holds(self, now_us: BootUs) -> bool:
        return now_us < self.ends_at_us
