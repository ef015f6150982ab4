from typing import Any

import pytest

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    PreconditionFailedError,
    QuotaExceededError,
    StreamExistsError,
    StreamNotFoundError,
    UnavailableError,
    UnknownEpochError,
)
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    AlterStream,
    ConfirmFlush,
    CreateStream,
    DeleteStream,
    DistrustReplica,
    DrainNode,
    FenceNode,
    PurgeStream,
    ReportLeader,
    SetCluster,
    SetStreamAccess,
    TransferLeader,
)
from jetstream_server.metadata.state.leadership_decisions import REPORT_PERIOD_US
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata

from .cluster import Cluster

LEVEL_1_FIELDS = 18


def of_level_2() -> Cluster:
    cluster = Cluster()
    cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    return cluster


class TestCreate:
    def test_the_id_is_the_revision_of_the_creation(self) -> None:
        cluster = Cluster(1)
        stream = cluster.create(replicas=(0,))
        assert stream.id == cluster.registry.revision

    def test_defaults_follow_the_number_of_replicas(self) -> None:
        cluster = Cluster(3)
        one = cluster.create("one", "one", (0,)).config
        two = cluster.create("two", "two", (0, 1)).config
        three = cluster.create("three", "three", (0, 1, 2)).config
        assert (one.min_insync_replicas, one.flush, one.acks) == (1, "group", "reply")
        assert (two.min_insync_replicas, two.flush) == (1, "interval")
        assert (three.min_insync_replicas, three.flush) == (2, "interval")

    def test_creating_it_again_returns_the_same_stream(self) -> None:
        cluster = Cluster(3)
        first = cluster.create(config={"replicas": 3})
        again = cluster.do(
            CreateStream(name="orders", subject="orders.>", replicas=[1], created_at_us=9)
        )
        assert again["stream_id"] == first.id
        assert again["created"] is False

    @pytest.mark.parametrize(
        ("fields", "difference"),
        [
            ({"config": {"replicas": 2}, "replicas": (0, 1)}, "replicas is 3, not 2"),
            ({"config": {"min_insync_replicas": 1}}, "min_insync_replicas is 2, not 1"),
            ({"config": {"flush": "none"}}, "flush is 'interval', not 'none'"),
            ({"config": {"acks": "off"}}, "acks is 'reply', not 'off'"),
            ({"config": {"max_age_us": 7_200_500_000}}, "max_age is 0 s, not 7200.5 s"),
            ({"group": "workers"}, "group is '', not 'workers'"),
        ],
    )
    def test_another_configuration_is_refused_and_named(
        self, fields: dict, difference: str
    ) -> None:
        cluster = Cluster(3)
        cluster.create()
        with pytest.raises(StreamExistsError, match=f"another configuration: {difference}$"):
            cluster.create(**fields)

    def test_a_principal_has_so_many_streams_and_another_has_its_own(self) -> None:
        cluster = of_level_2()
        fields: dict[str, Any] = {"replicas": (0,), "streams_max": 2}
        first = cluster.create("a", "a", creator="user:x", **fields)
        cluster.create("b", "b", creator="user:x", **fields)
        assert first.creator == "user:x"
        with pytest.raises(QuotaExceededError, match="user:x has created 2 streams that exist"):
            cluster.create("c", "c", creator="user:x", **fields)
        assert cluster.create("a", "a", creator="user:x", **fields).id == first.id
        cluster.create("c", "c", creator="user:y", **fields)
        cluster.create("d", "d", creator="user:x", replicas=(0,), streams_max=0)
        cluster.do(DeleteStream(stream_id=first.id))
        cluster.do(DeleteStream(stream_id=cluster.registry.resolve("b").id))
        cluster.create("e", "e", creator="user:x", **fields)

    def test_who_created_a_stream_is_known_after_a_restart(self) -> None:
        cluster = of_level_2()
        fields: dict[str, Any] = {"replicas": (0,), "streams_max": 1, "creator": "user:x"}
        cluster.create("a", "a", **fields)
        before, cluster.registry = cluster.registry, Registry()
        cluster.registry.restore(before.snapshot())
        with pytest.raises(QuotaExceededError):
            cluster.create("b", "b", **fields)

    def test_one_name_on_two_subjects_is_two_streams(self) -> None:
        cluster = Cluster(1)
        assert cluster.create("a", "x", (0,)).id != cluster.create("a", "y", (0,)).id

    @pytest.mark.parametrize(
        "subject", [">", "*.a", "_INBOX.a", "_INBOX.>", "*.>", "$SYS.>", "$JS.API.*", "acks.a"]
    )
    def test_a_subject_where_acks_travel_needs_acks_off(self, subject: str) -> None:
        cluster = Cluster(1)
        cluster.do(SetCluster(ack_subjects=["_INBOX.>", "acks.>"]))
        with pytest.raises(InvalidRequestError, match="acks: off"):
            cluster.create("s", subject, (0,))
        with pytest.raises(InvalidRequestError, match="acks: off"):
            cluster.create("s", subject, (0,), config={"acks": "envelope"})
        cluster.create("s", subject, (0,), config={"acks": "off"})

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"name": "a b"}, "stream name"),
            ({"subject": "a..b"}, "subject"),
            ({"group": "a b"}, "stream name"),
            ({"replicas": ()}, "placed on 0 nodes"),
            ({"replicas": (0, 0)}, "different node ids"),
            ({"replicas": (0, 7)}, r"nodes \[7\] are not part"),
            ({"config": {"replicas": 2}}, "placed on 3 nodes, not 2"),
            ({"config": {"min_insync_replicas": 4}}, "more than the stream's 3"),
            ({"config": {"min_insync_replicas": 0}}, "min_insync_replicas"),
            ({"config": {"flush": "sometimes"}}, "one of none, interval, group"),
            ({"config": {"colour": "red"}}, "unknown fields 'colour'"),
        ],
    )
    def test_impossible_streams_are_refused(self, fields: dict, message: str) -> None:
        cluster = Cluster(3)
        with pytest.raises(InvalidRequestError, match=message):
            cluster.create(**fields)
        assert cluster.registry.streams == {}

    def test_fenced_nodes_of_the_placement_start_outside_the_isr(self) -> None:
        cluster = Cluster(3)
        cluster.do(FenceNode(node_id=1))
        assert cluster.create().isr == (0, 2)
        cluster.do(FenceNode(node_id=2))
        with pytest.raises(UnavailableError, match="2 are needed"):
            cluster.create("more", "more")

    def test_leaders_are_spread_over_the_nodes(self) -> None:
        cluster = Cluster(3)
        for number in range(9):
            cluster.create(f"s{number}", f"s{number}")
        assert cluster.registry.leaderships == {0: 3, 1: 3, 2: 3}


class TestDelete:
    def test_a_deleted_stream_is_gone_from_every_index(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(DeleteStream(stream_id=stream.id))
        registry = cluster.registry
        assert registry.feeding("orders.a") == []
        assert registry.streams_of(0) == []
        assert registry.leaderships == {0: 0}
        with pytest.raises(StreamNotFoundError):
            registry.resolve("orders")
        with pytest.raises(StreamNotFoundError):
            cluster.do(DeleteStream(stream_id=stream.id))

    def test_an_id_is_never_used_again(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(DeleteStream(stream_id=stream.id))
        assert cluster.create().id > stream.id


class TestChangeIsr:
    def test_a_shrink_below_the_minimum_keeps_the_leaver_eligible(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (0, 1))
        assert (cluster.now(stream).isr, cluster.now(stream).elr) == ((0, 1), ())
        cluster.change_isr(stream, (0,))
        assert (cluster.now(stream).isr, cluster.now(stream).elr) == ((0,), (1,))
        cluster.change_isr(stream, (0, 2))
        assert (cluster.now(stream).isr, cluster.now(stream).elr) == ((0, 2), ())

    def test_each_change_is_a_new_stream_epoch_of_the_same_leader_epoch(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (0, 1))
        assert cluster.now(stream).stream_epoch == stream.stream_epoch + 1
        assert cluster.now(stream).leader_epoch == stream.leader_epoch

    def test_stale_and_future_epochs_are_told_apart(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(TransferLeader(stream_id=stream.id, leader=1))
        cluster.change_isr(stream, (0, 1))
        with pytest.raises(FencedEpochError):
            cluster.change_isr(stream, (0, 1), leader_epoch=stream.leader_epoch)
        with pytest.raises(UnknownEpochError):
            cluster.change_isr(stream, (0, 1), leader_epoch=99)
        with pytest.raises(FencedEpochError):
            cluster.change_isr(stream, (0, 1), leader=0)
        with pytest.raises(PreconditionFailedError):
            cluster.change_isr(stream, (0, 1), stream_epoch=stream.stream_epoch)

    def test_only_live_replicas_in_their_current_incarnation_may_join(self) -> None:
        cluster = Cluster(4)
        stream = cluster.create()
        cluster.do(FenceNode(node_id=2))
        with pytest.raises(InvalidRequestError, match="not alive"):
            cluster.change_isr(stream, (0, 1, 2))
        stale = cluster.registry.nodes[2].incarnation
        cluster.register(2)
        with pytest.raises(InvalidRequestError, match="incarnation"):
            cluster.change_isr(stream, (0, 2), incarnations=[1, stale])
        with pytest.raises(InvalidRequestError, match="holds no replica"):
            cluster.change_isr(stream, (0, 3))
        with pytest.raises(InvalidRequestError, match="contain its leader"):
            cluster.change_isr(stream, (1, 2))
        with pytest.raises(InvalidRequestError, match="one incarnation for each"):
            cluster.change_isr(stream, (0, 1), incarnations=[1])
        cluster.do(DrainNode(node_id=2))
        with pytest.raises(InvalidRequestError, match="draining"):
            cluster.change_isr(stream, (0, 1, 2))

    def test_proposing_the_present_isr_changes_nothing(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (2, 1, 0))
        assert cluster.now(stream) is stream


class TestTransferLeader:
    def test_a_hand_over_begins_a_new_leader_epoch(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(TransferLeader(stream_id=stream.id, leader=2))
        now = cluster.now(stream)
        assert (now.leader, now.leader_epoch, now.isr) == (2, stream.leader_epoch + 1, (0, 1, 2))
        assert cluster.registry.leaderships == {0: 0, 2: 1}

    def test_handing_over_to_the_leader_changes_nothing(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(TransferLeader(stream_id=stream.id, leader=0))
        assert cluster.now(stream) is stream

    def test_the_target_must_be_in_sync_and_staying(self) -> None:
        cluster = Cluster(4)
        stream = cluster.create()
        cluster.change_isr(stream, (0, 1))
        cluster.do(DrainNode(node_id=1))
        for target, why in ((1, "is draining"), (2, "is not in sync"), (3, "only nodes 0, 1, 2")):
            with pytest.raises(PreconditionFailedError, match=why):
                cluster.do(TransferLeader(stream_id=stream.id, leader=target))

    def test_a_stale_stream_epoch_is_refused(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        with pytest.raises(PreconditionFailedError, match="stream epoch"):
            cluster.do(TransferLeader(stream_id=stream.id, leader=1, stream_epoch=5))


class TestReportLeader:
    def report(self, cluster: Cluster, stream_id: int, reporter: int, now_us: int = 0) -> bool:
        result = cluster.do(
            ReportLeader(stream_id=stream_id, leader_epoch=0, reporter=reporter, now_us=now_us)
        )
        return bool(result["deposed"])

    def test_a_majority_of_the_followers_in_sync_deposes(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        assert not self.report(cluster, stream.id, 1)
        assert not self.report(cluster, stream.id, 1)
        assert self.report(cluster, stream.id, 2)
        now = cluster.now(stream)
        # The old leader, which hears as little of the others as they of it, holds up no commit.
        assert (now.leader, now.isr, now.elr) == (1, (1, 2), ())
        assert now.stream_epoch == stream.stream_epoch + 1
        assert cluster.registry.reports == {}

    def test_the_deposed_stays_in_an_isr_that_would_be_too_small_without_it(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (0, 1))
        assert self.report(cluster, stream.id, 1)
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.elr) == (1, (0, 1), ())

    def test_old_reports_do_not_add_up(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        assert not self.report(cluster, stream.id, 1)
        assert not self.report(cluster, stream.id, 2, now_us=REPORT_PERIOD_US + 1)
        assert self.report(cluster, stream.id, 1, now_us=REPORT_PERIOD_US + 2)

    def test_reports_about_an_ended_leadership_are_refused(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        self.report(cluster, stream.id, 1)
        cluster.do(TransferLeader(stream_id=stream.id, leader=2))
        assert cluster.registry.reports == {}
        with pytest.raises(FencedEpochError):
            self.report(cluster, stream.id, 1)

    def test_only_followers_in_sync_are_heard(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (0, 1))
        for reporter in (0, 2):
            with pytest.raises(PreconditionFailedError):
                self.report(cluster, stream.id, reporter)


class TestAccess:
    def newest(self) -> tuple[Cluster, StreamMetadata]:
        cluster = Cluster()
        for node in range(3):
            cluster.register(node, feature_level_max=FEATURE_LEVEL_MAX)
        stream = cluster.create()
        assert len(stream.to_row()) == LEVEL_1_FIELDS  # What level 1 can read.
        cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        return cluster, stream

    def test_readonly_and_paused_are_two_marks_and_each_change_is_a_stream_epoch(self) -> None:
        cluster, stream = self.newest()
        steps = [
            ({"readonly": True}, (True, False)),
            ({"paused": True}, (True, True)),
            ({"readonly": False}, (False, True)),
            ({"paused": False}, (False, False)),
        ]
        for number, (fields, expected) in enumerate(steps, 1):
            for _ in range(2):  # Repeated, it changes nothing.
                cluster.do(SetStreamAccess(stream_id=stream.id, **fields))
                after = cluster.now(stream)
                assert (after.readonly, after.paused) == expected
                assert after.stream_epoch == stream.stream_epoch + number
                assert (after.leader, after.leader_epoch) == (stream.leader, stream.leader_epoch)
                copy = Registry()
                copy.restore(cluster.registry.snapshot())
                assert copy.streams[stream.id] == after

    def test_a_cluster_with_older_software_refuses_it(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        with pytest.raises(InvalidRequestError, match="at feature level 1"):
            cluster.do(SetStreamAccess(stream_id=stream.id, paused=True))
        assert cluster.now(stream) is stream


class TestPurge:
    def purge(self, cluster: Cluster, stream: StreamMetadata, offset: int, epoch: int) -> None:
        cluster.do(PurgeStream(stream_id=stream.id, leader_epoch=epoch, offset=offset))

    def test_the_leader_of_now_says_what_is_purged_and_it_only_grows(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        epoch = stream.leader_epoch
        for offset, purged in ((5, 5), (3, 5), (5, 5), (9, 9)):
            self.purge(cluster, stream, offset, epoch)
            after = cluster.now(stream)
            assert (after.purged_offset, after.purged_epoch) == (purged, epoch)
        assert after.stream_epoch == stream.stream_epoch + 2

    def test_nobody_but_the_leader_of_now_can_say_so(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        for epoch in (stream.leader_epoch + 1, stream.leader_epoch - 1):
            with pytest.raises((PreconditionFailedError, InvalidRequestError)):
                self.purge(cluster, stream, 5, epoch)
        assert cluster.now(stream) is stream

    def test_a_later_leader_may_purge_less_after_records_were_lost(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        self.purge(cluster, stream, 9, stream.leader_epoch)
        other = next(node for node in stream.isr if node != stream.leader)
        cluster.do(
            TransferLeader(
                stream_id=stream.id,
                leader=other,
                stream_epoch=cluster.now(stream).stream_epoch,
            )
        )
        epoch = cluster.now(stream).leader_epoch
        assert epoch > stream.leader_epoch
        self.purge(cluster, stream, 4, epoch)
        after = cluster.now(stream)
        assert (after.purged_offset, after.purged_epoch) == (4, epoch)

    def test_it_survives_in_the_image_of_the_metadata(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        self.purge(cluster, stream, 9, stream.leader_epoch)
        after = cluster.now(stream)
        assert StreamMetadata.from_row(after.to_row()) == after
        older = after.to_row()[:-2]
        assert StreamMetadata.from_row(older).purged_offset == 0


def alter_minimum(cluster: Cluster, stream: StreamMetadata, minimum: int) -> None:
    epoch = cluster.now(stream).stream_epoch
    config = {"min_insync_replicas": minimum}
    cluster.do(AlterStream(stream_id=stream.id, stream_epoch=epoch, config=config))


class TestAlter:
    def test_a_new_minimum_clears_the_elr_in_the_same_entry(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (0,))
        assert cluster.now(stream).elr == (1, 2)
        epoch = cluster.now(stream).stream_epoch
        cluster.do(
            AlterStream(stream_id=stream.id, stream_epoch=epoch, config={"min_insync_replicas": 3})
        )
        assert cluster.now(stream).elr == ()

    @pytest.mark.parametrize(
        ("minimum", "isr", "altered", "elr"),
        [(2, (0,), 3, (1, 2)), (3, (0, 1), 2, ()), (3, (0,), 2, (1, 2)), (2, (0,), 1, ())],
    )
    def test_a_new_minimum_clears_the_elr_if_the_isr_reaches_it(
        self, minimum: int, isr: tuple[int, ...], altered: int, elr: tuple[int, ...]
    ) -> None:
        cluster = Cluster.at_level(3, FEATURE_LEVEL_MAX)
        stream = cluster.create(config={"min_insync_replicas": minimum})
        cluster.change_isr(stream, isr)
        alter_minimum(cluster, stream, altered)
        assert (cluster.now(stream).isr, cluster.now(stream).elr) == (isr, elr)

    @pytest.mark.parametrize("minimum", [1, 3])
    def test_those_that_are_eligible_stay_so_under_a_new_minimum_while_nobody_leads(
        self, minimum: int
    ) -> None:
        cluster = Cluster.at_level(3, FEATURE_LEVEL_MAX)
        stream = cluster.create()
        for node_id in range(3):
            cluster.do(FenceNode(node_id=node_id))
        eligible = cluster.now(stream).elr
        assert (cluster.now(stream).leader, eligible) == (NO_NODE, (1, 2))
        alter_minimum(cluster, stream, minimum)
        assert cluster.now(stream).elr == eligible
        cluster.register(1, feature_level_max=FEATURE_LEVEL_MAX)
        now = cluster.now(stream)
        assert (now.leader, now.lossy_elections) == (1, 0)

    def test_flush_group_is_trusted_only_after_every_replica_flushed(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        assert not stream.flushes_before_ack
        cluster.do(AlterStream(stream_id=stream.id, stream_epoch=0, config={"flush": "group"}))
        for node_id in (0, 1, 2):
            assert not cluster.now(stream).flushes_before_ack
            epoch = cluster.now(stream).stream_epoch
            cluster.do(ConfirmFlush(stream_id=stream.id, stream_epoch=epoch, node_id=node_id))
        assert cluster.now(stream).flushes_before_ack

    def test_a_confirmation_of_an_earlier_time_does_not_count(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        for epoch, flush in enumerate(("group", "interval", "group")):
            cluster.do(
                AlterStream(stream_id=stream.id, stream_epoch=epoch, config={"flush": flush})
            )
        with pytest.raises(PreconditionFailedError):
            cluster.do(ConfirmFlush(stream_id=stream.id, stream_epoch=1, node_id=0))
        assert cluster.now(stream).unflushed == (0, 1, 2)

    def test_a_stale_epoch_or_an_impossible_value_is_refused(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        for epoch, config, error in (
            (1, {"acks": "off"}, PreconditionFailedError),
            (0, {"replicas": 2}, InvalidRequestError),
            (0, {"min_insync_replicas": 4}, InvalidRequestError),
        ):
            with pytest.raises(error):
                cluster.do(AlterStream(stream_id=stream.id, stream_epoch=epoch, config=config))
        assert cluster.now(stream) is stream


class TestDistrust:
    def distrust(self, cluster: Cluster, stream_id: int, node_id: int) -> None:
        incarnation = cluster.registry.nodes[NodeId(node_id)].incarnation
        cluster.do(
            DistrustReplica(stream_id=stream_id, node_id=node_id, node_incarnation=incarnation)
        )

    def test_a_leader_that_distrusts_its_log_leads_no_more_and_is_not_eligible(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        other = cluster.create("other", "other", replicas=(0, 1, 2))
        cluster.change_isr(stream, (0, 1))
        self.distrust(cluster, stream.id, 0)
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.elr) == (1, (1,), ())
        assert cluster.now(other) is other

    def test_the_last_replicas_are_remembered_but_not_eligible(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (0,))
        for node_id in (1, 2, 0):
            self.distrust(cluster, stream.id, node_id)
        now = cluster.now(stream)
        assert (now.leader, now.isr, now.elr) == (NO_NODE, (), ())
        assert now.last_known == (0, 1, 2)

    def test_who_is_distrusted_below_the_minimum_is_remembered_until_it_is_reached(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.change_isr(stream, (0, 1))
        self.distrust(cluster, stream.id, 1)
        assert cluster.now(stream).last_known == (1,)
        cluster.change_isr(stream, (0, 2))
        assert cluster.now(stream).last_known == ()

    def test_an_earlier_incarnation_has_nothing_to_say(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        stale = cluster.registry.nodes[NodeId(1)].incarnation
        cluster.register(1)
        with pytest.raises(FencedEpochError):
            cluster.do(DistrustReplica(stream_id=stream.id, node_id=1, node_incarnation=stale))
