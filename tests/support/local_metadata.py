"""The metadata log of a test's registry: a proposal is applied at once, or fails as told."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import JetstreamError
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.registry import Registry
from tests.unit.metadata.cluster import Cluster


class LocalMetadata:
    """trouble: what proposing raises. is_late: a command that raises is applied all the same, just
    before the next one that does not. proposed: every command, whatever became of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.trouble: JetstreamError | None = None
        self.is_late = False
        self._late: list[Command] = []
        self.proposed: list[Command] = []

    @property
    def registry(self) -> Registry:
        return self._cluster.registry

    async def propose(self, command: Command, *, made_at: int = 0) -> dict[str, Any]:
        self.proposed.append(command)
        if self.trouble is not None:
            self._late += [command] if self.is_late else []
            raise self.trouble
        while self._late:
            self._cluster.do(self._late.pop(0))
        return self._cluster.do(command, made_at=made_at)
