"""Calls to the other nodes' gRPC API, for requests that another node has to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from jetstream_protocol.errors import GRPC_ERROR_KEY, JetstreamError, UnavailableError, from_proto
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc, common_pb2, cursors_pb2_grpc, groups_pb2_grpc
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.certificates import Certificates
from jetstream_server.security import node_proof
from jetstream_server.serving.grpc.grpc_loop import Call, GrpcLoop
from jetstream_server.serving.grpc.guard import AUTHORIZATION

FORWARDED = "jetstream-forwarded"
"""Metadata key of a request that came from a node: it is not forwarded again."""
CALL_SECONDS = 10.0
FORWARDED_POLL_SECONDS = 110.0
"""A little longer than a member of a consumer group may have its coordinator wait."""
DESCRIBE_SECONDS = 2.0
"""A node that is alive answers at once."""
READINESS_SECONDS = 0.5
"""Shorter: a caller that asks all nodes must not wait long for dead ones."""
STAND_BY_SECONDS = 2.0
"""A little longer than the node itself waits for NATS (ingest.py)."""

_STUBS: dict[str, Callable[[aio.Channel], Any]] = {
    "Streams": api_pb2_grpc.StreamsStub,
    "Reads": api_pb2_grpc.ReadsStub,
    "Cluster": api_pb2_grpc.ClusterStub,
    "Cursors": cursors_pb2_grpc.CursorsStub,
    "Groups": groups_pb2_grpc.GroupsStub,
}


class Peers:
    """One channel per node address, opened when first needed; with new certificates a new one.

    certificates: the nodes' ports speak TLS. secret: the cluster's credential, by which the other
    node knows this one.
    """

    def __init__(
        self,
        registry: Registry,
        grpc_loop: GrpcLoop,
        certificates: Certificates | None = None,
        *,
        node_id: int,
        secret: bytes,
    ) -> None:
        self._node_id = node_id
        self._secret = secret
        self._registry = registry
        self._loop = grpc_loop
        self._certificates = certificates
        self._generation = 0
        self._channels: dict[str, aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def create_stream(
        self, node_id: NodeId, request: pb.CreateStreamRequest
    ) -> pb.CreateStreamResponse:
        """Ask the stream's leader to wait until its subscription is confirmed. Raises its
        JetstreamError."""
        answer: pb.CreateStreamResponse = await self._call(
            node_id,
            "Streams",
            "CreateStream",
            request,
            CALL_SECONDS,
            forwarded=True,
        )
        return answer

    async def transfer_leader(self, leader: NodeId, stream_id: StreamId, target: NodeId) -> None:
        """Ask a stream's leader to hand over. Raises its JetstreamError."""
        request = pb.TransferLeaderRequest(
            stream=common_pb2.StreamRef(id=stream_id), node_id=target
        )
        await self._call(
            leader,
            "Cluster",
            "TransferLeader",
            request,
            CALL_SECONDS,
            forwarded=True,
        )

    async def describe_replica(self, node_id: NodeId, stream_id: StreamId) -> pb.ReplicaState:
        """How far that node's replica reaches. Raises its JetstreamError."""
        request = pb.DescribeReplicaRequest(stream=common_pb2.StreamRef(id=stream_id))
        answer: pb.DescribeReplicaResponse = await self._call(
            node_id,
            "Cluster",
            "DescribeReplica",
            request,
            DESCRIBE_SECONDS,
        )
        return answer.replica

    async def ranges(
        self, node_id: NodeId, ids: Sequence[StreamId]
    ) -> dict[StreamId, tuple[int, int]]:
        """Log start and high watermark of streams that the node leads; without those that it does
        not lead. Raises its JetstreamError."""
        query = pb.ListOffsetsRequest.Query
        refs = [common_pb2.StreamRef(id=stream_id) for stream_id in ids]
        request = pb.ListOffsetsRequest(
            queries=[
                *(query(stream=ref, earliest=True) for ref in refs),
                *(query(stream=ref, latest=True) for ref in refs),
            ]
        )
        answer: pb.ListOffsetsResponse = await self._call(
            node_id, "Reads", "ListOffsets", request, DESCRIBE_SECONDS
        )
        results = answer.results
        pairs = zip(ids, results[: len(ids)], results[len(ids) :], strict=True)
        return {
            stream_id: (start.offset, end.offset)
            for stream_id, start, end in pairs
            if not start.HasField("error") and not end.HasField("error")
        }

    async def readiness(self, node_id: NodeId) -> pb.DescribeClusterResponse.Node:
        """What that node says of itself: why it is not ready, and its use. Raises its
        JetstreamError."""
        request = pb.DescribeClusterRequest(readiness=True)
        answer: pb.DescribeClusterResponse = await self._call(
            node_id,
            "Cluster",
            "DescribeCluster",
            request,
            READINESS_SECONDS,
            forwarded=True,
        )
        found = [node for node in answer.nodes if node.address.node_id == node_id]
        return found[0] if found else pb.DescribeClusterResponse.Node()

    async def debug_node(self, node_id: NodeId) -> pb.DebugNodeResponse:
        """What that node tells of itself. Raises its JetstreamError."""
        request = pb.DebugNodeRequest(node_id=node_id)
        answer: pb.DebugNodeResponse = await self._call(
            node_id,
            "Cluster",
            "DebugNode",
            request,
            CALL_SECONDS,
            forwarded=True,
        )
        return answer

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None:
        """See HandOver.prepare, of that node."""
        request = pb.PrepareHandOverRequest(
            stream=common_pb2.StreamRef(id=stream_id), urgent=urgent
        )
        await self._call(
            node_id,
            "Cluster",
            "PrepareHandOver",
            request,
            STAND_BY_SECONDS,
        )

    async def stand_by(
        self,
        node_id: NodeId,
        stream_id: StreamId,
        leader_epoch: int,
        end_offset: int,
        silent_us: int,
    ) -> int:
        """See HandOver.stand_by, of that node."""
        request = pb.StandByRequest(
            stream=common_pb2.StreamRef(id=stream_id),
            silent_us=silent_us,
            end_offset=end_offset,
            leader_epoch=leader_epoch,
        )
        answer: pb.StandByResponse = await self._call(
            node_id,
            "Cluster",
            "StandBy",
            request,
            STAND_BY_SECONDS,
        )
        return answer.gap_us

    async def cancel_stand_by(
        self, node_id: NodeId, stream_id: StreamId, leader_epoch: int
    ) -> None:
        """See HandOver.cancel_stand_by, of that node."""
        request = pb.CancelStandByRequest(
            stream=common_pb2.StreamRef(id=stream_id), leader_epoch=leader_epoch
        )
        await self._call(
            node_id,
            "Cluster",
            "CancelStandBy",
            request,
            STAND_BY_SECONDS,
        )

    async def cursors(self, node_id: NodeId, method: str, request: Message) -> Any:
        """Have the leader of the cursors answer a request of the services `Cursors` and `Groups`.
        Raises its JetstreamError."""
        in_groups = hasattr(groups_pb2_grpc.GroupsServicer, method)
        return await self._call(
            node_id,
            "Groups" if in_groups else "Cursors",
            method,
            request,
            FORWARDED_POLL_SECONDS if in_groups else CALL_SECONDS,
            forwarded=True,
        )

    async def _call(
        self,
        node_id: NodeId,
        service: str,
        method: str,
        request: Message,
        timeout: float,
        *,
        forwarded: bool = False,
    ) -> Any:
        """The answer. Raises the JetstreamError that the node answers with. forwarded: another
        node is not to be asked in its place."""
        node = self._registry.nodes.get(node_id)
        if node is None:
            raise UnavailableError(f"node {node_id} is not registered; try again")
        address, incarnation = node.addresses.grpc, node.incarnation
        authorization = node_proof.proof(
            self._secret,
            f"/jetstream.v1.{service}/{method}",
            sender=self._node_id,
            target=node_id,
            incarnation=incarnation,
        )
        metadata = [(AUTHORIZATION, authorization)]
        if forwarded:
            metadata.append((FORWARDED, "1"))

        async def on_grpc_loop() -> Any:
            call = getattr(_STUBS[service](self._channel(address)), method)
            return await call(request, timeout=timeout, metadata=metadata)

        try:
            return await self._loop.run(on_grpc_loop())
        except aio.AioRpcError as error:
            raise _error_of(error, node_id) from error

    def _channel(self, address: str) -> aio.Channel:
        if self._certificates is not None and self._generation != self._certificates.generation:
            self._generation = self._certificates.generation
            self._replace_channels()
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

    def _replace_channels(self) -> None:
        """Calls that run go on."""
        for channel in self._channels.values():
            task = asyncio.get_running_loop().create_task(channel.close(CALL_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._channels.clear()

    async def close(self) -> None:
        await self._loop.run(self._close())

    async def _close(self) -> None:
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()


def was_forwarded(call: Call) -> bool:
    return any(key == FORWARDED for key, _ in call.metadata)


def _error_of(error: aio.AioRpcError, node_id: NodeId) -> JetstreamError:
    for key, value in error.trailing_metadata() or ():
        if key == GRPC_ERROR_KEY and isinstance(value, bytes):
            return from_proto(common_pb2.Error.FromString(value))
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnavailableError(f"node {node_id} does not answer: {error.details()}; try again")
    return UnavailableError(f"node {node_id} failed: {error.details()}")
