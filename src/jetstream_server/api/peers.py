"""Calls to the other nodes' gRPC API, for requests that another node has to answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from grpc import aio

from jetstream_protocol.errors import JetstreamError, UnavailableError, from_proto
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc, common_pb2
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.api.errors import ERROR_KEY
from jetstream_server.api.grpc_loop import Call, GrpcLoop
from jetstream_server.metadata.registry import Registry

Answer = TypeVar("Answer")

FORWARDED = "jetstream-forwarded"
"""Metadata key of a request that came from a node: it is not forwarded again."""
CALL_SECONDS = 10.0
DESCRIBE_SECONDS = 2.0
"""A node that is alive answers at once."""
TAKE_OVER_SECONDS = 2.0
"""A little more than the node itself waits for NATS (ingest.py)."""


class Peers:
    """One channel per node address, opened when first needed."""

    def __init__(self, registry: Registry, grpc_loop: GrpcLoop) -> None:
        self._registry = registry
        self._loop = grpc_loop
        self._channels: dict[str, aio.Channel] = {}

    async def create_stream(
        self, node_id: NodeId, request: pb.CreateStreamRequest
    ) -> pb.CreateStreamResponse:
        """Ask the stream's leader to see its subscription confirmed. Raises its JetstreamError."""
        return await self._call(
            node_id,
            lambda channel: api_pb2_grpc.StreamsStub(channel).CreateStream(
                request, timeout=CALL_SECONDS, metadata=((FORWARDED, "1"),)
            ),
        )

    async def transfer_leader(self, leader: NodeId, stream_id: StreamId, target: NodeId) -> None:
        """Ask a stream's leader to hand over. Raises its JetstreamError."""
        request = pb.TransferLeaderRequest(
            stream=common_pb2.StreamRef(id=stream_id), node_id=target
        )
        await self._call(
            leader,
            lambda channel: api_pb2_grpc.ClusterStub(channel).TransferLeader(
                request, timeout=CALL_SECONDS, metadata=((FORWARDED, "1"),)
            ),
        )

    async def describe_replica(self, node_id: NodeId, stream_id: StreamId) -> pb.ReplicaState:
        """How far that node's replica reaches. Raises its JetstreamError."""
        request = pb.DescribeReplicaRequest(stream=common_pb2.StreamRef(id=stream_id))
        answer: pb.DescribeReplicaResponse = await self._call(
            node_id,
            lambda channel: api_pb2_grpc.ClusterStub(channel).DescribeReplica(
                request, timeout=DESCRIBE_SECONDS
            ),
        )
        return answer.replica

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None:
        """See HandOvers.prepare, of that node."""
        request = pb.TakeOverRequest(stream=common_pb2.StreamRef(id=stream_id), urgent=urgent)
        await self._take_over(node_id, request)

    async def stand_by(
        self,
        node_id: NodeId,
        stream_id: StreamId,
        leader_epoch: int,
        end_offset: int,
        silent_us: int,
    ) -> int:
        """See HandOvers.stand_by, of that node."""
        request = pb.TakeOverRequest(
            stream=common_pb2.StreamRef(id=stream_id),
            silent_us=silent_us,
            end_offset=end_offset,
            leader_epoch=leader_epoch,
        )
        return (await self._take_over(node_id, request)).gap_us

    async def _take_over(self, node_id: NodeId, request: pb.TakeOverRequest) -> pb.TakeOverResponse:
        return await self._call(
            node_id,
            lambda channel: api_pb2_grpc.ClusterStub(channel).TakeOver(
                request, timeout=TAKE_OVER_SECONDS
            ),
        )

    async def _call(
        self, node_id: NodeId, call: Callable[[aio.Channel], Awaitable[Answer]]
    ) -> Answer:
        """Raises the JetstreamError that the node answers with."""
        node = self._registry.nodes.get(node_id)
        if node is None:
            raise UnavailableError(f"node {node_id} is not registered; try again")
        address = node.addresses.grpc

        async def on_grpc_loop() -> Answer:
            return await call(self._channel(address))

        try:
            return await self._loop.run(on_grpc_loop())
        except aio.AioRpcError as error:
            raise _error_of(error, node_id) from error

    def _channel(self, address: str) -> aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = aio.insecure_channel(address)
        return channel

    async def close(self) -> None:
        await self._loop.run(self._close())

    async def _close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


def was_forwarded(call: Call) -> bool:
    return any(key == FORWARDED for key, _ in call.metadata)


def _error_of(error: aio.AioRpcError, node_id: NodeId) -> JetstreamError:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            return from_proto(common_pb2.Error.FromString(value))
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnavailableError(f"node {node_id} does not answer: {error.details()}; try again")
    return UnavailableError(f"node {node_id} failed: {error.details()}")
