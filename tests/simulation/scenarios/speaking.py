"""Sessions, grants and registrations that are late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process


class LapsedSessions(Scenario):
    """The controller hears nothing of a leader, whose followers do: its last grants arrive late,
    its fencing takes a while, and it learns of neither."""

    def strike(self) -> None:
        stream, world, metadata = self.led_stream(), self.world, self.cluster.metadata
        controller = metadata.leader
        if stream is None or controller is None:
            return
        if controller.node_id == stream.leader:
            metadata.depose_leader()
            return
        world.count("session lapsed unheard")
        leader, network = int(stream.leader), self.cluster.network
        if world.chance(0.5):
            network.hold(leader, "grant", world.between(300_000, 1_300_000))
        metadata.slow["fence_node"] = world.between(0, 900_000) if world.chance(0.6) else 0
        silent_at_us = world.between(0, 400_000)
        heard_at_us = silent_at_us + world.between(1_350_000, 2_200_000)
        world.later(silent_at_us, None, self._silence, leader)
        world.later(heard_at_us, None, self._hear, leader)
        self.deafen(leader, heard_at_us + world.between(0, 1_500_000))
        self.keep_quiet(heard_at_us + 700_000)

    def _silence(self, leader: int) -> None:
        if not self.cluster.faults.healing:
            for machine in self.cluster.machines:
                self.cluster.network.mute(leader, machine.node_id, "heartbeat")

    def _hear(self, leader: int) -> None:
        for machine in self.cluster.machines:
            self.cluster.network.unmute(leader, machine.node_id, "heartbeat")
        self.cluster.network.hold(leader, "grant", 0)


class LateRegistrations(Scenario):
    """A process dies before its registration is applied, which happens when the next one leads."""

    def registers(self, process: Process) -> None:
        world = self.world
        if self.cluster.faults.healing or not world.chance(0.4):
            return
        world.count("registered late")
        applied_us = world.between(700_000, 3_000_000)
        self.cluster.metadata.delay_next(applied_us)
        machine = process.machine
        world.later(
            world.between(0, 100_000), process.loop, process.die, "killed before it registered"
        )
        world.later(applied_us - 50_000, None, self._let_lead, machine)
        world.later(applied_us - 1_000, None, self.deafen, machine.node_id, 400_000)
        self.keep_quiet(applied_us + 300_000)

    def _let_lead(self, machine: Machine) -> None:
        stream = self.led_stream()
        if stream is not None and machine.node_id in stream.isr:
            self.transfer(machine.node_id)

    def strike(self) -> None:
        chosen = self.leader_and_followers(1)
        if chosen is None:
            return
        self.cluster.faults.fell(self.cluster.machines[chosen[1]], self.world.chance(0.4))

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 100_000)


class LostControl(Scenario):
    """The metadata group has a new leader that the old one has not noticed, and the stream's leader
    goes on asking the old one for its lease, while the new one fences it."""

    def strike(self) -> None:
        stream, metadata = self.led_stream(), self.cluster.metadata
        controller = metadata.leader
        if stream is None or controller is None or controller.node_id == stream.leader:
            metadata.depose_leader()
            return
        world, network = self.world, self.cluster.network
        world.count("control lost unnoticed")
        lasting_us = world.between(1_800_000, 3_000_000)
        metadata.deafen(controller.node_id, world.now + lasting_us)
        self.deafen(stream.leader, lasting_us)
        metadata.depose_leader(unless=stream.leader)
        self.keep_quiet(lasting_us)
        for machine in self.cluster.machines:
            if machine.node_id != controller.node_id:
                network.mute(stream.leader, machine.node_id, "heartbeat")
        world.later(lasting_us, None, self._end, int(stream.leader))

    def _end(self, leader: int) -> None:
        for machine in self.cluster.machines:
            self.cluster.network.unmute(leader, machine.node_id, "heartbeat")
