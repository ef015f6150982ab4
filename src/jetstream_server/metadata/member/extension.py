"""The interface for other parts that run on the metadata group's thread and use its links.

An extension runs on the member's thread, so that a blocked server loop does not delay it. Its
frames travel on the authenticated links of the group; their first byte distinguishes them from
Raft's. An extension never sees a Raft message, and Raft never sees an extension's frame.
"""

from __future__ import annotations

from typing import Protocol

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.registry import Registry

EXTENSION_KIND_MIN = 0x40
"""An extension's frames begin with this byte or a higher one, Raft's with a lower one."""


class ExtensionContext(Protocol):
    """The member, as its extension sees it. All values are current, not those of the last turn."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """The set of voters in force on this node, by id; it may change at any turn."""

    @property
    def term(self) -> int:
        """Raft's current term on this node: higher once it has voted in a later one."""

    @property
    def votes(self) -> bool:
        """Whether this node votes when it is asked. A node that may have forgotten a vote (a
        learner) does not, and does not confirm a leader."""

    @property
    def leader(self) -> NodeId:
        """The metadata leader that this node can reach, itself included; NO_NODE: none."""

    @property
    def controller_epoch(self) -> int | None:
        """Set while this node leads the group and a claim of this term was applied."""

    @property
    def registry(self) -> Registry:
        """The state as the member has applied it; the server's copy may lag behind."""

    def send(self, peer: NodeId, frame: bytes) -> bool:
        """Send a frame, in order and at most once; False when there is no link."""

    def command(self, command: Command) -> None:
        """Append a command of the controller to the log, under `controller_epoch`.

        Call it only while there is one. Repeating the command must be harmless: the change itself
        is the only answer, and callers that miss it call again.
        """


class RaftThreadExtension(Protocol):
    """Called on the member's thread. A JetstreamError raised in `turn` ends the member."""

    def turn(self, context: ExtensionContext) -> None:
        """Work. Called after every message, and at least once per tick (RaftTimings.tick)."""

    def received(self, context: ExtensionContext, peer: NodeId, frame: bytes) -> None:
        """Take a frame of a peer's extension. A JetstreamError raised here closes the link."""

    def is_certain(self, context: ExtensionContext) -> bool:
        """Whether this node, as leader, has been certain to be the only one since these voters came
        into force. **safety** Until then they are not changed again."""


def is_extension_frame(frame: bytes) -> bool:
    return frame[0] >= EXTENSION_KIND_MIN
