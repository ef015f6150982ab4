"""A metadata group in one thread and in simulated time: real cores, codec and journals.

The network delays, loses whole connections and partitions; a crash loses whatever the journal had
not synced, as a power failure would, or leaves some pages of it. Disks (raft_disks.py) are lost,
come back as older copies, rot, or take no snapshot. Where disks do, every run is registered, as
servers do, once its node has applied all that was committed before. One seed decides everything.

Checked after every step: at most one leader per term; every node applies the same commands in the
same order (so nothing once applied anywhere, and therefore nothing acknowledged, is ever lost or
replaced); a term and a vote once sent are never taken back, unless the disk was.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.core import RaftCore
from jetstream_server.metadata.raft.corrections import CorrectedSyncObj
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.messages import Message, decode, encode
from jetstream_server.metadata.raft.snapshot_file import read_snapshot
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.raft.voter_change import Verdict
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.metadata.state.command_json import encode_command
from jetstream_server.metadata.state.commands import RegisterNode
from tests.unit.metadata.cluster import ADDRESSES

STEP_SECONDS = 0.02
REST_SECONDS = 20
"""Longer than a refused snapshot is not sent again (core.REFUSAL_SECONDS)."""
EARLIER_KIND_MAX = 10
"""Of the messages that the release before the pre-vote knows."""
TORN_PAGE_BYTES = 64
"""Smaller than a disk's: the writes are, too."""


class ListMachine:
    """A state machine that remembers what it applied."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.sessions: dict[NodeId, str] = {}
        self.refuses_snapshots = False

    def apply(self, command: bytes) -> None:
        text = command.decode()
        self.applied.append(text)
        if "register_node" in text:
            values = json.loads(text.split("\n")[1])
            if values["replaces"] == self.sessions.get(values["node_id"], ""):
                self.sessions[values["node_id"]] = values["session"]

    def restore(self, snapshot: bytes) -> bool:
        if self.refuses_snapshots:
            return False
        self.applied, sessions = json.loads(snapshot)
        self.sessions = {NodeId(int(node_id)): session for node_id, session in sessions.items()}
        return True

    def session(self, node_id: NodeId) -> str | None:
        return self.sessions.get(node_id)

    def snapshot(self) -> bytes:
        return json.dumps([self.applied, self.sessions]).encode()


@dataclass
class SimulatedNode:
    node_id: NodeId
    directory: Path
    journal: Journal
    machine: ListMachine
    core: RaftCore
    run: str
    failures: list[int] = field(default_factory=list)
    asked_at: float = 0.0
    barrier: str = ""

    @property
    def is_registered(self) -> bool:
        return self.machine.sessions.get(self.node_id) == self.run


def tear(dice: random.Random, journal: Journal) -> None:
    """Some pages of what was not synced have reached the disk, in any order, and some of others."""
    data = bytearray(b"".join(journal._unwritten))
    if not data:
        return
    for start in range(0, len(data), TORN_PAGE_BYTES):
        if dice.random() < 0.5:
            end = min(start + TORN_PAGE_BYTES, len(data))
            data[start:end] = bytes(end - start)
    with open(f"{journal.directory}/journal", "ab") as file:
        file.write(data[: dice.randint(0, len(data))] if dice.random() < 0.5 else data)


def next_set(now: set[int], wanted: set[int]) -> set[int]:
    """The next step to the wanted voters: small sets grow first."""
    missing, surplus = sorted(wanted - now), sorted(now - wanted)
    if missing and (not surplus or len(now) <= 3):
        return now | {missing[0]}
    return now - {surplus[0]}


class EarlierCore(RaftCore):
    """A member of the release before the pre-vote."""

    def _let_time_pass(self) -> None:
        self.doTick(0)

    def _is_current(self, node: Any, message: Message) -> bool:
        return CorrectedSyncObj._is_current(self, node, message)


class Fabric:
    """See the module. count: of voters at first; spare: further nodes, which do not vote then."""

    def __init__(self, directory: Path, seed: int, count: int = 3, spare: int = 0) -> None:
        self.dice = random.Random(seed)
        self.now = 1000.0
        self.ids = tuple(NodeId(number) for number in range(count + spare))
        self.initial = Voters.of({node_id: f"node-{node_id}:1" for node_id in self.ids[:count]})
        # What became of wishes for other voters.
        self.verdicts: list[tuple[Voters, Verdict, str]] = []
        self.nodes: dict[NodeId, SimulatedNode] = {}
        self.committed: list[str] = []
        self.leaders: dict[int, NodeId] = {}
        self.votes: dict[tuple[NodeId, int, int], str] = {}
        # How many disks each node has had.
        self.disks: dict[NodeId, int] = {}
        self.links: set[tuple[NodeId, NodeId]] = set()
        self.parted: set[tuple[NodeId, NodeId]] = set()
        # (sender, receiver): what is sent there is lost, and both believe that they are linked.
        self.muted: set[tuple[NodeId, NodeId]] = set()
        self.submitted = 0
        self.runs = 0
        self.registers = False
        # Nodes of the release before the pre-vote.
        self.earlier_releases: set[NodeId] = set()
        self._directory = directory
        self._queue: list[tuple[float, int, NodeId, NodeId, int, bytes]] = []
        self._sent = 0
        self._arrival: dict[tuple[NodeId, NodeId], float] = {}
        self._connection: dict[tuple[NodeId, NodeId], int] = {}

    @classmethod
    @contextmanager
    def running(
        cls,
        monkeypatch: pytest.MonkeyPatch,
        directory: Path,
        seed: int,
        count: int = 3,
        earlier_releases: Collection[int] = (),
        spare: int = 0,
    ) -> Iterator[Fabric]:
        fabric = cls(directory, seed, count, spare)
        fabric.earlier_releases.update(map(NodeId, earlier_releases))
        with monkeypatch.context() as patch:
            patch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: fabric.now)
            patch.setattr(pysyncobj.syncobj, "random", fabric.dice)
            for module in ("core", "corrections", "electing"):
                patch.setattr(f"jetstream_server.metadata.raft.{module}.random", fabric.dice)
            # The order of writes is what counts here; waiting for a disk would only cost time.
            patch.setattr("os.fdatasync", lambda _: None)
            patch.setattr("os.fsync", lambda _: None)
            for node_id in fabric.ids:
                fabric.start(node_id)
            yield fabric
            for node_id in tuple(fabric.nodes):
                fabric.crash(node_id)

    def start(self, node_id: NodeId, *, expected: str = "") -> SimulatedNode:
        directory = self._directory / str(node_id)
        is_only_voter = self.initial.ids == (node_id,)
        journal = Journal.open(str(directory), alone=is_only_voter, expected=expected)
        self.runs += 1
        journal.save_standing(journal.standing.with_run(f"run-{self.runs}"))
        journal.sync()
        machine = ListMachine()
        snapshot = read_snapshot(str(directory))
        if snapshot is not None:
            machine.restore(snapshot.data)
        kind = EarlierCore if node_id in self.earlier_releases else RaftCore
        core = kind(node_id, self.initial, journal, machine, RaftTimings())
        node = SimulatedNode(node_id, directory, journal, machine, core, f"run-{self.runs}")
        self.nodes[node_id] = node
        return node

    def crash(self, node_id: NodeId, *, torn: bool = False) -> None:
        """Lose the process and everything it had not synced; torn: but for some pages of it."""
        for peer in self.ids:
            self._disconnect(node_id, peer)
        journal = self.nodes.pop(node_id).journal
        if torn:
            tear(self.dice, journal)
        journal.failure = "the process is dead"  # And marks nothing as closed in good order.
        journal.close()

    def stop(self, node_id: NodeId) -> None:
        """End the process in good order."""
        for peer in self.ids:
            self._disconnect(node_id, peer)
        node = self.nodes.pop(node_id)
        self.sync(node)
        node.journal.close()

    def directory(self, node_id: NodeId) -> Path:
        return self._directory / str(node_id)

    def part(self, left: NodeId, right: NodeId) -> None:
        self.parted.add((min(left, right), max(left, right)))
        self._disconnect(left, right)

    def cut_off(self, node_id: NodeId) -> None:
        for peer in self.ids:
            if peer != node_id:
                self.part(node_id, peer)

    def mute(self, sender: NodeId, receiver: NodeId) -> None:
        self.muted.add((sender, receiver))

    def silence(self, node_id: NodeId) -> None:
        for peer in self.ids:
            self.mute(node_id, peer)
            self.mute(peer, node_id)

    def heal(self) -> None:
        self.parted.clear()
        for sender, receiver in self.muted:
            self._disconnect(sender, receiver)  # A connection does not go on after a gap.
        self.muted.clear()

    def submit(self, node_id: NodeId) -> str:
        self.submitted += 1
        text = f"command {self.submitted}"
        node = self.nodes[node_id]
        node.core.submit(text.encode(), node.failures.append)
        return text

    def compact(self, node_id: NodeId) -> None:
        node = self.nodes[node_id]
        base = node.core.applied_entries()
        if len(base) == 2 and base[-1].index > node.journal.snapshot_index:
            snapshot = node.core.snapshot(node.machine.snapshot(), base)
            node.journal.install(snapshot, keep_from=base[0].index)
            node.core.compacted()

    def change_voters(self, leader: NodeId, wanted: Collection[int]) -> None:
        """As an operator does, at that leader."""
        voters = Voters.of({NodeId(node_id): f"node-{node_id}:1" for node_id in wanted})

        def done(verdict: Verdict, reason: str) -> None:
            self.verdicts.append((voters, verdict, reason))

        self.nodes[leader].core.change_voters(voters, done)

    def vote_with(self, *wanted: int) -> NodeId:
        """Change the voters, one after the other, until these are; the leader then."""
        for _ in range(1000):
            leader = self.run_until_led()
            core = self.nodes[leader].core
            now = set(core.voters.ids)
            if now == set(wanted) and core.committed_voters in (core.voters, None):
                return leader
            if now != set(wanted):
                self.change_voters(leader, next_set(now, set(wanted)))
            self.step()
        raise AssertionError(f"the voters do not become {wanted}: {self.verdicts[-3:]}")

    def leader(self) -> NodeId | None:
        """The leader in the newest term, if any node leads."""
        leading = [node for node in self.nodes.values() if node.core.role() == "leader"]
        best = max(leading, key=lambda node: node.core.raftCurrentTerm, default=None)
        return None if best is None else best.node_id

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_SECONDS)):
            self.step()

    def run_until_led(self) -> NodeId:
        for _ in range(500):
            self.step()
            leader = self.leader()
            if leader is not None and all(
                node.core.leader_id() == leader for node in self.nodes.values()
            ):
                return leader
        raise AssertionError("no leader within ten seconds")

    def live_through(self, steps: int) -> None:
        """Random proposals, snapshots, crashes, restarts and partitions."""
        dice = self.dice
        for _ in range(steps):
            self.step()
            running, down = list(self.nodes), [n for n in self.ids if n not in self.nodes]
            chance = dice.random()
            if chance < 0.30 and running:
                self.submit(dice.choice(running))
            elif chance < 0.33 and running:
                self.compact(dice.choice(running))
            elif chance < 0.335 and running:
                self.crash(dice.choice(running), torn=dice.random() < 0.5)
            elif chance < 0.36 and down:
                self.start(dice.choice(down))
            elif chance < 0.365:
                self.part(*dice.sample(self.ids, 2))
            elif chance < 0.38:
                self.heal()

    def recover(self) -> None:
        """With everything healed and running, all must come to agree again."""
        self.heal()
        for node_id in self.ids:
            if node_id not in self.nodes:
                self.start(node_id)
        for _ in range(5):  # Who leads just then may not have heard of a later term.
            last = self.submit(self.run_until_led())
            self.run(2)
            if last in self.committed:
                break
        for _ in range(round(REST_SECONDS / STEP_SECONDS)):
            if self.is_at_rest():
                break
            self.step()
        assert last in self.committed, "no progress"
        for node in self.nodes.values():
            assert node.machine.applied == self.committed, "a node stays behind"
            assert node.is_registered or not self.registers, "a run is not registered"
            assert node.core.votes() or not node.core.is_member(), "a voter does not come back"
        assert len({node.core.voters for node in self.nodes.values()}) == 1, (
            "they disagree who votes"
        )

    def is_at_rest(self) -> bool:
        return all(
            (node.is_registered or not self.registers)
            and (node.core.votes() or not node.core.is_member())
            and node.machine.applied == self.committed
            for node in self.nodes.values()
        )

    def step(self) -> None:
        self.now += STEP_SECONDS
        self._connect_whoever_can()
        while self._queue and self._queue[0][0] <= self.now:
            _, _, sender, receiver, connection, data = heapq.heappop(self._queue)
            if (sender, receiver) in self.muted:
                continue
            if self._connection.get(self._pair(sender, receiver)) == connection:
                self.nodes[receiver].core.receive(sender, decode(data))
        for node in tuple(self.nodes.values()):
            self._turn(node)
        self.check()

    def register(self, node: SimulatedNode) -> None:
        """As a server does: first a barrier, then the run's registration, until it is applied."""
        if (
            not self.registers
            or node.is_registered
            or node.core.leader_id() < 0
            or self.now < node.asked_at + 0.5
        ):
            return
        node.asked_at = self.now
        self.submitted += 1
        if not node.barrier or node.barrier not in node.machine.applied:
            node.barrier = node.barrier or f"barrier {self.submitted}"
            text = node.barrier
        else:
            command = RegisterNode(
                node_id=node.node_id,
                session=node.run,
                addresses=ADDRESSES,
                replaces=node.machine.sessions.get(node.node_id, ""),
            )
            text = '{"v":1}\n' + encode_command(command)
        node.core.submit(text.encode(), node.failures.append)

    def _turn(self, node: SimulatedNode) -> None:
        self.register(node)
        self.sync(node)
        node.core.tick()
        self.sync(node)
        self.send(node, node.core.take_messages())

    def send(self, node: SimulatedNode, messages: list[tuple[NodeId, Message]]) -> None:
        for receiver, message in messages:
            if self._pair(node.node_id, receiver) in self._connection:
                self._send(node.node_id, receiver, encode(message))
            else:
                node.core.undeliverable(message)

    def sync(self, node: SimulatedNode) -> None:
        """Where mutants forget to."""
        node.journal.sync()

    def _send(self, sender: NodeId, receiver: NodeId, data: bytes) -> None:
        """Within a connection in order, after a random delay."""
        is_known = receiver not in self.earlier_releases or data[0] <= EARLIER_KIND_MAX
        assert is_known, "an earlier release would drop the link"
        at = max(self.now + self.dice.expovariate(100), self._arrival.get((sender, receiver), 0.0))
        self._arrival[sender, receiver] = at
        self._sent += 1
        connection = self._connection[self._pair(sender, receiver)]
        heapq.heappush(self._queue, (at, self._sent, sender, receiver, connection, data))

    def _pair(self, left: NodeId, right: NodeId) -> tuple[NodeId, NodeId]:
        return min(left, right), max(left, right)

    def _connect_whoever_can(self) -> None:
        for left in self.nodes:
            for right in self.nodes:
                pair = (left, right)
                if left < right and pair not in self.parted and pair not in self._connection:
                    self._sent += 1
                    self._connection[pair] = self._sent
                    self._arrival.pop((left, right), None)
                    self._arrival.pop((right, left), None)
                    for one, other in ((left, right), (right, left)):
                        knows = other not in self.earlier_releases
                        self.nodes[one].core.connected(other, has_pre_vote=knows)

    def _disconnect(self, left: NodeId, right: NodeId) -> None:
        if self._connection.pop(self._pair(left, right), None) is not None:
            self.nodes[left].core.disconnected(right)
            self.nodes[right].core.disconnected(left)

    def check(self) -> None:
        for node in self.nodes.values():
            term = node.core.raftCurrentTerm
            if node.core.role() == "leader":
                assert self.leaders.setdefault(term, node.node_id) == node.node_id, "two leaders"
            applied = node.machine.applied
            known = self.committed[: len(applied)]
            assert applied[: len(known)] == known, "applied something else than another node"
            self.committed.extend(applied[len(known) :])
            voted_for = node.journal.voted_for
            if voted_for:
                disk = self.disks.get(node.node_id, 0)
                key = (node.node_id, disk, node.journal.term)
                assert self.votes.setdefault(key, voted_for) == voted_for, "voted twice in a term"
