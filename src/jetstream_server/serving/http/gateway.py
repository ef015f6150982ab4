"""From HTTP to the gRPC API: each request is asked in the name of whoever sent it.

There is one API, and this is no second one: a call goes to the gRPC port of this node, or of the
node that it names (the leader, a replica), with the sender's own token, so that all that guards
gRPC guards this. **safety** Nobody acts with the rights of a node: while security is on, a request
without a token is refused here, and with one the token alone says who asks, whatever certificate
the connection shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from jetstream_protocol.errors import (
    GRPC_ERROR_KEY,
    JetstreamError,
    NotLeaderError,
    NotReplicaError,
    UnauthenticatedError,
    UnavailableError,
    from_proto,
)
from jetstream_protocol.generated import (
    api_pb2_grpc,
    common_pb2,
    cursors_pb2_grpc,
    groups_pb2_grpc,
)
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.certificates import Certificates
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop

CALL_SECONDS = 10.0
_REDIRECTS_MAX = 2
_STUBS: dict[str, Callable[[aio.Channel], Any]] = {
    "Streams": api_pb2_grpc.StreamsStub,
    "Reads": api_pb2_grpc.ReadsStub,
    "Cluster": api_pb2_grpc.ClusterStub,
    "Cursors": cursors_pb2_grpc.CursorsStub,
    "Groups": groups_pb2_grpc.GroupsStub,
}


class Gateway:
    """One channel per node, opened when first needed; with new certificates a new one."""

    def __init__(
        self,
        registry: Registry,
        grpc_loop: GrpcLoop,
        node_id: int,
        certificates: Certificates | None = None,
        *,
        requires_token: bool,
    ) -> None:
        self._requires_token = requires_token
        self._registry = registry
        self._loop = grpc_loop
        self._node_id = NodeId(node_id)
        self._certificates = certificates
        self._generation = 0
        self._channels: dict[str, aio.Channel] = {}

    async def call(
        self,
        service: str,
        method: str,
        request: Message,
        authorization: str,
        *,
        node_id: int | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Any:
        """The answer of a node, of this one if none is named; another one that the answer names is
        asked in its place. authorization: the header, "" for none. Raises the JetstreamError that
        is answered."""
        metadata = self._metadata(authorization)
        address = self._address_of(self._node_id if node_id is None else NodeId(node_id))
        for redirects_left in reversed(range(_REDIRECTS_MAX + 1)):
            try:
                return await self._ask(address, service, method, request, metadata, seconds)
            except (NotLeaderError, NotReplicaError) as error:
                if error.redirect is None or not redirects_left:
                    raise
                address = error.redirect.grpc
        raise AssertionError("the last attempt returns or raises")

    def leader_of(self, stream_id: int) -> NodeId | None:
        """As this node knows; None: it has none, or there is no such stream."""
        stream = self._registry.streams.get(StreamId(stream_id))
        return None if stream is None or stream.leader == NO_NODE else stream.leader

    def stream_name(self, stream_id: int) -> str | None:
        """In full; None: there is no such stream any more."""
        stream = self._registry.streams.get(StreamId(stream_id))
        return None if stream is None else stream.full_name

    def _metadata(self, authorization: str) -> list[tuple[str, str]]:
        """Raises UnauthenticatedError for what is no token (a node's proof, say), and where one is
        needed."""
        if not authorization and not self._requires_token:
            return []
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or not (token.isascii() and token.isprintable()):
            raise UnauthenticatedError("say who you are: Authorization: Bearer TOKEN")
        return [("authorization", f"Bearer {token}")]

    def _address_of(self, node_id: NodeId) -> str:
        node = self._registry.nodes.get(node_id)
        if node is None:
            raise UnavailableError(f"node {node_id} is not registered; try again")
        return node.addresses.grpc

    async def _ask(
        self,
        address: str,
        service: str,
        method: str,
        request: Message,
        metadata: list[tuple[str, str]],
        seconds: float,
    ) -> Any:
        async def on_grpc_loop() -> Any:
            call = getattr(_STUBS[service](self._channel(address)), method)
            return await call(request, timeout=seconds, metadata=metadata)

        try:
            return await self._loop.run(on_grpc_loop())
        except aio.AioRpcError as error:
            raise _error_of(error, address) from error

    # On gRPC's loop.

    def _channel(self, address: str) -> aio.Channel:
        if self._certificates is not None and self._generation != self._certificates.generation:
            self._generation = self._certificates.generation
            self._channels.clear()  # They close once their calls have ended.
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open(address)
        return channel

    def _open(self, address: str) -> aio.Channel:
        if self._certificates is None:
            return aio.insecure_channel(address)
        pem = self._certificates.pem
        credentials = grpc.ssl_channel_credentials(pem.ca or None, pem.key, pem.certificate)
        return aio.secure_channel(address, credentials)

    async def close(self) -> None:
        await self._loop.run(self._close())

    async def _close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


def _error_of(error: aio.AioRpcError, address: str) -> JetstreamError:
    for key, value in error.trailing_metadata() or ():
        if key == GRPC_ERROR_KEY and isinstance(value, bytes):
            return from_proto(common_pb2.Error.FromString(value))
    return UnavailableError(f"{address} does not answer: {error.details()}; try again")
