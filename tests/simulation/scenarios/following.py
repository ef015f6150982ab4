"""Leaders that are replaced while what was sent before is still on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jetstream_protocol.types import NO_NODE
from jetstream_server.log.commit_log import LogSlice
from tests.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.process import Process


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


class UnawareLeaders(Scenario):
    """A follower that lacks the leader's last records takes its place, and is itself replaced at
    once by another one that has them. It hears nothing of that, and keeps its lease. Once it is out
    of the ISR these records are committed, and those who have read some of them ask it for more."""

    is_read = True
    _next: tuple[int, int, int] | None = None
    """The first leader, the one that is to be replaced, and its successor."""

    def strike(self) -> None:
        chosen = self.leader_and_followers(2)
        stream = self.led_stream()
        if chosen is None or stream is None or self._next is not None:
            return
        if stream.config.min_insync_replicas > 2:
            return  # Without it nothing could be committed.
        leader, unaware, _ = self._next = chosen[0], chosen[1], chosen[2]
        world, network = self.world, self.cluster.network
        world.count("leader replaced that hears nothing of it")
        network.mute(leader, unaware, "records")
        self.keep_quiet(5_000_000)
        world.later(world.between(30_000, 250_000), None, self._begin)
        world.later(5_000_000, None, self._end)

    def _begin(self) -> None:
        if self._next is None:
            return
        leader, unaware, successor = self._next
        for each in (leader, successor):
            self.cluster.network.mute(unaware, each, "records")
        self.transfer(unaware)

    def begins_to_lead(self, process: Process) -> None:
        if self._next is None or process.node_id != self._next[1]:
            return
        self.deafen(process.node_id, 4_000_000)
        self.world.later(self.world.between(10_000, 60_000), None, self.transfer, self._next[2])

    def _end(self) -> None:
        assert self._next is not None
        leader, unaware, successor = self._next
        self._next = None
        self.cluster.metadata.undeafen(unaware)
        self.cluster.network.unmute(leader, unaware, "records")
        for each in (leader, successor):
            self.cluster.network.unmute(unaware, each, "records")


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
