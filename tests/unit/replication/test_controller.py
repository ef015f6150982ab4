"""The controller's slower work: what it decides, and how it goes about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    NotLeaderError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.types import BootUs, MonotonicUs, NodeId, StreamId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.watchers import Watcher
from jetstream_server.metadata.state.changes import Change
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    ClaimController,
    DrainNode,
    ElectLeader,
    FenceNode,
    ReassignStream,
    ReportLeader,
    SetCluster,
    TransferLeader,
    UnfenceNode,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.depositions import PAUSE_US
from jetstream_server.replication.core.unclean_election import (
    OTHERS_WAIT_US,
    ReplicaReport,
    UncleanElections,
)
from jetstream_server.replication.drivers.controller import (
    MOVES_MAX,
    RETRY_US,
    Controller,
    ControllerSettings,
    LogEnds,
    current_reports,
    draining_moves,
    leaving_leaders,
)
from jetstream_server.replication.sessions.session_messages import LogEnd
from tests.support.virtual_time import loop_clock, on_virtual_loop
from tests.unit.metadata.cluster import Cluster

QUICK = ControllerSettings(round_seconds=0.01, settle_seconds=0.0)


class Metadata:
    """A metadata log that applies at once; this node is the controller while it has an epoch."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.registry = cluster.registry
        self.controller_epoch: int | None = cluster.do(ClaimController(node_id=0))["epoch"]
        self.commands: list[Command] = []
        self.errors: list[Exception] = []
        self._watchers: list[Watcher] = []

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    async def propose(self, command: Command, *, as_controller: bool) -> dict[str, Any]:
        assert as_controller
        if self.controller_epoch is None:
            raise NotLeaderError("not the controller")
        self.commands.append(command)
        if self.errors:
            raise self.errors.pop(0)
        return self.do(command, controller_epoch=self.controller_epoch)

    def do(self, command: Command, **envelope: Any) -> dict[str, Any]:
        result = self.cluster.do(command, **envelope)
        changes: list[Change] = self.cluster.changes
        for change in changes:
            for watcher in self._watchers:
                watcher(change)
        return result


def leaders(cluster: Cluster) -> list[int]:
    """Leaderships of nodes 0, 1, 2."""
    led = [stream.leader for stream in cluster.registry.streams.values()]
    return [led.count(NodeId(node_id)) for node_id in range(3)]


def lopsided(streams: int = 9) -> Cluster:
    """Three nodes in sync everywhere, node 2 leading nothing, as after its restart."""
    cluster = Cluster(nodes=3)
    made = [cluster.create(f"s{number}", f"s{number}.>") for number in range(streams)]
    cluster.register(2)
    for stream in made:
        cluster.change_isr(stream, (0, 1, 2))
    assert leaders(cluster)[2] == 0
    return cluster


async def run(metadata: Metadata, until: Callable[[], bool], **options: Any) -> Controller:
    log_ends: LogEnds = options.pop("log_ends", {})
    settings = options.pop("settings", QUICK)
    controller = Controller(
        cast(RaftMetadataLog, metadata),
        lambda: log_ends,
        settings,
        options.pop("hand_over", None),
        monotonic_clock=options.pop("monotonic_clock", loop_clock),
    )
    controller.start()
    try:
        for _ in range(1000):
            if until():
                break
            await asyncio.sleep(0.005)
        else:
            raise AssertionError("it did not come to that")
    finally:
        await controller.close()
    return controller


@on_virtual_loop
async def test_leaderships_are_evened_out() -> None:
    cluster = lopsided()
    metadata = Metadata(cluster)
    await run(metadata, lambda: leaders(cluster) == [3, 3, 3])
    assert len(metadata.commands) == 3


@on_virtual_loop
async def test_a_stream_that_changed_meanwhile_waits_for_the_next_round() -> None:
    cluster = lopsided()
    metadata = Metadata(cluster)
    metadata.errors = [PreconditionFailedError("it changed")]
    await run(metadata, lambda: leaders(cluster) == [3, 3, 3])
    assert len(metadata.commands) == 4


@on_virtual_loop
async def test_nothing_is_moved_while_a_node_is_fenced_or_without_the_role() -> None:
    cluster = lopsided()
    cluster.register(3)
    cluster.do(FenceNode(node_id=3))
    metadata = Metadata(cluster)
    looks = iter(range(20))
    await run(metadata, lambda: next(looks, None) is None)
    assert metadata.commands == []
    cluster.do(UnfenceNode(node_id=3))
    metadata.controller_epoch = None
    looks = iter(range(20))
    await run(metadata, lambda: next(looks, None) is None)
    assert metadata.commands == []


@on_virtual_loop
async def test_nothing_is_moved_before_the_nodes_have_settled() -> None:
    cluster = lopsided()
    metadata = Metadata(cluster)
    began = asyncio.get_running_loop().time()
    settings = ControllerSettings(round_seconds=0.01, settle_seconds=0.3)
    await run(metadata, lambda: leaders(cluster) == [3, 3, 3], settings=settings)
    assert asyncio.get_running_loop().time() - began >= 0.3


@on_virtual_loop
async def test_a_draining_node_is_relieved_at_once_even_while_another_is_fenced() -> None:
    cluster = Cluster(nodes=4)
    for number in range(6):
        cluster.create(f"s{number}", f"s{number}.>")
    cluster.do(FenceNode(node_id=3))
    metadata = Metadata(cluster)
    slow = ControllerSettings(round_seconds=60.0, settle_seconds=60.0)

    def relieved() -> bool:
        if not cluster.registry.nodes[NodeId(1)].draining:
            metadata.do(DrainNode(node_id=1))
        return leaders(cluster) == [3, 0, 3]

    await run(metadata, relieved, settings=slow)


@on_virtual_loop
async def test_a_hand_over_may_be_someone_elses_work() -> None:
    cluster = lopsided()
    metadata = Metadata(cluster)
    asked: list[tuple[StreamId, NodeId]] = []

    async def hand_over(stream: StreamMetadata, target: NodeId) -> None:
        asked.append((stream.id, target))
        await metadata.propose(
            TransferLeader(stream_id=stream.id, leader=target), as_controller=True
        )

    await run(metadata, lambda: leaders(cluster) == [3, 3, 3], hand_over=hand_over)
    assert {target for _, target in asked} == {NodeId(2)}


@on_virtual_loop
async def test_a_node_an_operator_drains_is_relieved_at_once() -> None:
    cluster = lopsided()
    metadata = Metadata(cluster)
    drained = max(cluster.registry.leaderships, key=lambda node: cluster.registry.leaderships[node])
    slow = ControllerSettings(round_seconds=60.0, settle_seconds=60.0)

    def relieved() -> bool:
        if not cluster.registry.nodes[drained].relieved:
            metadata.do(DrainNode(node_id=drained, until_undone=True))
        return not cluster.registry.leaderships[drained]

    await run(metadata, relieved, settings=slow)


def test_draining_moves_go_to_who_stays_and_spread() -> None:
    cluster = Cluster(nodes=3)
    for number in range(6):
        cluster.create(f"s{number}", f"s{number}.>")
    cluster.do(DrainNode(node_id=0, until_undone=True))
    targets = [target for _, target in draining_moves(cluster.registry, 10)]
    assert sorted(targets) == [1, 2]
    assert len(draining_moves(cluster.registry, 1)) == 1
    cluster.do(DrainNode(node_id=1))
    cluster.do(DrainNode(node_id=2))
    assert draining_moves(cluster.registry, 10) == []


def moving(cluster: Cluster, stream: StreamMetadata, target: int) -> None:
    """Move a stream to that node, which is in sync at once."""
    cluster.do(ReassignStream(stream_id=stream.id, replicas=(NodeId(target),)))
    cluster.change_isr(stream, (*cluster.now(stream).isr, target))


@on_virtual_loop
async def test_streams_whose_new_nodes_all_yield_leaderships_are_left_in_peace() -> None:
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=5)
    cluster.do(SetCluster(feature_level=FeatureLevel(5)))
    cluster.do(DrainNode(node_id=1, until_undone=True))
    made = [cluster.create(f"s{n}", f"s{n}.>", replicas=(0,)) for n in range(MOVES_MAX + 1)]
    for stream in made[:-1]:
        moving(cluster, stream, 1)
    assert leaving_leaders(cluster.registry, MOVES_MAX) == []
    moving(cluster, made[-1], 2)
    metadata = Metadata(cluster)
    asked: list[tuple[StreamId, NodeId]] = []

    async def hand_over(stream: StreamMetadata, target: NodeId) -> None:
        asked.append((stream.id, target))
        await metadata.propose(
            TransferLeader(stream_id=stream.id, leader=target), as_controller=True
        )

    def moved() -> bool:
        return cluster.now(made[-1]).replicas == (2,)

    unbalanced = ControllerSettings(round_seconds=0.01, balance=False)
    await run(metadata, moved, hand_over=hand_over, settings=unbalanced)
    assert asked == [(made[-1].id, 2)]
    metadata.do(DrainNode(node_id=1, until_undone=True, draining=False))
    await run(metadata, lambda: not cluster.registry.reassigned, settings=unbalanced)
    assert leaders(cluster) == [0, MOVES_MAX, 1]


def waiting(level: FeatureLevel = FEATURE_LEVEL_MAX) -> tuple[Cluster, StreamMetadata]:
    """A stream whose replicas have all lost power and are back: none of them is trusted."""
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=level))
    stream = cluster.create(config={"flush": "interval"})
    for node_id in range(3):
        cluster.do(FenceNode(node_id=node_id))
    for node_id in range(3):
        cluster.register(node_id, trusted=False, feature_level_max=FEATURE_LEVEL_MAX)
    stream = cluster.now(stream)
    assert (stream.leader, stream.isr, stream.elr) == (-1, (), ())
    return cluster, stream


def log_ends(cluster: Cluster, stream: StreamMetadata, *ends: int, epoch: int = 0) -> LogEnds:
    return {
        NodeId(node_id): {
            stream.id: LogEnd(
                stream.id,
                stream.leader_epoch + epoch,
                ReplicaReport(cluster.registry.nodes[NodeId(node_id)].incarnation, 0, end, False),
            )
        }
        for node_id, end in enumerate(ends)
    }


def elections(cluster: Cluster, ends: LogEnds) -> list[ElectLeader]:
    reports = current_reports(cluster.registry.streams, ends)
    return UncleanElections().due(cluster.registry, reports, MonotonicUs(0))


def test_the_longest_log_leads_once_all_last_known_replicas_have_reported() -> None:
    cluster, stream = waiting()
    all_ends = log_ends(cluster, stream, 5, 9, 11)
    assert len(stream.last_known) == 2
    for missing in stream.last_known:
        some = {node_id: ends for node_id, ends in all_ends.items() if node_id != missing}
        assert elections(cluster, some) == []
    (command,) = elections(cluster, all_ends)
    assert (command.stream_id, command.leader) == (stream.id, max(stream.last_known))


def test_a_replica_that_went_down_first_is_asked_too() -> None:
    """It left the ISR while that was large enough, so it is in neither ELR nor last_known."""
    cluster, stream = waiting()
    (first,) = set(stream.replicas) - set(stream.last_known)
    ends = [0, 0, 0]
    ends[first] = 11
    (command,) = elections(cluster, log_ends(cluster, stream, *ends))
    assert command.leader == first
    cluster.do(command)
    now = cluster.now(stream)
    assert (now.leader, now.isr, now.lossy_elections) == (first, (first,), 1)
    assert set(now.last_known) == set(stream.last_known)


def test_nodes_of_an_earlier_version_elect_one_of_the_last_known_replicas() -> None:
    cluster, stream = waiting(level=FeatureLevel(4))
    (first,) = set(stream.replicas) - set(stream.last_known)
    ends = [5, 5, 5]
    ends[first] = 11
    (command,) = elections(cluster, log_ends(cluster, stream, *ends))
    assert command.leader in stream.last_known
    chosen = replace(command, leader=first)
    with pytest.raises(UnavailableError):
        cluster.do(chosen)
    cluster.do(command)
    assert cluster.now(stream).leader == command.leader


def test_other_replicas_are_waited_for_a_while() -> None:
    cluster, stream = waiting()
    (first,) = set(stream.replicas) - set(stream.last_known)
    ends = log_ends(cluster, stream, 5, 5, 5)
    reports = current_reports(
        cluster.registry.streams, {each: ends[each] for each in ends if each != first}
    )
    cluster.do(FenceNode(node_id=first))
    elections = UncleanElections()
    for now_us in (7, 7 + OTHERS_WAIT_US - 1):
        assert elections.due(cluster.registry, reports, MonotonicUs(now_us)) == []
    # Another wait begins when one of them is not heard.
    assert elections.due(cluster.registry, {}, MonotonicUs(7 + OTHERS_WAIT_US)) == []
    begun_us = 8 + OTHERS_WAIT_US
    assert elections.due(cluster.registry, reports, MonotonicUs(begun_us)) == []
    (command,) = elections.due(cluster.registry, reports, MonotonicUs(begun_us + OTHERS_WAIT_US))
    assert command.leader in stream.last_known


def test_reports_of_an_earlier_leaderless_time_count_for_nothing() -> None:
    cluster, stream = waiting()
    stale = log_ends(cluster, stream, 5, 9, 7, epoch=-1)
    assert elections(cluster, stale) == []


@on_virtual_loop
async def test_an_unclean_election_is_proposed_and_then_no_more() -> None:
    cluster, stream = waiting()
    metadata = Metadata(cluster)
    metadata.errors = [PreconditionFailedError("not yet")]
    ends = log_ends(cluster, stream, 5, 9, 7)
    await run(metadata, lambda: cluster.now(stream).leader != -1, log_ends=ends)
    assert [type(command) for command in metadata.commands[:2]] == [ElectLeader] * 2
    assert cluster.now(stream).lossy_elections == 1
    assert elections(cluster, ends) == []


@on_virtual_loop
async def test_the_feature_level_rises_once_every_registered_node_understands_it() -> None:
    cluster = Cluster()
    for node_id in range(2):
        cluster.register(node_id, feature_level_max=2)
    cluster.register(2)
    metadata = Metadata(cluster)
    looks = iter(range(20))
    await run(metadata, lambda: next(looks, None) is None)
    assert metadata.commands == []
    cluster.register(2, feature_level_max=3)
    await run(metadata, lambda: cluster.registry.settings.feature_level > 1)
    assert metadata.commands == [SetCluster(feature_level=FeatureLevel(2))]


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_an_even_cluster_has_nothing_to_move(streams: int) -> None:
    cluster = Cluster(nodes=3)
    for number in range(streams):
        cluster.create(f"s{number}", f"s{number}.>")
    assert draining_moves(cluster.registry, 10) == []


@on_virtual_loop
async def test_a_draining_node_is_relieved_without_the_help_of_who_leads() -> None:
    cluster = Cluster(nodes=3)
    for number in range(6):
        cluster.create(f"s{number}", f"s{number}.>")
    metadata = Metadata(cluster)
    asked: list[StreamId] = []

    async def hand_over(stream: StreamMetadata, target: NodeId) -> None:
        asked.append(stream.id)
        raise UnavailableError("the leader does not answer")

    def relieved() -> bool:
        if not cluster.registry.nodes[NodeId(1)].draining:
            metadata.do(DrainNode(node_id=1))
        return leaders(cluster) == [3, 0, 3]

    await run(metadata, relieved, hand_over=hand_over)
    assert len(set(asked)) == 2


@on_virtual_loop
async def test_who_drains_gives_its_leaderships_to_whoever_takes_them() -> None:
    cluster = Cluster(nodes=3)
    for number in range(6):
        cluster.create(f"s{number}", f"s{number}.>")
    metadata = Metadata(cluster)
    given: list[NodeId] = []

    async def hand_over(stream: StreamMetadata, target: NodeId) -> None:
        if target == NodeId(0):
            raise UnavailableError("it does not hear NATS")
        given.append(target)
        await metadata.propose(
            TransferLeader(stream_id=stream.id, leader=target), as_controller=True
        )

    def relieved() -> bool:
        if not cluster.registry.nodes[NodeId(1)].draining:
            metadata.do(DrainNode(node_id=1))
        return leaders(cluster)[1] == 0

    await run(metadata, relieved, hand_over=hand_over)
    assert given == [NodeId(2)] * 2


@on_virtual_loop
async def test_who_is_refused_by_all_asks_once_more_before_the_controller_insists() -> None:
    cluster = Cluster(nodes=3)
    cluster.create("s", "s.>", (0, 1))
    metadata = Metadata(cluster)
    (stream,) = cluster.registry.streams.values()
    asked = 0

    async def hand_over(stream: StreamMetadata, target: NodeId) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise UnavailableError("it has just stood still")
        await metadata.propose(
            TransferLeader(stream_id=stream.id, leader=target), as_controller=True
        )

    def relieved() -> bool:
        if not cluster.registry.nodes[stream.leader].draining:
            metadata.do(DrainNode(node_id=stream.leader))
        return cluster.registry.streams[stream.id].leader != stream.leader

    await run(metadata, relieved, hand_over=hand_over)
    assert asked == 2


@on_virtual_loop
async def test_evening_out_leaves_a_leadership_where_its_leader_cannot_hand_it_over() -> None:
    cluster = lopsided()
    metadata = Metadata(cluster)
    asked: list[StreamId] = []
    now_us = 0

    async def hand_over(stream: StreamMetadata, target: NodeId) -> None:
        asked.append(stream.id)
        raise UnavailableError("the target does not keep up")

    def tried_twice() -> bool:
        nonlocal now_us
        if len(asked) == 9:
            now_us = RETRY_US
        return len(asked) == 18

    await run(
        metadata, tried_twice, hand_over=hand_over, monotonic_clock=lambda: MonotonicUs(now_us)
    )
    assert metadata.commands == []
    assert set(asked[:9]) == set(asked[9:]) == set(cluster.registry.streams), "one after another"


@on_virtual_loop
async def test_streams_that_cannot_be_handed_over_keep_no_others_where_they_are() -> None:
    cluster = lopsided(12)
    metadata = Metadata(cluster)
    stuck = sorted(cluster.registry.streams)[:6]

    async def hand_over(stream: StreamMetadata, target: NodeId) -> None:
        if stream.id in stuck:
            raise UnavailableError("the target does not keep up")
        await metadata.propose(
            TransferLeader(stream_id=stream.id, leader=target), as_controller=True
        )

    await run(metadata, lambda: leaders(cluster) == [4, 4, 4], hand_over=hand_over)


def depose(metadata: Metadata, leader: NodeId) -> None:
    """The followers report all leaderships of the node, which stays in sync otherwise."""
    cluster = metadata.cluster
    for stream in [each for each in cluster.registry.streams.values() if each.leader == leader]:
        for follower in stream.isr:
            if follower != leader:
                report = ReportLeader(
                    stream_id=stream.id,
                    leader_epoch=stream.leader_epoch,
                    reporter=follower,
                    now_us=BootUs(0),
                )
                metadata.do(report)
        cluster.change_isr(stream, (0, 1, 2))


@on_virtual_loop
async def test_who_is_deposed_though_it_lives_gets_leaderships_back_later_each_time() -> None:
    cluster = Cluster(nodes=3)
    for number in range(6):
        cluster.create(f"s{number}", f"s{number}.>")
    metadata = Metadata(cluster)
    now_us = deposed_at_us = 0
    waited: list[int] = []

    def deposed_often() -> bool:
        nonlocal now_us, deposed_at_us
        now_us += 1_000_000
        if leaders(cluster) == [2, 2, 2]:
            waited.append(now_us - deposed_at_us)
            deposed_at_us = now_us
            depose(metadata, NodeId(2))
            assert leaders(cluster) == [3, 3, 0]
        return len(waited) == 4

    await run(metadata, deposed_often, monotonic_clock=lambda: MonotonicUs(now_us))
    for pause, waited_us in enumerate(waited[1:]):
        assert waited_us >= PAUSE_US * 2**pause


@on_virtual_loop
async def test_who_is_deposed_because_it_dies_gets_leaderships_back_as_always() -> None:
    cluster = Cluster(nodes=3)
    made = [cluster.create(f"s{number}", f"s{number}.>") for number in range(6)]
    metadata = Metadata(cluster)

    def is_back() -> bool:
        if leaders(cluster)[2] == 2 and not metadata.commands:
            depose(metadata, NodeId(2))
            metadata.do(FenceNode(node_id=2))
            metadata.do(UnfenceNode(node_id=2))
            for stream in made:
                cluster.change_isr(stream, (0, 1, 2))
        return bool(metadata.commands) and leaders(cluster) == [2, 2, 2]

    await run(metadata, is_back, monotonic_clock=lambda: MonotonicUs(0))


@on_virtual_loop
async def test_more_leaderships_than_one_round_moves_are_drained_without_a_pause() -> None:
    cluster = Cluster(nodes=3)
    for number in range(3 * MOVES_MAX + 9):
        cluster.create(f"s{number}", f"s{number}.>")
    metadata = Metadata(cluster)
    slow = ControllerSettings(round_seconds=60.0, settle_seconds=60.0)

    def relieved() -> bool:
        if not cluster.registry.nodes[NodeId(1)].draining:
            metadata.do(DrainNode(node_id=1))
        return leaders(cluster)[1] == 0

    await run(metadata, relieved, settings=slow)
