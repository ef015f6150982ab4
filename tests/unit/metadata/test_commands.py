"""Commands as JSON: older bytes are read, and what is written now is the same as before."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import LeaderEpoch, NodeId, StreamId, WallUs
from jetstream_server.metadata.state import commands
from jetstream_server.metadata.state.command_json import (
    Command,
    decode_command,
    encode_command,
    since,
)
from jetstream_server.metadata.state.commands import (
    AddAcl,
    AdoptLake,
    AlterStream,
    Barrier,
    BootstrapSecurity,
    ChangeIsr,
    ClaimController,
    CommitLake,
    ConfirmFlush,
    CreateStream,
    CreateToken,
    DeleteStream,
    DistrustReplica,
    DrainNode,
    ElectLeader,
    FenceNode,
    NoteCursors,
    NoteDisk,
    PurgeStream,
    RegisterNode,
    RemoveAcl,
    ReportLeader,
    RevokeToken,
    SetCluster,
    SetSchema,
    SetStreamAccess,
    TransferLeader,
    TrimActivity,
    UnfenceNode,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.operations import OPERATIONS
from jetstream_server.metadata.state.registry import Registry
from tests.unit.metadata.cluster import ADDRESSES

METADATA = Path(__file__).parents[2] / "vectors" / "metadata"
"""Written in November 2026, before commands had classes; never rewritten."""

STREAM, NODES = StreamId(7), (NodeId(0), NodeId(1), NodeId(2))
NODE = NODES[2]

WRITTEN: list[tuple[Command, str]] = [
    (
        CreateStream(
            name="orders",
            subject="orders.>",
            config={"replicas": 3, "flush": "group", "compact": True, "max_age_us": 3600000000},
            replicas=NODES,
            created_at_us=1700000000000000,
            allow_same_name=False,
        ),
        '{"op":"create_stream","name":"orders","subject":"orders.>","group":"","config":'
        '{"replicas":3,"flush":"group","compact":true,"max_age_us":3600000000},'
        '"replicas":[0,1,2],"created_at_us":1700000000000000,"allow_same_name":false}',
    ),
    (
        CreateStream(name="o", subject="o.*", group="g", replicas=(NODE,), created_at_us=1),
        '{"op":"create_stream","name":"o","subject":"o.*","group":"g","config":{},'
        '"replicas":[2],"created_at_us":1,"allow_same_name":true}',
    ),
    (
        CreateStream(name="o", subject="o", replicas=(NODE,), created_at_us=WallUs(1), names_at=9),
        '{"op":"create_stream","name":"o","subject":"o","group":"","config":{},'
        '"replicas":[2],"created_at_us":1,"allow_same_name":true,"names_at":9}',
    ),
    (DeleteStream(stream_id=STREAM), '{"op":"delete_stream","stream_id":7}'),
    (TrimActivity(through=9), '{"op":"trim_activity","through":9}'),
    (
        NoteCursors(leader_epoch=LeaderEpoch(3), offsets=(7, 9), events=("{}", '{"a":1}')),
        '{"op":"note_cursors","leader_epoch":3,"offsets":[7,9],"events":["{}","{\\"a\\":1}"]}',
    ),
    (
        AlterStream(stream_id=STREAM, stream_epoch=3, config={"min_insync_replicas": 1}),
        '{"op":"alter_stream","stream_id":7,"stream_epoch":3,"config":{"min_insync_replicas":1}}',
    ),
    (
        PurgeStream(stream_id=STREAM, leader_epoch=LeaderEpoch(3), offset=9),
        '{"op":"purge_stream","stream_id":7,"leader_epoch":3,"offset":9}',
    ),
    (
        CommitLake(
            stream_id=STREAM,
            leader_epoch=LeaderEpoch(3),
            expected_location="metadata/1.json",
            version=1,
            begin=10,
            end=20,
            last_epoch=LeaderEpoch(3),
            location="metadata/2.json",
        ),
        '{"op":"commit_lake","stream_id":7,"leader_epoch":3,"expected_location":"metadata/1.json",'
        '"version":1,"begin":10,"end":20,"last_epoch":3,"location":"metadata/2.json"}',
    ),
    (
        AdoptLake(
            stream_id=STREAM,
            leader_epoch=LeaderEpoch(0),
            start=10,
            end=20,
            last_epoch=LeaderEpoch(3),
            location="metadata/2.json",
        ),
        '{"op":"adopt_lake","stream_id":7,"leader_epoch":0,"start":10,"end":20,"last_epoch":3,'
        '"location":"metadata/2.json"}',
    ),
    (
        SetSchema(stream_id=STREAM, schema="id bigint", schema_version=2),
        '{"op":"set_schema","stream_id":7,"schema":"id bigint","schema_version":2}',
    ),
    (
        SetStreamAccess(stream_id=STREAM, readonly=False),
        '{"op":"set_stream_access","stream_id":7,"readonly":false}',
    ),
    (
        SetStreamAccess(stream_id=STREAM, paused=True),
        '{"op":"set_stream_access","stream_id":7,"paused":true}',
    ),
    (
        ConfirmFlush(stream_id=STREAM, node_id=NODE, stream_epoch=4),
        '{"op":"confirm_flush","stream_id":7,"node_id":2,"stream_epoch":4}',
    ),
    (
        ChangeIsr(
            stream_id=STREAM,
            leader=NodeId(1),
            leader_epoch=LeaderEpoch(2),
            stream_epoch=3,
            isr=NODES[:2],
            incarnations=(11, 12),
        ),
        '{"op":"change_isr","stream_id":7,"leader":1,"leader_epoch":2,"stream_epoch":3,'
        '"isr":[0,1],"incarnations":[11,12]}',
    ),
    (
        TransferLeader(stream_id=STREAM, leader=NODE, stream_epoch=4),
        '{"op":"transfer_leader","stream_id":7,"leader":2,"stream_epoch":4}',
    ),
    (
        TransferLeader(stream_id=STREAM, leader=NODE),
        '{"op":"transfer_leader","stream_id":7,"leader":2}',
    ),
    (
        ElectLeader(stream_id=STREAM, leader=NODE, incarnations=(3, 4)),
        '{"op":"elect_leader","stream_id":7,"leader":2,"incarnations":[3,4]}',
    ),
    (
        ElectLeader(stream_id=STREAM, leader=NODE, force=True, incarnations=(9,), stream_epoch=4),
        '{"op":"elect_leader","stream_id":7,"leader":2,"force":true,"incarnations":[9],'
        '"stream_epoch":4}',
    ),
    (
        DistrustReplica(stream_id=STREAM, node_id=NODE, node_incarnation=9),
        '{"op":"distrust_replica","stream_id":7,"node_id":2,"node_incarnation":9}',
    ),
    (
        ReportLeader(
            stream_id=STREAM, leader_epoch=LeaderEpoch(3), reporter=NodeId(1), now_us=12345
        ),
        '{"op":"report_leader","stream_id":7,"leader_epoch":3,"reporter":1,"now_us":12345}',
    ),
    (
        RegisterNode(session="s", node_id=NODE, addresses=ADDRESSES, replaces=""),
        '{"op":"register_node","session":"s","node_id":2,"rack":"","addresses":{"grpc":"a:1",'
        '"data":"a:2","raft":"a:3","http":"a:4"},"replaces":"","trusted":true,"distrusted":[],'
        '"feature_level_max":1}',
    ),
    (
        FenceNode(node_id=NODE, node_incarnation=9),
        '{"op":"fence_node","node_id":2,"node_incarnation":9}',
    ),
    (
        UnfenceNode(node_id=NODE, node_incarnation=9),
        '{"op":"unfence_node","node_id":2,"node_incarnation":9}',
    ),
    (DrainNode(node_id=NODE), '{"op":"drain_node","node_id":2}'),
    (
        DrainNode(node_id=NODE, draining=True, until_undone=True),
        '{"op":"drain_node","node_id":2,"draining":true,"until_undone":true}',
    ),
    (
        DrainNode(node_id=NODE, draining=False, until_undone=True),
        '{"op":"drain_node","node_id":2,"draining":false,"until_undone":true}',
    ),
    (
        NoteDisk(node_id=NODE, node_incarnation=9, full=True),
        '{"op":"note_disk","node_id":2,"node_incarnation":9,"full":true}',
    ),
    (ClaimController(node_id=NODE), '{"op":"claim_controller","node_id":2}'),
    (SetCluster(cluster_id="c1"), '{"op":"set_cluster","cluster_id":"c1"}'),
    (
        SetCluster(ack_subjects=("_INBOX.>", "acks.>")),
        '{"op":"set_cluster","ack_subjects":["_INBOX.>","acks.>"]}',
    ),
    (
        SetCluster(copy_bytes_per_second=65536),
        '{"op":"set_cluster","copy_bytes_per_second":65536}',
    ),
    (SetCluster(recoveries=("one", "two")), '{"op":"set_cluster","recoveries":["one","two"]}'),
    (Barrier(), '{"op":"barrier"}'),
    (
        CreateToken(token_id="0a1b", principal="user:x", hash="scrypt$1", created_at_us=WallUs(7)),
        '{"op":"create_token","token_id":"0a1b","principal":"user:x","hash":"scrypt$1",'
        '"created_at_us":7}',
    ),
    (RevokeToken(token_id="0a1b"), '{"op":"revoke_token","token_id":"0a1b"}'),
    (
        AddAcl(principal="*", operations=("read",), allow=True, stream="a*", subject="a.>"),
        '{"op":"add_acl","principal":"*","operations":["read"],"allow":true,"stream":"a*",'
        '"subject":"a.>"}',
    ),
    (
        AddAcl(principal="user:x", operations=("all",), allow=False),
        '{"op":"add_acl","principal":"user:x","operations":["all"],"allow":false}',
    ),
    (RemoveAcl(rule_id=9), '{"op":"remove_acl","rule_id":9}'),
    (
        BootstrapSecurity(
            token_id="0a1b",
            principal="user:admin",
            hash="scrypt$1",
            created_at_us=WallUs(7),
            expires_at_us=WallUs(9),
        ),
        '{"op":"bootstrap_security","token_id":"0a1b","principal":"user:admin",'
        '"hash":"scrypt$1","created_at_us":7,"expires_at_us":9}',
    ),
]


@pytest.mark.parametrize(("command", "text"), WRITTEN, ids=lambda value: getattr(value, "op", ""))
def test_a_command_is_written_as_it_always_was_and_read_back(command: Command, text: str) -> None:
    assert encode_command(command) == text
    envelope = decode_command(text)
    assert (envelope.controller_epoch, envelope.id) == (None, None)
    operation = OPERATIONS[str(envelope.op)]
    assert operation.command.parse(envelope.fields, command.needed_level) == command


def test_claim_and_id_follow_the_fields() -> None:
    text = encode_command(Barrier(), controller_epoch=6, command_id=("token", 1))
    assert text == '{"op":"barrier","controller_epoch":6,"id":["token",1]}'
    assert decode_command(text) == ("barrier", {}, 6, ("token", 1))


def test_a_journal_of_an_earlier_version_gives_the_results_and_the_state_it_gave_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "FEATURE_LEVEL_MAX", FeatureLevel(2))  # It goes up to that.
    registry = Registry()
    for number, line in enumerate(_lines(METADATA / "journal.jsonl")):
        said = registry.apply(line["command"], registry.revision + 1)
        assert said == json.loads(line["result"]), (number, line["command"])
    restored = Registry()
    restored.restore(zlib.compress((METADATA / "snapshot.jsonl").read_bytes().rstrip(b"\n")))
    assert restored.snapshot() == registry.snapshot()


def test_every_command_has_an_operation() -> None:
    declared = [kind for kind in vars(commands).values() if _is_command(kind)]
    assert sorted(kind.op for kind in declared) == sorted(OPERATIONS)
    assert all(OPERATIONS[kind.op].command is kind for kind in declared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Later(Command):
    """A command with a field that came one level after it."""

    op: ClassVar[str] = "later"
    level: ClassVar[int] = 2
    name: str
    extra: int | None = field(default=None, metadata=since(3))


class TestLevels:
    def test_a_field_of_a_later_level_is_unknown_before_it(self) -> None:
        assert Later.parse({"name": "a", "extra": 1}, 3) == Later(name="a", extra=1)
        with pytest.raises(InvalidRequestError, match="unknown fields 'extra': written by newer"):
            Later.parse({"name": "a", "extra": 1}, 2)

    def test_a_command_needs_the_level_of_what_it_says(self) -> None:
        assert Barrier().needed_level == 1
        assert Later(name="a").needed_level == 2
        assert Later(name="a", extra=0).needed_level == 3

    def test_this_software_understands_its_commands_and_the_later_fields_have_defaults(
        self,
    ) -> None:
        for operation in OPERATIONS.values():
            assert operation.command.level <= commands.FEATURE_LEVEL_MAX
            for each in fields(operation.command):
                level = each.metadata.get("since", 1)
                assert level <= commands.FEATURE_LEVEL_MAX
                assert level == 1 or each.default is not MISSING, f"{each.name} has no default"


def test_registering_says_what_the_software_understands() -> None:
    command = RegisterNode(
        session="s", node_id=NODE, addresses=ADDRESSES, feature_level_max=FeatureLevel(4)
    )
    assert json.loads(encode_command(command))["feature_level_max"] == 4


def _is_command(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Command) and kind is not Command


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines())
