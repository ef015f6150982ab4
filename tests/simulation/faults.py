"""What goes wrong, and when: drawn from the seed, and aimed at what is seldom reached by chance.

A seed has an appetite for some kinds of faults and none for others, so that whole runs are about
power failures, or about partitions, or about a little of everything. Some are about one scenario.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetstream_protocol.types import NO_NODE
from jetstream_server.metadata.state.commands import AlterStream
from tests.simulation.scenarios import Scenario

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process

Fault = Callable[[], None]


class Faults:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.healing = False
        self._kinds: list[Fault] = []
        self._weights: list[float] = []
        self._pause_us = 0
        self.joiner_appetite = 0.0
        self.joiner_powerless = 0.5
        self.member_appetite = 0.3
        self.election_appetite = 0.0
        self._late_change: list[int] | None = None
        self._abandoned: dict[Machine, None] = {}
        self.scenario: Scenario = cluster.scenario()(cluster)

    def begin(self) -> None:
        """Draw the seed's appetite, and start."""
        world, network = self._world, self._cluster.network
        kinds: list[tuple[Fault, float]] = [
            (self._crash, 3.0),
            (self._lose_power, 3.0),
            (self._lose_power_everywhere, 0.7),
            (self.topple, 2.0),
            (self._stop, 1.5),
            (self._pause, 3.0),
            (self._isolate, 3.0),
            (self._cut_one_way, 2.0),
            (self._cut_from_followers, 1.5),
            (self._cut_from_controller, 1.0),
            (self._see_saw, 2.0),
            (self._heal_network, 4.0),
            (self._leave_nats, 0.5),
            (self._depose_controller, 1.5),
            (self._hand_over, 1.5),
            (self._change_minimum, 1.5),
            (self._change_flush, 1.5),
            (self._blow_fuse, 1.5),
            (self._fail_fsync, 0.7),
            (self._fill_disk, 0.7),
            (self.rot, 0.7),
            (self._erase, 0.3),
            (self._retain, 1.0),
        ]
        damage = self._cluster.damage
        damages: tuple[Fault, ...] = (self.rot, self._erase, self._fail_fsync)
        if damage > 1.0:
            kinds += [
                (self._fail_write, 0.7),
                (self._fail_reads, 0.7),
            ]
            if not self._cluster.clocks_agree:
                kinds.append((self._jump_clock, 0.7))
            damages += (self._fail_write, self._fail_reads)
        for fault, weight in kinds:
            appetite = world.random.choice((0.0, 0.3, 1.0, 1.0, 3.0))
            if damage > 1.0 and fault in damages:
                appetite = max(appetite, 0.3) * damage
            self._kinds.append(fault)
            self._weights.append(weight * appetite + 1e-9)
        network.drop = world.random.choice((0.0, 0.0, 0.01, 0.05, 0.2))
        network.slow = world.random.choice((0.0, 0.02, 0.02, 0.15, 0.4))
        self.joiner_appetite = world.random.choice((0.0, 0.0, 0.05, 0.3))
        self.election_appetite = world.random.choice((0.0, 0.2, 0.5))
        self._cluster.metadata.loss = world.random.choice((0.0, 0.02, 0.1, 0.3))
        self._cluster.metadata.delay_us = world.random.choice((1_000, 5_000, 200_000))
        self._pause_us = world.random.choice((150_000, 400_000, 1_000_000))
        if self.scenario.is_about_something:
            self._leave_room()
        if self.scenario.is_calm:
            network.drop = network.slow = 0.0
            self._cluster.metadata.loss = 0.0
            self._cluster.metadata.delay_us = 1_000
            self.joiner_appetite = self.election_appetite = 0.0
        self.scenario.prepare()
        self._strike()

    def _leave_room(self) -> None:
        """A scenario needs a cluster that works in between."""
        network, metadata = self._cluster.network, self._cluster.metadata
        self._pause_us = min(self._pause_us, 400_000)
        network.drop = min(network.drop, 0.01)
        network.slow = min(network.slow, 0.05)
        metadata.loss = min(metadata.loss, 0.05)
        metadata.delay_us = min(metadata.delay_us, 20_000)

    def _strike(self) -> None:
        if self.healing:
            return
        world = self._world
        if world.now >= self.scenario.quiet_until:
            share = 1.0 if self.scenario.is_calm else self._cluster.scenario_share
            if self.scenario.is_about_something and world.chance(share):
                self.scenario.strike()
            else:
                world.random.choices(self._kinds, self._weights)[0]()
        world.later(world.between(0, 2 * self._pause_us), None, self._strike)

    # Whom.

    def _machine(self) -> Machine:
        """Mostly the leader's: that is where it hurts."""
        cluster, world = self._cluster, self._world
        stream = cluster.metadata.now.stream
        if stream is not None and stream.leader != NO_NODE and world.chance(0.4):
            return cluster.machines[stream.leader]
        return cluster.machines[world.between(0, len(cluster.machines) - 1)]

    def _note(self, machine: Machine, text: str) -> None:
        self._world.count(text)
        if self._world.trace is not None:
            self._world.note(f"fault: node {machine.node_id}: {text}")

    # Processes.

    def log_failed(self, process: Process) -> None:
        """At times somebody restarts it; mostly it has to help itself."""
        world = self._world
        self.scenario.log_failed(process)
        if world.chance(0.3):
            world.later(world.between(100_000, 4_000_000), process.loop, self._restart, process)

    def _restart(self, process: Process) -> None:
        if not self.healing:
            process.die("restarted")

    def process_ended(self, machine: Machine) -> None:
        """Somebody starts it again, sooner or later, or nobody does."""
        world, abandons = self._world, self._cluster.abandons
        if abandons and not self.healing and self._is_abandoned(machine, abandons):
            return
        delay = 100_000 if self.healing else self.scenario.restart_us()
        if delay is None:
            delay = world.between(20_000, world.random.choice((200_000, 1_000_000, 4_000_000)))
        world.later(delay, None, machine.start)

    def _is_abandoned(self, machine: Machine, chance: float) -> bool:
        """Nobody starts it again; a majority of all is kept running."""
        self._abandoned[machine] = None
        is_minority = 2 * len(self._abandoned) < len(self._cluster.machines)
        if not is_minority or not self._world.chance(chance):
            del self._abandoned[machine]
            return False
        self._note(machine, "not started again")
        return True

    def _crash(self) -> None:
        machine = self._machine()
        self._note(machine, "killed")
        machine.crash("killed")

    def _lose_power(self) -> None:
        machine = self._machine()
        self._note(machine, "power failure")
        machine.lose_power()

    def _lose_power_everywhere(self) -> None:
        self._world.count("power failure everywhere")
        for machine in self._cluster.machines:
            machine.lose_power()

    def topple(self) -> None:
        """The followers, one after the other, then the leader: the ISR falls, the ELR fills."""
        cluster, world = self._cluster, self._world
        stream = cluster.metadata.now.stream
        if stream is None or stream.leader == NO_NODE or self.healing:
            return
        self._world.count("toppled")
        order = [node_id for node_id in stream.isr if node_id != stream.leader]
        world.random.shuffle(order)
        order.append(stream.leader)
        delay = 0
        for node_id in order:
            machine = cluster.machines[node_id]
            world.later(delay, None, self.fell, machine, world.chance(0.5))
            delay += world.between(100_000, 2_500_000)

    def fell(self, machine: Machine, loses_power: bool) -> None:
        if self.healing:
            return
        if loses_power:
            machine.lose_power()
        else:
            machine.crash("killed")

    def _stop(self) -> None:
        process = self._machine().process
        if process is not None and process.paused_until <= self._world.now:
            process.stop()

    def _pause(self) -> None:
        machine, world = self._machine(), self._world
        if machine.process is not None:
            longest = world.random.choice((300_000, 1_500_000, 3_000_000))
            until = world.now + world.between(10_000, longest)
            machine.process.pause(until, in_its_work=world.chance(0.5))
            self._note(machine, "paused")

    def suspend(self) -> None:
        """A machine, mostly the leader's."""
        if self.healing or self.scenario.is_calm:
            return
        machine, world = self._machine(), self._world
        until = world.now + world.between(10_000, 4_000_000)
        is_guest = world.chance(0.4)
        self._note(machine, "stopped by its hypervisor" if is_guest else "suspended")
        if is_guest:
            self._cluster.doubt_leases(until)
        machine.suspend(until, by_hypervisor=is_guest)

    # The network.

    def _isolate(self) -> None:
        machine, network = self._machine(), self._cluster.network
        self._note(machine, "isolated")
        for other in self._cluster.machines:
            if other is not machine:
                network.cut(machine.node_id, other.node_id)
                network.cut(other.node_id, machine.node_id)

    def _cut_one_way(self) -> None:
        machine, other = self._machine(), self._machine()
        if machine is not other:
            self._note(machine, "cannot reach another")
            self._cluster.network.cut(machine.node_id, other.node_id)

    def _cut_from_followers(self) -> None:
        """The leader keeps its session, and its followers hear nothing of it."""
        stream = self._cluster.metadata.now.stream
        if stream is None or stream.leader == NO_NODE:
            return
        self._world.count("leader mute")
        controller = self._cluster.metadata.leader
        for node_id in stream.replicas:
            if node_id != stream.leader and (controller is None or node_id != controller.node_id):
                self._cluster.network.cut(stream.leader, node_id)

    def _cut_from_controller(self) -> None:
        """The leader's heartbeats are lost; it hears everybody."""
        cluster, world = self._cluster, self._world
        stream, controller = cluster.metadata.now.stream, cluster.metadata.leader
        if stream is None or stream.leader == NO_NODE or controller is None:
            return
        if controller.node_id != stream.leader:
            world.count("heartbeats lost")
            cluster.network.cut(stream.leader, controller.node_id)
            world.later(world.between(1_500_000, 3_500_000), None, cluster.network.heal)

    def _see_saw(self) -> None:
        """One follower falls behind, then nobody hears the leader, so that it is deposed by reports
        and stays in the ISR; then its successor goes, and it may lead again, having heard nothing
        of the epoch between."""
        cluster, world = self._cluster, self._world
        stream = cluster.metadata.now.stream
        if stream is None or stream.leader == NO_NODE or len(stream.isr) < 3:
            return
        world.count("see-saw")
        leader = stream.leader
        followers = [member for member in stream.isr if member != leader]
        world.random.shuffle(followers)
        delay = 0
        for follower in followers:
            world.later(delay, None, self._cut, leader, follower)
            delay += world.between(20_000, 600_000)
        delay += world.between(1_400_000, 2_200_000)
        world.later(delay, None, self._end_see_saw)

    def _cut(self, source: int, target: int) -> None:
        if not self.healing:
            self._cluster.network.cut(source, target)

    def _end_see_saw(self) -> None:
        stream = self._cluster.metadata.now.stream
        if self.healing or stream is None or stream.leader == NO_NODE:
            return
        self.fell(self._cluster.machines[stream.leader], self._world.chance(0.5))
        self._cluster.network.heal()

    def _heal_network(self) -> None:
        self._cluster.network.heal()

    def _leave_nats(self) -> None:
        machine = self._machine()
        machine.hears_nats = not machine.hears_nats

    # The metadata.

    def _depose_controller(self) -> None:
        self._world.count("metadata leader deposed")
        self._cluster.metadata.depose_leader()

    def _hand_over(self) -> None:
        stream = self._cluster.metadata.now.stream
        if stream is not None and stream.leader != NO_NODE:
            process = self._cluster.machines[stream.leader].process
            if process is not None:
                process.hand_over()

    def _change_minimum(self) -> None:
        stream = self._cluster.metadata.now.stream
        assert stream is not None
        minimum = self._world.between(1, len(stream.replicas))
        self.alter({"min_insync_replicas": minimum}, stream.stream_epoch)

    def _change_flush(self) -> None:
        stream = self._cluster.metadata.now.stream
        assert stream is not None
        flush = self._world.random.choice(("none", "interval", "group", "group"))
        self.alter({"flush": flush}, stream.stream_epoch)
        if self._world.chance(0.5):
            machine = self._machine()
            self._world.later(self._world.between(1_000, 900_000), None, self.fell, machine, True)

    def alter_anything(self) -> None:
        """A setting that means nothing here; but the stream epoch moves on."""
        stream = self._cluster.metadata.now.stream
        if stream is not None and not self.healing:
            setting = {self._cluster.idle_setting: 1_000_000_000 + self._world.now}
            self.alter(setting, stream.stream_epoch)

    def alter(self, config: dict[str, object], stream_epoch: int) -> None:
        self._world.count("stream altered")
        self._cluster.metadata.apply(
            AlterStream(stream_id=self._cluster.stream_id, stream_epoch=stream_epoch, config=config)
        )

    # What is proposed, at the moment it is.

    def proposed(self, command: dict[str, Any]) -> None:
        """A leader of the metadata group is about to put it into the log."""
        cluster = self._cluster
        match command["op"]:
            case "register_node":
                if not command["trusted"] or command["distrusted"]:
                    self._world.count("restart distrusted")
                process = cluster.machines[command["node_id"]].process
                if process is not None and process.session == command["session"]:
                    self.scenario.registers(process)
            case "change_isr":
                self._isr_proposed(command)
            case "elect_leader":
                self._election_proposed(command["leader"])
            case "commit_lake":
                self.scenario.commits_to_lake()
            case "report_leader" | "confirm_flush" | "distrust_replica" | "fence_node" as op:
                self._world.count(f"proposed {op}")

    def _isr_proposed(self, command: dict[str, Any]) -> None:
        """The proposal is applied late, and whoever was to join is not then what it was: it has
        lost power, or was away for long enough to be fenced. Or a member was."""
        stream = self._cluster.metadata.now.stream
        assert stream is not None
        if command["stream_id"] != self._cluster.stream_id:
            return
        isr, leader = command["isr"], command["leader"]
        joining = [member for member in isr if member not in stream.isr]
        if self.healing or not joining or command["id"] == self._late_change:
            return
        if self.scenario.joins(leader, joining[0]):
            return
        if not self._world.chance(self.joiner_appetite):
            return
        self._late_change = command["id"]
        machine = self._cluster.machines[joining[0]]
        if machine.process is not None and self._world.chance(0.15):
            self._fail_joiner(machine)
            return
        if self._world.chance(self.joiner_powerless):
            self._lose_joiner(machine, leader)
            return
        members = [m for m in stream.isr if m != leader]
        if members and self._world.chance(self.member_appetite):
            machine = self._cluster.machines[members[0]]
        if machine.process is not None:
            self._be_away(machine, leader, joining[0])

    def _lose_joiner(self, machine: Machine, leader: int) -> None:
        world, cluster = self._world, self._cluster
        self._note(machine, "loses power while it joins")
        applied_us = world.between(100_000, 1_500_000)
        cluster.metadata.delay_next(applied_us)
        cluster.network.mute(leader, machine.node_id, "records")
        world.later(world.between(0, 20_000), None, self.fell, machine, True)
        world.later(applied_us, None, cluster.network.unmute, leader, machine.node_id, "records")
        self.scenario.keep_quiet(applied_us + 100_000)

    def _fail_joiner(self, machine: Machine) -> None:
        """Its fsync fails before it is in."""
        self._note(machine, "fsync fails while it joins")
        applied_us = self._world.between(20_000, 500_000)
        self._cluster.metadata.delay_next(applied_us)
        machine.disk.fsync_fails = True
        assert machine.process is not None
        machine.process.flush_now()
        self.scenario.keep_quiet(applied_us + 200_000)

    def _be_away(self, machine: Machine, leader: int, joiner: int) -> None:
        world, cluster = self._world, self._cluster
        self._note(machine, "away while one joins")
        away_us = world.between(1_900_000, 2_600_000)
        applied_us = away_us + world.between(300_000, 1_500_000)
        if machine.node_id == joiner and world.chance(0.5):
            # It is given up, and proposed again when that node has been fenced.
            applied_us = world.between(5_100_000, 6_500_000)
        cluster.metadata.delay_next(applied_us)
        process = machine.process
        assert process is not None
        process.pause(world.now + away_us)
        cluster.network.mute(machine.node_id, leader, "positions")
        self.scenario.keep_quiet(applied_us + 200_000)

    def _election_proposed(self, leader: int) -> None:
        """Before an unclean election is applied, its winner loses what it had told of."""
        world = self._world
        if not self.healing and world.chance(self.election_appetite):
            machine = self._cluster.machines[leader]
            self._note(machine, "disk replaced before it leads")
            applied_us = world.between(200_000, 1_200_000)
            self._cluster.metadata.delay_next(applied_us)
            machine.erase()
            world.later(20_000, None, machine.start)

    # Disks.

    def _blow_fuse(self) -> None:
        machine = self._machine()
        if machine.process is not None:
            self._note(machine, "dies in an operation")
            machine.disk.fuse = self._world.between(0, 12)

    def _fail_fsync(self) -> None:
        machine = self._machine()
        if machine.process is not None:
            self._note(machine, "fsync fails")
            machine.disk.fsync_fails = True

    def _fail_write(self) -> None:
        machine = self._machine()
        if machine.process is not None:
            self._note(machine, "write fails")
            machine.disk.write_fails = True

    def _fail_reads(self) -> None:
        """Also those of its next start."""
        machine = self._machine()
        self._note(machine, "reads fail")
        machine.disk.reads_fail = self._world.between(1, 3)

    def _jump_clock(self) -> None:
        machine = self._machine()
        self._note(machine, "clock jumps")
        self.set_clock(machine)

    def set_clock(self, machine: Machine) -> None:
        """To any time within hours, forward or back; from there it runs faster or slower."""
        world, clock = self._world, machine.wall_clock
        hours, before_us = world.random.choice((0, 0, 1, 5)), clock.offset_us
        clock.offset_us = world.between(0, hours * 3_600_000_000)
        clock.drift = world.random.choice((0.0, -1e-3, 1e-2))
        if clock.offset_us > before_us and machine.process is not None:
            self._tell_checkers(machine.process)

    def _tell_checkers(self, process: Process) -> None:
        """That the clock of the process was set forward."""
        for stream in self._cluster.streams:
            replica = process.replica_of(stream.checker.stream_id)
            if replica is not None and replica.leadership is not None:
                stream.checker.clock_set_forward(process.node_id)

    def _fill_disk(self) -> None:
        machine, world = self._machine(), self._world
        self._note(machine, "disk full")
        machine.disk.room = world.between(0, 1_000)
        world.later(world.between(100_000, 3_000_000), None, self._make_room, machine)

    @staticmethod
    def _make_room(machine: Machine) -> None:
        machine.disk.room = None

    def rot(self) -> None:
        """Found at the next start, which scans. What rots in a segment that was flushed long ago is
        for the scrub to find."""
        machine = self._machine()
        if self._cluster.profile.replicas > 1 and machine.process is not None:
            machine.crash("killed, then rots")
            what = machine.rot()
            if what:
                self._note(machine, f"rots: {what}")

    def _erase(self) -> None:
        if self._cluster.profile.replicas > 1:
            machine = self._machine()
            self._note(machine, "disk replaced")
            machine.erase()

    def _retain(self) -> None:
        """Less is kept from now on: segments that are committed as a whole go."""
        stream = self._cluster.metadata.now.stream
        if stream is None or stream.leader == NO_NODE:
            return
        self._world.count("retention")
        self.alter(self._cluster.fewer(), stream.stream_epoch)

    # The end.

    def heal_everything(self) -> None:
        """From here on nothing goes wrong, and everyone is started."""
        self.healing = True
        cluster, world = self._cluster, self._world
        network = cluster.network
        network.heal()
        network.drop = network.slow = 0.0
        cluster.metadata.loss = 0.0
        cluster.metadata.lazy_node = -1
        cluster.metadata.slow.clear()
        cluster.metadata.delay_us = 2_000
        cluster.nats.slow.clear()
        world.note("everything is healed")
        for machine in cluster.machines:
            cluster.metadata.undeafen(machine.node_id)
            machine.hears_nats = True
            machine.disk.room = None
            machine.disk.repair()
            if machine.process is None:
                world.later(world.between(0, 100_000), None, machine.start)
            else:
                machine.process.loop.hold_up = None
