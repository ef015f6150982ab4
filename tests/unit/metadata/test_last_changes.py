"""A late copy of a caller's command undoes no later change, and a caller who waits gets through."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from jetstream_protocol.types import NodeId, StreamId, WallUs
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    AddAcl,
    AlterStream,
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
from jetstream_server.metadata.state.nodes import FeatureLevel
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
