"""The registry as Raft's state machine: an entry is a batch of commands, one per line."""

from __future__ import annotations

import structlog

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.member.proposals import BATCH_HEADER, Proposals
from jetstream_server.metadata.state.registry import Registry

logger = structlog.get_logger(__name__)


class RegistryStateMachine:
    """Applies entries to a registry, and reports their commands to the proposals."""

    def __init__(self, proposals: Proposals) -> None:
        self.registry = Registry()
        self._proposals = proposals

    def apply(self, command: bytes) -> None:
        """Apply one entry. Raises StorageError for an entry of a newer format or feature level:
        this node must stop, because it cannot continue without it."""
        header, *texts = command.split(b"\n")
        if header != BATCH_HEADER:
            raise StorageError(
                f"a metadata entry of a newer format ({header[:40]!r}): update this server"
            )
        registry = self.registry
        for data in texts:
            text = data.decode(errors="replace")
            self._proposals.applied(text, registry.apply(text, registry.revision + 1))
            registry.check_understood()

    def restore(self, snapshot: bytes) -> bool:
        """Take over a snapshot's state. Returns False, with nothing changed, if it is
        unreadable."""
        try:
            self.registry.restore(snapshot)
        except StorageError as error:
            logger.error("metadata_snapshot_refused", reason=error.message)
            return False
        return True

    def session(self, node_id: NodeId) -> str | None:
        """The node's registered session."""
        node = self.registry.nodes.get(node_id)
        return None if node is None else node.session
