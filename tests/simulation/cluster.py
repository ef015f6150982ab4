"""A simulated cluster: machines, network, metadata group, publishers, faults and the checker.

run(seed) ──> a profile is drawn ──> publishers and faults ──> everything is healed
          ──> the cluster has to come to rest: one leader, all in sync, logs equal, acks kept
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.metadata.state.model import StreamMetadata
from jetstream_server.replication.core.replica import Replica
from tests.simulation.checker import Checker
from tests.simulation.faults import Faults
from tests.simulation.loop import bury
from tests.simulation.machine import CLUSTER_ID, Machine
from tests.simulation.metadata import MetadataGroup, View
from tests.simulation.nats import NatsServer
from tests.simulation.network import Network
from tests.simulation.observing import observed
from tests.simulation.producers import Repeating
from tests.simulation.publishers import Publishers
from tests.simulation.scenarios import Scenario, scenario_of
from tests.simulation.world import Violation, World

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
        weights = (2, 6, 80, 6, 6) if is_general else (0, 0, 80, 10, 10)
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

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.profile = profile = self.draw_profile(world)
        self.log_config = LogConfig(segment_bytes=profile.segment_bytes, index_interval_bytes=256)
        self.members: dict[int, Any] = {}
        self.graveyard: list[asyncio.Task[Any]] = []
        """What processes that have died were doing."""
        self.checker = Checker(world, profile.nodes)
        self.network = Network(world)
        self.metadata = MetadataGroup(self, self._applied)
        self.metadata.lazy_node = profile.lazy_node
        self.machines = [Machine(self, node_id) for node_id in range(profile.nodes)]
        self.publishers = Publishers(self)
        self.nats = NatsServer(world, self.publishers.answered)
        self.repeating = Repeating(self)
        self.faults = Faults(self)
        if self.faults.scenario.is_calm:
            self.metadata.lazy_node = -1
            self.profile = replace(profile, late_sends=0.0, slow_flushes=0.0)
        duration_us = self.faults.scenario.duration_us
        if duration_us is not None:
            self.profile = replace(profile, duration_us=duration_us)
        self.stream_id = self._create()
        world.note(f"{profile}")

    def _create(self) -> StreamId:
        """Nodes and stream exist before any process runs; nobody leads."""
        profile, metadata = self.profile, self.metadata
        metadata.apply({"op": "set_cluster", "cluster_id": CLUSTER_ID})
        for node_id in range(profile.nodes):
            self.members[node_id] = None
            metadata.apply(_registration(node_id))
        replicas = sorted(self.world.random.sample(range(profile.nodes), profile.replicas))
        result = metadata.apply(
            {
                "op": "create_stream",
                "name": "orders",
                "subject": "orders",
                "config": {
                    "min_insync_replicas": profile.min_insync_replicas,
                    "flush": profile.flush,
                },
                "replicas": replicas,
                "created_at_us": 0,
            }
        )
        metadata.stream_id = StreamId(result["stream_id"])
        stream = metadata.registry.streams[metadata.stream_id]
        self.checker.stream_changed(stream, stream)
        metadata.apply({"op": "barrier"})
        return metadata.stream_id

    def draw_profile(self, world: World) -> Profile:
        return Profile.draw(world)

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        """The stream's metadata has changed, in truth."""

    def keys(self, numbers: Sequence[int]) -> list[bytes | None] | None:
        """The keys of publishes; None: they have none."""
        return None

    def scenario(self) -> type[Scenario]:
        """What the seed is about."""
        return scenario_of(self.world.seed)

    def values(self, ids: list[int]) -> list[bytes]:
        """What publishes say."""
        return [b"%d" % number for number in ids]

    def header_blocks(self, ids: list[int]) -> list[bytes] | None:
        """What publishes say in their headers."""
        return None

    def _applied(self, before: View, after: View) -> None:
        """A command was applied, in truth."""
        if after.nodes is not before.nodes:
            for node_id, node in after.nodes.items():
                known = before.nodes.get(node_id)
                if known is None or known.incarnation != node.incarnation or node.fenced:
                    self.checker.session_ended(node_id, after.revision)
                # A registration of an earlier run, applied late, says nothing of the logs now; and
                # nobody leads or follows in its name.
                process = self.machines[node_id].process
                if process is not None and process.session == node.session:
                    self.checker.registered(node_id)
        if after.stream is None or before.stream is None or after.stream is before.stream:
            return
        was, now = before.stream, after.stream
        if self.world.trace is not None:
            self.world.note(
                f"metadata {after.revision}: leader {now.leader} epoch {now.leader_epoch} "
                f"stream epoch {now.stream_epoch} isr {now.isr} elr {now.elr} "
                f"waiting for {now.last_known} min {now.config.min_insync_replicas} "
                f"flush {now.config.flush} unflushed {now.unflushed}"
            )
        if now.leader != NO_NODE and now.leader_epoch != was.leader_epoch:
            self.world.count("election")
            if now.leader in was.elr and not was.isr:
                self.world.count("election from the ELR")
        self.checker.stream_changed(was, now)
        self.stream_changed(was, now)
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
        world.at(BEGIN_US, None, self.publishers.publish_forever)
        world.at(BEGIN_US, None, self.repeating.begin)
        world.at(BEGIN_US + 200_000, None, self.faults.begin)
        world.run_until(BEGIN_US + profile.duration_us)
        self.faults.heal_everything()
        self._come_to_rest()

    def _check(self) -> None:
        self.checker.check(self.metadata.now)

    def _come_to_rest(self) -> None:
        world = self.world
        deadline = world.now + REST_US
        self.publishers.pause_us = 400_000
        reason = "nothing was tried"
        while world.now < deadline:
            world.run_until(world.now + 250_000)
            reason = self._unrest()
            if not reason:
                break
        else:
            raise Violation(f"the healed cluster does not come to rest: {reason}")
        self.publishers.running = self.repeating.running = False
        acked = self.publishers.acked
        for attempt in range(18):
            # Again after an ISR change of before, whose outcome was not known, had its effect.
            if attempt >= 3 and self.publishers.acked > acked:
                break
            self.publishers.publish(3, asking=True)
            world.run_until(world.now + 300_000)
        if self.publishers.acked == acked:
            raise Violation("a cluster at rest acknowledges nothing")
        difference = self._difference()
        for _ in range(12):
            if not difference:
                break
            world.run_until(world.now + 500_000)
            difference = self._difference()
        else:
            raise Violation(f"at rest, {difference}")
        is_calm = self.is_still and self.faults.scenario.is_calm
        if is_calm and self.publishers.doubtful:
            raise Violation(f"nothing went wrong, but nobody answers {[*self.publishers.doubtful]}")
        self._check_contents()

    def _unrest(self) -> str:
        """Why the cluster is not at rest; "" when it is."""
        stream = self.metadata.now.stream
        assert stream is not None
        for machine in self.machines:
            process = machine.process
            if process is not None and process.replica and process.replica.unreadable_reason:
                process.die("restarted by its operator: its log could not be opened")
        if stream.leader == NO_NODE:
            return "nobody leads"
        if len(stream.isr) < len(stream.replicas):
            return f"only {stream.isr} of {stream.replicas} are in sync"
        for machine in self.machines:
            process = machine.process
            if process is None or process.incarnation < 0:
                return f"node {machine.node_id} does not run"
            if process.stopping:
                return f"node {machine.node_id} is on its way to stop"
            if process.paused_until > self.world.now:
                return f"node {machine.node_id} is paused"
            if process.log is not None and process.log.offline_reason:
                process.die("restarted by its operator: its log is offline")
                return f"node {machine.node_id} has a damaged log"
            if process.view.revision < self.metadata.now.revision:
                return f"node {machine.node_id} has not applied the metadata"
        if stream.unflushed:
            return f"{stream.unflushed} have not confirmed a flush"
        leader = self.machines[stream.leader].process
        assert leader is not None
        if not leader.listens:
            return "the leader does not listen"
        return ""

    def _logs(self) -> dict[int, Replica]:
        stream = self.metadata.now.stream
        assert stream is not None
        replicas: dict[int, Replica] = {}
        for node_id in stream.replicas:
            process = self.machines[node_id].process
            if process is None or process.replica is None:
                raise Violation(f"node {node_id} died at rest")
            replicas[node_id] = process.replica
        return replicas

    def _difference(self) -> str:
        """How the replicas differ, in what they hold or know; "" when they do not."""
        ends = {
            node_id: (replica.log.log_end_offset, replica.high_watermark)
            for node_id, replica in self._logs().items()
        }
        waiting = self.repeating.waiting()
        if waiting:
            return f"{waiting} is not acknowledged"
        committed_end = self.checker.committed_end
        if any(end != (committed_end, committed_end) for end in ends.values()):
            return f"committed up to {committed_end}; log ends and high watermarks are {ends}"
        return ""

    def _check_contents(self) -> None:
        for node_id, replica in self._logs().items():
            self.checker.check_at_rest(node_id, replica)


class DamagedCluster(Cluster):
    """One whose disks are bad in every seed, and whose clocks do not agree."""

    damage = 12.0

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        for machine in self.machines:
            self.faults.set_clock(machine)


def _registration(node_id: int) -> dict[str, Any]:
    return {
        "op": "register_node",
        "node_id": NodeId(node_id),
        "session": f"installer.{node_id}",
        "addresses": dict.fromkeys(("grpc", "data", "raft", "http"), f"node-{node_id}:2"),
    }
