"""Any sequence of commands keeps the registry's invariants, alike on every node."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.schema import parse, why_incompatible
from jetstream_protocol.subjects import matches
from jetstream_protocol.types import NO_NODE, StreamId
from jetstream_server.metadata.state.changes import StreamChanged
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.commands import FEATURE_LEVEL_MAX, DeleteStream
from jetstream_server.metadata.state.nodes import Addresses
from jetstream_server.metadata.state.operations import OPERATIONS
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.stream_decisions import VERSIONS_MAX
from tests.support.examples import scaled

NODES = st.integers(0, 3)
STREAM_INDEX = st.integers(0, 5)
SUBJECTS = ["a", "a.b", "a.*", "a.>", "*.b", "b.*.c", "b.>"]
LITERALS = ["a", "a.b", "a.c", "b.x.c", "b.x", "c.b", "a.b.c"]
SCHEMAS = ["", "a int", "a bigint", "b bigint alias a", "a string", "a int not null", "a"]
ADDRESSES = Addresses(grpc="a:1", data="a:2", raft="a:3", http="a:4")
SOFTWARE = {"addresses": ADDRESSES, "feature_level_max": FEATURE_LEVEL_MAX}

settings_of_streams = st.fixed_dictionaries(
    {},
    optional={
        "min_insync_replicas": st.integers(1, 3),
        "flush": st.sampled_from(["none", "interval", "group"]),
        "acks": st.sampled_from(["reply", "off"]),
    },
)
# Stream and node references are resolved against the state when the command is made, so that
# most commands are nearly right: current epochs, or off by one.
commands = st.lists(
    st.one_of(
        st.tuples(
            st.just("create_stream"),
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["x", "y"]),
                    "subject": st.sampled_from(SUBJECTS),
                    "replicas": st.lists(NODES, max_size=4),
                    "observers": st.lists(NODES, max_size=1),
                    "config": settings_of_streams,
                    "created_at_us": st.just(1),
                }
            ),
        ),
        st.tuples(
            st.just("register_node"),
            st.fixed_dictionaries(
                {
                    "node_id": NODES,
                    "session": st.integers(0, 30).map(str),
                    "addresses": st.just(ADDRESSES),
                    "rack": st.sampled_from(["", "r"]),
                    "trusted": st.booleans(),
                    "feature_level_max": st.just(FEATURE_LEVEL_MAX),
                }
            ),
        ),
        st.tuples(
            st.sampled_from(["fence_node", "unfence_node", "drain_node", "remove_node"]),
            st.fixed_dictionaries({"node_id": NODES}),
        ),
        st.tuples(
            st.just("drain_node"),
            st.fixed_dictionaries(
                {"node_id": NODES, "draining": st.booleans(), "until_undone": st.booleans()}
            ),
        ),
        st.tuples(
            st.sampled_from(
                [
                    *("delete_stream", "transfer_leader", "report_leader", "confirm_flush"),
                    *("purge_stream", "set_stream_access", "commit_lake", "reassign_stream"),
                    "adopt_lake",
                    *("finish_reassignment", "finish_reassignment", "set_schema", "set_schema"),
                    *(
                        "alter_stream",
                        "elect_leader",
                        "distrust_replica",
                        "change_isr",
                        "change_isr",
                    ),
                ]
            ),
            st.fixed_dictionaries(
                {
                    "stream": STREAM_INDEX,
                    "node": NODES,
                    "isr": st.lists(NODES, unique=True, max_size=4),
                    "observers": st.none() | st.lists(NODES, unique=True, max_size=2),
                    "stale": st.sampled_from([0, 0, 0, 0, 1, -1]),
                    "config": settings_of_streams,
                    "schema": st.sampled_from(SCHEMAS),
                }
            ),
        ),
    ),
    max_size=40,
)


def resolved(registry: Registry, op: str, fields: dict[str, Any]) -> Command:
    """A command with current epochs and incarnations filled in."""
    kind = OPERATIONS[op].command
    if "stream" not in fields:
        return kind(**fields)
    streams = list(registry.streams.values())
    if not streams:
        return DeleteStream(stream_id=StreamId(0))
    stream = streams[fields["stream"] % len(streams)]
    node, stale = fields["node"], fields["stale"]
    leader_epoch, stream_epoch = stream.leader_epoch + stale, stream.stream_epoch + stale
    incarnations = [
        registry.nodes[member].incarnation if member in registry.nodes else 0
        for member in fields["isr"]
    ]
    by_op: dict[str, dict[str, Any]] = {
        "delete_stream": {},
        "change_isr": {
            "leader": stream.leader if stream.leader != NO_NODE else 0,
            "leader_epoch": leader_epoch,
            "stream_epoch": stream_epoch,
            "isr": fields["isr"],
            "incarnations": incarnations,
        },
        "transfer_leader": {"leader": node, "stream_epoch": stream_epoch},
        "report_leader": {"leader_epoch": leader_epoch, "reporter": node, "now_us": 5},
        "confirm_flush": {"node_id": node, "stream_epoch": stream_epoch},
        "distrust_replica": {
            "node_id": node,
            "node_incarnation": registry.nodes[node].incarnation if node in registry.nodes else 0,
        },
        "reassign_stream": {
            "replicas": fields["isr"],
            "observers": fields["observers"],
            "stream_epoch": stream_epoch,
        },
        "finish_reassignment": {"stream_epoch": stream_epoch},
        "purge_stream": {"leader_epoch": leader_epoch, "offset": 7 + stale},
        "commit_lake": {
            "leader_epoch": leader_epoch,
            "expected_location": stream.lake.location,
            "version": stream.lake.version,
            "begin": stream.lake.end,
            "end": stream.lake.end + (0 if node else 3),
            "last_epoch": stream.lake.last_epoch if node else stream.leader_epoch,
            "start": node,
            "location": f"{stream_epoch}.json",
        },
        "adopt_lake": {
            "leader_epoch": leader_epoch,
            "start": node,
            "end": 5,
            "last_epoch": stream.leader_epoch + stale,
            "location": f"{stream_epoch}.json",
        },
        "set_schema": {
            "schema": fields["schema"],
            "schema_version": stream.schema_version + stale,
        },
        "set_stream_access": {"readonly": stale == 0, "paused": stale == 1},
        "alter_stream": {"stream_epoch": stream_epoch, "config": fields["config"]},
        "elect_leader": {
            "leader": node,
            "force": stale == 1,
            "incarnations": [
                registry.nodes[member].incarnation
                for member in stream.last_known
                if member in registry.nodes
            ],
        },
    }
    return kind(stream_id=stream.id, **by_op[op])


def check_invariants(registry: Registry) -> None:
    for stream in registry.streams.values():
        assert set(stream.isr) <= set(stream.replicas)
        assert set(stream.elr) <= set(stream.replicas)
        assert not set(stream.isr) & set(stream.elr)
        assert all(registry.is_alive(member) for member in stream.isr)
        assert stream.leader == NO_NODE or stream.leader in stream.isr
        assert stream.leader != NO_NODE or not stream.isr, "an ISR member could lead"
        if len(stream.isr) >= stream.config.min_insync_replicas:
            assert stream.elr == stream.last_known == ()
        assert not set(stream.last_known) & set(stream.isr)
        assert stream.leader != NO_NODE or stream.elr or stream.last_known, "nobody to wait for"
        assert set(stream.target_replicas) <= set(stream.replicas)
        assert (stream.id in registry.reassigned) == bool(stream.target_replicas)
        assert stream.config.replicas == len(stream.target_replicas or stream.replicas)
        assert stream.config.observers == len(stream.observers)
        assert not set(stream.observers) & set(stream.target_replicas or stream.replicas)
        counted = {*stream.isr, *stream.elr, *stream.last_known, *stream.unflushed}
        assert counted <= set(stream.replicas), "an observer counts"
        assert registry.find(stream.name, stream.subject) is stream
        assert 0 <= stream.lake.start <= stream.lake.end
        assert stream.config.lake or not stream.lake.holds_records
        assert len(stream.schemas) == min(stream.schema_version, VERSIONS_MAX)
        for before, after in pairwise(stream.schemas):
            assert before != after
            assert not (before and after) or not why_incompatible(parse(before), parse(after))
    check_indexes(registry)


def check_indexes(registry: Registry) -> None:
    streams = sorted(registry.streams.values(), key=lambda stream: stream.id)
    for literal in LITERALS:
        feeding = [stream for stream in streams if matches(stream.subject, literal)]
        assert registry.feeding(literal) == feeding
    for node_id in range(4):
        holding = [stream for stream in streams if node_id in stream.copies]
        assert registry.streams_of(node_id) == holding
        leading = sum(stream.leader == node_id for stream in streams)
        assert registry.leaderships.get(node_id, 0) == leading


def check_epochs(registry: Registry) -> None:
    """Epochs of each change only grow, and no leadership is resumed. Former replicas are not
    needed: all that stay are in sync."""
    for change in registry.take_changes():
        if isinstance(change, StreamChanged):
            before, after = change.before, change.after
            if set(before.replicas) - set(after.replicas):
                assert after.isr == after.replicas == before.target_replicas
                assert after.leader == before.leader
            assert after.stream_epoch == before.stream_epoch + 1
            assert after.leader_epoch >= before.leader_epoch
            if after.leader != before.leader:
                assert after.leader_epoch > before.leader_epoch


@settings(max_examples=scaled(150))
@given(commands=commands, snapshot_at=st.integers(0, 40))
def test_invariants_hold_and_a_restored_copy_follows_exactly(
    commands: list[tuple[str, dict[str, Any]]], snapshot_at: int
) -> None:
    registry, copy = Registry(), Registry()
    begin: list[tuple[str, dict[str, Any]]] = [
        (
            "register_node",
            {
                "node_id": node_id,
                "session": f"s{node_id}",
                "addresses": ADDRESSES,
                "feature_level_max": FEATURE_LEVEL_MAX,
            },
        )
        for node_id in (0, 1, 2)
    ]
    for revision, (op, fields) in enumerate(
        [*begin, ("set_cluster", {"feature_level": FEATURE_LEVEL_MAX}), *commands],
        start=1,
    ):
        if revision == snapshot_at:
            copy = Registry()
            copy.restore(registry.snapshot())
        text = encode_command(resolved(registry, op, fields))
        result = registry.apply(text, revision)
        assert copy.apply(text, revision) == result
        assert result.get("error", {}).get("code") != "internal", (text, result)
        check_invariants(registry)
        check_epochs(registry)
    assert copy.snapshot() == registry.snapshot()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
field_names = st.sampled_from(
    [
        *("name", "subject", "config", "replicas", "stream_id", "node_id", "isr", "id", "leader"),
        *("session", "addresses", "controller_epoch", "stream_epoch", "created_at_us"),
    ]
)


@settings(max_examples=scaled(200))
@given(
    op=st.sampled_from(sorted(OPERATIONS)),
    fields=st.dictionaries(field_names, json_values, max_size=8),
)
def test_no_command_raises_or_is_an_internal_error(op: str, fields: dict[str, Any]) -> None:
    registry = Registry()
    result = registry.apply(json.dumps({**fields, "op": op}), 1)
    assert result["revision"] == 1
    assert result.get("error", {}).get("code") != "internal"


@given(text=st.text())
def test_no_text_raises(text: str) -> None:
    assert "error" in Registry().apply(text, 1)
