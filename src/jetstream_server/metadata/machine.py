"""The registry as Raft's state machine: an entry is a batch of commands, one per line."""

from __future__ import annotations

import structlog

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.proposals import BATCH_HEADER, Proposals
from jetstream_server.metadata.registry import Registry

_log = structlog.get_logger(__name__)


class Machine:
    """Applies entries to a registry and tells the proposals which commands they held."""

    def __init__(self, proposals: Proposals) -> None:
        self.registry = Registry()
        self._proposals = proposals

    def apply(self, command: bytes) -> None:
        """Apply one entry. Raises StorageError for one of a newer format: this node must stop
        rather than go on without it."""
        header, *texts = command.split(b"\n")
        if header != BATCH_HEADER:
            raise StorageError(
                f"a metadata entry of a newer format ({header[:40]!r}): update this server"
            )
        registry = self.registry
        for data in texts:
            text = data.decode(errors="replace")
            self._proposals.applied(text, registry.apply(text, registry.revision + 1))

    def restore(self, snapshot: bytes) -> bool:
        """Become a snapshot's state; False, unchanged, if it is unreadable."""
        try:
            self.registry.restore(snapshot)
        except StorageError as error:
            _log.error("metadata_snapshot_refused", reason=error.message)
            return False
        return True

    def session(self, node_id: NodeId) -> str | None:
        """The node's registered session."""
        node = self.registry.nodes.get(node_id)
        return None if node is None else node.session
