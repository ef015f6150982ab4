"""From HTTP to the gRPC API: each request becomes a gRPC call in the name of its sender.

This is not a second API. A call goes to the gRPC port of this node, or of the node that it names
(the leader, a replica), with the sender's own token: the checks of gRPC apply. **safety** A caller
never gets the rights of a node. While security is on, a request without a token is refused here.
With a token, only the token identifies the caller, whatever certificate the connection shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from jetstream_protocol.channels import REVISION_KEY
from jetstream_protocol.errors import (
    NotLeaderError,
    NotReplicaError,
    UnauthenticatedError,
    UnavailableError,
)
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.certificates import Certificates
from jetstream_server.security import origin_proof
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop
from jetstream_server.serving.grpc.node_channels import NodeChannels
from jetstream_server.serving.http.guard import SAY_WHO, Sender

CALL_SECONDS = 10.0
_REDIRECTS_MAX = 2


class Gateway:
    """reach: waits for a revision of the metadata. requires_token: security is on. secret: the
    cluster's credential, for the audit log of the node that is called (security/origin_proof.py).
    """

    def __init__(
        self,
        registry: Registry,
        grpc_loop: GrpcLoop,
        node_id: int,
        certificates: Certificates | None = None,
        *,
        reach: Callable[[int], Awaitable[None]],
        requires_token: bool,
        secret: bytes = b"",
    ) -> None:
        self._secret = secret
        self._reach = reach
        self._reported = 0
        """The highest revision of the metadata that an answer has reported."""
        self._requires_token = requires_token
        self._registry = registry
        self._node_id = NodeId(node_id)
        self._channels = NodeChannels(grpc_loop, certificates)

    async def call(
        self,
        request: Message,
        sender: Sender,
        *,
        node_id: int | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Any:
        """Return the answer of node `node_id`; None: of this node. If the answer names another
        node, that one is asked instead. Raises the JetstreamError of the answer."""
        metadata = self._metadata(sender)
        address = self._address_of(self._node_id if node_id is None else NodeId(node_id))
        for redirects_left in reversed(range(_REDIRECTS_MAX + 1)):
            try:
                return await self._channels.call(
                    address,
                    request,
                    metadata=metadata,
                    seconds=seconds,
                    node=address,
                    told=self._note_revision,
                )
            except (NotLeaderError, NotReplicaError) as error:
                if error.redirect is None or not redirects_left:
                    raise
                address = error.redirect.grpc
        raise AssertionError("the last attempt returns or raises")

    def leader_of(self, stream_id: int) -> NodeId | None:
        """The leader that this node knows; None: there is none, or there is no such stream."""
        stream = self._registry.streams.get(StreamId(stream_id))
        return None if stream is None or stream.leader == NO_NODE else stream.leader

    def _note_revision(self, revision: int) -> None:
        self._reported = max(self._reported, revision)

    def leaderships(self) -> dict[int, tuple[int, int]]:
        """Leader and leader epoch of each stream that has a leader, as far as this node knows."""
        return {
            each.id: (each.leader, each.leader_epoch)
            for each in self._registry.streams.values()
            if each.leader != NO_NODE
        }

    async def caught_up(self) -> None:
        """Return once this node knows what those knew that have answered; see `reach`."""
        await self._reach(self._reported)

    def stream_name(self, stream_id: int) -> str | None:
        """The full name of a stream; None: there is no such stream any more."""
        stream = self._registry.streams.get(StreamId(stream_id))
        return None if stream is None else stream.full_name

    def _metadata(self, sender: Sender) -> list[tuple[str, str]]:
        """The call's metadata. Raises UnauthenticatedError for anything but a token (for example a
        node's proof), and without a token if one is needed."""
        authorization = f"Bearer {sender.token}" if sender.token else ""
        if not authorization and (sender.authorization or self._requires_token):
            raise UnauthenticatedError(SAY_WHO)
        metadata = [(REVISION_KEY, str(self._registry.revision))]
        if authorization:
            metadata.append(("authorization", authorization))
        origin = origin_proof.value_of(self._secret, sender.peer, authorization)
        return metadata + ([(origin_proof.HEADER, origin)] if origin else [])

    def _address_of(self, node_id: NodeId) -> str:
        node = self._registry.nodes.get(node_id)
        if node is None:
            raise UnavailableError(f"node {node_id} is not registered; try again")
        return node.addresses.grpc

    async def close(self) -> None:
        await self._channels.close()
