import pytest

from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    DrainNode,
    FenceNode,
    SetCluster,
    TransferLeader,
    UnfenceNode,
)
from jetstream_server.metadata.state.placement import Placement, Placer, balancing_moves

from .cluster import Cluster


def balance(cluster: Cluster) -> int:
    """Carry out balancing moves until there are none; how many there were."""
    count = 0
    while moves := balancing_moves(cluster.registry, 10):
        for stream_id, leader in moves:
            cluster.do(TransferLeader(stream_id=stream_id, leader=leader))
        count += len(moves)
        assert count < 1_000, "balancing does not end"
    return count


def loads(cluster: Cluster) -> list[int]:
    return [cluster.registry.leaderships.get(node_id, 0) for node_id in cluster.registry.nodes]


class TestPlacement:
    def test_the_least_loaded_nodes_get_the_next_stream(self) -> None:
        cluster = Cluster(4)
        cluster.create("a", "a", (0, 1))
        assert Placer(cluster.registry, len(cluster.registry.nodes)).place(2) == Placement((2, 3))

    def test_placements_under_way_count(self) -> None:
        cluster = Cluster(4)
        placer = Placer(cluster.registry, len(cluster.registry.nodes))
        assert [placer.place(2) for _ in range(2)] == [Placement((0, 1)), Placement((2, 3))]
        placer.settle(Placement((0, 1)))
        assert placer.place(2) == Placement((0, 1))

    def test_replicas_go_to_different_racks_before_they_go_to_idle_nodes(self) -> None:
        cluster = Cluster(5, racks=("a", "a", "a", "b", "c"))
        for number in range(3):
            cluster.create(f"s{number}", f"s{number}", (3, 4))
        assert Placer(cluster.registry, len(cluster.registry.nodes)).place(3) == Placement(
            (0, 3, 4)
        )

    def test_the_default_is_three_replicas_or_as_many_as_there_are_nodes(self) -> None:
        assert len(Placer(Cluster(2).registry, 2).place().replicas) == 2
        assert len(Placer(Cluster(5).registry, 5).place().replicas) == 3

    @pytest.mark.parametrize("until_undone", [True, False])
    def test_draining_and_fenced_nodes_hold_replicas_only_when_needed(
        self, until_undone: bool
    ) -> None:
        cluster = Cluster(4)
        cluster.do(DrainNode(node_id=0, until_undone=until_undone))
        cluster.do(FenceNode(node_id=1))
        placer = Placer(cluster.registry, 4)
        assert placer.place(2) == Placement((2, 3))
        assert placer.place(3) == Placement((0, 2, 3))
        assert placer.place(4) == Placement((0, 1, 2, 3))

    @pytest.mark.parametrize(
        ("racks", "dead", "draining", "count", "placed"),
        [
            ("aab", (2,), (), 2, (0, 1)),  # Another rack is no reason to take a dead node.
            ("aabb", (2,), (), 2, (0, 3)),
            ("aabb", (2, 3), (), 2, (0, 1)),
            ("aaab", (3,), (2,), 3, (0, 1, 2)),  # Nor is that a live one leads nothing.
            ("abc", (0,), (), 3, (0, 1, 2)),
            ("abcd", (0, 1), (2,), 2, (2, 3)),
            ("abab", (0,), (1,), 3, (1, 2, 3)),
            ("aaab", (), (3,), 2, (0, 1)),
        ],
    )
    def test_a_dead_node_is_taken_only_if_there_are_too_few_live_ones(
        self,
        racks: str,
        dead: tuple[int, ...],
        draining: tuple[int, ...],
        count: int,
        placed: tuple[int, ...],
    ) -> None:
        cluster = Cluster(len(racks), racks=tuple(racks))
        for node_id in draining:
            cluster.do(DrainNode(node_id=node_id, until_undone=True))
        for node_id in dead:
            cluster.do(FenceNode(node_id=node_id))
        assert Placer(cluster.registry, len(racks)).place(count).replicas == placed

    @pytest.mark.parametrize("replicas", [None, 3])
    def test_a_draining_node_does_not_make_streams_smaller_and_leads_none(
        self, replicas: int | None
    ) -> None:
        cluster = Cluster(3)
        cluster.do(DrainNode(node_id=0, until_undone=True))
        placement = Placer(cluster.registry, 3).place(replicas)
        stream = cluster.create(replicas=placement.replicas)
        assert stream.isr == (0, 1, 2)
        assert stream.config.min_insync_replicas == 2
        assert stream.leader == 1

    def test_more_replicas_than_nodes_is_an_error_that_says_so(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"3 replicas .* the cluster has 2 nodes"):
            Placer(Cluster(2).registry, 2).place(3)
        with pytest.raises(InvalidRequestError, match=r"the cluster has 1 node$"):
            Placer(Cluster(1).registry, 1).place(2)

    def test_nodes_that_have_not_joined_are_waited_for(self) -> None:
        cluster = Cluster(2)
        placer = Placer(cluster.registry, 3)
        for replicas in (None, 3):
            with pytest.raises(UnavailableError, match="only 2 of 3 have joined"):
                placer.place(replicas)
        assert placer.place(2) == Placement((0, 1))
        placer.settle(Placement((0, 1)))
        with pytest.raises(InvalidRequestError, match="the cluster has 3 nodes"):
            placer.place(4)
        cluster.register(2)
        assert placer.place() == Placement((0, 1, 2))

    def test_nodes_that_are_not_configured_any_more_count_while_they_are_registered(self) -> None:
        assert Placer(Cluster(3).registry, 1).place() == Placement((0, 1, 2))


class TestObservers:
    def test_they_are_on_other_nodes_in_racks_that_hold_nothing(self) -> None:
        cluster = Cluster(5, racks=("a", "b", "a", "b", "c"))
        placer = Placer(cluster.registry, 5)
        assert placer.place(2, 1) == Placement((0, 1), (4,))
        assert placer.place(2, 3) == Placement((2, 3), (0, 1, 4))

    def test_placements_under_way_count_them(self) -> None:
        placer = Placer(Cluster(4).registry, 4)
        placed = placer.place(1, 1)
        assert placed == Placement((0,), (1,))
        assert placer.place(1, 1) == Placement((2,), (3,))
        placer.settle(placed)
        assert placer.place(1, 1) == Placement((0,), (1,))

    def test_too_many_are_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="3 replicas and 1 observers need as many"):
            Placer(Cluster(3).registry, 3).place(observers=1)
        with pytest.raises(UnavailableError, match="only 3 of 4 have joined"):
            Placer(Cluster(3).registry, 4).place(3, 1)

    def test_a_stream_keeps_those_that_it_has(self) -> None:
        cluster = Cluster(5)
        for node_id in range(5):
            cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
        cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        stream = cluster.create(replicas=(0, 1), observers=(NodeId(3),))
        placer = Placer(cluster.registry, 5)
        assert placer.observers_of(stream, 2) == (2, 3)
        assert placer.observers_of(stream, 1) == (3,)
        assert placer.observers_of(stream, 0) == ()
        with pytest.raises(InvalidRequestError, match="2 replicas and 4 observers"):
            placer.observers_of(stream, 4)


class TestBalance:
    def test_leaderships_even_out_after_a_restart(self) -> None:
        cluster = Cluster(3)
        for number in range(30):
            cluster.create(f"s{number}", f"s{number}")
        for node_id in (0, 1, 2):
            cluster.register(node_id)
            for stream in list(cluster.registry.streams.values()):
                cluster.change_isr(stream, (0, 1, 2))
        assert max(loads(cluster)) - min(loads(cluster)) > 1
        balance(cluster)
        assert loads(cluster) == [10, 10, 10]
        assert balance(cluster) == 0

    def test_a_chain_of_hand_overs_helps_nodes_that_share_no_stream(self) -> None:
        cluster = Cluster(3)
        for number in range(6):
            cluster.create(f"left{number}", f"left{number}", (0, 1))
            cluster.create(f"right{number}", f"right{number}", (1, 2))
        for stream in list(cluster.registry.streams.values()):
            cluster.do(TransferLeader(stream_id=stream.id, leader=stream.replicas[0]))
        assert loads(cluster) == [6, 6, 0]
        balance(cluster)
        assert loads(cluster) == [4, 4, 4]

    def test_what_cannot_move_stays(self) -> None:
        cluster = Cluster(2)
        for number in range(5):
            cluster.create(f"s{number}", f"s{number}", (0,))
        assert balance(cluster) == 0
        assert loads(cluster) == [5, 0]

    def test_streams_that_must_stay_leave_it_to_others(self) -> None:
        cluster = Cluster(2)
        made = [cluster.create(f"s{number}", f"s{number}", (0, 1)) for number in range(4)]
        for stream in made:
            if cluster.now(stream).leader != 0:
                cluster.do(TransferLeader(stream_id=stream.id, leader=NodeId(0)))
        kept = [stream.id for stream in made[:3]]
        moves = balancing_moves(cluster.registry, 10, without=kept)
        assert moves == [(made[3].id, 1)]

    def test_nodes_that_pause_are_left_out(self) -> None:
        cluster = Cluster(3)
        for stream in [cluster.create(f"s{number}", f"s{number}") for number in range(6)]:
            if cluster.now(stream).leader != 0:
                cluster.do(TransferLeader(stream_id=stream.id, leader=NodeId(0)))
        moves = balancing_moves(cluster.registry, 10, pausing=[NodeId(2)])
        assert [target for _, target in moves] == [1, 1, 1]

    def test_draining_and_fenced_nodes_are_left_out(self) -> None:
        cluster = Cluster(3)
        for number in range(6):
            cluster.create(f"s{number}", f"s{number}")
        cluster.do(FenceNode(node_id=2))
        assert balance(cluster) == 0
        assert loads(cluster) == [3, 3, 0]
        cluster.do(UnfenceNode(node_id=2))
        for stream in list(cluster.registry.streams.values()):
            cluster.change_isr(stream, (0, 1, 2))
        for until_undone in (True, False):
            cluster.do(DrainNode(node_id=2, until_undone=until_undone))
            assert balance(cluster) == 0
            cluster.do(DrainNode(node_id=2, draining=False, until_undone=until_undone))
        assert balance(cluster) > 0
