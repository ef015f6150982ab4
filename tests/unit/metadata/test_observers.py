"""Observers of a stream: who has them, how they come and go, and that they never count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    StreamExistsError,
)
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    AlterStream,
    CreateStream,
    DistrustReplica,
    ElectLeader,
    FenceNode,
    FinishReassignment,
    ReassignStream,
    RemoveNode,
    SetCluster,
    TransferLeader,
    UnfenceNode,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.unit.metadata.cluster import cluster_at

from .cluster import Cluster


def ids(*nodes: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, nodes))


cluster = cluster_at(5, FEATURE_LEVEL_MAX)


@pytest.fixture
def stream(cluster: Cluster) -> StreamMetadata:
    """On 0, 1, 2, observed by 3."""
    return cluster.create(replicas=(0, 1, 2), observers=ids(3))


def reassign(
    cluster: Cluster,
    stream: StreamMetadata,
    replicas: tuple[int, ...],
    observers: tuple[int, ...] | None,
) -> StreamMetadata:
    cluster.do(
        ReassignStream(
            stream_id=stream.id,
            replicas=ids(*replicas),
            observers=None if observers is None else ids(*observers),
        )
    )
    return cluster.now(stream)


def test_a_stream_is_created_with_observers_that_are_neither_in_sync_nor_replicas(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    assert stream.replicas == stream.isr == (0, 1, 2)
    assert stream.observers == (3,)
    assert stream.copies == (0, 1, 2, 3)
    assert (stream.config.replicas, stream.config.observers) == (3, 1)
    assert cluster.registry.streams_of(NodeId(3)) == [stream]
    assert cluster.registry.copy_count(NodeId(3)) == 1


def test_repeating_the_creation_compares_the_number_of_observers(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    again = cluster.create(replicas=(0, 1, 2), observers=ids(4), config={"observers": 1})
    assert again.observers == (3,)
    with pytest.raises(StreamExistsError, match="observers is 1, not 2"):
        cluster.create(replicas=(0, 1, 2), observers=ids(3, 4), config={"observers": 2})


@pytest.mark.parametrize(
    ("observers", "said"), [((7,), "not part of this cluster"), ((1,), "both replicas and")]
)
def test_who_cannot_be_an_observer_is_named(
    cluster: Cluster, observers: tuple[int, ...], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        cluster.create(replicas=(0, 1), observers=ids(*observers))
    stream = cluster.create(replicas=(0, 1))
    with pytest.raises(InvalidRequestError, match=said):
        reassign(cluster, stream, (0, 1), observers)


class TestItNeverCounts:
    def test_not_for_the_isr(self, cluster: Cluster, stream: StreamMetadata) -> None:
        with pytest.raises(InvalidRequestError, match="node 3 cannot be in the ISR"):
            cluster.change_isr(stream, (0, 1, 3))
        assert cluster.now(stream).isr == (0, 1, 2)

    def test_not_for_elections(self, cluster: Cluster, stream: StreamMetadata) -> None:
        for node_id in ids(0, 1, 2):
            cluster.do(FenceNode(node_id=node_id))
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.elr) == (NO_NODE, (), (1, 2))
        for force in (False, True):
            with pytest.raises(PreconditionFailedError):
                cluster.do(ElectLeader(stream_id=stream.id, leader=NodeId(3), force=force))
        with pytest.raises(PreconditionFailedError, match="only nodes 0, 1, 2 hold it"):
            cluster.do(TransferLeader(stream_id=stream.id, leader=NodeId(3)))

    def test_not_when_it_restarts_or_comes_back(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        for node_id in ids(0, 1, 2):
            cluster.do(FenceNode(node_id=node_id))
        before = cluster.now(stream)
        cluster.register(3, feature_level_max=FEATURE_LEVEL_MAX, trusted=False)
        cluster.do(FenceNode(node_id=NodeId(3)))
        cluster.do(UnfenceNode(node_id=NodeId(3)))
        assert cluster.now(stream) is before

    def test_not_for_trust_after_a_restart(self, cluster: Cluster, stream: StreamMetadata) -> None:
        epoch = stream.stream_epoch
        cluster.do(AlterStream(stream_id=stream.id, stream_epoch=epoch, config={"flush": "group"}))
        assert cluster.now(stream).unflushed == (0, 1, 2)

    def test_its_failed_log_is_recorded(self, cluster: Cluster, stream: StreamMetadata) -> None:
        """The stream epoch grows: what it said before does not count if it is promoted."""
        incarnation = cluster.registry.nodes[NodeId(3)].incarnation
        cluster.do(
            DistrustReplica(stream_id=stream.id, node_id=NodeId(3), node_incarnation=incarnation)
        )
        now = cluster.now(stream)
        assert now.stream_epoch == stream.stream_epoch + 1
        assert (now.isr, now.leader_epoch) == (stream.isr, stream.leader_epoch)


class TestTheyComeAndGo:
    def test_at_once_and_without_moving_the_stream(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        now = reassign(cluster, stream, (0, 1, 2), (4,))
        assert (now.replicas, now.observers, now.target_replicas) == ((0, 1, 2), (4,), ())
        assert cluster.registry.copy_count(NodeId(3)) == 0
        assert cluster.registry.copy_count(NodeId(4)) == 1
        assert not cluster.registry.reassigned
        assert reassign(cluster, stream, (0, 1, 2), ()).config.observers == 0

    def test_promoted_it_is_a_replica_out_of_sync(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        now = reassign(cluster, stream, (0, 1, 3), None)
        assert (now.replicas, now.target_replicas) == ((0, 1, 2, 3), (0, 1, 3))
        assert (now.isr, now.observers) == ((0, 1, 2), ())
        with pytest.raises(PreconditionFailedError, match=r"nodes \[3\] are not in sync"):
            cluster.do(FinishReassignment(stream_id=stream.id, stream_epoch=now.stream_epoch))
        cluster.change_isr(stream, (0, 1, 2, 3))
        now = cluster.now(stream)
        cluster.do(FinishReassignment(stream_id=stream.id, stream_epoch=now.stream_epoch))
        now = cluster.now(stream)
        assert (now.replicas, now.isr, now.observers) == ((0, 1, 3), (0, 1, 3), ())
        assert cluster.registry.copy_count(NodeId(2)) == 0

    def test_a_replica_that_becomes_one_counts_until_the_stream_has_moved(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        now = reassign(cluster, stream, (0, 3), (2,))
        assert (now.replicas, now.isr, now.observers) == ((0, 1, 2, 3), (0, 1, 2), (2,))
        assert now.copies == (0, 1, 2, 3)
        cluster.change_isr(stream, (0, 1, 2, 3))
        now = cluster.now(stream)
        cluster.do(FinishReassignment(stream_id=stream.id, stream_epoch=now.stream_epoch))
        now = cluster.now(stream)
        assert (now.replicas, now.isr, now.observers) == ((0, 3), (0, 3), (2,))
        assert cluster.registry.copy_count(NodeId(2)) == 1
        assert cluster.registry.copy_count(NodeId(1)) == 0

    def test_naming_the_old_nodes_undoes_that(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        reassign(cluster, stream, (0, 1), (2, 3))
        now = reassign(cluster, stream, (0, 1, 2), (3,))
        assert (now.replicas, now.observers) == ((0, 1, 2), (3,))

    def test_not_by_alter(self, cluster: Cluster, stream: StreamMetadata) -> None:
        alter = AlterStream(
            stream_id=stream.id, stream_epoch=stream.stream_epoch, config={"observers": 2}
        )
        with pytest.raises(InvalidRequestError, match="reassign_stream"):
            cluster.do(alter)

    def test_a_node_with_an_observer_is_not_forgotten(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        cluster.do(FenceNode(node_id=NodeId(3)))
        with pytest.raises(PreconditionFailedError, match="holds 1 replicas"):
            cluster.do(RemoveNode(node_id=NodeId(3)))

    def test_all_replicas_lost_it_is_promoted_and_elected_by_hand(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        for node_id in ids(0, 1, 2):
            cluster.do(FenceNode(node_id=node_id))
        reassign(cluster, stream, (0, 1, 2, 3), None)
        cluster.do(ElectLeader(stream_id=stream.id, leader=NodeId(3), force=True))
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.lossy_elections) == (3, (3,), 1)


class TestFeatureLevel:
    def test_below_it_no_observers_are_known(self) -> None:
        cluster = Cluster()
        for node_id in range(3):
            cluster.register(node_id, feature_level_max=FeatureLevel(2))
        cluster.do(SetCluster(feature_level=FeatureLevel(2)))
        for given in ({"observers": ids(2)}, {"config": {"observers": 0}}):
            with pytest.raises(InvalidRequestError, match="unknown fields 'observers'"):
                cluster.create(replicas=(0, 1), **given)
        stream = cluster.create(replicas=(0, 1))
        with pytest.raises(InvalidRequestError, match="unknown fields 'observers'"):
            reassign(cluster, stream, (0, 1), (2,))

    def test_the_commands_say_which_level_they_need(self) -> None:
        fields: dict[str, Any] = {
            "name": "orders", "subject": "orders", "replicas": ids(0), "created_at_us": 1,
        }  # fmt: skip
        assert CreateStream(**fields).needed_level == 1
        assert CreateStream(**fields, observers=ids(1)).needed_level == 3
        assert CreateStream(**fields, config={"observers": 1}).needed_level == 3

    def test_rows_without_observers_stay_what_they_were(
        self, cluster: Cluster, stream: StreamMetadata
    ) -> None:
        plain = cluster.create("plain", "plain", replicas=(0, 1))
        assert len(plain.to_row()) == 18  # Of level 1.
        without = reassign(cluster, stream, (0, 1), ())
        row = without.to_row()
        assert len(row) == 24  # Of level 2: it is being reassigned.
        assert "observers" not in json.dumps(row)
        for each in (plain, without, reassign(cluster, stream, (0, 1), (4,))):
            read = StreamMetadata.from_row(json.loads(json.dumps(each.to_row())))
            assert read == each

    def test_a_snapshot_has_them(self, cluster: Cluster, stream: StreamMetadata) -> None:
        copy = Registry()
        copy.restore(cluster.registry.snapshot())
        assert copy.streams[stream.id] == stream
        assert copy.streams_of(NodeId(3)) == [stream]
