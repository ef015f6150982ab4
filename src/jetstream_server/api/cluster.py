"""The `Cluster` service: who the nodes are and where NATS is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.api.convert import node_to_proto, stream_to_proto
from jetstream_server.api.elections import UncleanElections, state_to_proto
from jetstream_server.api.grpc_loop import Call
from jetstream_server.api.peers import was_forwarded
from jetstream_server.api.transfers import Transfers
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.hand_over import HandOvers
from jetstream_server.replication.replicas import Replicas

log = structlog.get_logger("jetstream.replication")


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
        hand_overs: HandOvers,
        transfers: Transfers,
        elections: UncleanElections,
    ) -> None:
        self._elections = elections
        self._replicas = replicas
        self._hand_overs = hand_overs
        self._transfers = transfers
        self._metadata = metadata
        self._authorize = authorize
        self._node_id = node_id
        self._version = version
        self._nats_urls = nats_urls

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, call: Call
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
        self, request: pb.TransferLeaderRequest, call: Call
    ) -> pb.TransferLeaderResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.ALTER, stream.full_name)
        target = NodeId(request.node_id)
        if was_forwarded(call):
            await self._transfers.gracefully(stream, target, forward=False)
        else:
            await self._transfer(stream, target)
        after = self._metadata.registry.streams.get(stream.id, stream)
        return pb.TransferLeaderResponse(stream=stream_to_proto(after))

    async def _transfer(self, stream: StreamMetadata, target: NodeId) -> None:
        """Gracefully; where that fails, at once: it was asked for."""
        if target in stream.isr and stream.leader not in (NO_NODE, target):
            try:
                await self._transfers.gracefully(stream, target)
            except UnavailableError as error:
                log.warning("not_handed_over", stream=stream.full_name, reason=error.message)
            else:
                await self._metadata.barrier()  # The old leader knows it; now this node does, too.
                return
        await self._metadata.propose(
            {"op": "transfer_leader", "stream_id": stream.id, "leader": target}
        )

    async def ElectLeader(
        self, request: pb.ElectLeaderRequest, call: Call
    ) -> pb.ElectLeaderResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.CLUSTER_ALTER, stream.full_name)
        return await self._elections.elect(request)

    async def DescribeReplica(
        self, request: pb.DescribeReplicaRequest, call: Call
    ) -> pb.DescribeReplicaResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.DESCRIBE, stream.full_name)
        state = self._elections.state_here(stream)
        return pb.DescribeReplicaResponse(replica=state_to_proto(state))

    async def TakeOver(self, request: pb.TakeOverRequest, call: Call) -> pb.TakeOverResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.CLUSTER_ALTER, "")
        if not request.HasField("silent_us"):
            self._hand_overs.prepare(stream.id, urgent=request.urgent)
            return pb.TakeOverResponse()
        gap_us = await self._hand_overs.stand_by(
            stream.id, request.leader_epoch, request.end_offset, request.silent_us
        )
        return pb.TakeOverResponse(gap_us=gap_us)

    async def DrainNode(self, request: pb.DrainNodeRequest, call: Call) -> pb.DrainNodeResponse:
        self._authorize(ANONYMOUS, Operation.CLUSTER_ALTER, "")
        await self._metadata.propose(
            {
                "op": "drain_node",
                "node_id": request.node_id,
                "draining": request.draining,
                "until_undone": True,
            }
        )
        return pb.DrainNodeResponse()
