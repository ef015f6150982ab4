"""Finds the leader of `__cursors`, which answers calls about cursors and consumer groups."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from jetstream_protocol.errors import NotLeaderError, UnavailableError
from jetstream_protocol.types import NO_NODE
from jetstream_server.cursors.store import CURSORS, SETTINGS
from jetstream_server.metadata.client.streams import Streams
from jetstream_server.metadata.state.model import StreamMetadata
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.peers import Peers, was_forwarded


class CursorLeader:
    """`create` or `exists` first, then `is_here`, else `forward`."""

    def __init__(self, registry: Registry, streams: Streams, peers: Peers, node_id: int) -> None:
        self._registry = registry
        self._streams = streams
        self._peers = peers
        self._node_id = node_id

    @property
    def exists(self) -> bool:
        """Whether anything was ever committed."""
        return self._registry.find(CURSORS, "") is not None

    async def create(self) -> None:
        """Create the stream of the cursors, if there is none. Raises UnavailableError."""
        if not self.exists:
            await self._streams.create_internal(CURSORS, SETTINGS)

    def is_here(self, call: Call) -> bool:
        """Whether this node is to answer. Raises NotLeaderError for what was forwarded to it and
        should not have been."""
        if self._log.leader == self._node_id:
            return True
        if was_forwarded(call):
            raise NotLeaderError("this node does not lead the cursors; try again")
        return False

    @property
    def _log(self) -> StreamMetadata:
        log = self._registry.find(CURSORS, "")
        assert log is not None, "it was created"
        return log

    async def forward(self, method: str, request: Message, principal: str = "") -> Any:
        """The leader's answer. principal: for whose quota it counts. Raises its JetstreamError,
        UnavailableError."""
        leader = self._log.leader
        if leader == NO_NODE:
            raise UnavailableError("nobody leads the cursors now; try again")
        try:
            return await self._peers.cursors(leader, method, request, principal)
        except NotLeaderError as error:
            raise UnavailableError(error.message) from error
