"""The metadata group's Raft, modelled: what decides which commands enter the log, and when.

There is one true log of what is committed. Each node's member (member.py) applies a prefix of it,
with a delay of its own. A command may be lost on its way into the log, enter it long after, or
twice; whoever proposed it hears of it only by applying it.

The group has a leader, elected by a majority of members that are there and can talk: whoever voted
knows the new term, the others, an old leader among them, hear of it later, and go on believing
meanwhile. What a leader puts into the log itself enters it in its own term, or never.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.metadata.member.proposals import BATCH_HEADER
from jetstream_server.metadata.raft.core import SURELY_NOT_APPLIED
from jetstream_server.metadata.state.cluster import ControllerClaim
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.member import ModelCore
    from tests.simulation.process import Process

CHECK_US = 100_000
ELECTION_US = (300_000, 1_000_000)


class View(NamedTuple):
    """The metadata as of one revision."""

    revision: int
    stream: StreamMetadata | None
    nodes: Mapping[NodeId, NodeMetadata]
    controller: ControllerClaim


class Entry(NamedTuple):
    """Of the log; `data` is None for the one that begins a term."""

    data: bytes | None
    index: int
    term: int


class MetadataGroup:
    """See the module."""

    def __init__(self, cluster: Cluster, on_applied: Callable[[View, View], None]) -> None:
        self._cluster = cluster
        self._world: World = cluster.world
        self._members = cluster.members
        self._network = cluster.network
        self._on_applied = on_applied
        self.registry = Registry()
        self.stream_id: StreamId | None = None
        """Of the stream that `now` shows."""
        self.now = View(0, None, {}, self.registry.controller)
        self.log: list[Entry] = []
        self.term = 0
        self._leader: ModelCore | None = None
        self._leaderless_since = 0
        self._election_us = 0
        self._lazy_until = 0
        self._deaf_until: dict[int, int] = {}
        self._next_is_late: int | None = None
        self._late: dict[bytes, int] = {}
        """Commands that enter the log at that time at the earliest, however often repeated."""
        self._decided = 0
        """How many commands leaders have decided themselves, and which of them entered last."""
        self._entered = 0
        self.loss = 0.0
        self.delay_us = 2_000
        self.lazy_node = -1
        self.applying = ""
        """The last command that took its turn."""
        self.slow: dict[str, int] = {}
        """By operation: how much longer its commands take to be applied."""

    @property
    def leader(self) -> Process | None:
        """The true one's process."""
        return None if self._leader is None else self._leader.process

    # The log.

    def apply(self, command: Command) -> dict[str, Any]:
        """Somebody outside of the cluster has it committed at once. Returns its result."""
        self._append(BATCH_HEADER + b"\n" + encode_command(command).encode())
        return self._last_result

    def _append(self, data: bytes | None) -> None:
        self.log.append(Entry(data, len(self.log) + 1, self.term))
        if data is not None:
            for text in data.split(b"\n")[1:]:
                self._apply(text.decode())
        for process in self._members.values():
            if process is not None:
                self.tell(process)

    def _apply(self, text: str) -> None:
        registry = self.registry
        before = self.now
        self._world.is_changed = True
        self.applying = text
        self._last_result = registry.apply(text, registry.revision + 1)
        changed = bool(registry.take_changes())
        stream = None if self.stream_id is None else registry.streams.get(self.stream_id)
        nodes = dict(registry.nodes) if changed else before.nodes
        self.now = View(registry.revision, stream, nodes, registry.controller)
        self._on_applied(before, self.now)

    def show(self, stream_id: StreamId) -> None:
        """That stream is the one that `now` shows."""
        self.stream_id = stream_id
        self.now = self.now._replace(stream=self.registry.streams[stream_id])

    # Who hears of it.

    def deafen(self, node_id: int, until: int) -> None:
        """That node's member hears nothing of the log before then."""
        self._deaf_until[node_id] = max(until, self._deaf_until.get(node_id, 0))

    def undeafen(self, node_id: int) -> None:
        self._deaf_until.pop(node_id, None)
        process = self._members.get(node_id)
        if process is not None:
            self.tell(process)

    def tell(self, process: Process) -> None:
        """Let a member hear from the leader, if it can."""
        core, leader, world = process.core, self._leader, self._world
        if core is None or leader is None or not self._hears(process):
            return
        if world.now < self._deaf_until.get(process.node_id, 0):
            return
        delay = world.between(200, self.delay_us)
        if process.node_id == self.lazy_node and process is not leader.process:
            if world.now < self._lazy_until:
                return
            if world.chance(0.3):
                self._lazy_until = world.now + world.between(100_000, 2_500_000)
                return
        elif world.chance(0.05):
            delay += world.between(0, 800_000)
        loop = process.member_loop
        term, node_id = self.term, leader.node_id
        world.later(delay, loop, loop.enter, core.hear, term, node_id, len(self.log))

    def _hears(self, process: Process) -> bool:
        leader = self._leader
        return (
            leader is not None
            and leader.process.alive
            and self._network.connects(process.node_id, leader.node_id)
        )

    # Proposing.

    def delay_next(self, applied_us: int) -> None:
        """The next proposal enters the log only after so long, however often it is repeated."""
        self._next_is_late = applied_us

    def submit(self, core: ModelCore, data: bytes, on_failure: Callable[[int], None]) -> None:
        """A member proposes: into its own log, if it leads as far as it knows, or by its leader."""
        process = core.process
        if core.role() == "leader":
            self._enter(core, core.term, data)
            return
        leader = core.leader_id()
        if leader == NO_NODE:
            loop = process.member_loop
            loop.call_soon(on_failure, SURELY_NOT_APPLIED[1])
            return
        self._network.tell(process.node_id, leader, "raft", self._forwarded, leader, data)

    def _forwarded(self, node_id: int, data: bytes) -> None:
        process = self._members.get(node_id)
        if process is None or process.core is None or process.core.role() != "leader":
            return
        if process.member_loop.paused_until > self._world.now:
            return  # Nobody reads it in time.
        self._enter(process.core, process.core.term, data)

    def _enter(self, core: ModelCore, term: int, data: bytes) -> None:
        """Into a leader's log; from there into the group's, perhaps."""
        world = self._world
        commands = [json.loads(text) for text in data.split(b"\n")[1:]]
        if data not in self._late:
            for command in commands:
                self._cluster.faults.proposed(command)
        late, self._next_is_late = self._next_is_late, None
        if late is not None:
            self._late[data] = world.now + late
            world.later(late, None, self._commit_late, data)
            return
        if self._late.get(data, 0) > world.now:
            return
        delay = world.between(100, self.delay_us)
        delay += max((self.slow.get(command["op"], 0) for command in commands), default=0)
        is_own = any("controller_epoch" in c or c["op"] == "claim_controller" for c in commands)
        if is_own:
            self._decided += 1
        order = self._decided if is_own else 0
        fate = world.random.random() / self.loss if self.loss else 1.0
        if fate >= 1.0:
            world.later(delay, None, self._commit, core, term, data, order)
        elif fate < 0.6:
            # Its way was long: where it was forwarded, another leader may have it by then.
            delay += world.between(0, 4_000_000)
            if is_own:
                world.later(delay, None, self._commit, core, term, data, order)
            else:
                world.later(delay, None, self._commit_late, data)

    def _commit(self, core: ModelCore, term: int, data: bytes, order: int) -> None:
        """Its leader still is the one, and has a majority. What a leader decided itself enters its
        log in the order in which it was decided: what was overtaken never does."""
        if term == self.term and core is self._leader and self._is_fit(core.process):
            if 0 < order < self._entered:
                self._world.count("decided earlier, never entered")
                return
            self._entered = max(order, self._entered)
            self._append(data)

    def _commit_late(self, data: bytes) -> None:
        if self._leader is None or not self._is_fit(self._leader.process):
            self._world.later(CHECK_US, None, self._commit_late, data)
            return
        self._append(data)

    # Leading the group.

    def check_leader(self) -> None:
        """Every CHECK_US: is the group's leader there, and if not, is it time for another?"""
        world, leader = self._world, self._leader
        if leader is not None and self._is_fit(leader.process):
            self._leaderless_since = world.now
            for process in self._members.values():
                if process is not None and process.core is not None:
                    core = process.core
                    if core.commit_index < len(self.log) or core.leader_id() != leader.node_id:
                        self.tell(process)
        else:
            if leader is not None and self._election_us == 0:
                self._election_us = world.between(*ELECTION_US)
            if leader is None or world.now - self._leaderless_since > self._election_us:
                self._elect()
        world.later(CHECK_US, None, self.check_leader)

    def depose_leader(self, unless: int = NO_NODE) -> None:
        """Another is elected though nothing is wrong; the old one need not notice."""
        self._elect(unless)

    def _elect(self, unless: int = NO_NODE) -> None:
        """**Raft** The winner has all that is committed, and the votes of a majority."""
        world = self._world
        fit = [p for p in self._members.values() if p is not None and self._is_fit(p)]
        candidates = [p for p in fit if p.node_id != unless and p is not self.leader] or fit
        self._election_us = 0
        if not candidates:
            return
        winner = candidates[world.between(0, len(candidates) - 1)]
        voters = [p for p in self._reached(winner) if p is not winner]
        # An old leader that others can do without does not notice; nor do those who hear nothing.
        voters.sort(key=lambda p: (p is self.leader, self._deaf_until.get(p.node_id, 0)))
        needed = len(self._members) // 2
        self.term += 1
        for process in voters[:needed]:
            assert process.core is not None
            process.core.vote(self.term)
        assert winner.core is not None
        self._leader = winner.core
        self._leaderless_since = world.now
        winner.core.vote(self.term)
        loop = winner.member_loop
        world.later(1_000, loop, loop.enter, winner.core.lead, self.term, len(self.log))
        world.later(world.between(1_200, 4_000), None, self._begin_term, self.term)

    def _begin_term(self, term: int) -> None:
        if term == self.term and self._leader is not None:
            self._append(None)

    def _reached(self, process: Process) -> list[Process]:
        """The members that are there, and can talk with it; itself among them."""
        now = self._world.now
        return [
            p
            for p in self._members.values()
            if p is not None
            and p.core is not None
            and p.member_loop.paused_until <= now
            and self._network.connects(process.node_id, p.node_id)
        ]

    def reaches(self, process: Process) -> bool:
        """Whether its member talks with a majority."""
        return len(self._reached(process)) * 2 > len(self._members)

    def _is_fit(self, process: Process) -> bool:
        return (
            process.alive
            and process.core is not None
            and process.member_loop.paused_until <= self._world.now
            and self.reaches(process)
        )
