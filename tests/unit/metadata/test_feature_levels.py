"""Feature levels: while versions are mixed every node decides alike, and no node is left behind.

The older software understands level 1; the newer one has a command and a field more, at level 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.errors import PreconditionFailedError, StorageError, UnavailableError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.member.proposals import BATCH_HEADER, Proposals
from jetstream_server.metadata.member.state_machine import RegistryStateMachine
from jetstream_server.metadata.state import commands
from jetstream_server.metadata.state.command_json import Command, encode_command, since
from jetstream_server.metadata.state.commands import DrainNode, RegisterNode, SetCluster
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.node_decisions import drain_node
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.operations import OPERATIONS, Operation, check_feature
from jetstream_server.metadata.state.registry import Registry, check_result
from jetstream_server.metadata.state.tables import Tables

from .cluster import ADDRESSES

OLD, NEW = FeatureLevel(1), FeatureLevel(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Later(Command):
    """A command of level 2."""

    op: ClassVar[str] = "later"
    level: ClassVar[int] = 2
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNodeWithReason(Command):
    """A command of level 1 that has got a field at level 2."""

    op: ClassVar[str] = "drain_node"
    node_id: NodeId
    node_incarnation: int | None = None
    draining: bool | None = None
    until_undone: bool = False
    reason: str | None = field(default=None, metadata=since(2))


def later(tables: Tables, command: Later) -> Decision:
    return Decision({"number": command.number})


def drain_with_reason(tables: Tables, command: DrainNodeWithReason) -> Decision:
    decision = drain_node(tables, cast("DrainNode", command))
    said = {} if command.reason is None else {"reason": command.reason}
    return Decision(said, decision.changes)


@pytest.fixture(autouse=True, scope="module")
def older_software() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(commands, "FEATURE_LEVEL_MAX", OLD)
        yield


@contextmanager
def newer_software() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(commands, "FEATURE_LEVEL_MAX", NEW)
        patches.setitem(OPERATIONS, "later", Operation(Later, later))
        patches.setitem(OPERATIONS, "drain_node", Operation(DrainNodeWithReason, drain_with_reason))
        yield


class Versions:
    """One log, applied by a node of each version."""

    def __init__(self) -> None:
        self.older, self.newer = Registry(), Registry()

    def do(self, command: Command) -> dict[str, Any]:
        return self.send(encode_command(command))

    def send(self, text: str) -> dict[str, Any]:
        revision = self.older.revision + 1
        result = self.older.apply(text, revision)
        with newer_software():
            assert self.newer.apply(text, revision) == result
        assert self.newer.snapshot() == self.older.snapshot()
        return check_result(result)

    def register(self, node_id: int, level: FeatureLevel) -> None:
        self.do(registration(node_id, f"{node_id}-{self.older.revision}", level))


def registration(node_id: int, session: str, level: FeatureLevel) -> RegisterNode:
    return RegisterNode(
        node_id=NodeId(node_id), session=session, addresses=ADDRESSES, feature_level_max=level
    )


def test_a_new_command_is_refused_by_all_until_every_node_understands_it() -> None:
    versions = Versions()
    versions.register(0, OLD)
    versions.register(1, NEW)
    with pytest.raises(Exception, match="unknown metadata operation 'later' at feature level 1"):
        versions.do(Later(number=1))
    with pytest.raises(PreconditionFailedError, match=r"nodes \[0\] do not understand"):
        versions.do(SetCluster(feature_level=NEW))
    versions.register(0, NEW)
    with newer_software():
        newer = versions.newer
        newer.apply(encode_command(SetCluster(feature_level=NEW)), newer.revision + 1)
        said = newer.apply(encode_command(Later(number=7)), newer.revision + 1)
        assert said["number"] == 7


def test_a_new_field_is_refused_by_all_until_every_node_understands_it() -> None:
    versions = Versions()
    versions.register(0, OLD)
    drain = encode_command(DrainNodeWithReason(node_id=NodeId(0), reason="moved"))
    with pytest.raises(Exception, match="unknown fields 'reason': written by newer software"):
        versions.send(drain)
    versions.register(0, NEW)
    with newer_software():
        newer = versions.newer
        newer.apply(encode_command(SetCluster(feature_level=NEW)), newer.revision + 1)
        assert newer.apply(drain, newer.revision + 1)["reason"] == "moved"
        assert newer.nodes[NodeId(0)].draining


def check(tables: Tables, command: Command) -> None:
    check_feature(tables, command.needed_level, command.op)


def test_a_proposer_is_told_which_nodes_are_behind() -> None:
    versions = Versions()
    versions.register(0, OLD)
    versions.register(1, NEW)
    check(versions.newer, DrainNodeWithReason(node_id=NodeId(0)))
    for command in (Later(number=1), DrainNodeWithReason(node_id=NodeId(0), reason="moved")):
        with pytest.raises(PreconditionFailedError, match=r"level 2.*at 1: nodes \[0\] run older"):
            check(versions.newer, command)
    versions.register(0, NEW)
    with pytest.raises(UnavailableError, match="about to be raised"):
        check(versions.newer, Later(number=1))


def test_a_node_too_old_for_the_cluster_is_refused_at_registration() -> None:
    registry = Registry()
    with newer_software():
        for command in (registration(0, "a", NEW), SetCluster(feature_level=NEW)):
            registry.apply(encode_command(command), registry.revision + 1)
        result = registry.apply(encode_command(registration(1, "b", OLD)), registry.revision + 1)
    with pytest.raises(PreconditionFailedError, match="node 1 understands feature level 1, the cl"):
        check_result(result)
    assert NodeId(1) not in registry.nodes


class TestOldSoftwareAtANewLevel:
    """A node that is behind must not go on with a state of its own."""

    def raised(self) -> list[str]:
        return [
            encode_command(registration(0, "a", NEW)),
            encode_command(SetCluster(feature_level=NEW)),
        ]

    def test_it_stops_at_the_entry_that_raises_the_level(self) -> None:
        machine = RegistryStateMachine(Proposals())
        entry = b"\n".join([BATCH_HEADER, *(text.encode() for text in self.raised())])
        with pytest.raises(StorageError, match="feature level 2, and this software understands 1"):
            machine.apply(entry)
        with newer_software():
            RegistryStateMachine(Proposals()).apply(entry)

    def test_it_takes_no_snapshot_of_that_level(self) -> None:
        with newer_software():
            newer = Registry()
            for text in self.raised():
                newer.apply(text, newer.revision + 1)
        older = Registry()
        with pytest.raises(StorageError, match="update this server"):
            older.restore(newer.snapshot())
        assert (older.revision, older.nodes) == (0, {})


steps = st.lists(
    st.one_of(
        st.builds(Later, number=st.integers(0, 3)),
        st.builds(
            DrainNodeWithReason,
            node_id=st.integers(0, 2).map(NodeId),
            draining=st.sampled_from([None, True, False]),
            reason=st.sampled_from([None, "", "moved"]),
        ),
        st.builds(
            registration,
            st.integers(0, 2),
            st.sampled_from("abcdef"),
            # One node stays behind, or the older software would have to stop.
            st.just(OLD),
        ),
        st.builds(registration, st.integers(1, 2), st.sampled_from("uvw"), st.just(NEW)),
        st.just(SetCluster(feature_level=NEW)),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_versions_decide_alike_until_the_level_is_raised(steps: list[Command]) -> None:
    versions = Versions()
    versions.register(0, OLD)
    for command in steps:
        text = encode_command(command)
        revision = versions.older.revision + 1
        result = versions.older.apply(text, revision)
        with newer_software():
            assert versions.newer.apply(text, revision) == result, text
        assert versions.newer.snapshot() == versions.older.snapshot()
        assert versions.older.settings.feature_level == OLD
