"""The `Cluster` service: who the nodes are and where NATS is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpc import aio

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc
from jetstream_server.api.convert import node_to_proto, stream_to_proto
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.replication.replicas import Replicas


class ClusterService(api_pb2_grpc.ClusterServicer):
    """`nats_urls` answers with the URLs clients can publish to, at the time of the call."""

    def __init__(
        self,
        metadata: MetadataLog,
        authorize: Authorize,
        *,
        node_id: int,
        version: str,
        nats_urls: Callable[[], Sequence[str]],
        replicas: Replicas,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._authorize = authorize
        self._node_id = node_id
        self._version = version
        self._nats_urls = nats_urls

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.DescribeClusterResponse:
        self._authorize(ANONYMOUS, Operation.CLUSTER_DESCRIBE, "")
        registry = self._metadata.registry
        return pb.DescribeClusterResponse(
            cluster_id=registry.settings.cluster_id,
            controller=self._metadata.leader,
            nodes=[node_to_proto(node) for _, node in sorted(registry.nodes.items())],
            nats=self._nats_urls(),
            server_version=self._version,
            answering_node=self._node_id,
        )

    async def TransferLeader(
        self, request: pb.TransferLeaderRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.TransferLeaderResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.ALTER, stream.full_name)
        await self._metadata.propose(
            {"op": "transfer_leader", "stream_id": stream.id, "leader": request.node_id}
        )
        after = self._metadata.registry.streams.get(stream.id, stream)
        return pb.TransferLeaderResponse(stream=stream_to_proto(after))

    async def DrainNode(
        self, request: pb.DrainNodeRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.DrainNodeResponse:
        self._authorize(ANONYMOUS, Operation.CLUSTER_ALTER, "")
        await self._metadata.propose(
            {"op": "drain_node", "node_id": request.node_id, "draining": request.draining}
        )
        return pb.DrainNodeResponse()
