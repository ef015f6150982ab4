"""Changes of the ISR that take effect late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.process import Process


class LateJoiners(Scenario):
    """Followers come back all the time. Between the proposal that lets one into the ISR and its
    effect, the follower has changed (`Faults._isr_proposed`)."""

    def prepare(self) -> None:
        self.cluster.faults.joiner_appetite = 0.8
        self.cluster.faults.joiner_powerless = 0.4
        self.cluster.faults.member_appetite = 0.6

    def strike(self) -> None:
        chosen = self.leader_and_followers(1)
        if chosen is None:
            return
        self.cluster.machines[chosen[1]].crash("killed, to join again")
        self.keep_quiet(500_000)

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 200_000)


class UnknownOutcomes(Scenario):
    """Nobody knows for more than five seconds what became of a change of the ISR. Meanwhile the
    follower that was to join is fenced, and then it is back; what its leader says reaches it, and
    it tells its leader nothing."""

    duration_us = 12_000_000
    _busy_until = 0

    def strike(self) -> None:
        chosen = self.leader_and_followers(1)
        if chosen is None or self.world.now < self._busy_until:
            return
        self.cluster.machines[chosen[1]].crash("killed, to join again")
        self.keep_quiet(500_000)

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 100_000)

    def joins(self, leader: int, joiner: int) -> bool:
        world, network, stream = self.world, self.cluster.network, self.led_stream()
        if world.now < self._busy_until:
            return True
        if stream is None or not self._is_the_last(stream):
            return False
        world.count("outcome unknown for long")
        applied_us = world.between(7_900_000, 8_200_000)
        self._busy_until = self.quiet_until = world.now + applied_us + 300_000
        self.cluster.metadata.delay_next(applied_us)
        network.mute(joiner, leader, "positions")
        world.later(2_900_000, None, self._sleep, joiner)
        world.later(applied_us + 200_000, None, network.unmute, joiner, leader, "positions")
        return True

    def _is_the_last(self, stream: StreamMetadata) -> bool:
        """Whether the others can commit without the one that joins, and nobody else is to join."""
        others = len(stream.isr)
        return stream.config.min_insync_replicas <= others == len(stream.replicas) - 1

    def _sleep(self, node_id: int) -> None:
        """Until its leader has asked again, which is half a second after five."""
        process = self.cluster.machines[node_id].process
        if process is not None and not self.cluster.faults.healing:
            process.pause(self.world.now + 4_100_000)


class FailingJoiners(Scenario):
    """An fsync of a follower fails when the leader is about to let it in, by what it said before.
    It begins its log anew, and what it copies then is late."""

    _link: tuple[int, int] | None = None
    """The leader and the follower."""
    _busy_until = 0

    def strike(self) -> None:
        chosen = self.leader_and_followers(1)
        if chosen is None or self.world.now < self._busy_until:
            return
        self.cluster.machines[chosen[1]].crash("killed, to join again")
        self.keep_quiet(500_000)

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 100_000)

    def joins(self, leader: int, joiner: int) -> bool:
        world, machine = self.world, self.cluster.machines[joiner]
        if world.now < self._busy_until:
            # Later than the follower needs to have its failure recorded and to empty its log.
            self.cluster.metadata.delay_next(world.between(200_000, 500_000))
            return True
        if machine.process is None:
            return False
        world.count("fsync fails while it joins, and its copy is late")
        self._link = leader, joiner
        self._busy_until = world.now + 1_500_000
        self.keep_quiet(1_600_000)
        self.cluster.metadata.delay_next(world.between(200_000, 500_000))
        machine.disk.fsync_fails = True
        machine.process.flush_now()
        world.later(1_500_000, None, self._let_hear, self._link)
        return True

    def begins_anew(self, process: Process) -> None:
        link = self._link
        if link is not None and process.node_id == link[1] and not self.cluster.faults.healing:
            self.cluster.network.mute(*link, "records")

    def _let_hear(self, link: tuple[int, int]) -> None:
        self._link = None
        self.cluster.network.unmute(*link, "records")
