"""A node's member of the metadata group: the shipped turns, proposals and sessions over a modelled
Raft (metadata.py), on a loop of their own as in the product (metadata/member/member.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.member.extension import RaftThreadExtension
from jetstream_server.metadata.member.member import MemberListener
from jetstream_server.metadata.member.member_loop import MemberLoop
from jetstream_server.metadata.member.state_machine import RegistryStateMachine
from jetstream_server.metadata.raft.core import SURELY_NOT_APPLIED, RaftCore
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.status import MetadataStatus, Role
from jetstream_server.metadata.raft.transport import PeerLinks
from jetstream_server.metadata.raft.voters import Voters
from tests.simulation.metadata import Entry

if TYPE_CHECKING:
    from tests.simulation.process import Process

KINDS = ("heartbeat", "grant", "ping", "echo", "reports")
"""Of the sessions' messages, by their first byte."""
FIRST_KIND = 0x40


class ModelCore:
    """What RaftCore is to MemberLoop and ControllerContext."""

    def __init__(self, process: Process, machine: RegistryStateMachine) -> None:
        self.process = process
        self.node_id = process.node_id
        self._group = process.cluster.metadata
        self._machine = machine
        kept = process.machine.kept
        self.term = kept.term
        self.commit_index = self.applied_index = kept.applied_index
        if kept.registry is not None:
            machine.registry.restore(kept.registry.snapshot())
        kept.registry = machine.registry
        self._leader = int(NO_NODE)
        self._role: Role = "follower"
        self.voters = Voters.of(dict.fromkeys(map(NodeId, process.cluster.members), ""))
        self.committed_voters: Voters | None = None
        self.has_overruled_voters = False
        self.are_voters_committed = True
        self.addresses_ahead: dict[NodeId, str] = {}
        self.core_is_certain: Callable[[], bool] = lambda: True

    @property
    def raftCurrentTerm(self) -> int:
        return self.term

    @property
    def raftCommitIndex(self) -> int:
        return self.commit_index

    @property
    def raftLastApplied(self) -> int:
        return self.applied_index

    def role(self) -> Role:
        return self._role

    def leader_id(self) -> NodeId:
        leader, cluster = self._leader, self.process.cluster
        if leader in (NO_NODE, self.node_id):
            return NodeId(leader)
        there = cluster.members[leader]
        is_linked = there is not None and cluster.network.connects(self.node_id, leader)
        return NodeId(leader) if is_linked else NO_NODE

    def applied_entries(self) -> tuple[Entry, ...]:
        log = self._group.log
        return tuple(log[max(0, self.applied_index - 2) : self.applied_index])

    # What the group does to it.

    def vote(self, term: int) -> None:
        """**Raft** Whoever votes knows no leader until it hears of one."""
        self.term = self.process.machine.kept.term = term
        self._leader, self._role = int(NO_NODE), "candidate"

    def lead(self, term: int, index: int) -> None:
        if term == self.term:
            self._leader, self._role = self.node_id, "leader"
            self.commit_index = max(self.commit_index, index)
            self.process.turn()

    def hear(self, term: int, leader: int, index: int) -> None:
        """From a leader: of its term, and what is committed."""
        if term < self.term:
            return
        self.term = self.process.machine.kept.term = term
        self._leader = leader
        self._role = "leader" if leader == self.node_id else "follower"
        self.commit_index = max(self.commit_index, index)
        self.process.turn()

    # What MemberLoop and ControllerContext ask of it.

    def submit(
        self, command: bytes, on_failure: Callable[[int], None], *, term: int | None = None
    ) -> None:
        if term is not None and (term != self.term or self._role != "leader"):
            self.process.member_loop.call_soon(on_failure, SURELY_NOT_APPLIED[1])
        else:
            self._group.submit(self, command, on_failure)

    def votes(self) -> bool:
        return True

    def is_member(self) -> bool:
        return True

    def is_learner(self) -> bool:
        return False

    def no_vote_reason(self) -> str:
        return ""

    def heartbeats(self) -> list[Any]:
        return []

    def tick(self) -> None:
        log, world = self._group.log, self.process.world
        behind = self.commit_index - self.applied_index
        if behind > 2 and self.commit_index == len(log) and world.chance(0.2):
            self._machine.restore(self._group.registry.snapshot())
            self.applied_index = self.commit_index
            world.count("metadata snapshot")
        while self.applied_index < self.commit_index:
            data = log[self.applied_index].data
            self.applied_index += 1
            if data is not None:
                self._machine.apply(data)
        self.process.machine.kept.applied_index = self.applied_index

    def take_messages(self) -> list[Any]:
        return []

    def needs_turn(self) -> bool:
        return self.applied_index < self.commit_index

    def hand_over(self) -> bool:
        return False


class ModelLinks:
    """What PeerLinks is to them: only frames of the extension travel on it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.problems: dict[NodeId, str] = {}

    def send(self, peer: NodeId, frame: bytes) -> bool:
        process = self._process
        network = process.cluster.network
        if not network.connects(process.node_id, peer):
            return False
        kind = KINDS[frame[0] - FIRST_KIND]
        network.tell(process.node_id, peer, kind, _received, process, peer, frame)
        return True

    def use(self, addresses: object) -> None:
        """There is nothing to be dialled."""

    def connected_nodes(self) -> tuple[NodeId, ...]:
        return ()

    def drop(self, peer: NodeId, reason: str) -> None:
        """There is nothing to be dropped: the next frame is another link's."""


def _received(source: Process, peer: int, frame: bytes) -> None:
    process = source.cluster.members[peer]
    if process is None or process.turns is None:
        return
    loop, world = process.member_loop, process.world
    arguments = process.turns.frame_received, NodeId(source.node_id), frame
    if loop.paused_until > world.now:
        world.at(loop.paused_until, loop, loop.enter, *arguments)
    else:
        loop.enter(*arguments)


class _Journal:
    """There is nothing in it: the group's log is kept elsewhere."""

    snapshot_index = 0
    size_bytes = 0
    is_synced = True
    lost = ""
    cut_bytes = 0

    def __len__(self) -> int:
        return 0

    def sync(self) -> None:
        pass


class SimulatedMember:
    """What Member is to RaftMetadataLog."""

    def __init__(self, process: Process, config: MemberConfig, listener: MemberListener) -> None:
        self._process = process
        self._config = config
        self._listener = listener
        self._loop = process.member_loop
        self._extension: RaftThreadExtension | None = None
        self._ticking: asyncio.Task[None] | None = None

    @property
    def status(self) -> MetadataStatus:
        turns = self._process.turns
        if turns is None:
            return MetadataStatus.absent(self._config.node_id, tuple(sorted(self._config.voters)))
        return turns.status

    def attach(self, extension: RaftThreadExtension) -> None:
        self._extension = extension

    def start(self) -> None:
        world = self._process.world
        world.later(world.between(300, 5_000), self._loop, self._loop.enter, self._begin)

    def _begin(self) -> None:
        process, config = self._process, self._config
        cluster_id = process.cluster.metadata.registry.settings.cluster_id
        voters = tuple(sorted(config.voters.items()))
        group_file = SimpleNamespace(group=Group(config.node_id, voters, cluster_id))

        def make_core(*arguments: Any) -> RaftCore:
            process.core = ModelCore(process, arguments[3])
            return cast(RaftCore, process.core)

        turns = process.turns = MemberLoop(
            config,
            cast(Journal, _Journal()),
            cast(GroupFile, group_file),
            self._listener,
            self._extension,
            make_core=make_core,
            make_links=lambda *_, **__: cast(PeerLinks, ModelLinks(process)),
        )
        turns.turn()
        self._listener.member_started(None)
        self._ticking = self._loop.create_task(self._tick(turns))
        process.cluster.metadata.tell(process)

    async def _tick(self, turns: MemberLoop) -> None:
        while True:
            await asyncio.sleep(self._config.raft.tick)
            turns.turn()

    def propose(self, texts: list[str], patience: float, term: int | None = None) -> None:
        turns = self._process.turns
        assert turns is not None, "the member has started"
        self._loop.call_soon_threadsafe(turns.propose, texts, patience, term)

    def stop(self) -> None:
        """From another thread, which waits for it."""
        self._loop.enter(self._stop)

    def _stop(self) -> None:
        process = self._process
        if self._ticking is not None:
            self._ticking.cancel()
        if process.turns is not None:
            process.turns.abandon("this server is stopping")
        process.core = None
