"""The metadata group, modelled: the real registry behind a group that loses leaders and answers.

There is one true order of commands. Each process applies a prefix of it, with a delay of its own.
A proposal may be lost, applied without an answer, or applied long after its proposer gave up: all
of that is "unknown" to whoever proposed, who may retry it under the same id.

The group has a leader: a process that can talk with a majority. It takes the controller's role by
a claim, like in the product; an old leader goes on believing in itself until it notices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.metadata.registry import Registry
from jetstream_server.metadata.streams import ControllerClaim, NodeMetadata, StreamMetadata
from tests.simulation.world import Runner, World

CHECK_US = 200_000
GIVE_UP_US = 700_000
"""After so long without an answer a proposer calls the outcome unknown."""

OnResult = Callable[[str, dict[str, Any]], None]
"""Called with "" or an error code ("lost": nobody knows), and the result."""


class View(NamedTuple):
    """The metadata as of one revision."""

    revision: int
    stream: StreamMetadata | None
    nodes: Mapping[NodeId, NodeMetadata]
    controller: ControllerClaim


class Member(Runner, Protocol):
    """A process, as the group sees it."""

    node_id: int

    def learn(self, revision: int) -> None: ...

    def take_control(self) -> None: ...

    def renew_control(self, sure_at_us: int) -> None: ...


class MetadataGroup:
    """`members` maps node ids to their running processes; `reach` tells who can talk."""

    def __init__(
        self,
        world: World,
        members: Mapping[int, Member | None],
        connects: Callable[[int, int], bool],
        on_applied: Callable[[View, View], None],
    ) -> None:
        self._world = world
        self._members = members
        self._connects = connects
        self._on_applied = on_applied
        self.registry = Registry()
        self.stream_id: StreamId | None = None
        self.views = [View(0, None, {}, self.registry.controller)]
        self.leader: Member | None = None
        self.earlier_sure_at_us = 0
        """When a leader before the present one was last sure of its majority."""
        self._sure_at_us = 0
        self._leaderless_since = 0
        self._lazy_until = 0
        self._election_us = 0
        self.loss = 0.0
        self.delay_us = 2_000
        self.lazy_node = -1
        self._controlled = (0, 0)
        """Controller epoch and sequence of the newest decision of a controller."""
        self._term = self._claimed_in = 0
        """The leader's term, and that of the newest claim that was applied."""
        self._next_is_late: tuple[int, int] | None = None
        self._deaf_until: dict[int, int] = {}
        self.slow: dict[str, int] = {}
        """By operation: how much longer its commands take to be applied."""

    @property
    def now(self) -> View:
        """What is true."""
        return self.views[-1]

    def apply(self, command: dict[str, Any]) -> dict[str, Any]:
        """Apply a command as the next revision; everyone who can hear of it soon learns it."""
        registry = self.registry
        result: dict[str, Any] = json.loads(
            registry.apply(json.dumps(command), registry.revision + 1)
        )
        before = self.now
        changed = bool(registry.take_changes())
        stream = None if self.stream_id is None else registry.streams.get(self.stream_id)
        nodes = dict(registry.nodes) if changed else before.nodes
        after = View(registry.revision, stream, nodes, registry.controller)
        self.views.append(after)
        self._on_applied(before, after)
        if changed or after.controller != before.controller:
            for member in self._members.values():
                if member is not None:
                    self.tell(member)
        return result

    def deafen(self, node_id: int, until: int) -> None:
        """That node applies nothing before then; it may go on sending heartbeats."""
        self._deaf_until[node_id] = max(until, self._deaf_until.get(node_id, 0))

    def undeafen(self, node_id: int) -> None:
        self._deaf_until.pop(node_id, None)
        member = self._members.get(node_id)
        if member is not None:
            self.tell(member)

    def delay_next(self, applied_us: int, given_up_us: int = GIVE_UP_US) -> None:
        """The next proposal is applied only after so long, when its proposer has given up."""
        self._next_is_late = applied_us, given_up_us

    def tell(self, member: Member) -> None:
        """Let a process learn what it has not applied, if it can be reached."""
        if self.reaches(member):
            world = self._world
            if world.now < self._deaf_until.get(member.node_id, 0):
                return
            delay = world.between(200, self.delay_us)
            if member.node_id == self.lazy_node:
                if world.now < self._lazy_until:
                    return
                if world.chance(0.3):
                    self._lazy_until = world.now + world.between(100_000, 2_500_000)
                    return
            elif world.chance(0.05):
                delay += world.between(0, 800_000)
            world.later(delay, member, member.learn, self.now.revision)

    def reaches(self, member: Member) -> bool:
        """Whether the member talks with a majority of the nodes."""
        node_id = member.node_id
        peers = sum(1 for peer in self._members if self._connects(node_id, peer))
        return peers * 2 > len(self._members)

    # Proposing.

    def propose(self, member: Member, command: dict[str, Any], on_result: OnResult) -> None:
        world = self._world
        late, self._next_is_late = self._next_is_late, None
        if late is not None:
            applied_us, given_up_us = late
            world.later(given_up_us, member, on_result, "lost", {})
            world.later(applied_us, None, self._commit, member, command, None, self._term)
            return
        if self.leader is None or not self.reaches(member):
            world.later(world.between(1_000, GIVE_UP_US), member, on_result, "lost", {})
            return
        fate = world.random.random() / self.loss if self.loss else 1.0
        if fate >= 1.0:
            delay = world.between(100, self.delay_us) + self.slow.get(command["op"], 0)
            world.later(delay, None, self._commit, member, command, on_result, self._term)
            return
        world.later(GIVE_UP_US, member, on_result, "lost", {})
        if fate < 0.7:
            delay = world.between(100, 5_000) if fate < 0.4 else world.between(0, 4_000_000)
            world.later(delay, None, self._commit, member, command, None, self._term)

    def _commit(
        self, member: Member, command: dict[str, Any], on_result: OnResult | None, term: int
    ) -> None:
        lost = {"error": {"code": "lost"}}
        result = lost if self._is_overtaken(command, term) else self.apply(command)
        if on_result is None:
            return
        world = self._world
        error = result.get("error")
        code = str(error["code"]) if error else ""
        delay = world.between(100, self.delay_us)
        # A result is handed over once the proposer itself has applied the command.
        delay = max(delay, self._deaf_until.get(member.node_id, 0) - world.now)
        world.later(delay, member, self._answer, member, self.now.revision, on_result, code, result)

    def _is_overtaken(self, command: dict[str, Any], term: int) -> bool:
        """What a controller claims and decides enters the log in its order, or never: it leads the
        group, puts it into its own log, and no entry of its term follows one of a later term."""
        if command["op"] == "claim_controller":
            if term < self._claimed_in:
                return True
            self._claimed_in = term
            return False
        if "controller_epoch" not in command:
            return False
        order = command["controller_epoch"], command["id"][1]
        if order < self._controlled:
            return True
        self._controlled = order
        return False

    @staticmethod
    def _answer(
        member: Member, revision: int, on_result: OnResult, code: str, result: dict[str, Any]
    ) -> None:
        member.learn(revision)
        on_result(code, result)

    # Leading the group.

    def check_leader(self) -> None:
        """Every CHECK_US: is the group's leader there, and if not, is it time for another?"""
        world, leader = self._world, self.leader
        if leader is not None and self._is_fit(leader):
            self._leaderless_since = self._sure_at_us = world.now
            leader.renew_control(world.now)
        else:
            if leader is not None and self._election_us == 0:
                self._election_us = world.between(300_000, 1_000_000)
            if leader is None or world.now - self._leaderless_since > self._election_us:
                self._elect()
        world.later(CHECK_US, None, self.check_leader)

    def depose_leader(self, unless: int = NO_NODE) -> None:
        """Another is elected though nothing is wrong; the old one has not noticed."""
        self._elect(unless)

    def _elect(self, unless: int = NO_NODE) -> None:
        fit = [m for m in self._members.values() if m is not None and self._is_fit(m)]
        fit = [member for member in fit if member.node_id != unless]
        others = [member for member in fit if member is not self.leader]
        candidates = others or fit
        self._election_us = 0
        if candidates:
            self.leader = candidates[self._world.between(0, len(candidates) - 1)]
            self._term += 1
            self.earlier_sure_at_us = self._sure_at_us
            self._leaderless_since = self._world.now
            self._world.later(1_000, self.leader, self.leader.take_control)

    def _is_fit(self, member: Member) -> bool:
        return member.alive and member.paused_until <= self._world.now and self.reaches(member)
