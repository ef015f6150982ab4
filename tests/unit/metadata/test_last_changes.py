"""A late copy of a caller's command undoes no later change, and a caller who waits gets through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from jetstream_protocol.types import NodeId, StreamId, WallUs
from jetstream_server.metadata.state import last_changes
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    AddAcl,
    AlterStream,
    Barrier,
    CreateStream,
    CreateToken,
    DeleteStream,
    DrainNode,
    ReassignStream,
    RemoveAcl,
    RevokeToken,
    SetCluster,
    SetStreamAccess,
)
from jetstream_server.metadata.state.last_changes import LastChanges
from jetstream_server.metadata.state.node_decisions import barrier
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.operations import OPERATIONS, Operation
from jetstream_server.metadata.state.registry import Registry

from .cluster import Cluster, cluster_at

cluster = cluster_at(4, FEATURE_LEVEL_MAX)
STREAM = StreamId(0)  # Stands for the stream that a test makes.
NODE = NodeId(1)
ORDERS = CreateStream(
    name="orders", subject="orders.>", replicas=(NodeId(0), NODE), created_at_us=WallUs(1)
)
TOKEN = CreateToken(token_id="t", principal="user:ann", hash="h", created_at_us=WallUs(1))
RULE = AddAcl(
    principal="user:ann", operations=("read",), allow=True, stream="orders", subject="orders.>"
)


def access(**fields: bool) -> Command:
    return SetStreamAccess(stream_id=STREAM, **fields)


def alter(max_age_us: int) -> Command:
    return AlterStream(stream_id=STREAM, stream_epoch=0, config={"max_age_us": max_age_us})


def nodes(*replicas: int) -> Command:
    return ReassignStream(stream_id=STREAM, replicas=tuple(map(NodeId, replicas)))


def drain(draining: bool) -> Command:
    return DrainNode(node_id=NODE, draining=draining, until_undone=True)


@dataclass
class Caller:
    """Sends commands about the stream as it is now, as a node does for its callers."""

    cluster: Cluster
    stream_id: StreamId
    result: dict[str, Any] = field(default_factory=dict)

    def send(self, command: Command, made_at: int) -> None:
        registry = self.cluster.registry
        if getattr(command, "stream_id", None) == STREAM:
            command = replace(command, stream_id=self.stream_id)  # type: ignore[call-arg]
        if isinstance(command, AlterStream):
            epoch = registry.streams[self.stream_id].stream_epoch
            command = replace(command, stream_epoch=epoch)
        if isinstance(command, RemoveAcl):
            command = RemoveAcl(rule_id=next(iter(registry.security.rules)))
        self.result = self.cluster.do(command, made_at=made_at)

    def state(self) -> object:
        """All but revisions and epochs."""
        registry = self.cluster.registry
        streams = [
            (each.full_name, each.config, each.readonly, each.paused, each.target_replicas)
            for each in registry.streams.values()
        ]
        draining = [each.draining for each in registry.nodes.values()]
        rules = [rule.principal for rule in registry.security.rules.values()]
        return streams, draining, rules, list(registry.security.tokens), registry.settings


@pytest.fixture
def caller(cluster: Cluster) -> Caller:
    return Caller(cluster, cluster.do(ORDERS)["stream_id"])


PAIRS = {
    "pause": (access(paused=True), access(paused=False)),
    "resume": (access(paused=False), access(paused=True)),
    "read-only": (access(readonly=True), access(readonly=False)),
    "alter": (alter(10_000_000), alter(20_000_000)),
    "reassign": (nodes(0, 1, 2), nodes(0, 1)),
    "create": (ORDERS, DeleteStream(stream_id=STREAM)),
    "drain": (drain(True), drain(False)),
    "limit": (SetCluster(copy_bytes_per_second=1 << 20), SetCluster(copy_bytes_per_second=0)),
    "token": (TOKEN, RevokeToken(token_id="t")),
    "rule": (RULE, RemoveAcl(rule_id=0)),
    "elsewhere": (Barrier(about="consumer 'c'"), Barrier(about="consumer 'c'")),
}


@pytest.mark.parametrize("has_come", [True, False], ids=["repeated", "delayed"])
@pytest.mark.parametrize(("first", "second"), PAIRS.values(), ids=PAIRS)
def test_a_late_copy_undoes_no_later_change(
    caller: Caller, first: Command, second: Command, has_come: bool
) -> None:
    made_at = caller.cluster.registry.revision
    if has_come or isinstance(second, RevokeToken | RemoveAcl):
        caller.send(first, made_at)
    # It need not change anything: to resume what is not paused.
    caller.send(second, caller.cluster.registry.revision)
    after = caller.state()
    with pytest.raises(UnavailableError, match="changed after this call was sent"):
        caller.send(first, made_at)
    assert caller.state() == after


def test_who_still_waits_sends_it_again(caller: Caller) -> None:
    """Two who alter different settings at once both have their way."""
    made_at = caller.cluster.registry.revision
    caller.send(alter(10_000_000), made_at)
    other = AlterStream(stream_id=STREAM, stream_epoch=0, config={"max_messages": 5})
    with pytest.raises(UnavailableError):
        caller.send(other, made_at)
    caller.send(other, caller.cluster.registry.revision)
    config = caller.cluster.registry.streams[caller.stream_id].config
    assert (config.max_age_us, config.max_messages) == (10_000_000, 5)


def test_what_the_cluster_itself_does_makes_no_call_late(caller: Caller) -> None:
    made_at = caller.cluster.registry.revision
    stream = caller.cluster.registry.streams[caller.stream_id]
    caller.cluster.change_isr(stream, (0,))
    caller.cluster.create("others", "others.>")
    caller.send(access(paused=True), made_at)
    assert caller.cluster.registry.streams[caller.stream_id].paused


def test_a_snapshot_tells_when_callers_changed_what(caller: Caller) -> None:
    made_at = caller.cluster.registry.revision
    caller.send(access(paused=False), made_at)
    restored = Registry()
    restored.restore(caller.cluster.registry.snapshot())
    assert restored.snapshot() == caller.cluster.registry.snapshot()
    caller.cluster.registry = restored
    with pytest.raises(UnavailableError):
        caller.send(access(paused=True), made_at)


@pytest.mark.parametrize("made_at", [-1, 1.5, "1", True, [1], 1 << 63])
def test_an_odd_revision_is_refused(caller: Caller, made_at: Any) -> None:
    with pytest.raises(InvalidRequestError):
        caller.send(access(paused=True), made_at)


def test_older_software_refuses_it_in_the_same_words() -> None:
    cluster = Cluster.at_level(1, FeatureLevel(5), known=FEATURE_LEVEL_MAX)
    with pytest.raises(InvalidRequestError, match="unknown fields 'made_at'"):
        cluster.do(SetCluster(copy_bytes_per_second=0), made_at=1)
    cluster.do(SetCluster(copy_bytes_per_second=0))
    assert b"last_changes" not in cluster.registry.capture().encode()
    assert "last_changes" not in cluster.registry.capture().head


class Every:
    """As LastChanges, with room for everything."""

    def __init__(self) -> None:
        self.revisions = dict[str, int]()

    def is_late(self, what: str, made_at: int) -> bool:
        return self.revisions.get(what, 0) > made_at


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.integers(0, 12))),
    st.integers(1, 4),
)
@example([("a", True, 0), ("b", True, 0), ("a", False, 2)], 1)  # What has no room.
@settings(max_examples=50, deadline=None)
def test_no_late_call_passes_however_little_is_known(
    steps: list[tuple[str, bool, int]], places: int
) -> None:
    """And one that is made now always does."""
    known, every = LastChanges(), Every()
    with patch.object(last_changes, "PLACES", places):
        for revision, (what, is_change, ago) in enumerate(steps, 1):
            known.check(what, revision - 1)
            if every.is_late(what, revision - 1 - ago):
                with pytest.raises(UnavailableError):
                    known.check(what, revision - 1 - ago)
            if is_change:
                known.note(what, revision)
                every.revisions[what] = revision
            known = LastChanges(known.to_dict())


def test_nobody_makes_the_calls_of_others_late_by_a_name_of_their_choice() -> None:
    """A checksum has 1,024 values: one of a few thousand names has that of somebody's stream."""
    known = LastChanges()
    for number in range(10_000):
        name = f"mine-{number}"
        if crc32(name.encode()) % 1024 == crc32(b"orders@orders") % 1024:
            known.note(name, 7)
    known.check("orders@orders", 6)


def note_without_floor(known: LastChanges, what: str, revision: int) -> None:
    NOTE(known, what, revision)
    known._floor = 0


NOTE = LastChanges.note
Mutate = Callable[[pytest.MonkeyPatch], None]
PAUSED = PAIRS["pause"]
MUTANTS: dict[str, tuple[Mutate, Callable[[Caller], None]]] = {
    "carries_out_late_copies": (
        lambda patches: patches.setattr(LastChanges, "check", lambda *_: None),
        lambda caller: test_a_late_copy_undoes_no_later_change(caller, *PAUSED, has_come=True),
    ),
    "forgets_changes_at_a_snapshot": (
        lambda patches: patches.setattr(LastChanges, "to_dict", lambda _: {}),
        lambda caller: test_a_snapshot_tells_when_callers_changed_what(caller),
    ),
    "takes_what_it_has_no_room_for_for_never_changed": (
        lambda patches: patches.setattr(LastChanges, "note", note_without_floor),
        lambda _: test_no_late_call_passes_however_little_is_known(),
    ),
    "notes_nothing_of_what_is_changed_elsewhere": (
        lambda patches: patches.setitem(OPERATIONS, "barrier", Operation(Barrier, barrier)),
        lambda caller: test_a_late_copy_undoes_no_later_change(
            caller, *PAIRS["elsewhere"], has_come=True
        ),
    ),
    "takes_the_cluster_s_own_changes_for_a_caller_s": (
        lambda patches: patches.setitem(
            OPERATIONS,
            "change_isr",
            replace_about(OPERATIONS["change_isr"], OPERATIONS["alter_stream"]),
        ),
        lambda caller: test_what_the_cluster_itself_does_makes_no_call_late(caller),
    ),
}


def replace_about(operation: Operation[Any], other: Operation[Any]) -> Operation[Any]:
    return operation._replace(about=other.about)


@pytest.mark.parametrize(("mutate", "claim"), MUTANTS.values(), ids=MUTANTS)
def test_mutant_dies(
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Mutate,
    claim: Callable[[Caller], None],
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, UnavailableError, pytest.fail.Exception)):
        claim(caller)
