"""The session drivers of a few nodes in simulated time, over links and a metadata group that fail.

Drivers, cores, codec and registry are the real ones. The metadata group is a model: a leader needs
the votes of a majority in reach, and commits only while a majority still is in its term; a leader
that was cut off believes in itself for a while, a frozen one does when it wakes.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.commands import ClaimController, FenceNode, RegisterNode
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.replication.sessions.driver import SessionDriver
from jetstream_server.replication.sessions.lease import SessionSettings
from tests.unit.metadata.cluster import ADDRESSES

STEP_US = 20_000
FALLBACK_US = 800_000
"""A metadata leader without a majority steps down then."""
SETTINGS = SessionSettings()


@dataclass
class FakeServer:
    """What the driver reads of its server."""

    incarnation: int | None = None
    seen_revision: int = 0


class FakeCarrier:
    """A member as its extension sees it; everything may be set."""

    def __init__(self, node_id: int, voters: tuple[int, ...]) -> None:
        self.node_id = NodeId(node_id)
        self.voters = tuple(map(NodeId, voters))
        self.term = 0
        self.votes = True
        self.leader = NO_NODE
        self.claim: tuple[int, int] | None = None
        """(term, epoch) of the claim that this node made."""
        self.registry = Registry()
        self.sent: list[tuple[NodeId, bytes]] = []
        self.commands: list[Command] = []
        self.texts: list[str] = []
        """Of the commands, as they would be put into the log."""

    @property
    def controller_epoch(self) -> int | None:
        if self.leader != self.node_id or self.claim is None or self.claim[0] != self.term:
            return None
        return self.claim[1] if self.registry.controller.epoch == self.claim[1] else None

    def send(self, peer: NodeId, frame: bytes) -> bool:
        self.sent.append((peer, frame))
        return True

    def command(self, command: Command) -> None:
        assert self.controller_epoch is not None
        self.commands.append(command)
        self.texts.append(encode_command(command, controller_epoch=self.controller_epoch))

    def apply(self, command: Command) -> dict[str, Any]:
        """Apply a command to this node's registry."""
        return self.apply_text(encode_command(command))

    def apply_text(self, text: str) -> dict[str, Any]:
        return self.registry.apply(text, self.registry.revision + 1)


@dataclass
class Node:
    context: FakeCarrier
    server: FakeServer
    driver: SessionDriver
    runs: int = 0
    frozen_until_us: int = 0
    majority_at_us: int = 0
    inbox: list[tuple[int, NodeId, bytes]] = field(default_factory=list)
    applied: int = 0
    seen_due: list[tuple[int, int]] = field(default_factory=list)
    changes: int = 0
    """How many changes of the voters are in its log."""


class Violation(AssertionError):
    """A node was fenced, or replaced, while it held a lease."""


class Fabric:
    """See the module. count: of nodes; voters: how many of them vote at first."""

    def __init__(self, seed: int, count: int = 3, voters: int | None = None) -> None:
        self.dice = random.Random(seed)
        self.now_us = 1_000_000_000
        self.term = 0
        self.log: list[dict[str, Any]] = []
        self.truth = Registry()
        self.parted: set[frozenset[int]] = set()
        self.fenced_at_us: list[tuple[int, int]] = []
        self.ids = tuple(range(count))
        # The sets of voters that were committed, one after the other.
        self.sets = [self.ids[:voters]]
        self.nodes = {node_id: self._node(node_id) for node_id in self.ids}

    def _node(self, node_id: int) -> Node:
        server = FakeServer()
        driver = SessionDriver(server, SETTINGS, lambda: self.now_us, lambda: None)
        return Node(FakeCarrier(node_id, self.sets[0]), server, driver)

    def restart(self, node_id: int) -> None:
        """The process dies and another begins: it knows nothing but Raft's term and log."""
        old = self.nodes[node_id]
        node = self.nodes[node_id] = self._node(node_id)
        node.runs = old.runs + 1
        node.context.term = old.context.term
        self._learn(node, old.changes)
        node.majority_at_us = self.now_us

    def reaches(self, left: int, right: int) -> bool:
        if left == right:
            return True
        frozen = any(self.nodes[each].frozen_until_us > self.now_us for each in (left, right))
        return not frozen and frozenset((left, right)) not in self.parted

    def elect(self, candidate: int) -> bool:
        """The candidate becomes metadata leader, if a majority can vote for it."""
        changes = self.nodes[candidate].changes
        voters = [
            other
            for other in self.sets[changes]
            if self.reaches(candidate, other) and self.nodes[other].changes <= changes
        ]
        if candidate not in voters or len(voters) * 2 <= len(self.sets[changes]):
            return False
        self.term += 1
        for voter in voters:
            context = self.nodes[voter].context
            context.term, context.leader = self.term, NodeId(candidate)
        self.nodes[candidate].majority_at_us = self.now_us
        return True

    def change_voters(self, leader: int, changed: int) -> bool:
        """A leader adds or removes a voter, if it may; a majority of the new set has it at once."""
        node = self.nodes[leader]
        voters = tuple(sorted(set(self.sets[node.changes]) ^ {changed}))
        there = [
            other
            for other in voters
            if self.reaches(leader, other) and self.nodes[other].context.leader == leader
        ]
        if (
            changed == leader
            or len(there) * 2 <= len(voters)
            or not self._can_commit(leader)
            or not node.driver.is_certain(node.context)
        ):
            return False
        self.sets.append(voters)
        for other in there:
            self._learn(self.nodes[other], len(self.sets) - 1)
        return True

    def _learn(self, node: Node, changes: int) -> None:
        node.changes = max(node.changes, changes)
        node.context.voters = tuple(map(NodeId, self.sets[node.changes]))

    def step(self) -> None:
        self.now_us += STEP_US
        for node_id, node in self.nodes.items():
            if node.frozen_until_us <= self.now_us:
                self._wake(node)
                self._follow_leader(node_id, node)
                self._deliver(node)
                self._fall_back(node_id, node)
                self._apply(node_id, node)
                node.driver.turn(node.context)
                self._send(node_id, node)
                self._lead(node_id, node)
        self._check()

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 1_000_000 / STEP_US)):
            self.step()

    def current_leader(self) -> int:
        """The one that can commit now; NO_NODE without one."""
        return next((each for each in self.ids if self._can_commit(each)), NO_NODE)

    def _can_commit(self, node_id: int) -> bool:
        context, voters = self.nodes[node_id].context, self.sets[self.nodes[node_id].changes]
        followers = [
            other
            for other in voters
            if self.reaches(node_id, other) and self.nodes[other].context.term == context.term
        ]
        return context.leader == node_id and len(followers) * 2 > len(voters)

    def _wake(self, node: Node) -> None:
        """After a freeze, answers of old are in the socket still: it seems to have a majority."""
        if node.frozen_until_us and self.dice.random() < 0.5:
            node.majority_at_us = self.now_us
        node.frozen_until_us = 0

    def _follow_leader(self, node_id: int, node: Node) -> None:
        """Hear from a leader of a later term; lose one that is out of reach."""
        context = node.context
        for other in self.ids:
            leader = self.nodes[other].context
            leads = leader.leader == other and leader.term >= context.term
            if leads and self.reaches(node_id, other) and self.dice.random() < 0.3:
                context.term, context.leader = leader.term, NodeId(other)
                self._learn(node, self.nodes[other].changes)
        if context.leader not in (NO_NODE, node_id) and not self.reaches(node_id, context.leader):
            context.leader = NO_NODE

    def _fall_back(self, node_id: int, node: Node) -> None:
        if self._can_commit(node_id):
            node.majority_at_us = self.now_us
        elif node.context.leader == node_id and self.now_us - node.majority_at_us > FALLBACK_US:
            node.context.leader = NO_NODE

    def _deliver(self, node: Node) -> None:
        due = [item for item in node.inbox if item[0] <= self.now_us]
        node.inbox = [item for item in node.inbox if item[0] > self.now_us]
        for _, sender, frame in due:
            node.driver.received(node.context, sender, frame)

    def _send(self, node_id: int, node: Node) -> None:
        frames, node.context.sent = node.context.sent, []
        for peer, frame in frames:
            if frozenset((node_id, peer)) not in self.parted:
                at_us = self.now_us + self.dice.randrange(0, 4) * STEP_US
                self.nodes[peer].inbox.append((at_us, NodeId(node_id), frame))

    def _lead(self, node_id: int, node: Node) -> None:
        """Commit what the controller wants, its claim first, and registrations."""
        context = node.context
        texts, context.texts = context.texts, []
        if not self._can_commit(node_id):
            return
        self._catch_up(node_id, node)
        if context.claim is None or context.claim[0] != context.term:
            self._commit(encode_command(ClaimController(node_id=NodeId(node_id))))
            self._catch_up(node_id, node)
            context.claim = (context.term, self.truth.controller.epoch)
        for text in texts:
            self._commit(text)
        for other, peer in self.nodes.items():
            if peer.server.incarnation is None and self.reaches(node_id, other):
                self._register(other, peer)
        self._catch_up(node_id, node)

    def _register(self, node_id: int, node: Node) -> None:
        session = f"{node_id}-{node.runs}"
        command = RegisterNode(node_id=NodeId(node_id), session=session, addresses=ADDRESSES)
        self._commit(encode_command(command))
        node.server.incarnation = self.truth.nodes[NodeId(node_id)].incarnation

    def _commit(self, text: str) -> None:
        self.log.append(text)
        self.truth.apply(text, len(self.log))
        command = json.loads(text)
        if command["op"] == FenceNode.op:
            self.fenced_at_us.append((command["node_id"], self.now_us))
        self._check()

    def _apply(self, node_id: int, node: Node) -> None:
        leader = node.context.leader
        in_touch = leader != NO_NODE and leader == self.current_leader()
        if in_touch and self.reaches(node_id, leader) and self.dice.random() < 0.7:
            self._catch_up(node_id, node)
        while node.seen_due and node.seen_due[0][0] <= self.now_us:
            node.server.seen_revision = node.seen_due.pop(0)[1]

    def _catch_up(self, node_id: int, node: Node) -> None:
        while node.applied < len(self.log):
            node.context.apply_text(self.log[node.applied])
            node.applied += 1
        late_us = self.dice.choice((0, 0, 0, 1, 10)) * STEP_US
        node.seen_due.append((self.now_us + late_us, node.applied))
        node.seen_due.sort()

    def _check(self) -> None:
        """**safety** A holder of a lease is registered as that incarnation and not fenced."""
        for node_id, node in self.nodes.items():
            if node.driver.lease.holds(self.now_us):
                known = self.truth.nodes[NodeId(node_id)]
                if known.fenced or known.incarnation != node.server.incarnation:
                    raise Violation(f"node {node_id} holds a lease at {self.now_us}")
