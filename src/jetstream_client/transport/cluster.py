"""Nodes, leaderships, where replicas are, and who votes on the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.transport.control import ControlPlane
from jetstream_client.values.checks import check_epoch, check_node, text_or_empty
from jetstream_client.values.settings import ClusterSettings
from jetstream_client.values.types import (
    ClusterInfo,
    History,
    NodeDebug,
    ReplicaMove,
    Stream,
    StreamLike,
    UncleanElection,
    Voters,
)
from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb

if TYPE_CHECKING:
    from jetstream_client.transport.streams import Streams


async def describe_cluster(control: ControlPlane, *, readiness: bool = False) -> ClusterInfo:
    """readiness: with why nodes are not ready, for which they are asked."""
    answer: pb.DescribeClusterResponse = await control.call(
        pb.DescribeClusterRequest(readiness=readiness), what="describing the cluster"
    )
    return wire.cluster_of(answer)


class AsyncCluster(AsyncMethods):
    """A part of `AsyncClient`, which sets this."""

    _streams: Streams

    async def describe_cluster(self) -> ClusterInfo:
        """Describe the cluster: its nodes and why some are not ready, the controller, and the URLs
        of NATS."""
        return await describe_cluster(self._calls, readiness=True)

    async def transfer_leader(self, stream: StreamLike, node: int) -> Stream:
        """Hand a stream's leadership to another node, which must be in its ISR and not draining.

        Returns the stream with its new leader. Raises PreconditionFailedError if the node cannot
        lead it now.
        """
        # A retry finds the leadership at its target.
        answer: pb.TransferLeaderResponse = await self._calls.call(
            pb.TransferLeaderRequest(stream=wire.to_ref(stream), node_id=check_node(node)),
            what=f"handing the leadership to node {node}",
            changes=True,
        )
        return wire.stream_of(answer.stream)

    async def elect_uncleanly(
        self,
        stream: StreamLike,
        node: int,
        *,
        dry_run: bool = False,
        stream_epoch: int | None = None,
    ) -> UncleanElection:
        """Elect a replica of a stream without a leader, although committed records may be lost.

        dry_run: only say what the election would cost. stream_epoch: elect only if the stream still
        has this epoch; by default, that which it has when the call begins. Raises
        PreconditionFailedError if the stream has a leader, or the replica cannot lead.
        """
        # A retry after success finds a leader and is refused. A copy that arrives when there is
        # none again finds another epoch.
        ref = wire.to_ref(stream)
        if stream_epoch is None and not dry_run:
            found = await self._streams.registered(ref, self._calls.timeout)
            ref, stream_epoch = wire.to_ref(found), found.stream_epoch
        answer: pb.ElectLeaderResponse = await self._calls.call(
            pb.ElectLeaderRequest(
                stream=ref,
                node_id=check_node(node),
                dry_run=dry_run,
                stream_epoch=check_epoch(stream_epoch),
            ),
            what=f"electing node {node}",
            changes=not dry_run,
        )
        return wire.election_of(answer)

    async def drain_node(self, node: int, *, undo: bool = False) -> None:
        """Mark a node as draining: its leaderships move away, and it gets new streams only if there
        are too few other nodes. The mark outlives the node's restarts. Returns before the
        leaderships have moved: `describe_stream` shows when they have. undo: remove the mark.
        """
        # A retry finds the mark as it should be.
        await self._calls.call(
            pb.DrainNodeRequest(node_id=check_node(node), draining=not undo),
            what=f"draining node {node}",
            changes=True,
        )

    async def debug_node(self, node: int) -> NodeDebug:
        """Return what support needs to know of a node: its configuration without secrets, its
        metrics, and its last log lines. Raises NotFoundError."""
        answer: pb.DebugNodeResponse = await self._calls.call(
            pb.DebugNodeRequest(node_id=check_node(node)), what=f"asking node {node} about itself"
        )
        return NodeDebug(
            config=bounded_json.loads(answer.config),
            metrics=answer.metrics,
            log=tuple(answer.log),
            versions=bounded_json.loads(answer.versions),
        )

    async def describe_history(
        self,
        stream: StreamLike | None = None,
        *,
        cursor: str | None = None,
        node: int | None = None,
    ) -> History:
        """Return the last hour: of a stream (records and bytes a second, size, ISR), or the lag of
        a cursor or consumer group of that name, or else of a node (records and bytes a second, free
        disk); by default of the one that answers. A node keeps it since its start.
        """
        if sum(each is not None for each in (stream, cursor, node)) > 1:
            raise InvalidRequestError("name a stream, a cursor or a node")
        asked = pb.DescribeHistoryRequest(
            node_id=None if node is None else check_node(node),
            stream=None if stream is None else wire.to_ref(stream),
            cursor=text_or_empty("the cursor", cursor),
        )
        answer: pb.DescribeHistoryResponse = await self._calls.call(
            asked, what="asking for the last hour"
        )
        return wire.history_of(answer)

    async def record_activity(self) -> Stream:
        """Write every change of the metadata, and which cursors are created, moved by hand and
        deleted, to the stream `__activity` from now on.

        Returns this stream, which can be read like any other. Idempotent; it cannot be undone.
        """
        # Repeated, it finds the stream.
        answer: pb.RecordActivityResponse = await self._calls.call(
            pb.RecordActivityRequest(), what="recording activity", changes=True
        )
        return wire.stream_of(answer.stream)

    async def reassign_stream(
        self,
        stream: StreamLike,
        replicas: Sequence[int] | None = None,
        *,
        observers: Sequence[int] | None = None,
        stream_epoch: int | None = None,
    ) -> Stream:
        """Move a stream to these nodes. It then has one replica on each of them.

        Returns at once. The stream stays on its old nodes too until the new ones are in sync; until
        then its `target_replicas` are not empty. Repeated with the old nodes, the call cancels the
        move. replicas: None: they stay. observers: the nodes of its observers, which change at
        once; None: they stay, but those that are named as replicas are promoted. Raises
        InvalidRequestError for an unknown node, one that is named as both, or fewer nodes than the
        stream's `min_insync_replicas`. stream_epoch: move the stream only if it still has this
        epoch; otherwise raise PreconditionFailedError. If the answer to a first try was lost, that
        error may also mean that the stream is being moved.
        """
        # Repeated without stream_epoch, it finds the stream on its way, or there.
        if replicas is None and observers is None:
            raise InvalidRequestError("name the nodes of the replicas, the observers, or both")
        request = pb.ReassignStreamRequest(
            stream=wire.to_ref(stream),
            replicas=replicas or (),
            stream_epoch=check_epoch(stream_epoch),
        )
        if observers is not None:
            request.observers.CopyFrom(pb.Nodes(nodes=observers))
        answer: pb.ReassignStreamResponse = await self._calls.call(
            request, what="reassigning a stream", changes=True
        )
        return wire.stream_of(answer.stream)

    async def plan_reassignment(self, *, drain: int | None = None) -> list[ReplicaMove]:
        """Plan which streams to move where, so that all nodes hold as many replicas. Moves nothing.

        drain: plan instead to move every replica away from this node. Raises
        PreconditionFailedError if a stream has no other node to go to.
        """
        request = pb.PlanReassignmentRequest(balance=True)
        if drain is not None:
            request = pb.PlanReassignmentRequest(drain_node=check_node(drain))
        answer: pb.PlanReassignmentResponse = await self._calls.call(
            request, what="planning a reassignment"
        )
        return [
            ReplicaMove(wire.stream_of(move.stream), tuple(move.replicas), _observers_of(move))
            for move in answer.moves
        ]

    async def alter_cluster(self, **settings: Unpack[ClusterSettings]) -> None:
        """Change settings (see ClusterSettings) of the whole cluster. They hold at once, and until
        they are changed again; `describe_cluster` tells them. Raises InvalidRequestError for a
        value out of its range.
        """
        await self._calls.call(
            pb.AlterClusterRequest(config=wire.to_cluster_config(settings)),
            what="altering the cluster",
            changes=True,
        )

    async def remove_node(self, node: int) -> None:
        """Remove a stopped node from the cluster's metadata. Raises PreconditionFailedError if it
        is alive or holds replicas."""
        await self._calls.call(
            pb.RemoveNodeRequest(node_id=check_node(node)),
            what=f"removing node {node}",
            changes=True,
        )

    async def list_voters(self) -> Voters:
        """Return which nodes vote on the metadata, as the metadata leader sees it."""
        answer: pb.ListVotersResponse = await self._calls.call(
            pb.ListVotersRequest(), what="asking who votes"
        )
        return wire.voters_of(answer)

    async def change_voters(self, voters: Sequence[int]) -> Voters:
        """Let these nodes vote on the metadata: those that do, and one more or less.

        Returns once they have agreed. May be repeated with the same nodes. Raises
        InvalidRequestError for more than one change, PreconditionFailedError for an unknown node or
        while a node runs older software, and UnavailableError with what the change waits for: for
        example until a new voter has caught up.
        """
        # Repeated, it finds them as they should be.
        answer: pb.ListVotersResponse = await self._calls.call(
            pb.ChangeVotersRequest(voters=voters), what="changing the voters", changes=True
        )
        return wire.voters_of(answer)


def _observers_of(move: pb.PlanReassignmentResponse.Move) -> tuple[int, ...] | None:
    """None: the stream has none, or the server is older and does not know of them."""
    return tuple(move.observers) or None
