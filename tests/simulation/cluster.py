"""A simulated cluster: machines, network, metadata group, publishers, faults and the checker.

run(seed) ──> a profile is drawn ──> publishers and faults ──> everything is healed
          ──> the cluster has to come to rest: one leader, all in sync, logs equal, acks kept
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from operator import gt
from random import Random
from typing import TYPE_CHECKING, Any

from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.metadata.state.commands import (
    ANY_REPLICA_LEVEL,
    NEW_MINIMUM_LEVEL,
    Barrier,
    RegisterNode,
    SetCluster,
)
from jetstream_server.metadata.state.nodes import Addresses
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.uploading import LakeOptions
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.sessions.lease import SessionSettings
from tests.simulation.checker import Checker
from tests.simulation.faults import Faults
from tests.simulation.loop import bury
from tests.simulation.machine import CLUSTER_ID, Machine
from tests.simulation.metadata import MetadataGroup, View
from tests.simulation.nats import NatsServer
from tests.simulation.network import Network
from tests.simulation.observing import observed
from tests.simulation.own_chances import OwnChances
from tests.simulation.publishers import Publishers
from tests.simulation.scenarios import Scenario, scenario_of
from tests.simulation.watched import NUMBERS, WatchedStream
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.process import Process

BEGIN_US = 500_000
"""By then a cluster with which nothing is wrong works."""
REST_US = 40_000_000
"""A healed cluster comes to rest within this long: elections, grace periods, restarts included."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What kind of cluster a seed is."""

    nodes: int
    replicas: int
    min_insync_replicas: int
    flush: str
    segment_bytes: int
    duration_us: int
    lazy_node: int
    """Applies metadata late, at times by seconds; -1: none."""
    late_sends: float
    """How often the bytes of an answer are read long after they were chosen (zero-copy)."""
    slow_flushes: float
    """How often a flush takes up to a second and a half."""

    @classmethod
    def draw(cls, world: World) -> Profile:
        is_general = scenario_of(world.seed) is Scenario
        weights = (10, 6, 72, 6, 6) if is_general else (0, 0, 80, 10, 10)
        nodes = world.random.choices((1, 2, 3, 4, 5), weights)[0]
        replicas = min(nodes, 3) if world.chance(0.8) else nodes
        minimum = 2 if replicas >= 2 and world.chance(0.75) else world.between(1, replicas)
        return cls(
            nodes=nodes,
            replicas=replicas,
            min_insync_replicas=minimum,
            flush=world.random.choice(("none", "interval", "group")),
            segment_bytes=world.random.choice((500, 1_200, 4_000, 20_000)),
            duration_us=world.between(4_000_000, 9_000_000),
            lazy_node=world.between(0, nodes - 1) if world.chance(0.3) else -1,
            late_sends=world.random.choice((0.0, 0.1, 0.1, 0.5 if is_general else 0.0)),
            slow_flushes=world.random.choice((0.03, 0.03, 0.03, 0.3)),
        )


class Cluster:
    """See the module."""

    is_still = True
    """Whether the stream stays on its nodes."""
    damage = 1.0
    """How much more often than it would a disk rots, fails or is lost."""
    scenario_share = 0.8
    """Of the faults of a seed that is about a scenario."""
    abandons = 0.0
    """How often nobody starts again what has ended, before everything is healed."""
    read_share = 0.2
    """Of the seeds: a reader asks one replica after the other."""
    clocks_agree = False
    """Wall clocks do, also where disks are bad."""
    grace_us = 400_000
    """How long a tombstone stays, in a cluster that has any."""
    lake: LakeOptions | None = None
    idle_setting = "max_bytes"
    """Means nothing here."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.profile = profile = self.draw_profile(world)
        self.log_config = LogConfig(segment_bytes=profile.segment_bytes, index_interval_bytes=256)
        self.members: dict[int, Any] = {}
        self.doubted_until = 0
        """Who has a lease may have been fenced before then."""
        self.graveyard: list[asyncio.Task[Any]] = []
        """What processes that have died were doing."""
        self.network = Network(world)
        self.metadata = MetadataGroup(self, self._applied)
        self.metadata.lazy_node = profile.lazy_node
        self.machines = [Machine(self, node_id) for node_id in range(profile.nodes)]
        self.nats = NatsServer(world, self._answered)
        self.streams = self.make_streams()
        self.focus = self.streams[0]
        """The stream that faults are about."""
        self.faults = Faults(self)
        if self.faults.scenario.is_calm:
            self.metadata.lazy_node = -1
            self.profile = replace(profile, late_sends=0.0, slow_flushes=0.0)
        segment_bytes = self.faults.scenario.segment_bytes
        if segment_bytes is not None:
            self.log_config = replace(self.log_config, segment_bytes=segment_bytes)
        duration_us = self.faults.scenario.duration_us
        if duration_us is not None:
            self.profile = replace(profile, duration_us=duration_us)
        self._create()
        world.note(f"{profile}")

    def make_streams(self) -> list[WatchedStream]:
        """Not created yet."""
        return [WatchedStream(self, "orders", 0, Checker(self.world, self.profile.nodes))]

    def _create(self) -> None:
        """Nodes and streams exist before any process runs; nobody leads."""
        profile, metadata = self.profile, self.metadata
        metadata.apply(SetCluster(cluster_id=CLUSTER_ID))
        for node_id in range(profile.nodes):
            self.members[node_id] = None
            metadata.apply(self.registration_of(node_id))
        self.create_streams()
        metadata.show(self.stream_id)
        metadata.apply(Barrier())

    def registration_of(self, node_id: int, **fields: Any) -> RegisterNode:
        """Before any process runs."""
        return RegisterNode(
            node_id=NodeId(node_id),
            session=f"installer.{node_id}",
            addresses=Addresses(*[f"node-{node_id}:2"] * 4),
            **fields,
        )

    def create_streams(self) -> None:
        profile = self.profile
        replicas = sorted(self.world.random.sample(range(profile.nodes), profile.replicas))
        self.focus.create(self.settings(), replicas)

    def settings(self) -> dict[str, object]:
        """Of the stream."""
        profile = self.profile
        return {"min_insync_replicas": profile.min_insync_replicas, "flush": profile.flush}

    def draw_profile(self, world: World) -> Profile:
        return Profile.draw(world)

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        """The stream's metadata has changed, in truth."""

    def scenario(self) -> type[Scenario]:
        """What the seed is about."""
        return scenario_of(self.world.seed)

    def fewer(self) -> dict[str, object]:
        """Settings with which a stream keeps less than it has."""
        return {"max_messages": self.world.between(5, 60)}

    def rest_from_compaction(self, until: int) -> None:
        """Nobody begins to compact a log before then. Here nobody does so at all."""

    def doubt_leases(self, until: int) -> None:
        """Until then a machine stands still with all its clocks. After that it believes for as long
        as a lease lasts, or as a controller grants one, that no time has passed."""
        after_us = 2 * SessionSettings().lease_us
        self.doubted_until = max(self.doubted_until, until + after_us)

    # Its streams.

    @property
    def stream_id(self) -> StreamId:
        """Of the stream that faults are about, as are the two below."""
        return self.focus.stream_id

    @property
    def checker(self) -> Checker:
        return self.focus.checker

    @property
    def publishers(self) -> Publishers:
        return self.focus.publishers

    def checker_of(self, stream_id: StreamId) -> Checker:
        return next(s.checker for s in self.streams if s.stream_id == stream_id)

    def stream_of(self, number: int) -> WatchedStream:
        """Whose publish, or attempt at one, has that number."""
        return self.streams[number // NUMBERS]

    def _answered(self, process: Process, subject: bytes, payload: bytes) -> None:
        number = int(subject.rpartition(b".")[2])
        self.stream_of(number).publishers.answered(number, payload)

    def _applied(self, before: View, after: View) -> None:
        """A command was applied, in truth."""
        if after.nodes is not before.nodes:
            for node_id, node in after.nodes.items():
                known = before.nodes.get(node_id)
                if known is None or known.incarnation != node.incarnation or node.fenced:
                    for stream in self.streams:
                        stream.checker.session_ended(node_id, after.revision)
                # A registration of an earlier run, applied late, says nothing of the logs now; and
                # nobody leads or follows in its name.
                process = self.machines[node_id].process
                if process is not None and process.session == node.session:
                    for stream in self.streams:
                        stream.checker.registered(node_id)
        for stream in self.streams:
            now = self.metadata.registry.streams.get(stream.stream_id)
            if now is not None and now is not stream.stream:
                was, stream.stream = stream.stream, now
                self._stream_changed(stream, was, now, after.revision)

    def _stream_changed(
        self, stream: WatchedStream, was: StreamMetadata, now: StreamMetadata, revision: int
    ) -> None:
        if self.world.trace is not None:
            name = f"{stream.name}: " if len(self.streams) > 1 else ""
            self.world.note(
                f"metadata {revision}: {name}leader {now.leader} epoch {now.leader_epoch} "
                f"stream epoch {now.stream_epoch} isr {now.isr} elr {now.elr} "
                f"waiting for {now.last_known} min {now.config.min_insync_replicas} "
                f"flush {now.config.flush} unflushed {now.unflushed}"
            )
        if now.leader != NO_NODE and now.leader_epoch != was.leader_epoch:
            self.world.count("election")
            if now.leader in was.elr and not was.isr:
                self.world.count("election from the ELR")
        level = self.metadata.registry.settings.feature_level
        stream.checker.asks_all_replicas = level >= ANY_REPLICA_LEVEL
        stream.checker.keeps_eligible = level >= NEW_MINIMUM_LEVEL
        stream.checker.has_disk_failed = any(each.disk.has_failed for each in self.machines)
        stream.checker.stream_changed(was, now)
        self.stream_changed(was, now)
        if stream is self.focus:
            self.faults.scenario.stream_changed(was, now)
        if now.lossy_elections != was.lossy_elections:
            self.world.count("lossy election")
        if now.last_known and not was.last_known:
            self.world.count("unclean wait")

    # Running.

    def run(self) -> None:
        """Raises Violation."""
        with observed(self.world):
            try:
                self._run()
            finally:
                for machine in self.machines:
                    if machine.process is not None:
                        machine.process.die("the cluster has run")
                bury(self.graveyard)

    def _run(self) -> None:
        world, profile = self.world, self.profile
        world.after_event = self._check
        for machine in self.machines:
            world.at(world.between(0, 20_000), None, machine.start)
        self.metadata.check_leader()
        for stream in self.streams:
            world.at(BEGIN_US, None, stream.publishers.publish_forever)
            world.at(BEGIN_US, None, stream.repeating.begin)
            world.at(BEGIN_US, None, stream.head_reader.begin)
        world.at(BEGIN_US + 200_000, None, self.faults.begin)
        world.at(BEGIN_US + 200_000, None, OwnChances(self).begin)
        is_read = Random(f"reader of {world.seed}").random() < self.read_share
        if is_read or (self.read_share and self.faults.scenario.is_read):
            world.at(BEGIN_US, None, self.focus.reader.tick)
        world.run_until(BEGIN_US + profile.duration_us)
        self.faults.heal_everything()
        self._come_to_rest()

    def _check(self) -> None:
        for stream in self.streams:
            stream.checker.check(stream.stream)

    def _come_to_rest(self) -> None:
        world = self.world
        deadline = world.now + REST_US
        for stream in self.streams:
            stream.publishers.pause_us = 400_000
        reason = "nothing was tried"
        while world.now < deadline:
            world.run_until(world.now + 250_000)
            reason = self._unrest()
            if not reason:
                break
        else:
            raise Violation(f"the healed cluster does not come to rest: {reason}")
        for stream in self.streams:
            stream.publishers.running = stream.repeating.running = False
        acked = self._acked()
        for attempt in range(18):
            # Again after an ISR change of before, whose outcome was not known, had its effect.
            if attempt >= 3 and all(map(gt, self._acked(), acked)):
                break
            for stream in self.streams:
                stream.publishers.publish(3, asking=True)
            world.run_until(world.now + 300_000)
        if not all(map(gt, self._acked(), acked)):
            raise Violation("a cluster at rest acknowledges nothing")
        difference = self._difference()
        for _ in range(12):
            if not difference:
                break
            world.run_until(world.now + 500_000)
            difference = self._difference()
        else:
            raise Violation(f"at rest, {difference}")
        doubtful = [number for stream in self.streams for number in stream.publishers.doubtful]
        if self.is_still and self.faults.scenario.is_calm and doubtful:
            raise Violation(f"nothing went wrong, but nobody answers {doubtful}")
        unanswered = [n for stream in self.streams for n in stream.publishers.unanswered_at_rest()]
        if unanswered:
            raise Violation(f"at rest, nobody answers {unanswered}")
        self._check_contents()

    def _acked(self) -> list[int]:
        return [stream.publishers.acked for stream in self.streams]

    def _unrest(self) -> str:
        """Why the cluster is not at rest; "" when it is."""
        for machine in self.machines:
            process = machine.process
            if process is not None and any(r.unreadable_reason for r in process.replicas or ()):
                process.die("restarted by its operator: its log could not be opened")
        for each in self.streams:
            stream = each.stream
            if stream.leader == NO_NODE:
                return f"nobody leads {each.name}"
            if len(stream.isr) < len(stream.replicas):
                return f"only {stream.isr} of {stream.replicas} are in sync with {each.name}"
        for machine in self.machines:
            process = machine.process
            if process is None or process.incarnation < 0:
                return f"node {machine.node_id} does not run"
            if process.stopping:
                return f"node {machine.node_id} is on its way to stop"
            if process.paused_until > self.world.now:
                return f"node {machine.node_id} is paused"
            if any(replica.log.offline_reason for replica in process.replicas or ()):
                process.die("restarted by its operator: its log is offline")
                return f"node {machine.node_id} has a damaged log"
            if process.view.revision < self.metadata.now.revision:
                return f"node {machine.node_id} has not applied the metadata"
        for each in self.streams:
            if each.stream.unflushed:
                return f"{each.stream.unflushed} have not confirmed a flush"
            leader = self.machines[each.stream.leader].process
            assert leader is not None
            if not leader.listens_to(each.subject):
                return f"the leader of {each.name} does not listen"
        return ""

    def _logs(self, stream: WatchedStream) -> dict[int, Replica]:
        replicas: dict[int, Replica] = {}
        for node_id in stream.stream.copies:
            process = self.machines[node_id].process
            replica = None if process is None else process.replica_of(stream.stream_id)
            if replica is None:
                raise Violation(f"node {node_id} died at rest")
            replicas[node_id] = replica
        return replicas

    def _difference(self) -> str:
        """How the copies differ, in what they hold or know; "" when they do not."""
        for stream in self.streams:
            ends = {
                node_id: (replica.log.log_end_offset, replica.high_watermark)
                for node_id, replica in self._logs(stream).items()
            }
            waiting = stream.repeating.waiting()
            if waiting:
                return f"{waiting} is not acknowledged"
            committed_end = stream.checker.committed_end
            if any(end != (committed_end, committed_end) for end in ends.values()):
                return f"committed up to {committed_end}; log ends and high watermarks are {ends}"
            lacking = stream.head_reader.lacks(committed_end)
            if lacking:
                return lacking
        return ""

    def _check_contents(self) -> None:
        for stream in self.streams:
            for node_id, replica in self._logs(stream).items():
                stream.checker.check_at_rest(node_id, replica)


class DamagedCluster(Cluster):
    """One whose disks are bad in every seed, and whose clocks do not agree."""

    damage = 12.0
    scenario_share = 0.3

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        for machine in self.machines:
            self.faults.set_clock(machine)
