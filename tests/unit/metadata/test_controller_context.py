"""The controller's role on the Raft thread: when it is claimed, counts, and commands what."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.member.controller_context import REPEAT_SECONDS, ControllerContext
from jetstream_server.metadata.member.extension import ExtensionContext
from jetstream_server.metadata.member.proposals import Proposals
from jetstream_server.metadata.member.state_machine import RegistryStateMachine
from jetstream_server.metadata.raft.core import RaftCore
from jetstream_server.metadata.raft.journal import Entry
from jetstream_server.metadata.raft.transport import PeerLinks
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import FenceNode


class FakeCore:
    """A Raft leader whose log the test applies."""

    def __init__(self, machine: RegistryStateMachine) -> None:
        self.raftCurrentTerm = 0
        self.log: list[Entry] = []
        self.applied = 0
        self.leads = False
        self.failures: list[Callable[[int], None]] = []
        self._machine = machine
        self.has_overruled_voters = False

    def role(self) -> str:
        return "leader" if self.leads else "follower"

    def leader_id(self) -> NodeId:
        return NodeId(0) if self.leads else NO_NODE

    def win(self, term: int) -> None:
        self.raftCurrentTerm, self.leads = term, True
        self.log.append(Entry(b"", len(self.log) + 1, term))

    def submit(
        self, command: bytes, on_failure: Callable[[int], None], *, term: int | None = None
    ) -> None:
        self.log.append(Entry(command, len(self.log) + 1, self.raftCurrentTerm))
        self.failures.append(on_failure)

    def applied_entries(self) -> tuple[Entry, ...]:
        return tuple(self.log[max(0, self.applied - 2) : self.applied])

    def apply(self, count: int | None = None) -> None:
        until = len(self.log) if count is None else self.applied + count
        for entry in self.log[self.applied : until]:
            if entry.data:
                self._machine.apply(entry.data)
        self.applied = until


class RaftThreadExtension:
    def __init__(self) -> None:
        self.wanted: list[Command] = []
        self.frames: list[tuple[NodeId, bytes]] = []

    def turn(self, context: ExtensionContext) -> None:
        if context.controller_epoch is not None:
            for command in self.wanted:
                context.command(command)

    def received(self, context: ExtensionContext, peer: NodeId, frame: bytes) -> None:
        self.frames.append((peer, frame))

    def is_certain(self, context: ExtensionContext) -> bool:
        return True


class Bench:
    def __init__(self) -> None:
        machine = RegistryStateMachine(Proposals())
        self.core = FakeCore(machine)
        self.extension = RaftThreadExtension()
        self.registry = machine.registry
        self.context = self.context_with(self.extension)
        self.now = 100.0

    def context_with(
        self, extension: RaftThreadExtension | None, recoveries: tuple[str, ...] = ()
    ) -> ControllerContext:
        core, links = cast(RaftCore, self.core), cast(PeerLinks, None)
        return ControllerContext(NodeId(0), core, links, self.registry, extension, recoveries)

    def turn(self, after: float = 0.02) -> bool:
        self.now += after
        return self.context.turn(self.now)

    def ops(self) -> list[str]:
        texts = [entry.data.split(b"\n", 1)[1] for entry in self.core.log if entry.data]
        return [json.loads(text)["op"] for text in texts]


FENCE = FenceNode(node_id=1)


class TestClaim:
    def test_a_follower_claims_nothing(self) -> None:
        bench = Bench()
        assert not bench.turn()
        assert bench.core.log == []

    def test_a_leader_claims_once_it_has_applied_an_entry_of_its_term(self) -> None:
        bench = Bench()
        bench.core.win(1)
        assert not bench.turn()
        bench.core.apply()
        assert bench.turn()
        assert bench.ops() == ["claim_controller"]
        assert not bench.turn()
        assert bench.context.controller_epoch is None
        bench.core.apply()
        assert bench.context.controller_epoch == bench.registry.controller.epoch

    def test_a_recovered_group_is_told_so_before_anybody_decides_anything(self) -> None:
        bench = Bench()
        bench.context = bench.context_with(bench.extension, ("token",))
        bench.core.win(1)
        bench.turn()
        bench.core.apply()
        assert bench.context.is_recovering
        bench.turn()
        assert bench.ops() == ["set_cluster"]
        bench.core.apply()
        assert bench.registry.settings.recoveries == ("token",)
        assert not bench.context.is_recovering
        bench.turn()
        assert bench.ops() == ["set_cluster", "claim_controller"]

    def test_a_claim_of_an_earlier_term_does_not_count(self) -> None:
        bench = Bench()
        bench.core.win(1)
        bench.core.apply()
        bench.turn()
        bench.core.apply()
        bench.core.leads = False
        assert bench.context.controller_epoch is None
        bench.core.win(3)
        assert bench.context.controller_epoch is None
        bench.core.apply()
        assert bench.context.controller_epoch is None
        bench.turn()
        bench.core.apply()
        assert bench.context.controller_epoch == bench.registry.controller.epoch

    def test_a_claim_of_an_earlier_term_that_is_applied_only_now_does_not_count(self) -> None:
        bench = Bench()
        bench.core.win(1)
        bench.core.apply()
        bench.turn()
        bench.core.win(3)
        bench.core.apply(1)  # The old claim; the entry of the new term is still to come.
        bench.turn()
        assert bench.registry.controller.node_id == 0
        assert bench.context.controller_epoch is None

    def test_someone_elses_late_claim_is_answered_by_another(self) -> None:
        bench = Bench()
        bench.core.win(1)
        bench.core.apply()
        bench.turn()
        bench.core.apply()
        first = bench.context.controller_epoch
        late = b'{"v":1}\n{"op":"claim_controller","node_id":2}'
        bench.core.submit(late, lambda _: None)
        bench.core.apply()
        assert bench.context.controller_epoch is None
        bench.turn(REPEAT_SECONDS)
        bench.core.apply()
        assert bench.context.controller_epoch not in (None, first)


class TestCommands:
    def leading(self) -> Bench:
        bench = Bench()
        bench.core.win(1)
        bench.core.apply()
        bench.turn()
        bench.core.apply()
        bench.extension.wanted = [FENCE]
        return bench

    def test_a_command_is_in_the_log_once_and_again_when_it_has_not_applied_in_time(self) -> None:
        bench = self.leading()
        assert bench.turn()
        assert not bench.turn()
        assert bench.ops()[1:] == ["fence_node"]
        assert bench.turn(REPEAT_SECONDS)
        assert bench.ops()[1:] == ["fence_node"] * 2

    def test_a_command_that_was_refused_is_repeated_at_once(self) -> None:
        bench = self.leading()
        bench.turn()
        bench.core.failures[-1](0)
        assert bench.turn()

    def test_a_command_carries_the_epoch_and_is_void_under_the_next(self) -> None:
        bench = self.leading()
        bench.turn()
        command = json.loads(bench.core.log[-1].data.split(b"\n")[1])
        assert command == {**FENCE.to_dict(), "controller_epoch": bench.context.controller_epoch}
        bench.core.win(2)
        bench.core.apply()
        bench.extension.wanted = []
        bench.turn()
        bench.core.apply()
        result = bench.registry.apply(json.dumps(command), bench.registry.revision + 1)
        assert result["error"]["code"] == "fenced_epoch"


class TestExtension:
    def test_its_frames_reach_it(self) -> None:
        bench = Bench()
        bench.context.received(NodeId(2), b"\x40hello")
        assert bench.extension.frames == [(2, b"\x40hello")]

    def test_a_frame_for_nobody_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="there is none here"):
            Bench().context_with(None).received(NodeId(2), b"\x40hello")
