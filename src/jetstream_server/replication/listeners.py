"""The listeners of the replicas. A listener overrides the methods that it needs.

All methods are called on the event loop, and must not block it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_protocol.types import NodeId

if TYPE_CHECKING:
    from jetstream_server.replication.replica import Replica


class RoleChange(Enum):
    """A change of a replica's role that new metadata brings. They are acted on in this order."""

    STOPPED_LEADING = auto()
    """**safety** Pending acks are dropped without an answer: the new leader may commit the
    records."""
    LEADS = auto()
    FOLLOWS = auto()
    """There is a new leader, or a new epoch of the same one: begin to fetch."""
    IDLES = auto()
    """There is no leader to follow."""
    FELL_BELOW_MINIMUM = auto()
    """Appended records cannot be committed at present: answer with an unknown outcome."""


class ReplicaListener:
    """Acts on leaderships: ingest subscribes and acknowledges by them."""

    def changed(self, replica: Replica, change: RoleChange) -> None:
        """Called with each change of the role. Calls the method for it."""
        if change is RoleChange.STOPPED_LEADING:
            self.stopped_leading(replica)
        elif change is RoleChange.LEADS:
            self.leading(replica)
        elif change is RoleChange.FOLLOWS:
            self.led_elsewhere(replica)
        elif change is RoleChange.FELL_BELOW_MINIMUM:
            self.fell_below_minimum(replica)

    def leading(self, replica: Replica) -> None:
        """Called when this node begins to lead the stream."""

    def access_changed(self, replica: Replica) -> None:
        """Called when a stream led here was paused, resumed, or made read-only or writable."""

    def stopped_leading(self, replica: Replica) -> None:
        """Called when this node stops leading: the stream is deleted, closed, or led elsewhere."""

    def led_elsewhere(self, replica: Replica) -> None:
        """Called when this node follows: another leader, or another epoch of it."""

    def fell_below_minimum(self, replica: Replica) -> None:
        """Called when the ISR is below its minimum: appended records cannot be committed now."""

    def failed(self, replica: Replica, error: StorageError) -> None:
        """Called when the log has failed: its uncommitted records are lost to this leadership."""


class RoleListener:
    """Acts on the roles of replicas. The drivers are such listeners."""

    def role_changed(self, replica: Replica) -> None:
        """Called when a replica leads, follows (another leader, another epoch), or does neither,
        which includes that it was closed; or when its stream's settings changed."""

    def flushed(self, replica: Replica) -> None:
        """Called when a flush of the log has ended."""

    def failed(self, replica: Replica) -> None:
        """Called when the log cannot be relied on any more."""

    def log_start_rose(self, replica: Replica) -> None:
        """Called when limits or a purge have removed records."""

    def heard(self, node_id: NodeId) -> None:
        """Called when a follower node has sent something, perhaps only a keep-alive."""


class Healer:
    """Inspects files that are reported as damaged (healing.py)."""

    def suspect(
        self,
        replica: Replica,
        offset: int,
        error: JetstreamError | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Have the bytes at `offset` inspected. error: why this node could not read them; None: it
        has not tried. whole: the whole segment."""

    async def examined(self, replica: Replica, offset: int) -> None:
        """Like `suspect`. Returns after the inspection."""


class ProgressListener(Protocol):
    """A follower's connection (leader_stream.py), or the driver that changes the ISR."""

    def progressed(self, replica: Replica) -> None:
        """Called when a stream with several replicas may need an answer or an ISR change."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """All listeners of a node, in the order in which they are called."""

    leadership: ReplicaListener = field(default_factory=ReplicaListener)
    roles: tuple[RoleListener, ...] = ()
    progress: tuple[ProgressListener, ...] = ()
    """Called from the start. A follower's connection is added while it lasts."""
    healer: Healer = field(default_factory=Healer)

    def role_changed(self, replica: Replica) -> None:
        for listener in self.roles:
            listener.role_changed(replica)

    def flushed(self, replica: Replica) -> None:
        for listener in self.roles:
            listener.flushed(replica)

    def failed(self, replica: Replica) -> None:
        for listener in self.roles:
            listener.failed(replica)

    def log_start_rose(self, replica: Replica) -> None:
        for listener in self.roles:
            listener.log_start_rose(replica)

    def heard(self, node_id: NodeId) -> None:
        for listener in self.roles:
            listener.heard(node_id)
