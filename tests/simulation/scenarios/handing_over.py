"""Leaderships that move by plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.scenarios.scenario import STRIDE, Scenario

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process


class PlannedHandOvers(Scenario):
    """Leaderships move by plan, all the time; at times the target, its answers or the transfer are
    late or lost, so that the old leader goes on while the target still stands by. In every third of
    its seeds nothing else happens at all."""

    plans_hand_overs = True
    _goes_on = False
    """The old leader does, although the next target stands by."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.is_calm = self.world.seed // STRIDE % 3 == 0

    def strike(self) -> None:
        stream = self.led_stream()
        if stream is None:
            return
        world, cluster = self.world, self.cluster
        process = cluster.machines[stream.leader].process
        assert process is not None
        process.hand_over()
        if self.is_calm:
            return
        chance = world.random.random()
        delay = world.between(1_000, 60_000)
        if chance < 0.15:
            cluster.metadata.slow["transfer_leader"] = world.between(0, 900_000)
        elif chance < 0.3:
            cluster.metadata.slow.pop("transfer_leader", None)
            world.later(delay, None, self._mute, "positions")
        elif chance < 0.4:
            world.later(delay, None, self._mute, "records")
        elif chance < 0.5:
            machine = cluster.machines[stream.leader]
            world.later(delay, None, cluster.faults.fell, machine, world.chance(0.3))
        elif chance < 0.6:
            cluster.metadata.delay_next(world.between(200_000, 2_000_000))
        elif chance < 0.72:
            self._refuse(stream)
        elif chance < 0.87:
            self._goes_on = True
        elif chance < 0.94:
            self._overtake(stream, delay)
        else:
            self.keep_quiet(300_000)

    def _refuse(self, stream: StreamMetadata) -> None:
        """The stream changes before the transfer is applied, which makes that void; the old leader
        goes on with a full disk, and then another leads all the same."""
        world = self.world
        again_us = world.between(300_000, 900_000)
        if self._make_void(stream, again_us):
            world.count("refused while another may stand by")
            self._fill(int(stream.leader), again_us + 100_000)

    def asks_to_stand_by(self, process: Process, target: int) -> None:
        """The transfer is void, and the target does not hear that it is called off. It is busy when
        that leads."""
        if not self._goes_on or self.cluster.faults.healing:
            return
        self._goes_on = False
        world, network = self.world, self.cluster.network
        world.count("not called off")
        self.cluster.metadata.slow["transfer_leader"] = 100_000
        again_us = world.between(2_300_000, 4_000_000)
        link = int(process.node_id), target, "hand_over"
        world.later(20_000, None, network.mute, *link)
        world.later(30_000, None, self.cluster.faults.alter_anything)
        world.later(again_us, None, network.unmute, *link)
        world.later(again_us, None, self._lead_another, target)
        self.keep_quiet(again_us + 300_000)
        # To be on the way to both when the target comes to lead.
        publish = partial(self.cluster.publishers.publish, 1, delay_us_max=40_000)
        for moment_us in range(again_us - 60_000, again_us + 10_000, 2_000):
            world.later(moment_us, None, publish)

    def _make_void(self, stream: StreamMetadata, again_us: int) -> bool:
        """The transfer; then another leads all the same. False: there is no other."""
        world, cluster = self.world, self.cluster
        others = [member for member in stream.isr if member != stream.leader]
        if not others:
            return False
        cluster.metadata.slow["transfer_leader"] = 100_000
        world.later(100_000, None, cluster.faults.alter_anything)
        world.later(again_us, None, self._lead_another, others[world.between(0, len(others) - 1)])
        self.keep_quiet(again_us + 300_000)
        return True

    def _lead_another(self, other: int) -> None:
        """One that still stands by, if there is one."""
        processes = [machine.process for machine in self.cluster.machines]
        who = [p.node_id for p in processes if p is not None and p.stands_by]
        self.transfer(who[0] if who else other)

    def _overtake(self, stream: StreamMetadata, delay: int) -> None:
        """In the middle of it a third node comes to lead, with a full disk, and then another."""
        world = self.world
        others = [member for member in stream.isr if member != stream.leader]
        if len(others) < 2:
            return
        world.count("hand-over overtaken")
        if world.chance(0.5):
            others.reverse()
        again_us = delay + world.between(50_000, 900_000)
        self.cluster.metadata.slow["transfer_leader"] = 100_000
        # Once it leads: a follower without room leaves the ISR at once.
        world.later(delay, None, self.transfer, others[0])
        world.later(delay, None, self._fill, int(others[0]), again_us + 100_000)
        world.later(again_us, None, self.transfer, others[1])
        self.keep_quiet(again_us + 300_000)

    def _fill(self, node_id: int, lasting_us: int) -> None:
        """The node's disk is full for a while."""
        disk = self.cluster.machines[node_id].disk
        disk.room = 0
        self.world.later(lasting_us, None, setattr, disk, "room", None)

    def _mute(self, method: str) -> None:
        """The leader and one that follows it do not hear each other for a while."""
        chosen = self.leader_and_followers(1)
        if chosen is None or self.cluster.faults.healing:
            return
        source, target = chosen if method == "records" else chosen[::-1]
        self.cluster.network.mute(source, target, method)
        delay = self.world.between(50_000, 2_500_000)
        self.world.later(delay, None, self.cluster.network.unmute, source, target, method)


class LeftStandingBy(PlannedHandOvers):
    """A hand-over is given up, and its target does not hear so. The old leader goes on; then the
    target leads all the same, while NATS still has messages on the way to it that the old leader
    has stored."""

    duration_us = 12_000_000

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.is_calm = False

    def strike(self) -> None:
        stream = self.led_stream()
        process = None if stream is None else self.cluster.machines[stream.leader].process
        if process is None:
            return
        self._goes_on = True
        process.hand_over()
        self.keep_quiet(500_000)

    def asks_to_stand_by(self, process: Process, target: int) -> None:
        if self._goes_on and not self.cluster.faults.healing:
            slow = self.cluster.nats.slow
            slow[target] = self.world.between(20_000, 200_000)
            self.world.later(4_500_000, None, slow.pop, target, None)
        super().asks_to_stand_by(process, target)
