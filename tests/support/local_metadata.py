"""The metadata log of a test's registry: a proposal is applied at once, or fails as told."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import JetstreamError
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.registry import Registry
from tests.unit.metadata.cluster import Cluster


class LocalMetadata:
    """trouble: what proposing raises. is_applied: although it raises. proposed: every command,
    whatever became of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.trouble: JetstreamError | None = None
        self.is_applied = False
        self.proposed: list[Command] = []

    @property
    def registry(self) -> Registry:
        return self._cluster.registry

    async def propose(self, command: Command) -> dict[str, Any]:
        self.proposed.append(command)
        if self.trouble is not None and not self.is_applied:
            raise self.trouble
        result = self._cluster.do(command)
        if self.trouble is not None:
            raise self.trouble
        return result
