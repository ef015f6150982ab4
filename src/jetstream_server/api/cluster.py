"""The `Cluster` service: who the nodes are and where NATS is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpc import aio

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc
from jetstream_server.api.convert import node_to_proto
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.metadata.log import MetadataLog


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
    ) -> None:
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
