"""Who is told what by `Replicas`, and who looks at files for it."""

from __future__ import annotations

from typing import Protocol

from jetstream_protocol.errors import StorageError
from jetstream_server.replication.replica import Replica


class ReplicaListener(Protocol):
    """Who follows roles: ingest subscribes and acknowledges by it."""

    def leading(self, replica: Replica) -> None:
        """This node leads the stream from now on."""

    def stopped_leading(self, replica: Replica) -> None:
        """It does not any more: deleted, closed, or led elsewhere."""

    def committed(self, replica: Replica) -> None:
        """The high watermark rose."""

    def fell_below_minimum(self, replica: Replica) -> None:
        """The ISR is below its minimum: what was appended is not committed for now."""

    def failed(self, replica: Replica, error: StorageError) -> None:
        """The disk refused: what is not committed yet never will be, here."""


class RoleListener(Protocol):
    """Who acts on the roles of replicas towards other nodes."""

    def role_changed(self, replica: Replica) -> None:
        """It leads, follows (another leader, another epoch), or does neither, closed included; or
        its stream's settings changed."""

    def flushed(self, replica: Replica) -> None:
        """A flush of its log has ended."""

    def failed(self, replica: Replica) -> None:
        """Its log can not be relied on any more."""


class Healer(Protocol):
    """Who looks at files that others say are damaged (healing.py)."""

    def suspect(self, replica: Replica, offset: int, *, whole: bool = False) -> None:
        """The bytes at `offset` may be bad, or any of its segment."""

    async def examined(self, replica: Replica, offset: int) -> None:
        """The same; returns once it was looked at."""


class ProgressListener(Protocol):
    """A follower's connection (dataplane.replica_session), and who changes the ISR."""

    def progressed(self, replica: Replica) -> None:
        """A stream with several replicas grew, committed, changed, or may get a member in sync."""
