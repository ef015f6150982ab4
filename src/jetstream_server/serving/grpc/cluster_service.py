"""The `Cluster` service: nodes, leaderships, elections, and the addresses of NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    NotFoundError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.cursors.store import CURSORS
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.activity import ACTIVITY
from jetstream_server.metadata.state.commands import (
    DrainNode,
    ReassignStream,
    RemoveNode,
    SetCluster,
    TransferLeader,
)
from jetstream_server.metadata.state.reassignment_plans import (
    NodesById,
    StreamsById,
    balancing,
    check_removable,
    moves_off,
)
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers import activity_recorder
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.convert import (
    cluster_config_from_proto,
    cluster_config_to_proto,
    node_to_proto,
    stream_to_proto,
)
from jetstream_server.serving.grpc.digests import Digests
from jetstream_server.serving.grpc.elections import UncleanElections, state_to_proto
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.histories import Histories
from jetstream_server.serving.grpc.key_digest import KeyDigest
from jetstream_server.serving.grpc.peers import Peers, was_forwarded
from jetstream_server.serving.grpc.transfers import Transfers
from jetstream_server.serving.grpc.voters import GroupVoters

HAND_OVERS = 4
AGAIN_SECONDS = 0.5
"""So often and so soon a hand-over that an operator demands is tried: a node that has just woken up
needs a moment to renew its session."""

logger = structlog.get_logger("jetstream.replication")

EVENTS_SECONDS = 3.0
EVENTS_RETRY_SECONDS = 0.05
PROGRESS_SECONDS = 0.5
"""Between two answers of a digest that takes long."""


class ClusterService:
    """nats_urls: returns the URLs to which clients can publish. not_ready: returns why
    this node does not serve. may_see_use: whether a caller may see how much nodes hold, which
    counts streams that it may not know of."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        *,
        node_id: int,
        version: str,
        nats_urls: Callable[[], Sequence[str]],
        replicas: ReplicaManager,
        hand_overs: HandOver,
        transfers: Transfers,
        elections: UncleanElections,
        peers: Peers,
        not_ready: Callable[[], list[str]],
        debug_node: Callable[[], Awaitable[pb.DebugNodeResponse]],
        node_use: Callable[[], Awaitable[pb.NodeUse]],
        may_see_use: Callable[[Identity], bool],
        streams: Streams,
        voters: GroupVoters,
        histories: Histories,
    ) -> None:
        self._histories = histories
        self._streams = streams
        self._voters = voters
        self._node_use = node_use
        self._may_see_use = may_see_use
        self._debug_node = debug_node
        self._peers = peers
        self._not_ready = not_ready
        self._elections = elections
        self._digests = Digests()
        self._digesting_keys = asyncio.Lock()
        self._replicas = replicas
        self._hand_overs = hand_overs
        self._transfers = transfers
        self._metadata = metadata
        self._node_id = node_id
        self._version = version
        self._nats_urls = nats_urls

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, call: Call
    ) -> pb.DescribeClusterResponse:
        registry = self._metadata.registry
        answer = pb.DescribeClusterResponse(
            cluster_id=registry.settings.cluster_id,
            controller=self._metadata.leader,
            nodes=[
                node_to_proto(node, voter=self._voters.has(node_id))
                for node_id, node in sorted(registry.nodes.items())
            ],
            nats=self._nats_urls(),
            server_version=self._version,
            answering_node=self._node_id,
            config=cluster_config_to_proto(registry.settings),
        )
        if request.readiness:
            await self._add_readiness(answer, only_here=was_forwarded(call))
            if not self._may_see_use(call.identity):
                for node in answer.nodes:
                    node.ClearField("use")
        return answer

    async def _add_readiness(self, answer: pb.DescribeClusterResponse, *, only_here: bool) -> None:
        """Add the readiness of this node, or of all nodes that have a session. Without a controller
        nobody knows who has one, and all are asked."""

        async def described_by(node_id: NodeId) -> pb.DescribeClusterResponse.Node:
            if node_id == self._node_id:
                return pb.DescribeClusterResponse.Node(
                    not_ready=self._not_ready(), use=await self._node_use()
                )
            try:
                return await self._peers.readiness(node_id)
            except JetstreamError:
                reason = f"does not answer node {self._node_id}"
                return pb.DescribeClusterResponse.Node(not_ready=[reason])

        here = self._node_id
        nodes = [
            node
            for node in answer.nodes
            if node.address.node_id == here
            or not (only_here or (node.fenced and answer.controller >= 0))
        ]
        asked = (described_by(NodeId(node.address.node_id)) for node in nodes)
        for node, described in zip(nodes, await asyncio.gather(*asked), strict=True):
            node.not_ready.extend(described.not_ready)
            if described.HasField("use"):
                node.use.CopyFrom(described.use)

    async def TransferLeader(
        self, request: pb.TransferLeaderRequest, call: Call
    ) -> pb.TransferLeaderResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        target = NodeId(request.node_id)
        if was_forwarded(call):
            await self._transfers.transfer(stream, target, forward=False, urgent=request.urgent)
        else:
            await self._transfer(stream, target)
        after = self._metadata.registry.streams.get(stream.id, stream)
        return pb.TransferLeaderResponse(stream=stream_to_proto(after))

    async def _transfer(self, stream: StreamMetadata, target: NodeId) -> None:
        """Transfer by hand-over; if that fails again and again, without the leader: an operator
        demands it."""
        await self._metadata.barrier()  # It may not have heard yet that the target is in sync.
        stream = self._metadata.registry.streams.get(stream.id, stream)
        if target in stream.isr and stream.leader not in (NO_NODE, target):
            for left in reversed(range(HAND_OVERS)):
                try:
                    await self._transfers.transfer(stream, target, urgent=True)
                except UnavailableError as error:
                    if left:
                        await asyncio.sleep(AGAIN_SECONDS)
                        continue
                    logger.warning("not_handed_over", stream=stream.full_name, reason=error.message)
                else:
                    # The old leader has applied it. After the barrier this node has too.
                    await self._metadata.barrier()
                    return
        await self._metadata.propose(TransferLeader(stream_id=stream.id, leader=target))

    async def ElectLeader(
        self, request: pb.ElectLeaderRequest, call: Call
    ) -> pb.ElectLeaderResponse:
        return await self._elections.elect(request)

    async def DescribeReplica(
        self, request: pb.DescribeReplicaRequest, call: Call
    ) -> pb.DescribeReplicaResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        state = self._elections.state_here(stream)
        return pb.DescribeReplicaResponse(replica=state_to_proto(state))

    async def DigestReplica(
        self, request: pb.DigestReplicaRequest, call: Call
    ) -> pb.DigestReplicaResponse:
        replica = self._replicas.resolve(request.stream)
        return await self._digests.digest(replica, request.start_offset, request.end_offset)

    async def DigestKeys(
        self, request: pb.DigestKeysRequest, call: Call
    ) -> AsyncIterator[pb.DigestKeysResponse]:
        replica = self._replicas.resolve(request.stream)
        if self._digesting_keys.locked():  # Each takes memory.
            raise UnavailableError(f"node {self._node_id} digests another replica; try again")
        digest = KeyDigest(replica, request.start_offset, request.end_offset)
        working = asyncio.ensure_future(self._digest_keys(digest))
        try:
            while not (await asyncio.wait((working,), timeout=PROGRESS_SECONDS))[0]:
                yield pb.DigestKeysResponse(node_id=self._node_id, done=digest.progress)
            await working
        finally:
            working.cancel()
        yield pb.DigestKeysResponse(
            node_id=self._node_id, done=1.0, digest=digest.digest, records=digest.records
        )

    async def _digest_keys(self, digest: KeyDigest) -> None:
        """Goes on even if the caller does not read the progress: no other call waits for that."""
        async with self._digesting_keys:
            async for progress in digest.steps():
                digest.progress = progress

    async def DebugNode(self, request: pb.DebugNodeRequest, call: Call) -> pb.DebugNodeResponse:
        if request.node_id == self._node_id:
            return await self._debug_node()
        if request.node_id not in self._metadata.registry.nodes:
            raise NotFoundError(f"there is no node {request.node_id}")
        found: pb.DebugNodeResponse = await self._peers.ask(NodeId(request.node_id), request)
        return found

    async def DescribeHistory(
        self, request: pb.DescribeHistoryRequest, call: Call
    ) -> pb.DescribeHistoryResponse:
        return await self._histories.answer(request, call)

    async def RecordActivity(
        self, request: pb.RecordActivityRequest, call: Call
    ) -> pb.RecordActivityResponse:
        await self._streams.create_internal(ACTIVITY, activity_recorder.SETTINGS)
        stream = self._metadata.registry.find(ACTIVITY, "")
        assert stream is not None, "a stream of the server's own is not deleted"
        await self._until_cursors_are_published(stream)
        return pb.RecordActivityResponse(stream=stream_to_proto(stream))

    async def _until_cursors_are_published(self, stream: StreamMetadata) -> None:
        """Return once the leader of the cursors knows the stream of activity. A later leader does:
        it was elected by a later entry. Raises UnavailableError."""
        reason = "its leader does not answer"
        try:
            async with asyncio.timeout(EVENTS_SECONDS):
                while (leader := self._other_cursor_leader()) is not None:
                    try:
                        await self._peers.reach_epoch(leader, stream.id, stream.stream_epoch)
                    except JetstreamError as error:
                        reason = error.message
                        await asyncio.sleep(EVENTS_RETRY_SECONDS)
                    else:
                        return
        except TimeoutError:
            raise UnavailableError(
                f"changes are recorded, but perhaps not those of cursors yet: {reason}; try again"
            ) from None

    def _other_cursor_leader(self) -> NodeId | None:
        """The node that leads the cursors, if it is another one."""
        cursors = self._metadata.registry.find(CURSORS, "")
        if cursors is None or cursors.leader in (NO_NODE, self._node_id):
            return None
        return cursors.leader

    async def PrepareHandOver(
        self, request: pb.PrepareHandOverRequest, call: Call
    ) -> pb.PrepareHandOverResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        self._hand_overs.prepare(stream.id, urgent=request.urgent)
        return pb.PrepareHandOverResponse()

    async def StandBy(self, request: pb.StandByRequest, call: Call) -> pb.StandByResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        gap_us = await self._hand_overs.stand_by(
            stream.id, request.leader_epoch, request.end_offset, request.silent_us
        )
        return pb.StandByResponse(gap_us=gap_us)

    async def CancelStandBy(
        self, request: pb.CancelStandByRequest, call: Call
    ) -> pb.CancelStandByResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        self._hand_overs.cancel_stand_by(stream.id, request.leader_epoch)
        return pb.CancelStandByResponse()

    async def DrainNode(self, request: pb.DrainNodeRequest, call: Call) -> pb.DrainNodeResponse:
        await self._metadata.propose(
            DrainNode(
                node_id=NodeId(request.node_id), draining=request.draining, until_undone=True
            ),
            made_at=call.made_at,
        )
        return pb.DrainNodeResponse()

    async def ReassignStream(
        self, request: pb.ReassignStreamRequest, call: Call
    ) -> pb.ReassignStreamResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        replicas = tuple(map(NodeId, request.replicas))
        observers = None
        if request.HasField("observers"):
            observers = tuple(map(NodeId, request.observers.nodes))
            replicas = replicas or stream.target_replicas or stream.replicas
        await self._metadata.propose(
            ReassignStream(
                stream_id=stream.id,
                replicas=replicas,
                stream_epoch=request.stream_epoch if request.HasField("stream_epoch") else None,
                observers=observers,
            ),
            made_at=call.made_at,
        )
        after = self._metadata.registry.streams.get(stream.id, stream)
        return pb.ReassignStreamResponse(stream=stream_to_proto(after))

    async def PlanReassignment(
        self, request: pb.PlanReassignmentRequest, call: Call
    ) -> pb.PlanReassignmentResponse:
        await self._metadata.barrier()  # This node must plan with current metadata.
        tables = self._metadata.registry
        nodes, streams = dict(tables.nodes), dict(tables.streams)
        return await asyncio.to_thread(_plan, request, nodes, streams)

    async def AlterCluster(
        self, request: pb.AlterClusterRequest, call: Call
    ) -> pb.AlterClusterResponse:
        if wanted := cluster_config_from_proto(request.config):
            await self._metadata.propose(SetCluster(**wanted), made_at=call.made_at)
        config = cluster_config_to_proto(self._metadata.registry.settings)
        return pb.AlterClusterResponse(config=config)

    async def RemoveNode(self, request: pb.RemoveNodeRequest, call: Call) -> pb.RemoveNodeResponse:
        self._voters.check_is_none(NodeId(request.node_id))
        await self._metadata.barrier()
        check_removable(self._metadata.registry, NodeId(request.node_id))
        await self._metadata.propose(
            RemoveNode(node_id=NodeId(request.node_id)), made_at=call.made_at
        )
        return pb.RemoveNodeResponse()

    async def ListVoters(self, request: pb.ListVotersRequest, call: Call) -> pb.ListVotersResponse:
        return await self._voters.list(forward=not was_forwarded(call))

    async def ChangeVoters(
        self, request: pb.ChangeVotersRequest, call: Call
    ) -> pb.ListVotersResponse:
        return await self._voters.change(
            request,
            forward=not was_forwarded(call),
            seconds=call.seconds,
            made_at=call.made_at,
        )


def _plan(
    request: pb.PlanReassignmentRequest, nodes: NodesById, streams: StreamsById
) -> pb.PlanReassignmentResponse:
    """The answer, which takes a second for tens of thousands of streams."""
    if request.WhichOneof("purpose") == "drain_node":
        moves = moves_off(nodes, streams, NodeId(request.drain_node))
    else:
        moves = balancing(nodes, streams)
    return pb.PlanReassignmentResponse(
        moves=(
            pb.PlanReassignmentResponse.Move(
                stream=stream_to_proto(streams[stream_id]),
                replicas=placement.replicas,
                observers=placement.observers,
            )
            for stream_id, placement in moves.items()
        )
    )
