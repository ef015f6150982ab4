"""Seeds about one thing each: sequences of events that chance alone strings together too seldom.

Every seed in STRIDE is about one scenario: it strikes again and again, between milder faults of all
kinds. The other half are about nothing in particular. A scenario uses only what may happen anyway
(docs/simulation.md): it makes it happen in the order that a missing rule would not survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.metadata.state.commands import TransferLeader
from jetstream_server.metadata.state.model import StreamMetadata

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process

STRIDE = 20


class Scenario:
    """Nothing in particular: every hook does nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.quiet_until = 0

    plans_hand_overs = False
    """Whether leaders hand over by plan; otherwise the metadata is just changed."""
    is_calm = False
    """Nothing goes wrong, and nobody may be left in doubt."""

    duration_us: int | None = None
    """For how long things go wrong; None: as drawn."""

    @property
    def is_about_something(self) -> bool:
        return type(self) is not Scenario

    def prepare(self) -> None:
        """The faults begin; their appetites are drawn."""

    def strike(self) -> None:
        """Do it once more, if it can be done now."""

    def begins_to_lead(self, process: Process) -> None:
        """A process has applied its election."""

    def send_delay_us(self, process: Process, follower: int, slices: Sequence[LogSlice]) -> int:
        """How much later than they were chosen an answer's bytes are read."""
        return 0

    def flush_delay_us(self, process: Process) -> int:
        """How much longer a flush takes."""
        return 0

    def flush_told_late_us(self, process: Process) -> int:
        """How much later than it ended whoever asked for a flush hears of it."""
        return 0

    def registers(self, process: Process) -> None:
        """A process is about to propose its registration."""

    def asks_to_stand_by(self, process: Process, target: int) -> None:
        """A process asks another to stand by for the leadership."""

    def log_failed(self, process: Process) -> None:
        """A process has told itself that its log failed."""

    def joins(self, leader: int, joiner: int) -> bool:
        """That leader proposes that one joins the ISR. Returns whether nothing else is to befall
        that proposal."""
        return False

    def restart_us(self) -> int | None:
        """After how long an ended process is started again; None: any time."""
        return None

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        """In truth."""

    # What several of them need.

    def keep_quiet(self, duration_us: int) -> None:
        """Mostly, nothing else strikes for so long."""
        if self.is_about_something and self.world.chance(0.8):
            self.quiet_until = self.world.now + duration_us

    def led_stream(self) -> StreamMetadata | None:
        """The stream as it truly is, while a live process leads it."""
        stream = self.cluster.metadata.now.stream
        if stream is None or stream.leader == NO_NODE:
            return None
        return stream if self.cluster.machines[stream.leader].process is not None else None

    def leader_and_followers(self, count: int) -> list[int] | None:
        """The leader and `count` others that are in sync, in any order; None: there are fewer."""
        stream = self.led_stream()
        if stream is None:
            return None
        followers = [member for member in stream.isr if member != stream.leader]
        self.world.random.shuffle(followers)
        if len(followers) < count:
            return None
        return [stream.leader, *followers[:count]]

    def transfer(self, leader: int) -> None:
        """Somebody hands the leadership over to that node."""
        if not self.cluster.faults.healing:
            self.cluster.metadata.apply(
                TransferLeader(stream_id=self.cluster.stream_id, leader=NodeId(leader))
            )

    def needs_everyone(self, stream: StreamMetadata, flush: str) -> None:
        """Whoever leaves the ISR stays eligible from now on."""
        settings = {"flush": flush, "min_insync_replicas": len(stream.replicas)}
        self.cluster.faults.alter(settings, stream.stream_epoch)

    def deafen(self, node_id: int, duration_us: int) -> None:
        if not self.cluster.faults.healing:
            self.cluster.metadata.deafen(node_id, self.world.now + duration_us)


class Swaps(Scenario):
    """A leader that some follower did not hear is replaced by that follower for a moment, hears
    nothing of it, and leads again: then old fetches arrive, from before others were truncated.
    Or it is replaced once more, with two epochs in its log that its successor knows nothing of."""

    _returning: int = NO_NODE
    _muted: int = NO_NODE

    def strike(self) -> None:
        chosen = self.leader_and_followers(2)
        if chosen is None:
            return
        leader, behind, ahead = chosen
        world = self.world
        world.count("leaderships swapped")
        self.cluster.network.mute(leader, behind, "records")
        # What it says of its log from now on arrives when the leader leads again.
        self.cluster.network.mute(ahead, leader, "positions")
        self._muted = ahead
        away_us = world.between(30_000, 250_000)
        back_us = away_us + world.between(20_000, 250_000)
        self.deafen(leader, back_us)
        self.keep_quiet(back_us + 600_000)
        world.later(away_us, None, self.transfer, behind)
        world.later(back_us, None, self._return, leader, behind, ahead)

    def _return(self, leader: int, behind: int, ahead: int) -> None:
        world = self.world
        self.transfer(leader)
        self.cluster.metadata.undeafen(leader)
        if world.chance(0.4):
            self.cluster.network.unmute(ahead, leader, "positions")
            world.later(world.between(30_000, 250_000), None, self._replace, leader, behind)
            return
        self._returning = leader
        self.cluster.network.unmute(leader, behind, "records")
        self.deafen(ahead, world.between(20_000, 400_000))

    def _replace(self, leader: int, behind: int) -> None:
        self.transfer(behind)
        self.cluster.faults.fell(self.cluster.machines[leader], False)
        self.cluster.network.unmute(leader, behind, "records")

    def begins_to_lead(self, process: Process) -> None:
        if process.node_id == self._returning:
            self._returning = NO_NODE
            self.cluster.network.unmute(self._muted, process.node_id, "positions")


class Overwritten(Scenario):
    """While a leader's answer waits to be sent, its successor has it truncate its log and append
    other records in their place; the follower has heard of neither."""

    _armed: tuple[int, int, int] | None = None
    """The leader, the follower that it is not to be heard by, and the one it sends to."""
    _overtaken: tuple[int, int] | None = None
    """The leader, and that follower, which is to lead without having heard it."""

    def strike(self) -> None:
        chosen = self.leader_and_followers(2)
        if chosen is None:
            return
        leader, behind, ahead = chosen
        ends = [self._log_end(node_id) for node_id in chosen]
        if self._armed is not None or self._overtaken is not None or ends != ends[:1] * 3:
            return
        self.cluster.network.mute(leader, behind, "records")
        self._armed = leader, behind, ahead
        self.world.count("armed to be overwritten")
        self.keep_quiet(900_000)
        self.world.later(800_000, None, self._disarm, self._armed)

    def _log_end(self, node_id: int) -> int | None:
        process = self.cluster.machines[node_id].process
        return None if process is None or process.log is None else process.log.log_end_offset

    def _disarm(self, armed: tuple[int, int, int]) -> None:
        if self._armed == armed:
            self._armed = None
            self._let_hear(armed[:2])

    def _let_hear(self, link: tuple[int, int]) -> None:
        self._overtaken = None
        self.cluster.network.unmute(*link, "records")

    def begins_to_lead(self, process: Process) -> None:
        """What it was sent before comes too late."""
        link = self._overtaken
        if link is not None and process.node_id == link[1]:
            self._let_hear(link)

    def send_delay_us(self, process: Process, follower: int, slices: Sequence[LogSlice]) -> int:
        armed = self._armed
        if armed is None or (process.node_id, follower) != (armed[0], armed[2]):
            return 0
        end = self._log_end(armed[1])
        # One record each, so that the new ones are likely to be as long as the old ones.
        if end is None or [(s.base_offset, s.next_offset) for s in slices] != [(end + 1, end + 2)]:
            return 0
        self.world.count("sent when overwritten")
        delay = self.world.between(60_000, 400_000)
        self.deafen(follower, delay + 50_000)
        self._armed, self._overtaken = None, armed[:2]
        self.world.later(500_000, None, self._let_hear, armed[:2])
        self.transfer(armed[1])
        return delay


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
        world.later(delay, None, self.transfer, others[0])
        world.later(again_us, None, self.transfer, others[1])
        self._fill(int(others[0]), again_us + 100_000)
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


class UnknownOutcomes(Scenario):
    """Nobody knows for more than five seconds what became of a change of the ISR. Meanwhile the
    follower that was to join is fenced, and then it is back; what its leader says reaches it, and
    it tells its leader nothing."""

    duration_us = 11_000_000
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
        world, network = self.world, self.cluster.network
        if world.now < self._busy_until:
            return True
        world.count("outcome unknown for long")
        applied_us = world.between(6_250_000, 6_600_000)
        self._busy_until = self.quiet_until = world.now + applied_us + 300_000
        self.cluster.metadata.delay_next(applied_us)
        network.mute(joiner, leader, "positions")
        world.later(2_900_000, None, self._sleep, joiner)
        world.later(applied_us + 200_000, None, network.unmute, joiner, leader, "positions")
        return True

    def _sleep(self, node_id: int) -> None:
        process = self.cluster.machines[node_id].process
        if process is not None and not self.cluster.faults.healing:
            process.pause(self.world.now + 2_800_000)


SCENARIOS: tuple[type[Scenario], ...] = (
    Swaps,
    Overwritten,
    LateJoiners,
    LateFlushes,
    SlowLeaders,
    LapsedSessions,
    LateRegistrations,
    Collapses,
    FailingDisks,
    LostControl,
    PlannedHandOvers,
    UnknownOutcomes,
)


def scenario_of(seed: int) -> type[Scenario]:
    """What a seed is about."""
    number = seed % STRIDE
    return SCENARIOS[number] if number < len(SCENARIOS) else Scenario


def seeds_about(scenario: type[Scenario], count: int) -> range:
    """The first `count` seeds about it."""
    first = SCENARIOS.index(scenario)
    return range(first, first + count * STRIDE, STRIDE)
