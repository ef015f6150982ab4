"""The methods of `AsyncClient` about nodes, leaderships and where replicas are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.transport.cluster import Cluster
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

if TYPE_CHECKING:
    from typing import Unpack


class AsyncClusterMethods(AsyncMethods):
    """What follows is part of `AsyncClient`, which sets these."""

    _cluster: Cluster

    async def describe_cluster(self) -> ClusterInfo:
        """Describe the cluster: its nodes and why some are not ready, the controller, and the URLs
        of NATS."""
        self._check_open()
        return await self._cluster.describe(readiness=True)

    async def transfer_leader(self, stream: StreamLike, node: int) -> Stream:
        """Hand a stream's leadership to another node, which must be in its ISR and not draining.

        Returns the stream with its new leader. Raises PreconditionFailedError if the node cannot
        lead it now.
        """
        self._check_open()
        return await self._cluster.transfer_leader(stream, node)

    async def elect_uncleanly(
        self,
        stream: StreamLike,
        node: int,
        *,
        dry_run: bool = False,
        stream_epoch: int | None = None,
    ) -> UncleanElection:
        """Elect a replica of a stream that nobody leads, although committed records may be lost.

        dry_run: only say what the election would cost. stream_epoch: elect only if the stream still
        has this epoch. Raises PreconditionFailedError if the stream has a leader, or the replica
        cannot lead.
        """
        self._check_open()
        return await self._cluster.elect_uncleanly(
            stream, node, dry_run=dry_run, stream_epoch=stream_epoch
        )

    async def drain_node(self, node: int, *, undo: bool = False) -> None:
        """Mark a node as draining: its leaderships move away, and it gets new streams only if there
        are too few other nodes. The mark outlives the node's restarts. Returns before the
        leaderships have moved: `describe_stream` shows when they have. undo: remove the mark.
        """
        self._check_open()
        await self._cluster.drain_node(node, not undo)

    async def debug_node(self, node: int) -> NodeDebug:
        """Return what support needs to know of a node: its configuration without secrets, its
        metrics, and its last log lines. Raises NotFoundError."""
        self._check_open()
        return await self._cluster.debug_node(node)

    async def record_activity(self) -> Stream:
        """Write every change of the metadata, and which cursors are created, moved by hand and
        deleted, to the stream `__activity` from now on.

        Returns this stream, which can be read like any other. Idempotent; it cannot be undone.
        """
        self._check_open()
        return await self._cluster.record_activity()

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
        self._check_open()
        if replicas is None and observers is None:
            raise InvalidRequestError("name the nodes of the replicas, the observers, or both")
        return await self._cluster.reassign(stream, replicas or (), observers, stream_epoch)

    async def plan_reassignment(self, *, drain: int | None = None) -> list[ReplicaMove]:
        """Plan which streams to move where, so that all nodes hold as many replicas. Moves nothing.

        drain: plan instead to move every replica away from this node. Raises
        PreconditionFailedError if a stream has no other node to go to.
        """
        self._check_open()
        return await self._cluster.plan_reassignment(drain)

    async def alter_cluster(self, **settings: Unpack[ClusterSettings]) -> None:
        """Change settings (see ClusterSettings) of the whole cluster. They hold at once, and until
        they are changed again; `describe_cluster` tells them. Raises InvalidRequestError for a
        value out of its range.
        """
        self._check_open()
        await self._cluster.alter(settings)

    async def set_throttle(self, bytes_per_second: int) -> None:
        """Limit how many bytes a second each node sends to replicas that are not in sync: new ones,
        observers, and those that were away. 0: no limit.

        It holds for the whole cluster, at once, and until it is set again; `describe_cluster` tells
        it. Replicas in sync are not affected, nor streams that have fewer of them than
        `min_insync_replicas`. Raises InvalidRequestError below 64 KiB and above 1 TiB.
        """
        self._check_open()
        await self._cluster.set_throttle(bytes_per_second)

    async def remove_node(self, node: int) -> None:
        """Remove a stopped node from the cluster's metadata. Raises PreconditionFailedError if it
        is alive or holds replicas."""
        self._check_open()
        await self._cluster.remove_node(node)

    async def list_voters(self) -> Voters:
        """Return which nodes vote on the metadata, as the metadata leader sees it."""
        self._check_open()
        return await self._cluster.list_voters()

    async def change_voters(self, voters: Sequence[int]) -> Voters:
        """Let these nodes vote on the metadata: those that do, and one more or less.

        Returns once they have agreed. May be repeated with the same nodes. Raises
        InvalidRequestError for more than one change, PreconditionFailedError for an unknown node or
        while a node runs older software, and UnavailableError with what the change waits for: for
        example until a new voter has caught up.
        """
        self._check_open()
        return await self._cluster.change_voters(voters)
