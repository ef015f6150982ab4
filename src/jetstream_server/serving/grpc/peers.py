"""Calls to the gRPC API of other nodes, for requests that another node has to answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from google.protobuf.message import Message

from jetstream_protocol.channels import REVISION_KEY
from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, consumers_pb2
from jetstream_protocol.services import METHODS, SERVICES
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.certificates import Certificates
from jetstream_server.security import node_proof
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving.grpc.grpc_loop import Call, GrpcLoop
from jetstream_server.serving.grpc.guard import AUTHORIZATION
from jetstream_server.serving.grpc.node_channels import NodeChannels

FORWARDED = "jetstream-forwarded"
"""Metadata key of a request that a node has forwarded: it is not forwarded again. Read it by
`was_forwarded`."""
PRINCIPAL = "jetstream-principal"
"""Metadata key: the caller of the forwarding node, percent-encoded. Trusted only from nodes."""
CALL_SECONDS = 10.0
FORWARDED_POLL_SECONDS = 110.0
"""A little longer than the coordinator may keep a member of a consumer group waiting."""
CONSUMERS_SECONDS = 4.0
"""NATS clients wait for 5 s."""
DESCRIBE_SECONDS = 2.0
"""A node that is alive answers at once."""
READINESS_SECONDS = 0.5
"""Timeout of a readiness call; shorter than DESCRIBE_SECONDS because all nodes are asked."""
KNOWN_SECONDS = 1.0
"""How long a change waits for nodes that are slow to hear of it."""
STAND_BY_SECONDS = 2.0
"""A little longer than the node itself waits for NATS (ingest.py)."""


_SECONDS: dict[type[Message], float] = {
    pb.ChangeVotersRequest: CALL_SECONDS,
    pb.CreateStreamRequest: CALL_SECONDS,
    pb.DebugNodeRequest: CALL_SECONDS,
    pb.DescribeHistoryRequest: DESCRIBE_SECONDS,
    pb.FetchRequest: DESCRIBE_SECONDS,
    pb.ListOffsetsRequest: DESCRIBE_SECONDS,
    pb.ListSubjectsRequest: DESCRIBE_SECONDS,
    pb.ListVotersRequest: DESCRIBE_SECONDS,
    consumers_pb2.LoadConsumersRequest: CALL_SECONDS,
    consumers_pb2.StoreConsumersRequest: CALL_SECONDS,
}
"""What nodes ask each other as clients do, and how long an answer may take."""
_FORWARDED = {
    pb.ChangeVotersRequest, pb.CreateStreamRequest, pb.DebugNodeRequest, pb.DescribeHistoryRequest,
    pb.ListVotersRequest,
}  # fmt: skip
"""Of these, those that a node may send on: not again."""


class Peers:
    """certificates: see NodeChannels. run: returns this node's incarnation, None before it has
    registered. secret: the cluster's credential, by which the other node recognises this one."""

    def __init__(
        self,
        registry: Registry,
        grpc_loop: GrpcLoop,
        certificates: Certificates | None = None,
        *,
        node_id: int,
        run: Callable[[], int | None],
        secret: bytes,
    ) -> None:
        self._node_id = node_id
        self._run = run
        self._numbers = itertools.count(1)
        self._secret = secret
        self._registry = registry
        self._channels = NodeChannels(grpc_loop, certificates)

    async def ask(self, node_id: NodeId, request: Message, seconds: float | None = None) -> Any:
        """The node's answer to a request of _SECONDS; the type of the request tells the method. The
        caller's rights were checked here. seconds: how long the node may take; None: as usual.
        Raises the node's JetstreamError."""
        usual = _SECONDS[type(request)]
        call = self._forward if type(request) in _FORWARDED else self._call
        return await call(node_id, request, usual if seconds is None else seconds)

    async def reach_epoch(self, node_id: NodeId, stream_id: StreamId, stream_epoch: int) -> None:
        """Return once that node has the stream at this epoch, or a later one. Raises the node's
        JetstreamError."""
        request = pb.DescribeStreamRequest(
            stream=common_pb2.StreamRef(id=stream_id),
            registry_only=True,
            min_stream_epoch=stream_epoch,
        )
        await self._call(node_id, request, DESCRIBE_SECONDS)

    async def transfer_leader(
        self, leader: NodeId, stream_id: StreamId, target: NodeId, *, urgent: bool
    ) -> None:
        """Ask a stream's leader to hand over. Raises the leader's JetstreamError."""
        request = pb.TransferLeaderRequest(
            stream=common_pb2.StreamRef(id=stream_id), node_id=target, urgent=urgent
        )
        await self._forward(leader, request, CALL_SECONDS)

    async def describe_replica(self, node_id: NodeId, stream_id: StreamId) -> pb.ReplicaState:
        """How far that node's replica reaches. Raises the node's JetstreamError."""
        request = pb.DescribeReplicaRequest(stream=common_pb2.StreamRef(id=stream_id))
        found: pb.DescribeReplicaResponse = await self._call(node_id, request, DESCRIBE_SECONDS)
        return found.replica

    async def describe_stream(self, node_id: NodeId, stream_id: StreamId) -> pb.StreamDescription:
        """That node's description of a stream that it leads. Raises the node's JetstreamError."""
        request = pb.DescribeStreamRequest(stream=common_pb2.StreamRef(id=stream_id))
        found: pb.DescribeStreamResponse = await self._call(node_id, request, DESCRIBE_SECONDS)
        return found.description

    async def ask_consumers(
        self,
        node_id: NodeId,
        stream_id: StreamId,
        verb: str,
        rest: str,
        body: bytes,
        made_at: int = 0,
    ) -> bytes:
        """Have the leader of a stream answer a request about its consumers, for a caller whose
        rights were checked here. made_at: see `Consumers.note_change`. Raises the leader's
        JetstreamError."""
        request = consumers_pb2.AskConsumersRequest(
            stream=common_pb2.StreamRef(id=stream_id),
            verb=verb,
            rest=rest,
            body=body,
            made_at=made_at,
        )
        found: consumers_pb2.AskConsumersResponse
        found = await self._call(node_id, request, CONSUMERS_SECONDS)
        return found.answer

    async def readiness(self, node_id: NodeId) -> pb.DescribeClusterResponse.Node:
        """That node's report on itself: why it is not ready, and its use. Raises the node's
        JetstreamError."""
        request = pb.DescribeClusterRequest(readiness=True)
        answer: pb.DescribeClusterResponse
        answer = await self._forward(node_id, request, READINESS_SECONDS)
        found = [node for node in answer.nodes if node.address.node_id == node_id]
        return found[0] if found else pb.DescribeClusterResponse.Node()

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None:
        """Call HandOver.prepare of that node."""
        ref = common_pb2.StreamRef(id=stream_id)
        request = pb.PrepareHandOverRequest(stream=ref, urgent=urgent)
        await self._call(node_id, request, STAND_BY_SECONDS)

    async def stand_by(
        self,
        node_id: NodeId,
        stream_id: StreamId,
        leader_epoch: int,
        end_offset: int,
        silent_us: int,
    ) -> int:
        """Call HandOver.stand_by of that node."""
        request = pb.StandByRequest(
            stream=common_pb2.StreamRef(id=stream_id),
            silent_us=silent_us,
            end_offset=end_offset,
            leader_epoch=leader_epoch,
        )
        found: pb.StandByResponse = await self._call(node_id, request, STAND_BY_SECONDS)
        return found.gap_us

    async def cancel_stand_by(
        self, node_id: NodeId, stream_id: StreamId, leader_epoch: int
    ) -> None:
        """Call HandOver.cancel_stand_by of that node."""
        ref = common_pb2.StreamRef(id=stream_id)
        request = pb.CancelStandByRequest(stream=ref, leader_epoch=leader_epoch)
        await self._call(node_id, request, STAND_BY_SECONDS)

    async def cursors(self, node_id: NodeId, request: Message, principal: str = "") -> Any:
        """Forward a request of the services `Cursors` and `Groups` to the leader of the cursors.
        principal: the caller, whose quota counts; "": none. Raises the leader's
        JetstreamError."""
        in_groups = METHODS[type(request)] in SERVICES["Groups"].values()
        seconds = FORWARDED_POLL_SECONDS if in_groups else CALL_SECONDS
        return await self._forward(node_id, request, seconds, principal)

    async def _forward(
        self, node_id: NodeId, request: Message, seconds: float, principal: str = ""
    ) -> Any:
        """`_call` so that the node does not ask another one instead. principal: the caller of this
        node."""
        metadata = [(FORWARDED, "1")]
        if principal:
            metadata.append((PRINCIPAL, quote(principal)))
        return await self._call(node_id, request, seconds, metadata)

    async def _call(
        self,
        node_id: NodeId,
        request: Message,
        seconds: float,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """Call the method that takes the request, and return the answer. Raises the node's
        JetstreamError."""
        node = self._registry.nodes.get(node_id)
        if node is None:
            raise UnavailableError(f"node {node_id} is not registered; try again")
        authorization = node_proof.proof(
            self._secret,
            METHODS[type(request)].path,
            node_proof.Claim(self._node_id, self._run() or 0, next(self._numbers)),
            target=node_id,
            incarnation=node.incarnation,
        )
        return await self._channels.call(
            node.addresses.grpc,
            request,
            metadata=[
                (AUTHORIZATION, authorization),
                (REVISION_KEY, str(self._registry.revision)),
                *metadata,
            ],
            seconds=seconds,
            node=f"node {node_id}",
        )

    async def close(self) -> None:
        await self._channels.close()


def quota_holder(access: AccessControl, call: Call) -> str:
    """The principal whose quota counts for what the call creates; "": none."""
    if not call.identity.is_node:
        return access.quota_holder(call.identity)
    return unquote(call.header(PRINCIPAL))


async def until_known(
    peers: Peers, registry: Registry, stream_id: StreamId, knowing: set[NodeId]
) -> None:
    """Return once the nodes other than `knowing` have heard of a change of a stream, or a moment
    later: whoever relies on it next may ask any of them. A node that is called reaches the revision
    that is known here before it answers, so any stream epoch will do."""
    others = {each.node_id for each in registry.nodes.values() if not each.fenced} - knowing
    asked = (peers.reach_epoch(each, stream_id, 0) for each in others)
    with suppress(TimeoutError):
        async with asyncio.timeout(KNOWN_SECONDS):
            await asyncio.gather(*asked, return_exceptions=True)


def was_forwarded(call: Call) -> bool:
    """Whether a node has forwarded it. While security is on, a client cannot say so: it is not
    anonymous then."""
    is_believed = call.identity.is_node or call.identity.principal == ANONYMOUS.principal
    return is_believed and bool(call.header(FORWARDED))
