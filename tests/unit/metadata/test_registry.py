import json
import zlib

import pytest

from jetstream_protocol.ack_cluster import mark_of
from jetstream_protocol.errors import (
    AmbiguousStreamError,
    FencedEpochError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    StorageError,
    StreamNotFoundError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import StreamId
from jetstream_server.metadata.state.changes import (
    ControllerChanged,
    NodeChanged,
    SettingsChanged,
    StreamCreated,
    StreamDeleted,
)
from jetstream_server.metadata.state.cluster import COPY_LIMIT_LEVEL
from jetstream_server.metadata.state.command_json import encode_command
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    LAG_LIMIT_LEVEL,
    Barrier,
    ClaimController,
    DeleteStream,
    DrainNode,
    FenceNode,
    SetCluster,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.operations import OPERATIONS, Operation
from jetstream_server.metadata.state.registry import Registry, check_result
from jetstream_server.metadata.state.results import SPAN, WINDOW
from jetstream_server.metadata.state.streams import QUEUE_GROUP_LEVEL, stream_fields

from .cluster import Cluster


@pytest.mark.parametrize(
    "command",
    [
        "",
        "null",
        "[]",
        "{",
        "{}",
        '{"op":1}',
        '{"op":{"op":"barrier"}}',
        '{"op":"nonsense"}',
        '{"op":"create_stream"}',
        '{"op":"barrier","surprise":1}',
        '{"op":"barrier","id":7}',
        '{"op":"barrier","id":[null,1]}',
        '{"op":"barrier","id":["a",-1]}',
        '{"op":"delete_stream","stream_id":NaN}',
        '{"op":"delete_stream","stream_id":1e400}',
        '{"op":"delete_stream","stream_id":-1}',
        '{"op":"delete_stream","stream_id":' + "9" * 5000 + "}",
        "[" * 100_000,
        '"\\ud800"',
        " " * (1 << 21),
    ],
)
def test_a_bad_command_is_answered_and_changes_only_the_revision(command: str) -> None:
    registry = Registry()
    result = registry.apply(command, 1)
    assert result["error"]["code"] in ("invalid_request", "stream_not_found")
    assert registry.revision == 1
    assert registry.take_changes() == []


def test_every_operation_survives_every_wrong_type_in_every_field() -> None:
    cluster = Cluster(3)
    stream = cluster.create()
    fields = [
        "name", "subject", "group", "config", "replicas", "created_at_us", "stream_id", "node_id",
        "session", "addresses", "rack", "trusted", "distrusted", "leader", "leader_epoch", "isr",
        "stream_epoch", "incarnations", "reporter", "now_us", "cluster_id", "ack_subjects",
        "feature_level", "force", "draining", "until_undone", "node_incarnation", "offset",
    ]  # fmt: skip
    values = [None, True, -1, 1.5, "x", "", [], [None], [[1]], {}, {"a": 1}, 1 << 70, "a b", [-1]]
    for op in OPERATIONS:
        for field in fields:
            for value in values:
                command = {"op": op, "stream_id": stream.id, "node_id": 0, field: value}
                registry = cluster.registry
                result = registry.apply(json.dumps(command), registry.revision + 1)
                assert result.get("error", {}).get("code") != "internal", (command, result)


def test_a_mistake_in_a_decision_is_refused_without_any_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mistaken(*_: object) -> None:
        raise KeyError("our bug")

    monkeypatch.setitem(OPERATIONS, "barrier", Operation(Barrier, mistaken))
    registry = Registry()
    assert registry.apply('{"op":"barrier"}', 1)["error"]["code"] == "internal"
    assert registry.take_changes() == []


def test_a_bare_name_resolves_until_a_second_stream_has_it() -> None:
    cluster = Cluster(1)
    first = cluster.create("orders", "orders.eu", (0,))
    assert cluster.registry.resolve("orders") is first
    second = cluster.create("orders", "orders.us", (0,))
    with pytest.raises(AmbiguousStreamError) as caught:
        cluster.registry.resolve("orders")
    assert caught.value.candidates == ("orders@orders.eu", "orders@orders.us")
    assert cluster.registry.resolve("orders", "orders.us") is second
    assert cluster.registry.resolve("orders@orders.eu") is first
    with pytest.raises(StreamNotFoundError):
        cluster.registry.resolve("orders@orders.*")
    with pytest.raises(StreamNotFoundError):
        cluster.registry.resolve("other")


def test_the_name_of_a_keyed_group_is_answered_with_its_streams() -> None:
    cluster = Cluster()
    cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    for number in range(3):
        of = {"group": "jobs", "partition": number, "partitions": 3}
        cluster.create(f"jobs-{number}", "jobs.>", (0,), **of)
    cluster.create("job-0", "job.>", (0,))  # Only its name looks like that.
    for name, said in (("jobs", r"name one of them, jobs-0 to jobs-2$"), ("job", r"no stream")):
        with pytest.raises(StreamNotFoundError, match=said):
            cluster.registry.resolve(name)


def test_the_queue_group_of_a_new_group_names_the_cluster() -> None:
    cluster = Cluster()
    cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(cluster_id="c", feature_level=QUEUE_GROUP_LEVEL - 1))
    old = cluster.create("old-0", "old", (0,), group="old")
    assert (old.queue_group, old.listens_in) == ("", "old")
    cluster.do(SetCluster(feature_level=QUEUE_GROUP_LEVEL))

    # Where a group has streams, a new one goes on with their name: all must have one.
    assert cluster.create("old-1", "old", (0,), group="old").listens_in == "old"
    new = cluster.create("new-0", "new", (0,), group="new")
    assert new.listens_in == f"new.{mark_of('c')}"
    assert cluster.create("alone", "alone", (0,)).listens_in == ""

    restored = Registry()
    restored.restore(cluster.registry.snapshot())
    assert restored.streams == cluster.registry.streams
    # Older software must be able to read what concerns it.
    assert len(old.to_row()) <= len(stream_fields(FeatureLevel(QUEUE_GROUP_LEVEL - 1)))
    for name in ("old-0", "old-1"):
        cluster.do(DeleteStream(stream_id=cluster.registry.resolve(name).id))
    assert cluster.create("old-2", "old", (0,), group="old").listens_in == f"old.{mark_of('c')}"


def test_changes_are_reported_in_order() -> None:
    cluster = Cluster(1)
    [change] = cluster.changes
    assert isinstance(change, NodeChanged)
    stream = cluster.create(replicas=(0,))
    assert cluster.changes == [StreamCreated(stream)]
    cluster.do(ClaimController(node_id=0))
    assert isinstance(cluster.changes[0], ControllerChanged)
    cluster.do(SetCluster(cluster_id="c"))
    assert isinstance(cluster.changes[0], SettingsChanged)
    cluster.do(DeleteStream(stream_id=stream.id))
    assert cluster.changes == [StreamDeleted(stream)]


class TestDeduplication:
    def test_a_repeated_command_happens_once_and_gets_its_first_result(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0)
        first = cluster.do(ClaimController(node_id=0), command_id=(incarnation, 0))
        again = cluster.do(ClaimController(node_id=0), command_id=(incarnation, 0))
        assert again == first
        assert cluster.changes == []

    def test_a_refusal_is_repeated_too(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0)
        for _ in range(2):
            with pytest.raises(NotFoundError):
                cluster.do(FenceNode(node_id=5), command_id=(incarnation, 3))
        cluster.register(5)
        with pytest.raises(NotFoundError):
            cluster.do(FenceNode(node_id=5), command_id=(incarnation, 3))

    def test_a_late_command_of_a_replaced_process_is_refused(self) -> None:
        cluster = Cluster()
        old = cluster.register(0)
        new = cluster.register(0)
        with pytest.raises(FencedEpochError):
            cluster.do(Barrier(), command_id=(old, 0))
        cluster.do(Barrier(), command_id=(new, 0))

    def test_a_process_without_incarnation_may_only_propose_what_can_be_repeated(self) -> None:
        cluster = Cluster()
        cluster.do(Barrier(), command_id=("session", 0))
        cluster.register(0)
        with pytest.raises(PreconditionFailedError, match="register before"):
            cluster.do(DeleteStream(stream_id=StreamId(1)), command_id=("session", 1))

    def test_a_copy_too_late_to_be_known_is_refused_as_unknown(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0)
        for sequence in range(WINDOW + 1):
            cluster.do(Barrier(), command_id=(incarnation, sequence))
        with pytest.raises(UnknownOutcomeError):
            cluster.do(Barrier(), command_id=(incarnation, 0))
        assert cluster.do(Barrier(), command_id=(incarnation, 1))["revision"] == 3

    def test_commands_within_the_span_apply_in_any_order(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0)
        cluster.do(Barrier(), command_id=(incarnation, SPAN - 1))
        cluster.do(Barrier(), command_id=(incarnation, 0))

    def test_results_survive_a_snapshot(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0)
        first = cluster.do(ClaimController(node_id=0), command_id=(incarnation, 0))
        restored = Registry()
        restored.restore(cluster.registry.snapshot())
        cluster.registry = restored
        assert cluster.do(ClaimController(node_id=0), command_id=(incarnation, 0)) == first

    def test_who_gets_a_result_cannot_change_what_is_kept(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0)
        first = cluster.do(ClaimController(node_id=0), command_id=(incarnation, 0))
        kept = dict(first)
        for _ in range(2):
            again = cluster.do(ClaimController(node_id=0), command_id=(incarnation, 0))
            assert again == kept
            first.clear()
            again.clear()

    def test_a_captured_state_keeps_its_results_while_others_follow(self) -> None:
        cluster = Cluster()
        incarnation = cluster.register(0)
        cluster.do(Barrier(), command_id=(incarnation, 0))
        image, snapshot = cluster.registry.capture(), cluster.registry.snapshot()
        cluster.do(Barrier(), command_id=(incarnation, 1))
        assert image.encode() == snapshot != cluster.registry.snapshot()
        head = json.loads(zlib.decompress(snapshot).split(b"\n")[0])
        assert head["results"] == [[incarnation, 0, [[0, '{"revision":2}']]]]


class TestController:
    def test_a_command_of_an_older_controller_is_refused(self) -> None:
        cluster = Cluster(2)
        old = cluster.do(ClaimController(node_id=0))["epoch"]
        new = cluster.do(ClaimController(node_id=1))["epoch"]
        assert new > old
        with pytest.raises(FencedEpochError):
            cluster.do(FenceNode(node_id=1), controller_epoch=old)
        cluster.do(FenceNode(node_id=0), controller_epoch=new)
        assert cluster.registry.nodes[0].fenced


class TestSettings:
    def test_the_cluster_id_is_set_once(self) -> None:
        cluster = Cluster()
        cluster.do(SetCluster(cluster_id="one"))
        cluster.do(SetCluster(cluster_id="one"))
        with pytest.raises(PreconditionFailedError, match="cannot become"):
            cluster.do(SetCluster(cluster_id="two"))

    def test_the_feature_level_rises_only_when_every_node_understands_it(self) -> None:
        cluster = Cluster()
        cluster.register(0, feature_level_max=2)
        cluster.register(1, feature_level_max=1)
        with pytest.raises(PreconditionFailedError, match=r"nodes \[1\]"):
            cluster.do(SetCluster(feature_level=2))
        cluster.register(1, feature_level_max=2)
        cluster.do(SetCluster(feature_level=2))
        with pytest.raises(PreconditionFailedError, match="cannot go back"):
            cluster.do(SetCluster(feature_level=1))
        with pytest.raises(PreconditionFailedError, match="too old"):
            cluster.register(2, feature_level_max=1)

    def test_copying_is_limited_from_its_feature_level_on(self) -> None:
        cluster = Cluster()
        cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
        cluster.do(SetCluster(feature_level=COPY_LIMIT_LEVEL - 1))
        with pytest.raises(InvalidRequestError, match="unknown fields 'copy_bytes_per_second'"):
            cluster.do(SetCluster(copy_bytes_per_second=1 << 20))
        # Older software, which does not know it, writes the same snapshot.
        assert "copy_bytes_per_second" not in cluster.registry.settings.to_dict()
        cluster.do(SetCluster(feature_level=COPY_LIMIT_LEVEL))
        assert cluster.registry.settings.copy_bytes_per_second == 0
        cluster.do(SetCluster(copy_bytes_per_second=1 << 20))
        cluster.do(SetCluster(ack_subjects=["acks.>"]))
        restored = Registry()
        restored.restore(cluster.registry.snapshot())
        assert restored.settings.copy_bytes_per_second == 1 << 20
        cluster.do(SetCluster(copy_bytes_per_second=0))
        assert cluster.registry.settings.copy_bytes_per_second == 0

    def test_lag_is_limited_from_its_feature_level_on(self) -> None:
        cluster = Cluster()
        cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
        cluster.do(SetCluster(feature_level=LAG_LIMIT_LEVEL - 1))
        with pytest.raises(InvalidRequestError, match="unknown fields 'replica_lag_max_us'"):
            cluster.do(SetCluster(replica_lag_max_us=30_000_000))
        assert "replica_lag_max_us" not in cluster.registry.settings.to_dict()
        cluster.do(SetCluster(feature_level=LAG_LIMIT_LEVEL))
        for limit in (1, 1_999_999, 600_000_001):
            with pytest.raises(
                InvalidRequestError,
                match=r"replica_lag_max is .*; it must be 0 or from 2 s to 600 s",
            ):
                cluster.do(SetCluster(replica_lag_max_us=limit))
        cluster.do(SetCluster(replica_lag_max_us=30_000_000))
        restored = Registry()
        restored.restore(cluster.registry.snapshot())
        assert restored.settings.replica_lag_max_us == 30_000_000

    @pytest.mark.parametrize("limit", [1, 65_535, (1 << 40) + 1, -1, 1 << 70])
    def test_a_limit_that_is_a_typing_mistake_is_refused(self, limit: int) -> None:
        cluster = Cluster()
        cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
        cluster.do(SetCluster(feature_level=COPY_LIMIT_LEVEL))
        with pytest.raises(
            InvalidRequestError, match=r"65536 to 1099511627776 bytes a second|an integer"
        ):
            cluster.do(SetCluster(copy_bytes_per_second=limit))


class TestSnapshot:
    def test_a_restored_registry_behaves_like_the_original(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(SetCluster(cluster_id="c", ack_subjects=["acks.>"]))
        cluster.do(ClaimController(node_id=1))
        restored = Registry()
        restored.restore(cluster.registry.snapshot())
        assert restored.streams == cluster.registry.streams
        assert restored.nodes == cluster.registry.nodes
        assert restored.settings == cluster.registry.settings
        assert restored.controller == cluster.registry.controller
        assert restored.feeding("orders.a") == [stream]
        command = encode_command(FenceNode(node_id=stream.leader))
        assert restored.apply(command, 100) == cluster.registry.apply(command, 100)
        assert restored.streams == cluster.registry.streams

    def test_watchers_get_the_difference_that_a_snapshot_makes(self) -> None:
        cluster = Cluster(1)
        gone = cluster.create("gone", "gone", (0,))
        behind = Registry()
        behind.restore(cluster.registry.snapshot())
        behind.take_changes()
        cluster.do(DeleteStream(stream_id=gone.id))
        new = cluster.create("new", "new", (0,))
        behind.restore(cluster.registry.snapshot())
        assert behind.take_changes() == [StreamDeleted(gone), StreamCreated(new)]

    @pytest.mark.parametrize(
        "snapshot",
        [
            b"",
            b"garbage",
            zlib.compress(b"{}\n[]"),
            zlib.compress(b'{"format":2}\n[]'),
            zlib.compress(b"["),
        ],
    )
    def test_an_unreadable_snapshot_is_refused_and_changes_nothing(self, snapshot: bytes) -> None:
        cluster = Cluster(1)
        with pytest.raises(StorageError, match="snapshot"):
            cluster.registry.restore(snapshot)
        assert list(cluster.registry.nodes) == [0]

    def test_a_mark_of_an_operator_is_kept_and_a_snapshot_from_before_it_has_none(self) -> None:
        cluster = Cluster(2)
        cluster.do(DrainNode(node_id=0))
        cluster.do(DrainNode(node_id=1, until_undone=True))
        snapshot = cluster.registry.snapshot()
        kept = Registry()
        kept.restore(snapshot)
        assert kept.nodes == cluster.registry.nodes
        head, nodes, *streams = zlib.decompress(snapshot).split(b"\n")
        older = [
            {name: value for name, value in node.items() if name != "relieved"}
            for node in json.loads(nodes)
        ]
        lines = [head, json.dumps(older).encode(), *streams]
        kept.restore(zlib.compress(b"\n".join(lines)))
        assert [node.draining for node in kept.nodes.values()] == [True, False]
        assert [node.relieved for node in kept.nodes.values()] == [False, False]

    def test_ten_thousand_streams_stay_small(self) -> None:
        cluster = Cluster(3)
        for number in range(1_000):
            cluster.create(f"stream-{number}", f"subject.{number}.>")
        assert len(cluster.registry.snapshot()) < 100_000


def test_check_result_raises_the_error_of_its_code() -> None:
    registry = Registry()
    result = registry.apply('{"op":"delete_stream","stream_id":4}', 1)
    with pytest.raises(StreamNotFoundError, match="id 4"):
        check_result(result)


def test_addresses_must_be_complete() -> None:
    cluster = Cluster()
    with pytest.raises(InvalidRequestError, match="raft"):
        cluster.send(
            '{"op":"register_node","node_id":0,"session":"s",'
            '"addresses":{"grpc":"a:1","data":"a:2","http":"a:4"}}'
        )
