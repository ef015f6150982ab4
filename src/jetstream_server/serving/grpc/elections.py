"""Elects a replica on an operator's request: asks every node what may be lost, then elects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from jetstream_protocol.errors import JetstreamError, StreamNotFoundError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import ElectLeader
from jetstream_server.metadata.state.decision import check_stream_epoch
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.unclean_election import last_epoch_begun
from jetstream_server.replication.core.unclean_plan import (
    LogState,
    ReplicaState,
    UncleanPlan,
    check_electable,
    plan_of,
    standing_of,
)
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.grpc.convert import stream_to_proto
from jetstream_server.serving.grpc.peers import Peers

logger = structlog.get_logger("jetstream.replication")


class UncleanElections:
    """Elections of any stream, from any node. suspects: ids of streams whose log here is not
    trusted."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        replicas: ReplicaManager,
        peers: Peers,
        suspects: Callable[[], Collection[int]],
        node_id: int,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._suspects = suspects
        self._node_id = NodeId(node_id)

    def state_here(self, stream: StreamMetadata) -> ReplicaState:
        """The state of this node's replica."""
        standing = standing_of(stream, self._node_id)
        replica = self._replicas.get(stream.id)
        if replica is None:
            problem = "it has not opened the stream yet, or holds none of it"
            return ReplicaState(self._node_id, True, standing, problem=problem)
        if replica.unreadable_reason:
            problem = f"its log cannot be read: {replica.unreadable_reason}"
            return ReplicaState(self._node_id, True, standing, problem=problem)
        found = replica.log
        held = LogState(
            found.log_start_offset,
            found.log_end_offset,
            last_epoch_begun(found),
            min(replica.high_watermark, found.log_end_offset),
        )
        can_lead = not found.offline_reason or found.is_damaged
        problem = found.offline_reason
        if not problem and stream.id in self._suspects():
            problem = "an fsync of its log failed: what is readable may not be on disk"
        return ReplicaState(self._node_id, True, standing, held, problem, can_lead)

    async def elect(self, request: pb.ElectLeaderRequest) -> pb.ElectLeaderResponse:
        """Plan and, unless only the plan is wanted, elect. Raises PreconditionFailedError when the
        stream has a leader or the replica cannot lead."""
        await self._metadata.barrier()  # This node must act on current metadata.
        stream = self._metadata.registry.stream_of(request.stream)
        chosen = NodeId(request.node_id)
        if request.HasField("stream_epoch"):
            check_stream_epoch(stream, request.stream_epoch)
        registry = self._metadata.registry
        check_electable(stream, registry, chosen)
        incarnation = registry.nodes[chosen].incarnation
        plan = plan_of(await self._states(stream), chosen)
        if not request.dry_run:
            await self._elect(stream, chosen, incarnation, plan)
            stream = self._metadata.registry.stream_of(common_pb2.StreamRef(id=stream.id))
        return pb.ElectLeaderResponse(
            stream=stream_to_proto(stream),
            replicas=map(state_to_proto, plan.replicas),
            records_lost_max=plan.records_lost_max,
            unheard=plan.unheard,
        )

    async def _elect(
        self, stream: StreamMetadata, chosen: NodeId, incarnation: int, plan: UncleanPlan
    ) -> None:
        """Elect, unless something has changed since the plan was made."""
        await self._metadata.propose(
            ElectLeader(
                stream_id=stream.id,
                leader=chosen,
                force=True,
                incarnations=(incarnation,),
                stream_epoch=stream.stream_epoch,
            )
        )
        logger.warning(
            "leader_elected_uncleanly",
            stream_id=stream.id,
            stream=stream.full_name,
            leader=chosen,
            by="operator",
            records_lost_max=plan.records_lost_max,
            unheard=list(plan.unheard),
        )

    async def _states(self, stream: StreamMetadata) -> list[ReplicaState]:
        return await asyncio.gather(*(self._state(stream, node) for node in stream.replicas))

    async def _state(self, stream: StreamMetadata, node_id: NodeId) -> ReplicaState:
        if node_id == self._node_id:
            return self.state_here(stream)
        standing = standing_of(stream, node_id)
        if not self._metadata.registry.is_alive(node_id):
            return ReplicaState(node_id, False, standing)
        try:
            answer = await self._peers.describe_replica(node_id, stream.id)
        except StreamNotFoundError:
            problem = "it does not know the stream yet"
            return ReplicaState(node_id, True, standing, problem=problem)
        except JetstreamError as error:
            return ReplicaState(node_id, False, standing, problem=error.message)
        return state_from_proto(answer, standing_of(stream, node_id))


def state_to_proto(state: ReplicaState) -> pb.ReplicaState:
    held: dict[str, int] = {} if state.log is None else state.log._asdict()
    return pb.ReplicaState(
        node_id=state.node_id,
        alive=state.alive,
        standing=state.standing,
        problem=state.problem,
        can_lead=state.can_lead,
        **held,
    )


def state_from_proto(answer: pb.ReplicaState, standing: str) -> ReplicaState:
    """The state of a replica as its node reports it."""
    held = None
    if answer.HasField("log_end_offset"):
        held = LogState(
            answer.log_start_offset,
            answer.log_end_offset,
            answer.last_epoch,
            answer.high_watermark,
        )
    return ReplicaState(
        NodeId(answer.node_id),
        True,
        standing,  # type: ignore[arg-type]
        held,
        answer.problem,
        answer.can_lead,
    )
