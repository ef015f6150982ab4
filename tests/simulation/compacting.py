"""The same cluster with a compacted stream: every replica compacts its log, step by step, between
all the other faults.

Some keys are written for ever, others for a while only; some messages are tombstones. Each replica
counts the grace time of those by itself, in simulated time, and how eagerly it compacts differs.
What is held against the logs then is in compacted.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.compaction.log_compaction import LogCompaction
from jetstream_server.log.compaction.rewrite_pass import Rewritten, Task
from jetstream_server.log.compaction.state import CompactionState
from jetstream_server.metadata.state.commands import AlterStream
from jetstream_server.replication.drivers import compaction
from jetstream_server.replication.drivers.compaction import Compaction
from jetstream_server.replication.replica import Replica
from tests.simulation.cluster import Cluster
from tests.simulation.compacted import CompactingChecker, is_tombstone, key_of
from tests.simulation.compaction_process import SimulatedPass
from tests.simulation.process import stream_of
from tests.simulation.scenarios import Returns, Scenario, scenario_of
from tests.simulation.watched import WatchedStream

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process

EAGER = {
    "ROUND_SECONDS": 0.12,
    "DIRTY_RATIO": 0.05,
    "RETRY_US": 300_000,
    "RELOOK_US": 200_000,
}
"""In place of the driver's constants."""
GRACE_US = (100_000, 400_000, 1_500_000)
"""Shorter and longer than replicas are away."""
SEGMENT_BYTES_MAX = 1_200
"""Of small segments some are sealed soon."""
FEW_KEYS = 3
"""In the map of some passes, which then end before the log does."""


class Copies(Scenario):
    """A replica begins anew with an empty disk, and copies the logs of one leader after the other,
    each compacted as far as it is. Or one is away for longer than the grace time, and comes back to
    a leader whose log is such a copy."""

    _copies: Machine | None = None
    _swaps = 0

    def strike(self) -> None:
        chosen = self.leader_and_followers(1)
        if chosen is None:
            return
        world, cluster = self.world, cast(CompactedCluster, self.cluster)
        others = [node for node in range(len(cluster.machines)) if node not in chosen]
        begins_us = world.between(0, 300_000)
        if others and world.chance(0.6):
            away = others[world.between(0, len(others) - 1)]
            away_us = cluster.grace_us + world.between(200_000, 1_500_000)
            world.count("away for longer than the grace time")
            for node_id in range(len(cluster.machines)):
                cluster.network.cut(away, node_id)
                cluster.network.cut(node_id, away)
            world.later(away_us, None, cluster.network.heal)
            self.keep_quiet(away_us + 300_000)
            if world.chance(0.5):
                return
            begins_us = away_us - world.between(0, 600_000)
            world.later(away_us - world.between(0, 200_000), None, self.transfer, chosen[1])
        else:
            self.keep_quiet(begins_us + 500_000)
        world.count("copies")
        world.later(begins_us, None, self._erase, cluster.machines[chosen[1]])

    def _erase(self, machine: Machine) -> None:
        if not self.cluster.faults.healing:
            self._copies = machine
            machine.erase()
            if self.world.chance(0.7):
                cast(CompactedCluster, self.cluster).passes.rests_until = self.world.now + 400_000

    def registers(self, process: Process) -> None:
        if process.machine is self._copies:
            self._swaps = self.world.between(0, 4)

    def send_delay_us(self, process: Process, follower: int, slices: Sequence[LogSlice]) -> int:
        copies = self._copies
        if copies is None or follower != copies.node_id:
            return 0
        if self._swaps and self.world.chance(0.3):
            self._swaps -= 1
            self.world.later(0, None, self._swap)
        return 0

    def _swap(self) -> None:
        chosen = self.leader_and_followers(1)
        if chosen is not None:
            self.transfer(chosen[1])

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 200_000)


class CompactedStream(WatchedStream):
    """A compacted one; each message has a key."""

    def __init__(self, cluster: Cluster, name: str, index: int, nodes: int, grace_us: int) -> None:
        super().__init__(cluster, name, index, CompactingChecker(cluster.world, nodes, grace_us))
        self._grace_us = grace_us

    def create(
        self, config: dict[str, object], replicas: Sequence[int], observers: Sequence[int] = ()
    ) -> None:
        super().create(config, replicas, observers)
        compaction = {"compact": True, "tombstone_grace_us": self._grace_us}
        self.cluster.metadata.apply(
            AlterStream(stream_id=self.stream_id, stream_epoch=0, config=compaction)
        )

    def keys(self, numbers: Sequence[int]) -> list[bytes | None] | None:
        return [b"%d" % key_of(number) for number in numbers]

    def values(self, ids: list[int]) -> list[bytes]:
        return [b"" if is_tombstone(number) else b"%d" % number for number in ids]

    def header_blocks(self, ids: list[int]) -> list[bytes] | None:
        return [_header_block(number) for number in ids]


class CompactedCluster(Cluster):
    """Draws as its seed does without compaction, until the first pass."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        random = Random(seed)
        self.grace_us = random.choice(GRACE_US)
        super().__init__(seed, tracing=tracing)
        self.log_config = replace(
            self.log_config, segment_bytes=min(self.profile.segment_bytes, SEGMENT_BYTES_MAX)
        )
        self.passes = Passes(self, random)

    def make_streams(self) -> list[WatchedStream]:
        return [CompactedStream(self, "orders", 0, self.profile.nodes, self.grace_us)]

    def scenario(self) -> type[Scenario]:
        """A third of the seeds are about copies, but for those that need compaction anyway."""
        scenario = scenario_of(self.world.seed)
        return Copies if self.world.seed % 3 == 0 and scenario is not Returns else scenario

    def rest_from_compaction(self, until: int) -> None:
        self.passes.rests_until = until

    def run(self) -> None:
        with eager(self.passes):
            super().run()


class Passes:
    """When the processes of a cluster begin passes, and how much room those have."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._appetites = [random.choice((0.0, 0.3, 1.0, 1.0)) for _ in cluster.machines]
        """By node: how many of the passes it could begin it does."""
        self.rests_until = 0
        """Nobody begins a pass before."""

    def may_begin(self, process: Process) -> bool:
        """Whether that process looks for a log to compact now."""
        world = self.world
        if world.now < self.rests_until:
            return False
        return self.cluster.faults.healing or world.chance(self._appetites[process.node_id])

    def process_on(self, disk: object) -> Process:
        """The one whose disk that is."""
        machines = self.cluster.machines
        return next(m.process for m in machines if m.disk is disk and m.process is not None)

    def drawn(self, task: Task) -> Task:
        """The task of a pass: at times there is little room for keys."""
        return replace(task, keys_max=FEW_KEYS) if self.world.chance(0.2) else task

    def swapped(self, process: Process, task: Task, base_offset: int) -> None:
        """A segment's successor is in its place."""
        self.world.count("segment compacted")
        stream_id = stream_of(task.directory)
        replica = process.replica_of(stream_id)
        assert replica is not None
        source = next(s for s in task.sources if s.base_offset == base_offset)
        checker = self.cluster.checker_of(stream_id)
        assert isinstance(checker, CompactingChecker)
        checker.swapped(process.node_id, replica, source.base_offset, source.next_offset)


@contextmanager
def eager(passes: Passes) -> Iterator[None]:
    """Logs of a few segments are compacted as those of thousands would be, and told of."""
    choose, plan = Compaction._choose, LogCompaction.plan
    swap, finish = LogCompaction.swap, LogCompaction.finish

    async def choose_if_eager(self: Compaction) -> Replica | None:
        process = passes.process_on(cast(SimulatedPass, self._spawn()).disk)
        return await choose(self) if passes.may_begin(process) else None

    def plan_drawn(self: LogCompaction, *arguments: Any, **rest: Any) -> Task:
        return passes.drawn(plan(self, *arguments, **rest))

    def swap_seen(self: LogCompaction, task: Task, step: Rewritten) -> bool:
        is_swapped = swap(self, task, step)
        if is_swapped:
            passes.swapped(passes.process_on(self._disk), task, step.base_offset)
        else:
            passes.world.count("segment compacted too late")
        return is_swapped

    def finish_seen(self: LogCompaction, task: Task, state: CompactionState) -> None:
        finish(self, task, state)
        passes.world.count("log compacted")

    with ExitStack() as stack:
        for name, value in EAGER.items():
            stack.enter_context(patch.object(compaction, name, value))
        stack.enter_context(patch.object(Compaction, "_choose", choose_if_eager))
        stack.enter_context(patch.object(LogCompaction, "plan", plan_drawn))
        stack.enter_context(patch.object(LogCompaction, "swap", swap_seen))
        stack.enter_context(patch.object(LogCompaction, "finish", finish_seen))
        yield


def _header_block(number: int) -> bytes:
    tombstone = b"Jetstream-Tombstone: true\r\n" if is_tombstone(number) else b""
    return b"NATS/1.0\r\nJetstream-Key: %d\r\n%bNumber: %d\r\n\r\n" % (
        key_of(number), tombstone, number,
    )  # fmt: skip
