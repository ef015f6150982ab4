"""Calls of the control plane about nodes, leaderships and where replicas are."""

from __future__ import annotations

import json
from collections.abc import Sequence

from jetstream_client.transport import wire
from jetstream_client.transport.control import ControlPlane
from jetstream_client.values.settings import ClusterSettings
from jetstream_client.values.types import (
    ClusterInfo,
    NodeDebug,
    ReplicaMove,
    Stream,
    StreamLike,
    UncleanElection,
    Voters,
)
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb


class Cluster:
    """Every call repeats itself where that is safe; see `ControlPlane.call`."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def describe(self, *, readiness: bool = False) -> ClusterInfo:
        """readiness: with why nodes are not ready, for which they are asked."""
        answer: pb.DescribeClusterResponse = await self._control.call(
            pb.DescribeClusterRequest(readiness=readiness), what="describing the cluster"
        )
        return wire.cluster_of(answer)

    async def transfer_leader(self, stream: StreamLike, node: int) -> Stream:
        """A retry finds the leadership at its target."""
        answer: pb.TransferLeaderResponse = await self._control.call(
            pb.TransferLeaderRequest(stream=wire.to_ref(stream), node_id=node),
            what=f"handing the leadership to node {node}",
            changes=True,
        )
        return wire.stream_of(answer.stream)

    async def elect_uncleanly(
        self, stream: StreamLike, node: int, *, dry_run: bool, stream_epoch: int | None
    ) -> UncleanElection:
        """A retry after success finds a leader and is refused."""
        answer: pb.ElectLeaderResponse = await self._control.call(
            pb.ElectLeaderRequest(
                stream=wire.to_ref(stream), node_id=node, dry_run=dry_run, stream_epoch=stream_epoch
            ),
            what=f"electing node {node}",
            changes=not dry_run,
        )
        return wire.election_of(answer)

    async def drain_node(self, node: int, draining: bool) -> None:
        """A retry finds the mark as it should be."""
        await self._control.call(
            pb.DrainNodeRequest(node_id=node, draining=draining),
            what=f"draining node {node}",
            changes=True,
        )

    async def debug_node(self, node: int) -> NodeDebug:
        answer: pb.DebugNodeResponse = await self._control.call(
            pb.DebugNodeRequest(node_id=node), what=f"asking node {node} about itself"
        )
        return NodeDebug(
            config=json.loads(answer.config),
            metrics=answer.metrics,
            log=tuple(answer.log),
            versions=json.loads(answer.versions),
        )

    async def reassign(
        self,
        stream: StreamLike,
        replicas: Sequence[int],
        observers: Sequence[int] | None,
        stream_epoch: int | None,
    ) -> Stream:
        """Repeated without stream_epoch, it finds the stream on its way, or there."""
        request = pb.ReassignStreamRequest(
            stream=wire.to_ref(stream), replicas=replicas, stream_epoch=stream_epoch
        )
        if observers is not None:
            request.observers.CopyFrom(pb.Nodes(nodes=observers))
        answer: pb.ReassignStreamResponse = await self._control.call(
            request, what="reassigning a stream", changes=True
        )
        return wire.stream_of(answer.stream)

    async def plan_reassignment(self, drain: int | None) -> list[ReplicaMove]:
        """drain: the node to empty; None: all nodes are to hold as much."""
        request = pb.PlanReassignmentRequest(balance=True)
        if drain is not None:
            request = pb.PlanReassignmentRequest(drain_node=drain)
        answer: pb.PlanReassignmentResponse = await self._control.call(
            request, what="planning a reassignment"
        )
        return [
            ReplicaMove(wire.stream_of(move.stream), tuple(move.replicas), _observers_of(move))
            for move in answer.moves
        ]

    async def alter(self, settings: ClusterSettings) -> None:
        await self._control.call(
            pb.AlterClusterRequest(config=wire.to_cluster_config(settings)),
            what="altering the cluster",
            changes=True,
        )

    async def set_throttle(self, bytes_per_second: int) -> None:
        if type(bytes_per_second) is not int or not 0 <= bytes_per_second < 1 << 63:
            raise InvalidRequestError(
                f"a limit is a number of bytes a second, 0 for none, not {bytes_per_second!r}"
            )
        await self.alter({"copy_bytes_per_second": bytes_per_second})

    async def remove_node(self, node: int) -> None:
        await self._control.call(
            pb.RemoveNodeRequest(node_id=node), what=f"removing node {node}", changes=True
        )

    async def list_voters(self) -> Voters:
        answer: pb.ListVotersResponse = await self._control.call(
            pb.ListVotersRequest(), what="asking who votes"
        )
        return wire.voters_of(answer)

    async def change_voters(self, voters: Sequence[int]) -> Voters:
        """Repeated, it finds them as they should be."""
        answer: pb.ListVotersResponse = await self._control.call(
            pb.ChangeVotersRequest(voters=voters), what="changing the voters", changes=True
        )
        return wire.voters_of(answer)

    async def record_activity(self) -> Stream:
        """Repeated, it finds the stream."""
        answer: pb.RecordActivityResponse = await self._control.call(
            pb.RecordActivityRequest(), what="recording activity", changes=True
        )
        return wire.stream_of(answer.stream)


def _observers_of(move: pb.PlanReassignmentResponse.Move) -> tuple[int, ...] | None:
    """None: the stream has none, or the server is older and does not know of them."""
    return tuple(move.observers) or None
