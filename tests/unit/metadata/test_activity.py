"""The outbox of the stream of activity: what is put in, what it survives, and what leaves it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError
from jetstream_protocol.generated.cursors_pb2 import Cursor
from jetstream_protocol.types import LeaderEpoch, NodeId, WallUs
from jetstream_server.cursors.events import Cause, event_about
from jetstream_server.metadata.state import outbox as outboxes
from jetstream_server.metadata.state.activity import ACTIVITY, NOTED_MAX, tells_of_cursors
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    AddAcl,
    AlterStream,
    CreateStream,
    CreateToken,
    DeleteStream,
    FenceNode,
    FinishReassignment,
    NoteCursors,
    ReassignStream,
    RevokeToken,
    SetCluster,
    TransferLeader,
    TrimActivity,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.outbox import Outbox
from jetstream_server.metadata.state.registry import Registry
from tests.unit.metadata.cluster import Cluster


def recording() -> Cluster:
    """Three nodes, and the stream of activity."""
    cluster, nodes = Cluster(), tuple(map(NodeId, range(3)))
    for node_id in nodes:
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    cluster.do(
        CreateStream(
            name=ACTIVITY, subject="", replicas=nodes, created_at_us=WallUs(1), internal=True
        )
    )
    return cluster


def test_a_changed_limit_on_copying_is_told() -> None:
    cluster = recording()
    cluster.do(SetCluster(copy_bytes_per_second=1 << 20))
    (event,) = events(cluster.registry)[-1:]
    assert event["type"] == "cluster_changed"
    assert event["changes"] == {"copy_bytes_per_second": {"before": 0, "after": 1 << 20}}


def test_a_raised_level_is_told_without_the_settings_that_it_brings() -> None:
    cluster = Cluster(nodes=3)
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FeatureLevel(4)))
    cluster.create(ACTIVITY, "", internal=True)
    cluster.do(SetCluster(feature_level=FeatureLevel(5)))
    (event,) = events(cluster.registry)[-1:]
    assert event["changes"] == {"feature_level": {"before": 4, "after": 5}}


def cursor_event(number: int) -> str:
    cursor = Cursor(
        name=f"reader-{number}", stream_id=7, stream_name="orders", stream_subject="orders.>"
    )
    told = event_about(None, cursor.SerializeToString(), Cause("user:me"))
    assert told is not None
    return told.text


def noted(epoch: int, *offsets: int) -> NoteCursors:
    """The records of `__cursors` at these offsets."""
    return NoteCursors(
        leader_epoch=LeaderEpoch(epoch),
        offsets=offsets,
        events=tuple(map(cursor_event, offsets)),
    )


def events(registry: Registry, after: int = 0) -> list[dict[str, Any]]:
    return [json.loads(text) for text in registry.activity.after(after)]


def test_nothing_is_put_down_before_there_is_a_stream_for_it() -> None:
    cluster = Cluster(nodes=3)
    cluster.create("orders", "orders.>", (0, 1, 2))
    assert cluster.registry.activity == Outbox()
    assert b"activity" not in cluster.registry.snapshot()


def test_every_change_is_an_event_with_the_next_number_and_its_revision() -> None:
    cluster = recording()
    stream = cluster.create("orders", "orders.>", (0, 1, 2))
    other = next(node for node in stream.replicas if node != stream.leader)
    cluster.do(TransferLeader(stream_id=stream.id, leader=other))
    epoch = cluster.now(stream).stream_epoch
    change = {"max_age_us": 3_600_000_000}
    cluster.do(AlterStream(stream_id=stream.id, stream_epoch=epoch, config=change))
    gone = cluster.registry.nodes[NodeId(2)]
    cluster.do(FenceNode(node_id=gone.node_id, node_incarnation=gone.incarnation))
    cluster.do(DeleteStream(stream_id=stream.id))
    found = events(cluster.registry)
    assert [event["sequence"] for event in found] == list(range(1, len(found) + 1))
    revisions = [event["revision"] for event in found]
    assert revisions == sorted(revisions)
    assert revisions[-1] == cluster.registry.revision
    first, created, led, altered = found[:4]
    assert (first["type"], first["stream"]) == ("stream_created", ACTIVITY)
    assert (created["type"], created["stream"]) == ("stream_created", "orders@orders.>")
    assert led["changes"]["leader"] == {"before": stream.leader, "after": other}
    assert altered["changes"] == {"max_age_us": {"before": 0, "after": 3_600_000_000}}
    fenced = [event for event in found if event["type"] == "node_changed"]
    assert fenced[0]["changes"]["fenced"] == {"before": False, "after": True}
    assert found[-1] == {
        "sequence": len(found),
        "revision": cluster.registry.revision,
        "type": "stream_deleted",
        "stream": "orders@orders.>",
        "stream_id": stream.id,
    }


def test_the_events_of_one_command_are_put_down_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time copies all that waits: a node that ends changes thousands of streams."""
    cluster = recording()
    names = [f"s{number}" for number in range(20)]
    for name in names:
        cluster.create(name, name, (0, 1, 2))
    put: list[int] = []
    with_events = Outbox.with_events

    def counted(outbox: Outbox, texts: Sequence[str]) -> Outbox:
        put.append(len(texts))
        return with_events(outbox, texts)

    monkeypatch.setattr(Outbox, "with_events", counted)
    before = cluster.registry.activity.next_sequence
    gone = cluster.registry.nodes[NodeId(2)]
    cluster.do(FenceNode(node_id=gone.node_id, node_incarnation=gone.incarnation))
    fenced, *changed = events(cluster.registry, before - 1)
    assert [event["sequence"] for event in (fenced, *changed)] == [
        before + number for number in range(len(names) + 2)
    ]
    assert put == [len(names) + 2]
    assert fenced["type"] == "node_changed"
    assert {event["stream"] for event in changed} == {f"{name}@{name}" for name in names} | {
        ACTIVITY
    }


def test_an_event_has_the_fields_of_the_cluster_s_feature_level() -> None:
    """Older software writes the same events."""
    cluster, nodes = Cluster(), tuple(map(NodeId, range(3)))
    for node_id in nodes:
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FeatureLevel(2)))
    activity = CreateStream(
        name=ACTIVITY, subject="", replicas=nodes, created_at_us=WallUs(1), internal=True
    )
    cluster.do(activity)
    assert "observers" not in cluster.registry.activity.after(0)[0]
    cluster.do(SetCluster(feature_level=FeatureLevel(3)))
    cluster.create("orders", "orders.>", (0, 1), observers=nodes[2:])
    created = events(cluster.registry)[-1]
    assert created["observers"] == [2]


def moved(level: int) -> list[dict[str, Any]]:
    """What is told when a stream of nodes 0 and 1 is made, and moved to the nodes 1 and 2."""
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FeatureLevel(level)))
    cluster.create(ACTIVITY, "", internal=True)
    before = cluster.registry.activity.next_sequence
    stream = cluster.create("orders", "orders.>", (0, 1))
    cluster.do(TransferLeader(stream_id=stream.id, leader=NodeId(1)))
    cluster.do(ReassignStream(stream_id=stream.id, replicas=(NodeId(1), NodeId(2))))
    cluster.change_isr(stream, (0, 1, 2))
    epoch = cluster.now(stream).stream_epoch
    cluster.do(FinishReassignment(stream_id=stream.id, stream_epoch=epoch))
    return events(cluster.registry, before - 1)


def test_the_nodes_that_a_stream_is_moved_from_and_to_are_told() -> None:
    created, *_, begun, _, ended = moved(5)
    assert created["replicas"] == [0, 1]
    assert begun["changes"] == {
        "replicas": {"before": [0, 1], "after": [0, 1, 2]},
        "target_replicas": {"before": [], "after": [1, 2]},
    }
    assert ended["changes"] == {
        "replicas": {"before": [0, 1, 2], "after": [1, 2]},
        "isr": {"before": [0, 1, 2], "after": [1, 2]},
        "target_replicas": {"before": [1, 2], "after": []},
    }


def test_older_software_tells_the_number_of_replicas() -> None:
    created, *_, begun, _, ended = moved(4)
    assert list(created)[5:10] == ["group", "replicas", "leader", "leader_epoch", "isr"]
    assert created["replicas"] == 2
    assert begun["changes"] == {"target_replicas": {"before": [], "after": [1, 2]}}
    assert list(ended["changes"]) == ["isr", "target_replicas"]


def test_tokens_and_rules_are_told_without_a_hash() -> None:
    cluster = recording()
    token = CreateToken(
        token_id="a1b2", principal="user:me", hash="slow-hash", created_at_us=WallUs(1)
    )
    cluster.do(token)
    cluster.do(
        AddAcl(principal="user:me", operations=("read",), allow=True, stream="*", subject=">")
    )
    cluster.do(RevokeToken(token_id="a1b2"))
    found = events(cluster.registry, after=1)
    assert [event["type"] for event in found] == ["token_created", "acl_added", "token_revoked"]
    assert found[0]["principal"] == "user:me"
    assert "slow-hash" not in str(found)


def test_rules_that_get_a_right_by_a_new_level_are_told() -> None:
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FeatureLevel(5)))
    cluster.create(ACTIVITY, "", internal=True)
    rule = AddAcl(principal="user:me", operations=("read",), allow=True, stream="*", subject=">")
    number = cluster.do(rule)["id"]
    cluster.do(replace(rule, operations=("alter",)))
    before = cluster.registry.activity.next_sequence
    cluster.do(SetCluster(feature_level=FeatureLevel(6)))
    level, removed, added = events(cluster.registry, before - 1)
    assert level["type"] == "cluster_changed"
    assert (removed["type"], removed["rule"][:3]) == ("acl_removed", [number, "user:me", ["read"]])
    assert (added["type"], added["rule"][2]) == ("acl_added", ["read", "commit"])


def test_what_waits_survives_a_snapshot_and_reaches_copies() -> None:
    cluster = recording()
    cluster.create("orders", "orders.>", (0, 1, 2))
    fresh = Registry()
    fresh.restore(cluster.registry.snapshot())
    assert fresh.activity == cluster.registry.activity
    copy = Registry()
    copy.follow(fresh.take_changes(), fresh.revision)
    assert copy.activity == cluster.registry.activity


def test_what_is_in_the_log_leaves_the_outbox_and_no_more() -> None:
    cluster = recording()
    for number in range(3):
        cluster.create(f"s{number}", f"s{number}", (0, 1, 2))
    before = events(cluster.registry)
    cluster.do(TrimActivity(through=2))
    assert events(cluster.registry) == before[2:]
    cluster.do(TrimActivity(through=1))
    assert events(cluster.registry) == before[2:], "late, and nothing comes back"
    cluster.do(TrimActivity(through=10**9))
    assert cluster.registry.activity == Outbox(len(before) + 1, ())
    cluster.create("more", "more", (0, 1, 2))
    assert events(cluster.registry)[0]["sequence"] == len(before) + 1


def test_an_outbox_that_nobody_empties_is_bounded_and_the_numbers_show_what_was_lost() -> None:
    outbox = Outbox()
    for number in range(1, outboxes.EVENTS_MAX + 6):
        outbox = outbox.with_events((f'{{"sequence":{number}}}',))
    assert len(outbox.events) == outboxes.EVENTS_MAX
    assert outbox.first_sequence == 6
    assert len(outbox.after(0)) == outboxes.EVENTS_MAX
    assert Outbox.from_dict(outbox.to_dict()) == outbox


def test_numbers_that_were_skipped_belong_to_no_event() -> None:
    outbox = Outbox()
    for number in (1, 2):
        outbox = outbox.with_events((f'{{"sequence":{number}}}',))
    outbox = outbox.skipping(100).with_events(('{"sequence":103}',))
    assert Outbox.from_dict(outbox.to_dict()) == outbox
    assert outbox.next_sequence == 104
    assert [outbox.after(number) for number in (1, 2, 102, 103)] == [
        outbox.events[1:],
        outbox.events[2:],
        outbox.events[2:],
        (),
    ]
    assert outbox.first_sequence == 1
    assert outbox.without(2).first_sequence == 103
    assert outbox.without(50) == outbox.without(2)


class TestCursors:
    def test_an_event_is_put_in_once_however_often_it_comes(self) -> None:
        cluster = recording()
        cluster.do(noted(1, 5, 7))
        cluster.do(noted(1, 5, 7))
        cluster.do(noted(1, 7, 9))
        found = events(cluster.registry, after=1)
        assert [event["cursor"] for event in found] == ["reader-5", "reader-7", "reader-9"]
        assert [event["sequence"] for event in found] == [2, 3, 4]
        assert found[0] == {
            "sequence": 2,
            "revision": cluster.registry.revision - 2,
            "type": "cursor_created",
            "cursor": "reader-5",
            "stream": "orders@orders.>",
            "stream_id": 7,
            "offset": 0,
            "principal": "user:me",
        }

    def test_a_leader_that_lost_records_may_use_their_offsets_again(self) -> None:
        cluster = recording()
        cluster.do(noted(1, 5, 7))
        cluster.do(noted(2, 6))
        assert events(cluster.registry)[-1]["cursor"] == "reader-6"

    def test_which_were_put_in_survives_a_snapshot_and_trimming(self) -> None:
        cluster = recording()
        cluster.do(noted(1, 5))
        cluster.do(TrimActivity(through=2))
        fresh = Registry()
        fresh.restore(cluster.registry.snapshot())
        assert fresh.activity == cluster.registry.activity
        cluster.do(noted(1, 5))
        assert events(cluster.registry) == []

    def test_before_the_level_nothing_is_told_and_the_command_is_unknown(self) -> None:
        cluster = Cluster(nodes=3)
        for node_id in range(3):
            cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
        cluster.do(SetCluster(feature_level=FeatureLevel(4)))
        cluster.create(ACTIVITY, "", internal=True)
        assert not tells_of_cursors(cluster.registry)
        with pytest.raises(InvalidRequestError, match="unknown metadata operation 'note_cursors'"):
            cluster.do(noted(1, 5))
        cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        assert tells_of_cursors(cluster.registry)
        cluster.do(noted(1, 5))

    def test_without_the_stream_nothing_is_told(self) -> None:
        cluster = Cluster(nodes=3)
        for node_id in range(3):
            cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
        cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        assert not tells_of_cursors(cluster.registry)
        with pytest.raises(PreconditionFailedError, match="no stream of activity"):
            cluster.do(noted(1, 5))

    @pytest.mark.parametrize(
        "event",
        [
            "",
            "[" * 3000,
            "[]",
            "{}",
            '{"type":"stream_deleted"}',
            cursor_event(1)[:-1] + ',"more":1}',
            cursor_event(1).replace('"reader-1"', "1"),
            cursor_event(1).replace("cursor_created", "cursor_moved"),
        ],
    )
    def test_what_is_not_an_event_about_a_cursor_is_refused(self, event: str) -> None:
        cluster = recording()
        before = cluster.registry.activity
        with pytest.raises(InvalidRequestError):
            cluster.do(NoteCursors(leader_epoch=LeaderEpoch(1), offsets=(5,), events=(event,)))
        assert cluster.registry.activity == before

    @pytest.mark.parametrize("offsets", [(), (5, 5), (7, 5), tuple(range(NOTED_MAX + 1))])
    def test_the_number_and_the_order_of_events_are_checked(self, offsets: tuple[int, ...]) -> None:
        with pytest.raises(InvalidRequestError):
            recording().do(noted(1, *offsets))
