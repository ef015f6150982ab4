"""Who else may ride on the metadata group's thread and links, and what it sees there.

A passenger lives on the member's thread, so that whatever holds up the server's loop does not hold
up the passenger. Its frames travel on the authenticated links of the group, apart from Raft's by
their first byte; it never sees a Raft message, and Raft never sees a frame of a passenger.
"""

from __future__ import annotations

from typing import Any, Protocol

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.registry import Registry

PASSENGER_KIND_MIN = 0x40
"""A frame that begins with this byte or a higher one is a passenger's; Raft's begin lower."""


class Carrier(Protocol):
    """The member, as its passenger sees it. Everything is as of now, not of the last turn."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def voters(self) -> tuple[NodeId, ...]: ...

    @property
    def term(self) -> int:
        """Raft's current term on this node: higher once it has voted in a later one."""

    @property
    def votes(self) -> bool:
        """Whether this node votes: one that may have forgotten a vote (a learner) confirms nobody
        as the only leader."""

    @property
    def leader(self) -> NodeId:
        """The metadata leader in reach, this node included; NO_NODE without one."""

    @property
    def controller_epoch(self) -> int | None:
        """While this node leads the group and a claim it made in this very term has applied."""

    @property
    def registry(self) -> Registry:
        """What the member has applied; the server's own copy may lag behind it."""

    def send(self, peer: NodeId, frame: bytes) -> bool:
        """In order after earlier frames, at most once; False when there is no link."""

    def command(self, command: dict[str, Any]) -> None:
        """Put a command of the controller into the log, under `controller_epoch`.

        Only to be called while there is one. The command must be harmless when repeated: there is
        no answer but the change itself, and calling again is how to retry.
        """


class Passenger(Protocol):
    """Called on the member's thread. A JetstreamError raised in `turn` ends the member."""

    def turn(self, carrier: Carrier) -> None:
        """Called after every message and at least once a tick (RaftTimings.tick)."""

    def received(self, carrier: Carrier, peer: NodeId, frame: bytes) -> None:
        """A peer's passenger sent this. A JetstreamError raised here closes the link."""


def is_passengers(frame: bytes) -> bool:
    return frame[0] >= PASSENGER_KIND_MIN
