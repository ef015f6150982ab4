"""Logs that nobody vouches for: what they say of themselves, and what they lack in front."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from jetstream_protocol.types import NO_NODE
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.loop import Handle
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process

MESSAGE_US = 4_000
MESSAGES = 8
"""Few enough for one answer to a follower."""


class LateTails(Scenario):
    """A follower loses power, the others lose their disks, and then the leader, which has flushed
    more than the follower, loses power too. What the follower lacks is on its way to it then. It
    arrives in the turn in which it hears that nobody leads, and tells how far its log reaches."""

    duration_us = 12_000_000
    segment_bytes = 20_000
    _leader = int(NO_NODE)
    _straggler = int(NO_NODE)
    _behind: tuple[int, ...] = ()
    """The followers to whom the leader has not yet sent what they lack."""
    _turns = 0
    """Of the straggler, since it looked."""
    _is_due = False
    """Nobody leads, and the straggler has not heard so."""

    def prepare(self) -> None:
        cluster = self.cluster
        cluster.faults.election_appetite = cluster.faults.joiner_appetite = 0.0
        cluster.network.drop = cluster.network.slow = 0.0
        cluster.metadata.lazy_node = -1
        cluster.metadata.delay_us = 2_000

    def strike(self) -> None:
        stream, controller = self.led_stream(), self.cluster.metadata.leader
        if stream is None or controller is None:
            return
        replicas = len(stream.replicas)
        if stream.config.flush != "none" or stream.config.min_insync_replicas < replicas:
            self.needs_everyone(stream, "none")
            return
        if replicas < 2 or len(stream.isr) < replicas:
            return
        if controller.node_id == stream.leader:
            self.cluster.metadata.depose_leader()
            return
        leader, *followers = self.leader_and_followers(replicas - 1) or ()
        followers.sort(key=lambda node_id: node_id == controller.node_id)
        world, publish = self.world, self.cluster.publishers.publish
        world.count("tail sent late")
        self._leader, self._straggler = leader, followers[0]
        self._behind, self._is_due, self._turns = (), False, 0
        self.keep_quiet(4_000_000)
        self._flush(self._straggler)
        for number in range(MESSAGES):
            world.later(number * MESSAGE_US, None, publish, 1)
        all_us = MESSAGES * MESSAGE_US
        world.later(world.between(all_us // 4, all_us // 2), None, self._flush, leader)
        world.later(all_us, None, self._stop_publishing, followers)
        world.later(4_000_000, None, self._end, leader)

    def _flush(self, node_id: int) -> None:
        process = self.cluster.machines[node_id].process
        if process is not None:
            process.flush_now()

    def _stop_publishing(self, followers: list[int]) -> None:
        """All that the leader has is committed soon."""
        self.cluster.machines[self._leader].hears_nats = False
        self.world.later(5_000, None, self._fell_followers, followers, 50)

    def _fell_followers(self, followers: list[int], attempts: int) -> None:
        machines = self.cluster.machines
        if self.cluster.faults.healing or not attempts or self._leader == NO_NODE:
            return
        if len({self._log_end(node_id) for node_id in (self._leader, *followers)}) > 1:
            self.world.later(5_000, None, self._fell_followers, followers, attempts - 1)
            return
        self._behind = tuple(followers)
        for node_id in followers:
            if node_id == self._straggler:
                machines[node_id].lose_power()
            else:
                machines[node_id].erase()

    def _log_end(self, node_id: int) -> int | None:
        process = self.cluster.machines[node_id].process
        return None if process is None or process.log is None else process.log.log_end_offset

    def send_delay_us(self, process: Process, follower: int, slices: Sequence[LogSlice]) -> int:
        """What the leader sends waits on its way, from the first answer with records on."""
        if process.node_id == self._leader and follower in self._behind:
            self.cluster.network.mute(self._leader, follower, "records")
            self._behind = tuple(node_id for node_id in self._behind if node_id != follower)
            if not self._behind:
                # By then the followers have begun to tell what there is to tell.
                self.world.later(self.world.between(50_000, 300_000), None, self._fell_leader)
        return 0

    def _fell_leader(self) -> None:
        cluster = self.cluster
        straggler = cluster.machines[self._straggler].process
        if cluster.faults.healing or self._leader == NO_NODE or straggler is None:
            return
        for _ in range(2):  # Another than these two controls the cluster, if there is one.
            controller = cluster.metadata.leader
            if controller is None or controller.node_id in (self._leader, self._straggler):
                cluster.metadata.depose_leader(unless=self._leader)
        cluster.machines[self._leader].hears_nats = True
        cluster.machines[self._leader].lose_power()
        straggler.loop.hold_up = partial(self._held_up_us, straggler)

    def registers(self, process: Process) -> None:
        """Of the last metadata before nobody leads the straggler hears, so that it looks again
        whether there is something to tell; not of what follows."""
        if process.node_id == self._leader and not self.cluster.faults.healing:
            self.cluster.metadata.delay_next(50_000)
            self.cluster.faults.alter_anything()
            self.world.later(40_000, None, self.deafen, self._straggler, 700_000)

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        self._is_due = after.leader == NO_NODE and self._straggler in after.last_known

    def _held_up_us(self, process: Process, callbacks: Sequence[Handle]) -> int:
        """When it is about to look, its thread is held up until both are there, and once more
        before it acts on what it has heard."""
        telling = process.telling
        if self._turns:
            self._turns += 1
            return 1_200_000 if self._turns == 3 else 0
        is_about_to_look = telling is not None and any(each.wakes(telling) for each in callbacks)
        if not is_about_to_look or not self._is_due:
            return 0
        self.world.count("tail arrives when nobody leads")
        self._turns = 1
        self.world.later(1_000, None, self.cluster.metadata.undeafen, self._straggler)
        self.world.later(2_000, None, self._let_hear, self._leader, self._straggler)
        return 30_000

    def _let_hear(self, leader: int, follower: int) -> None:
        self.cluster.network.unmute(leader, follower, "records")

    def _end(self, leader: int) -> None:
        self.cluster.machines[leader].hears_nats = True
        for machine in self.cluster.machines:
            self._let_hear(leader, machine.node_id)
            if machine.process is not None:
                machine.process.loop.hold_up = None
        self._leader = self._straggler = int(NO_NODE)
        self._behind = ()

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 60_000)


class LostDisks(Scenario):
    """All but one lose their disks. That one has died at the same moment or before, while nothing
    was published; it leaves the ISR first, and may come back last."""

    _back_us: tuple[int, int] = (20_000, 900_000)
    """When who dies comes back."""

    def prepare(self) -> None:
        self.cluster.faults.election_appetite = 0.0

    def strike(self) -> None:
        stream = self.led_stream()
        if stream is None or not 2 <= len(stream.isr) == len(stream.replicas):
            return  # The logs are to be equal before.
        world = self.world
        spared = world.random.choice(stream.isr)
        others = [node_id for node_id in stream.replicas if node_id != spared]
        self.keep_quiet(9_000_000)
        if world.chance(0.5):
            self._fell(spared)
            self._erase(others)
            return
        self._let_publish(others, False)
        world.later(100_000, None, self._fell, spared, (6_000_000, 8_000_000))
        world.later(200_000, None, self._erase_later, spared, others, 50)

    def _let_publish(self, node_ids: Sequence[int], hears: bool) -> None:
        for node_id in node_ids:
            self.cluster.machines[node_id].hears_nats = hears

    def _fell(self, node_id: int, back_us: tuple[int, int] = _back_us) -> None:
        self._back_us = back_us
        self.cluster.faults.fell(self.cluster.machines[node_id], loses_power=False)
        self._back_us = LostDisks._back_us

    def _erase_later(self, spared: int, others: list[int], attempts: int) -> None:
        """Once the one is out of the ISR."""
        stream = self.cluster.metadata.now.stream
        if stream is not None and spared in stream.isr and attempts:
            self.world.later(50_000, None, self._erase_later, spared, others, attempts - 1)
            return
        self._erase(others)
        self._let_publish(others, True)

    def _erase(self, node_ids: Sequence[int]) -> None:
        if self.cluster.faults.healing:
            return
        self.world.count("all but one lose their disks")
        for node_id in node_ids:
            self._fell(node_id)
            self.cluster.machines[node_id].erase()

    def restart_us(self) -> int | None:
        return self.world.between(*self._back_us)


class EmptyEpochs(Scenario):
    """A follower that lacks the leader's last records leads alone for a moment, and dies with what
    it got then. Its successor gets nothing of its own, and commits what the follower lacks. Then
    nobody is trusted any more: the one that died has the newest record, of an older epoch."""

    _back_us: tuple[int, int] = (20_000, 400_000)
    """When who dies comes back."""
    _chosen: tuple[int, int, int] | None = None
    """Who leads first, its successor, and who leads alone in between."""

    def prepare(self) -> None:
        self.cluster.faults.election_appetite = 0.0

    def strike(self) -> None:
        chosen, stream = self.leader_and_followers(2), self.led_stream()
        if chosen is None or stream is None or self._chosen is not None:
            return
        if len(stream.replicas) != 3 or stream.config.min_insync_replicas > 2:
            return
        first, successor, alone = self._chosen = chosen[0], chosen[1], chosen[2]
        world, network = self.world, self.cluster.network
        world.count("an epoch without records")
        if stream.config.flush != "interval":
            self.cluster.faults.alter({"flush": "interval"}, stream.stream_epoch)
        for source, target in (
            (first, alone),
            (successor, alone),
            (alone, first),
            (alone, successor),
        ):
            network.mute(source, target, "records")
        self.keep_quiet(9_000_000)
        world.later(world.between(30_000, 200_000), None, self.transfer, alone)
        world.later(1_250_000, None, self._end_alone)
        world.later(9_000_000, None, self._end)

    def _end_alone(self) -> None:
        if self._chosen is None or self.cluster.faults.healing:
            return
        _, successor, alone = self._chosen
        self._let_publish(False)
        self._fell(alone, loses_power=False, back_us=(2_500_000, 3_000_000))
        self.world.later(60_000, None, self.transfer, successor)
        self.world.later(200_000, None, self._collapse, 80)

    def _collapse(self, attempts: int) -> None:
        """Once what the one lacks is committed without it."""
        if self._chosen is None or self.cluster.faults.healing:
            return
        first, successor, alone = self._chosen
        stream = self.cluster.metadata.now.stream
        if attempts and (stream is None or alone in stream.isr):
            self.world.later(50_000, None, self._collapse, attempts - 1)
        elif attempts > -5:
            self.world.later(100_000, None, self._collapse, min(attempts, 0) - 1)
        else:
            self.world.count("an epoch without records is the last one")
            for node_id in (first, successor):
                self._fell(node_id, loses_power=True, back_us=(20_000, 400_000))
            self.world.later(1_500_000, None, self._let_publish, True)

    def _let_publish(self, hears: bool) -> None:
        for machine in self.cluster.machines:
            machine.hears_nats = hears

    def _fell(self, node_id: int, *, loses_power: bool, back_us: tuple[int, int]) -> None:
        self._back_us = back_us
        self.cluster.faults.fell(self.cluster.machines[node_id], loses_power)
        self._back_us = EmptyEpochs._back_us

    def restart_us(self) -> int | None:
        return self.world.between(*self._back_us)

    def _end(self) -> None:
        assert self._chosen is not None
        first, successor, alone = self._chosen
        self._chosen = None
        self._let_publish(True)
        for source, target in (
            (first, alone),
            (successor, alone),
            (alone, first),
            (alone, successor),
        ):
            self.cluster.network.unmute(source, target, "records")


class LostBeginnings(Scenario):
    """A log loses its first segments and all that says where it begins; or only those, while
    publishers repeat what lay there, and every other replica loses all it has."""

    needs_repeaters = True
    segment_bytes = 700

    def prepare(self) -> None:
        self.cluster.faults.election_appetite = 0.0

    def strike(self) -> None:
        stream = self.led_stream()
        if stream is None or not 2 <= len(stream.isr) == len(stream.replicas):
            return  # One log at a time: the others are there to be copied.
        world, machines = self.world, self.cluster.machines
        node_id = stream.isr[world.between(0, len(stream.isr) - 1)]
        if world.chance(0.7):
            self._lose_beginning(machines[node_id], beside=True)
            self.keep_quiet(900_000)
            return
        world.count("nobody hears what is acknowledged")
        heard_us = world.between(700_000, 1_500_000)
        self.cluster.focus.repeating.deaf_until = world.now + heard_us + 100_000
        world.later(heard_us, None, self._leave_one, machines[node_id], stream.replicas)
        self.keep_quiet(heard_us + 3_000_000)

    def _lose_beginning(self, machine: Machine, *, beside: bool) -> bool:
        """False: it was not running, or there is one segment only."""
        if self.cluster.faults.healing or machine.process is None:
            return False
        machine.crash("killed, then loses the beginning of its log")
        is_lost = machine.lose_beginning(kept=self.world.between(1, 3), beside=beside)
        self.world.count("beginning of a log lost" if is_lost else "log with one segment")
        return is_lost

    def _leave_one(self, machine: Machine, replicas: Sequence[int]) -> None:
        if self._lose_beginning(machine, beside=False):
            for node_id in replicas:
                if node_id != machine.node_id:
                    self.cluster.machines[node_id].erase()

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 200_000)
