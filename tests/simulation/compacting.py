"""The same cluster with a compacted stream: every replica compacts its log, step by step, between
all the other faults.

Some keys are written for ever, others for a while only; some messages are tombstones. Each replica
counts the grace time of those by itself, in simulated time, and how eagerly it compacts differs.
What is held against the logs then is in compacted.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, cast

from jetstream_protocol.errors import (
    CorruptBatchError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from jetstream_protocol.types import StreamId
from jetstream_server.log.compaction_pass import Done, Mapped, Rewritten, Task, run
from jetstream_server.replication.messages import Answer, Records
from jetstream_server.replication.replica import Replica
from tests.simulation.cluster import Cluster
from tests.simulation.compacted import CompactingChecker, is_tombstone, key_of
from tests.simulation.scenarios import Scenario, scenario_of

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process

EACH_US = 120_000
GRACE_US = (100_000, 400_000, 1_500_000)
"""Shorter and longer than replicas are away."""
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
                cast(CompactedCluster, self.cluster).rests_until = self.world.now + 400_000

    def registers(self, process: Process) -> None:
        if process.machine is self._copies:
            self._swaps = self.world.between(0, 4)

    def send_delay_us(self, process: Process, follower: int, answer: Answer) -> int:
        copies = self._copies
        is_copied = isinstance(answer, Records) and answer.slice is not None
        if copies is None or follower != copies.node_id or not is_copied:
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


class CompactedCluster(Cluster):
    """Draws as its seed does without compaction, until the first pass."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        random = Random(seed)
        self.grace_us = random.choice(GRACE_US)
        super().__init__(seed, tracing=tracing)
        self.checker = CompactingChecker(self.world, self.profile.nodes, self.grace_us)
        self._appetites = [random.choice((0.0, 0.3, 1.0, 1.0)) for _ in self.machines]
        """By node: how many of the passes it could begin it does."""
        self.rests_until = 0
        """Nobody begins a pass before."""
        stream = self.metadata.registry.streams[self.stream_id]
        self.checker.stream_changed(stream, stream)
        self._tokens = 0
        self._compacting: dict[Process, None] = {}
        """Whose pass is under way: one at a time."""

    def _create(self) -> StreamId:
        stream_id = super()._create()
        command = {"op": "alter_stream", "stream_id": stream_id, "stream_epoch": 0}
        config = {"compact": True, "tombstone_grace_us": self.grace_us}
        self.metadata.apply({**command, "config": config})
        return stream_id

    def scenario(self) -> type[Scenario]:
        """A third of the seeds are about copies."""
        seed = self.world.seed
        return Copies if seed % 3 == 0 else scenario_of(seed)

    def keys(self, numbers: Sequence[int]) -> list[bytes | None] | None:
        return [b"%d" % key_of(number) for number in numbers]

    def values(self, ids: list[int]) -> list[bytes]:
        return [b"" if is_tombstone(number) else b"%d" % number for number in ids]

    def header_blocks(self, ids: list[int]) -> list[bytes] | None:
        return [_header_block(number) for number in ids]

    def run(self) -> None:
        self.world.at(500_000, None, self._compact_somewhere)
        super().run()

    def _compact_somewhere(self) -> None:
        world = self.world
        pause_us = 8 * EACH_US if self.faults.healing else EACH_US
        world.later(world.between(10_000, pause_us), None, self._compact_somewhere)
        machine = self.machines[world.between(0, len(self.machines) - 1)]
        process = machine.process
        if process is None or process.replica is None or process.replica.log.offline_reason:
            return
        eager = self.faults.healing or world.chance(self._appetites[machine.node_id])
        if eager and world.now >= self.rests_until:
            world.later(0, process, self._begin, process, process.replica)

    def _begin(self, process: Process, replica: Replica) -> None:
        if process in self._compacting:
            return
        log = replica.log
        self._compacting[process] = None
        try:
            if self.world.chance(0.5):
                log.roll()
            self._step(process, self._pass(process, replica))
        except StorageFullError:
            self._compacting.pop(process)
        except StorageError as error:
            self._compacting.pop(process)
            process.fail(error)

    def _step(self, process: Process, steps: Iterator[None]) -> None:
        """One step, and later the next: a process may die, or its log be cut, between them."""
        try:
            next(steps)
        except (StopIteration, StorageFullError, CorruptBatchError):
            pass
        except UnavailableError:
            self.world.count("compaction of a log that was cut")
        except OSError:
            self.world.count("compaction failed")
        except StorageError as error:
            process.fail(error)
        else:
            delay = self.world.between(100, 100_000 if self.world.chance(0.2) else 5_000)
            self.world.later(delay, process, self._step, process, steps)
            return
        self._compacting.pop(process)

    def _pass(self, process: Process, replica: Replica) -> Iterator[None]:
        log, world, grace_us = replica.log, self.world, self.grace_us
        task = self._plan(replica)
        if task is None:
            return
        log.compaction.begin(task)
        yield
        end_offset = 0
        for step in run(process.machine.disk, task, lambda length: None):
            match step:
                case Mapped(end_offset):
                    pass
                case Rewritten():
                    self._swap(process, replica, task, step)
                case Done():
                    state = log.compaction.state.after_pass(end_offset, world.now, grace_us)
                    state = replace(
                        state, tombstones=step.tombstones, swept_below=task.tombstones_below
                    )
                    log.compaction.finish(task, state)
                    world.count("log compacted")
            yield

    def _plan(self, replica: Replica) -> Task | None:
        log, world = replica.log, self.world
        sources = log.compaction.sources(self.bound_of(replica))
        if not sources:
            return None
        self._tokens += 1
        task = log.compaction.plan(
            sources, token=f"t{self._tokens}", now_us=world.now, grace_us=self.grace_us,
            kept_base_offsets=log.producers.kept_base_offsets(),
        )  # fmt: skip
        return replace(task, keys_max=FEW_KEYS) if world.chance(0.2) else task

    def _swap(self, process: Process, replica: Replica, task: Task, step: Rewritten) -> None:
        if not replica.log.compaction.swap(task, step):
            self.world.count("segment compacted too late")
            return
        self.world.count("segment compacted")
        source = next(s for s in task.sources if s.base_offset == step.base_offset)
        self.checker.swapped(process.node_id, replica, source.base_offset, source.next_offset)

    def bound_of(self, replica: Replica) -> int:
        """**safety** Only what is committed."""
        return min(replica.high_watermark, replica.log.flushed_offset)


def _header_block(number: int) -> bytes:
    tombstone = b"Jetstream-Tombstone: true\r\n" if is_tombstone(number) else b""
    return b"NATS/1.0\r\nJetstream-Key: %d\r\n%bNumber: %d\r\n\r\n" % (
        key_of(number), tombstone, number,
    )  # fmt: skip
