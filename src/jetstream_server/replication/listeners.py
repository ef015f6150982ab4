"""Whom `ReplicaManager` tells what. A listener overrides what concerns it; the rest does nothing.

All are called on the event loop, and must not block it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.replication.core.replica import Replica


class ReplicaListener:
    """Acts on leadership: ingest subscribes and acknowledges by it."""

    def leading(self, replica: Replica) -> None:
        """This node leads the stream from now on."""

    def access_changed(self, replica: Replica) -> None:
        """The stream that this node leads was paused, resumed, made read-only or writable."""

    def stopped_leading(self, replica: Replica) -> None:
        """It does not any more: deleted, closed, or led elsewhere."""

    def committed(self, replica: Replica) -> None:
        """The high watermark rose."""

    def fell_below_minimum(self, replica: Replica) -> None:
        """The ISR is below its minimum: what was appended is not committed for now."""

    def failed(self, replica: Replica, error: StorageError) -> None:
        """The disk refused: what is not committed yet never will be, here."""


class RoleListener:
    """Acts on the roles of replicas: the drivers do."""

    def role_changed(self, replica: Replica) -> None:
        """It leads, follows (another leader, another epoch), or does neither, closed included; or
        its stream's settings changed."""

    def flushed(self, replica: Replica) -> None:
        """A flush of its log has ended."""

    def failed(self, replica: Replica) -> None:
        """Its log can not be relied on any more."""

    def log_start_rose(self, replica: Replica) -> None:
        """Its limits or a purge have removed records."""

    def heard(self, node_id: NodeId) -> None:
        """A follower node has said something, if only that it is there."""


class Healer:
    """Looks at files that others say are damaged (healing.py)."""

    def suspect(self, replica: Replica, offset: int, *, whole: bool = False) -> None:
        """The bytes at `offset` may be bad, or any of its segment."""

    async def examined(self, replica: Replica, offset: int) -> None:
        """The same; returns once it was looked at."""


class ProgressListener(Protocol):
    """A follower's connection (leader_stream.py), and the driver that changes the ISR."""

    def progressed(self, replica: Replica) -> None:
        """A stream with several replicas grew, committed, changed, or may get a member in sync."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """All of a node's listeners, in the order in which they are told."""

    leadership: ReplicaListener = field(default_factory=ReplicaListener)
    roles: tuple[RoleListener, ...] = ()
    progress: tuple[ProgressListener, ...] = ()
    """Told from the start; a follower's connection is told while it lasts."""
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
