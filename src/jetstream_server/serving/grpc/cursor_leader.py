"""Finds the leader of `__cursors`, which answers calls about cursors and consumer groups."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from jetstream_protocol.errors import NotLeaderError, UnavailableError
from jetstream_protocol.types import NO_NODE
from jetstream_server.cursors.store import CURSORS, SETTINGS
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.peers import Peers, was_forwarded

_Answer = TypeVar("_Answer", bound=Message)


class CursorLeader:
    """Call `create`, `exists` or `surely_exists` first, then `forward`."""

    def __init__(
        self, metadata: RaftMetadataLog, streams: Streams, peers: Peers, node_id: int
    ) -> None:
        self._metadata = metadata
        self._registry = metadata.registry
        self._streams = streams
        self._peers = peers
        self._node_id = node_id

    @property
    def exists(self) -> bool:
        """Whether anything was ever committed, as far as this node has heard."""
        return self._registry.find(CURSORS, "") is not None

    async def surely_exists(self) -> bool:
        """Whether anything was ever committed. **safety** Who hears that a cursor is new begins
        anew, and commits that. Raises UnavailableError if this node cannot find out."""
        if not self.exists:
            await self._metadata.barrier()
        return self.exists

    async def create(self) -> None:
        """Create the stream of the cursors, if there is none. Raises UnavailableError."""
        if not self.exists:
            await self._streams.create_internal(CURSORS, SETTINGS)

    async def forward(
        self,
        call: Call,
        request: Message,
        answer: type[_Answer],
        principal: str = "",
    ) -> _Answer | None:
        """The answer of the node that leads; None: this node leads and has to answer.

        principal: the caller, whose quota counts. Raises the other node's JetstreamError,
        UnavailableError, and NotLeaderError for a call that was forwarded to the wrong node.
        """
        log = self._registry.find(CURSORS, "")
        assert log is not None, "it was created"
        if log.leader == self._node_id:
            return None
        if was_forwarded(call):
            raise NotLeaderError("this node does not lead the cursors; try again")
        if log.leader == NO_NODE:
            raise UnavailableError("the cursors have no leader now; try again")
        try:
            found = await self._peers.cursors(log.leader, request, principal)
        except NotLeaderError as error:
            raise UnavailableError(error.message) from error
        assert isinstance(found, answer)
        return found
