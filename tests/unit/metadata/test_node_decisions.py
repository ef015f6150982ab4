import pytest

from jetstream_protocol.errors import (
    FencedEpochError,
    NotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state.changes import NodeChanged, StreamChanged
from jetstream_server.metadata.state.commands import (
    DrainNode,
    ElectLeader,
    FenceNode,
    RemoveNode,
    TransferLeader,
    UnfenceNode,
)

from .cluster import Cluster


class TestRegister:
    def test_the_incarnation_is_the_revision_and_a_repetition_changes_nothing(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0, session="s")
        assert incarnation == 1
        assert cluster.register(0, session="s") == 1
        assert cluster.changes == []

    def test_a_new_incarnation_ends_every_leadership_in_the_same_entry(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        assert stream.leader == 0
        cluster.register(0)
        assert [type(change) for change in cluster.changes] == [NodeChanged, StreamChanged]
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.leader_epoch) == (1, (1, 2), 1)

    def test_a_leader_that_is_alone_is_elected_again_in_a_new_epoch(self) -> None:
        cluster = Cluster(1)
        stream = cluster.create(replicas=(0,))
        cluster.register(0)
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.elr, now.lossy_elections) == (0, (0,), (), 0)
        assert now.leader_epoch == stream.leader_epoch + 1
        assert now.stream_epoch == stream.stream_epoch + 1
        assert cluster.registry.leaderships == {0: 1}

    def test_a_single_replica_serves_at_once_even_untrusted_but_counts_as_lossy(self) -> None:
        cluster = Cluster(1)
        flushed = cluster.create("flushed", "flushed", (0,))
        cached = cluster.create("cached", "cached", (0,), config={"flush": "interval"})
        cluster.register(0, trusted=False)
        assert (cluster.now(flushed).leader, cluster.now(flushed).lossy_elections) == (0, 0)
        assert (cluster.now(cached).leader, cluster.now(cached).lossy_elections) == (0, 1)

    def test_a_late_copy_of_a_run_that_is_over_is_refused(self) -> None:
        cluster = Cluster()
        cluster.register(0, session="first", replaces="")
        incarnation = cluster.register(0, session="second", replaces="first")
        with pytest.raises(PreconditionFailedError, match="another process"):
            cluster.register(0, session="first", replaces="")
        with pytest.raises(PreconditionFailedError, match="another process"):
            cluster.register(0, session="third", replaces="first")
        # A repetition of the registration that stands is not one.
        assert cluster.register(0, session="second", replaces="first") == incarnation


class TestDraining:
    def test_a_node_that_stops_is_draining_until_its_next_run(self) -> None:
        cluster = Cluster(1)
        cluster.do(DrainNode(node_id=0))
        assert cluster.registry.nodes[0].yields_leadership
        cluster.register(0)
        assert not cluster.registry.nodes[0].yields_leadership

    def test_an_operators_mark_stays_until_it_is_undone(self) -> None:
        cluster = Cluster(2)
        cluster.do(DrainNode(node_id=0, until_undone=True))
        assert not cluster.registry.nodes[1].yields_leadership
        cluster.do(DrainNode(node_id=0))
        cluster.register(0)
        node = cluster.registry.nodes[0]
        assert (node.yields_leadership, node.relieved, node.draining) == (True, True, False)
        cluster.do(DrainNode(node_id=0, draining=False))
        assert cluster.registry.nodes[0].yields_leadership
        cluster.do(DrainNode(node_id=0, draining=False, until_undone=True))
        assert not cluster.registry.nodes[0].yields_leadership
        cluster.do(DrainNode(node_id=0, draining=False, until_undone=True))
        assert cluster.changes == []

    def test_after_a_restart_a_drained_node_follows_and_leads_nothing(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(DrainNode(node_id=1, until_undone=True))
        cluster.register(1)
        cluster.change_isr(stream, (0, 1, 2))
        with pytest.raises(PreconditionFailedError, match="is draining"):
            cluster.do(TransferLeader(stream_id=stream.id, leader=1))
        cluster.do(FenceNode(node_id=0))
        assert cluster.now(stream).leader == 2
        cluster.do(FenceNode(node_id=2))
        assert cluster.now(stream).leader == 1


class TestFencing:
    def test_a_fenced_node_leaves_every_isr_and_successors_are_spread(self) -> None:
        cluster = Cluster(3)
        streams = [cluster.create(f"s{number}", f"s{number}") for number in range(12)]
        cluster.do(FenceNode(node_id=0))
        for stream in streams:
            assert 0 not in cluster.now(stream).isr
        assert cluster.registry.leaderships == {0: 0, 1: 6, 2: 6}

    def test_an_election_prefers_the_rack_that_leads_least(self) -> None:
        cluster = Cluster(4, racks=("a", "b", "b", "c"))
        cluster.create("one", "one", (1,))
        cluster.create("two", "two", (0, 2, 3))
        cluster.do(FenceNode(node_id=0))
        assert cluster.registry.resolve("two").leader == 3

    def test_a_draining_node_leads_only_when_nobody_else_can(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(DrainNode(node_id=1))
        cluster.do(FenceNode(node_id=0))
        assert cluster.now(stream).leader == 2
        cluster.do(FenceNode(node_id=2))
        assert cluster.now(stream).leader == 1

    def test_the_last_replicas_stay_eligible_and_the_first_back_leads(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        for node_id in (0, 1, 2):
            cluster.do(FenceNode(node_id=node_id))
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.elr) == (NO_NODE, (), (1, 2))
        cluster.do(UnfenceNode(node_id=0))
        assert cluster.now(stream).leader == NO_NODE
        cluster.do(UnfenceNode(node_id=2))
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.elr) == (2, (2,), (1,))

    def test_another_incarnation_is_not_fenced_by_mistake(self) -> None:
        cluster = Cluster(1)
        old = cluster.registry.nodes[0].incarnation
        cluster.register(0)
        with pytest.raises(FencedEpochError):
            cluster.do(FenceNode(node_id=0, node_incarnation=old))
        with pytest.raises(NotFoundError):
            cluster.do(FenceNode(node_id=1))

    def test_fencing_twice_changes_nothing(self) -> None:
        cluster = Cluster(2)
        cluster.do(FenceNode(node_id=0))
        cluster.do(FenceNode(node_id=0))
        assert cluster.changes == []


class TestRestartTrust:
    def all_lost(self) -> tuple[Cluster, int]:
        """A stream whose last two eligible replicas both came back with untrusted logs."""
        cluster = Cluster(3)
        stream = cluster.create()
        for node_id in (0, 1, 2):
            cluster.do(FenceNode(node_id=node_id))
        cluster.register(1, trusted=False)
        assert cluster.now(stream).elr == (2,)
        return cluster, stream.id

    def test_an_untrusted_replica_leaves_the_elr_too(self) -> None:
        cluster, stream_id = self.all_lost()
        stream = cluster.registry.streams[stream_id]
        assert (stream.leader, stream.elr, stream.last_known) == (NO_NODE, (2,), (1,))

    def test_a_trusted_eligible_replica_is_elected_without_the_untrusted(self) -> None:
        cluster, stream_id = self.all_lost()
        cluster.register(2)
        stream = cluster.registry.streams[stream_id]
        # Nothing can be committed below the minimum, so the untrusted may still hold everything.
        assert (stream.leader, stream.last_known, stream.lossy_elections) == (2, (1,), 0)

    def test_without_any_eligible_an_election_waits_for_all_who_were(self) -> None:
        cluster, stream_id = self.all_lost()
        cluster.register(2, trusted=False)
        stream = cluster.registry.streams[stream_id]
        assert (stream.leader, stream.isr, stream.elr) == (NO_NODE, (), ())
        assert stream.last_known == (1, 2)
        told = [cluster.registry.nodes[NodeId(node_id)].incarnation for node_id in (1, 2)]
        cluster.do(FenceNode(node_id=2))
        with pytest.raises(UnavailableError, match=r"waits for nodes \[2\]"):
            cluster.do(ElectLeader(stream_id=stream_id, leader=1, incarnations=told))
        cluster.do(UnfenceNode(node_id=2))
        with pytest.raises(UnavailableError, match="restarted since"):
            cluster.do(ElectLeader(stream_id=stream_id, leader=1))
        cluster.do(ElectLeader(stream_id=stream_id, leader=1, incarnations=told))
        stream = cluster.registry.streams[stream_id]
        assert (stream.leader, stream.isr, stream.lossy_elections) == (1, (1,), 1)

    def test_an_operator_may_decide_earlier_but_never_against_a_leader(self) -> None:
        cluster, stream_id = self.all_lost()
        with pytest.raises(PreconditionFailedError):
            cluster.do(ElectLeader(stream_id=stream_id, leader=1))
        cluster.do(ElectLeader(stream_id=stream_id, leader=1, force=True))
        assert cluster.registry.streams[stream_id].leader == 1
        with pytest.raises(PreconditionFailedError):
            cluster.do(ElectLeader(stream_id=stream_id, leader=1, force=True))

    def test_an_operators_election_is_void_once_what_was_looked_at_has_changed(self) -> None:
        cluster, stream_id = self.all_lost()
        stream = cluster.registry.streams[stream_id]
        incarnation = cluster.registry.nodes[NodeId(1)].incarnation
        with pytest.raises(PreconditionFailedError, match="changed"):
            cluster.do(
                ElectLeader(
                    stream_id=stream_id, leader=1, force=True, stream_epoch=stream.stream_epoch - 1
                )
            )
        with pytest.raises(UnavailableError, match="restarted since"):
            cluster.do(
                ElectLeader(
                    stream_id=stream_id, leader=1, force=True, incarnations=[incarnation - 1]
                )
            )
        cluster.do(
            ElectLeader(
                stream_id=stream_id,
                leader=1,
                force=True,
                stream_epoch=stream.stream_epoch,
                incarnations=[incarnation],
            )
        )
        assert cluster.registry.streams[stream_id].leader == 1

    def test_a_stream_that_flushes_before_ack_trusts_any_restart(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create(config={"flush": "group"})
        for node_id in (0, 1, 2):
            cluster.do(FenceNode(node_id=node_id))
        cluster.register(2, trusted=False)
        assert cluster.now(stream).leader == 2
        assert cluster.now(stream).lossy_elections == 0

    def test_a_single_replica_that_the_node_distrusts_is_not_eligible(self) -> None:
        cluster = Cluster(3)
        bad = cluster.create("bad", "bad", config={"flush": "group"})
        good = cluster.create("good", "good", config={"flush": "group"})
        for node_id in (0, 1, 2):
            cluster.do(FenceNode(node_id=node_id))
        cluster.register(2, distrusted=[bad.id])
        assert cluster.now(bad).leader == NO_NODE
        assert cluster.now(good).leader == 2


def test_only_a_fenced_node_without_replicas_can_be_removed() -> None:
    cluster = Cluster(2)
    cluster.create(replicas=(0,))
    with pytest.raises(PreconditionFailedError):
        cluster.do(RemoveNode(node_id=1))
    cluster.do(FenceNode(node_id=0))
    with pytest.raises(PreconditionFailedError, match="1 replicas"):
        cluster.do(RemoveNode(node_id=0))
    cluster.do(FenceNode(node_id=1))
    cluster.do(RemoveNode(node_id=1))
    assert list(cluster.registry.nodes) == [0]
