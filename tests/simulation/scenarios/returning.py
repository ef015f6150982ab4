"""Replicas that come back to a leader that lacks what they missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_protocol.types import NO_NODE, NodeId
from tests.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.process import Process

LOOK_US = 50_000
MISSED = 20
"""Records that the replica has not seen: tombstones of its keys are likely to be among them."""


class Returns(Scenario):
    """A replica is away until the others have removed tombstones that it never had. By then one of
    them has lost its disk and has copied the log without them, and that one leads."""

    duration_us = 12_000_000
    _away = int(NO_NODE)
    _copies = int(NO_NODE)
    _ends_at = 0
    """By then it is back, whatever the others have done."""

    def strike(self) -> None:
        stream, chosen = self.led_stream(), self.leader_and_followers(2)
        if stream is None or self._away != NO_NODE:
            return
        if stream.config.min_insync_replicas > 2:
            minimum = {"min_insync_replicas": 2}
            self.cluster.faults.alter(minimum, stream.stream_epoch)
            return
        if chosen is None:
            return
        _, copies, away = chosen
        world, network = self.world, self.cluster.network
        world.count("away until tombstones are gone")
        self._away, self._copies = away, copies
        self._ends_at = world.now + self.cluster.grace_us + 5_000_000
        self.quiet_until = self._ends_at
        for machine in self.cluster.machines:
            network.cut(away, machine.node_id)
            network.cut(machine.node_id, away)
        world.later(LOOK_US, None, self._await_compaction)

    def _await_compaction(self) -> None:
        stream = self.led_stream()
        if self._is_over():
            return
        behind = self._process(self._away)
        leader = None if stream is None else self._process(stream.leader)
        if behind is None or leader is None or leader.log is None or behind.log is None:
            self._end()
            return
        gone_below = leader.log.compaction.state.tombstones_gone_below
        copies = self._copies if self._copies != leader.node_id else None
        if gone_below < behind.log.log_end_offset + MISSED or copies is None:
            self.world.later(LOOK_US, None, self._await_compaction)
            return
        self.world.count("copied without tombstones")
        self.cluster.rest_from_compaction(self._ends_at)
        self.cluster.machines[copies].erase()
        self.world.later(LOOK_US, None, self._await_copy)

    def _await_copy(self) -> None:
        if self._is_over():
            return
        stream, process = self.led_stream(), self._process(self._copies)
        node = self.cluster.metadata.now.nodes[NodeId(self._copies)]
        is_anew = process is not None and process.session == node.session
        if is_anew and stream is not None and self._copies in stream.isr:
            self.transfer(self._copies)
        else:
            self.world.later(LOOK_US, None, self._await_copy)

    def begins_to_lead(self, process: Process) -> None:
        if process.node_id == self._copies and self._process(self._copies) is process:
            self._end()

    def _is_over(self) -> bool:
        if self._away != NO_NODE and self.world.now >= self._ends_at:
            self._end()
        return self._away == NO_NODE or self.cluster.faults.healing

    def _end(self) -> None:
        self._away = self._copies = int(NO_NODE)
        self.quiet_until = self.world.now + 500_000
        self.cluster.network.heal()

    def _process(self, node_id: int) -> Process | None:
        return self.cluster.machines[node_id].process

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 100_000)
