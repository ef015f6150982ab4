"""Moving a stream: it is on the old and the new nodes until the new ones are in sync."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import (
    AlterStream,
    FenceNode,
    FinishReassignment,
    ReassignStream,
    RemoveNode,
    TransferLeader,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.unit.metadata.cluster import cluster_at

from .cluster import Cluster

cluster = cluster_at(5, FeatureLevel(2))


def reassign(cluster: Cluster, stream: StreamMetadata, *replicas: int) -> StreamMetadata:
    cluster.do(ReassignStream(stream_id=stream.id, replicas=tuple(map(NodeId, replicas))))
    return cluster.now(stream)


def finish(cluster: Cluster, stream: StreamMetadata) -> StreamMetadata:
    epoch = cluster.now(stream).stream_epoch
    cluster.do(FinishReassignment(stream_id=stream.id, stream_epoch=epoch))
    return cluster.now(stream)


def test_the_new_replicas_are_added_out_of_sync_and_the_old_ones_stay(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0, 1, 2))
    moved = reassign(cluster, stream, 3, 2)
    assert moved.replicas == (0, 1, 2, 3)
    assert moved.target_replicas == (2, 3)
    assert moved.isr == (0, 1, 2)
    assert (moved.leader, moved.leader_epoch) == (stream.leader, stream.leader_epoch)
    assert moved.stream_epoch == stream.stream_epoch + 1
    assert moved.config.replicas == 2
    assert list(cluster.registry.reassigned) == [stream.id]
    assert cluster.registry.copy_count(NodeId(3)) == 1


def test_the_old_replicas_go_once_all_new_ones_are_in_sync_and_one_of_them_leads(
    cluster: Cluster,
) -> None:
    stream = cluster.create(replicas=(0, 1, 2))
    assert stream.leader == 0
    reassign(cluster, stream, 2, 3)
    with pytest.raises(PreconditionFailedError, match=r"nodes \[3\] are not in sync"):
        finish(cluster, stream)
    cluster.change_isr(stream, (0, 1, 2, 3))
    with pytest.raises(PreconditionFailedError, match="its leader is to go"):
        finish(cluster, stream)
    cluster.do(TransferLeader(stream_id=stream.id, leader=NodeId(3)))
    led = cluster.now(stream)
    moved = finish(cluster, stream)
    assert moved.replicas == moved.isr == (2, 3)
    assert moved.target_replicas == ()
    assert (moved.leader, moved.leader_epoch) == (3, led.leader_epoch)
    assert not cluster.registry.reassigned
    assert cluster.registry.copy_count(NodeId(0)) == 0


def test_a_member_that_leaves_the_isr_meanwhile_keeps_the_old_replicas(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0,))
    reassign(cluster, stream, 0, 1, 2)
    cluster.change_isr(stream, (0, 1, 2))
    cluster.do(FenceNode(node_id=NodeId(2)))
    with pytest.raises(PreconditionFailedError, match=r"nodes \[2\] are not in sync"):
        finish(cluster, stream)


def test_another_reassignment_replaces_one_and_the_old_replicas_cancel_it(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0, 1, 2))
    reassign(cluster, stream, 2, 3)
    replaced = reassign(cluster, stream, 2, 4)
    assert (replaced.replicas, replaced.target_replicas) == ((0, 1, 2, 3, 4), (2, 4))
    cancelled = reassign(cluster, stream, 0, 1, 2)
    assert cancelled.target_replicas == (0, 1, 2)
    assert finish(cluster, stream).replicas == (0, 1, 2)


def test_replicas_may_become_more_and_fewer(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(1,))
    more = reassign(cluster, stream, 0, 1, 2)
    assert (more.config.replicas, more.isr) == (3, (1,))
    cluster.change_isr(stream, (0, 1, 2))
    assert finish(cluster, stream).config.replicas == 3
    reassign(cluster, stream, 1)
    assert finish(cluster, stream).replicas == (1,)


def test_what_could_not_be_committed_to_or_is_unknown_is_refused(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0, 1, 2))
    with pytest.raises(InvalidRequestError, match="needs 2 replicas in sync"):
        reassign(cluster, stream, 0)
    with pytest.raises(InvalidRequestError, match=r"nodes \[9\] are not part"):
        reassign(cluster, stream, 0, 9)
    reassign(cluster, stream, 0, 1)
    current = cluster.now(stream)
    settings = {"min_insync_replicas": 3}
    alter = AlterStream(stream_id=stream.id, stream_epoch=current.stream_epoch, config=settings)
    with pytest.raises(InvalidRequestError):
        cluster.do(alter)


def test_the_same_replicas_change_nothing(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0, 1, 2))
    assert reassign(cluster, stream, 2, 1, 0) == stream
    assert finish(cluster, stream) == stream


def test_a_node_whose_streams_have_moved_can_be_removed(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0, 1, 2))
    cluster.do(FenceNode(node_id=NodeId(2)))
    with pytest.raises(PreconditionFailedError, match="holds 1 replicas"):
        cluster.do(RemoveNode(node_id=NodeId(2)))
    reassign(cluster, stream, 0, 1, 3)
    cluster.change_isr(stream, (0, 1, 3))
    finish(cluster, stream)
    cluster.do(RemoveNode(node_id=NodeId(2)))
    assert NodeId(2) not in cluster.registry.nodes


def test_a_move_under_way_is_in_snapshots(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0, 1, 2))
    reassign(cluster, stream, 2, 3)
    copy = Registry()
    copy.restore(cluster.registry.snapshot())
    assert copy.streams == cluster.registry.streams
    assert list(copy.reassigned) == [stream.id]
