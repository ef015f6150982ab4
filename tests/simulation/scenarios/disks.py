"""Flushes, power failures, and disks that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_protocol.types import NO_NODE
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.process import Process


class LateFlushes(Scenario):
    """The flush policy becomes `group`, which the leader hears of late; once all have confirmed
    that they are flushed, everyone but the leader loses power."""

    _slow: int = NO_NODE
    _flushes_at_once = 0
    _is_late = False
    """The slow one flushes once before it hears of the policy, and is told of that after it."""

    def strike(self) -> None:
        chosen = self.leader_and_followers(1)
        if chosen is None:
            return
        world, stream = self.world, self.led_stream()
        assert stream is not None
        leader, slow = chosen
        if stream.config.flush == "group":
            self.needs_everyone(stream, "interval")
            return
        world.count("flushed late")
        self._slow, self._flushes_at_once = slow, int(world.chance(0.7))
        self.keep_quiet(2_500_000)
        if world.chance(0.3):
            self.deafen(leader, world.between(30_000, 400_000))
            self.needs_everyone(stream, "group")
            delay = world.between(500, 50_000)
            world.later(delay, None, self.cluster.faults.fell, self.cluster.machines[slow], True)
            return
        process = self.cluster.machines[slow].process
        if process is not None and world.chance(0.5):
            self._is_late, self._flushes_at_once = True, 0
            self.deafen(leader, world.between(20_000, 100_000))
            process.flush_now()
            world.later(5_000, None, self._alter)
            return
        self.deafen(leader, world.between(30_000, 400_000))
        self.cluster.faults.alter({"flush": "group"}, stream.stream_epoch)

    def _alter(self) -> None:
        stream = self.led_stream()
        if stream is not None and not self.cluster.faults.healing:
            self.cluster.faults.alter({"flush": "group"}, stream.stream_epoch)

    def flush_told_late_us(self, process: Process) -> int:
        if process.node_id != self._slow or not self._is_late:
            return 0
        self._is_late = False
        return self.world.between(10_000, 300_000)

    def flush_delay_us(self, process: Process) -> int:
        if process.node_id != self._slow or self.cluster.faults.healing:
            return 0
        if self._is_late:
            return 0
        self._flushes_at_once -= 1
        return 0 if self._flushes_at_once >= 0 else self.world.between(800_000, 1_900_000)

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        if before.unflushed and not after.unflushed and self._slow != NO_NODE:
            self._slow = NO_NODE
            self.world.count("power failure of all followers")
            for node_id in after.replicas:
                if node_id != after.leader and after.config.flush == "group":
                    machine = self.cluster.machines[node_id]
                    delay = self.world.between(500, 5_000)
                    self.world.later(delay, None, self.cluster.faults.fell, machine, True)

    def restart_us(self) -> int | None:
        return 100_000


class SlowLeaders(Scenario):
    """Under flush `group` the leader's own flush takes long, and it loses power meanwhile, or its
    disk."""

    _slow: int = NO_NODE

    def strike(self) -> None:
        stream = self.led_stream()
        if stream is None:
            return
        if stream.config.flush != "group" or stream.config.min_insync_replicas < len(stream.isr):
            self.needs_everyone(stream, "group")
            return
        if stream.unflushed:
            return
        world, leader = self.world, int(stream.leader)
        world.count("power failure while the leader flushes")
        self._slow = leader
        delay = world.between(50_000, 500_000)
        world.later(delay, None, self._lose_power, leader)
        self.keep_quiet(delay + 400_000)

    def _lose_power(self, leader: int) -> None:
        self._slow = NO_NODE
        machine, faults = self.cluster.machines[leader], self.cluster.faults
        if self.world.chance(0.3) and not faults.healing:
            machine.erase()
        else:
            faults.fell(machine, True)

    def flush_delay_us(self, process: Process) -> int:
        return 700_000 if process.node_id == self._slow else 0

    def restart_us(self) -> int | None:
        return 100_000


class Collapses(Scenario):
    """Everyone goes, without power and mostly right after a flush, which nobody can vouch for;
    whoever is to lead then loses even that."""

    def prepare(self) -> None:
        self.cluster.faults.election_appetite = 0.7

    def strike(self) -> None:
        faults, world = self.cluster.faults, self.world
        if world.chance(0.3):
            faults.topple()
            return
        for machine in self.cluster.machines:
            if machine.process is not None:
                machine.process.flush_now()
            world.later(world.between(5_000, 40_000), None, faults.fell, machine, True)
        self.keep_quiet(2_500_000)

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 500_000)


class FailingDisks(Scenario):
    """An fsync fails, and a while after the power does; at times the process is killed in between,
    before its log is begun anew. Or a log rots."""

    _restarts_soon = False

    def strike(self) -> None:
        stream = self.led_stream()
        if stream is None:
            return
        world = self.world
        if stream.config.flush == "none" or world.chance(0.2):
            self.needs_everyone(stream, "group" if world.chance(0.8) else "interval")
            return
        if world.chance(0.3):
            self.cluster.faults.rot()
            self.keep_quiet(500_000)
            return
        node_id = stream.isr[world.between(0, len(stream.isr) - 1)]
        machine = self.cluster.machines[node_id]
        machine.disk.fsync_fails = True
        world.count("fsync fails, then the power")
        world.later(
            world.between(100_000, 3_000_000), None, self.cluster.faults.fell, machine, True
        )
        if world.chance(0.5):
            world.later(world.between(100_000, 2_000_000), None, self.cluster.faults.topple)
        self.keep_quiet(1_500_000)

    def log_failed(self, process: Process) -> None:
        if self.cluster.faults.healing or not self.world.chance(0.5):
            return
        world, machine = self.world, process.machine
        world.count("fsync fails, then killed")
        self._restarts_soon = True
        world.later(world.between(0, 2_000), process.loop, process.die, "killed with a failed log")
        back_us = world.between(400_000, 1_500_000)
        world.later(back_us, None, self.cluster.faults.fell, machine, True)
        self.keep_quiet(back_us + 300_000)

    def restart_us(self) -> int | None:
        if not self._restarts_soon:
            return None
        self._restarts_soon = False
        return self.world.between(20_000, 150_000)
