"""Which records of a stream the lake holds: the mark moves by compare-and-set, and only forward."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    UnknownEpochError,
)
from jetstream_protocol.types import LeaderEpoch, NodeId
from jetstream_server.metadata.state.activity import _events
from jetstream_server.metadata.state.commands import (
    LAKE_LEVEL,
    AdoptLake,
    AlterStream,
    CommitLake,
    PurgeStream,
    ReassignStream,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import LakeMark, StreamMetadata
from tests.unit.metadata.cluster import Cluster

SETTINGS = {"lake": True}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.at_level(3, LAKE_LEVEL)


@pytest.fixture
def stream(cluster: Cluster) -> StreamMetadata:
    return cluster.create(replicas=(0,), config=SETTINGS)


def commit(cluster: Cluster, stream: StreamMetadata, end: int, **others: Any) -> LakeMark:
    """Add the records up to `end`, as the leader does. Returns the mark."""
    now = cluster.now(stream)
    fields = {
        "leader_epoch": now.leader_epoch,
        "expected_location": now.lake.location,
        "version": now.lake.version,
        "begin": now.lake.end,
        "last_epoch": now.leader_epoch,
        "location": f"metadata/{end}.json",
    }
    cluster.do(CommitLake(stream_id=stream.id, end=end, **fields | others))
    return cluster.now(stream).lake


def alter(cluster: Cluster, stream: StreamMetadata, **config: Any) -> None:
    now = cluster.now(stream)
    cluster.do(AlterStream(stream_id=stream.id, stream_epoch=now.stream_epoch, config=config))


def purge(cluster: Cluster, stream: StreamMetadata, offset: int) -> LakeMark:
    epoch = cluster.now(stream).leader_epoch
    cluster.do(PurgeStream(stream_id=stream.id, leader_epoch=epoch, offset=offset))
    return cluster.now(stream).lake


def test_commits_follow_one_another(cluster: Cluster, stream: StreamMetadata) -> None:
    assert not stream.lake.holds_records
    first = commit(cluster, stream, 10, begin=4)
    assert first == LakeMark(4, 10, 0, "metadata/10.json", 1), "the log may begin anywhere"
    assert commit(cluster, stream, 25) == LakeMark(4, 25, 0, "metadata/25.json", 2)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        pytest.param({"expected_location": "metadata/5.json"}, PreconditionFailedError, id="table"),
        pytest.param({"version": 0}, PreconditionFailedError, id="version"),
        pytest.param({"begin": 9}, PreconditionFailedError, id="overlap"),
        pytest.param({"begin": 11}, PreconditionFailedError, id="gap"),
        pytest.param({"leader_epoch": LeaderEpoch(0)}, FencedEpochError, id="older leader"),
        pytest.param({"leader_epoch": LeaderEpoch(9)}, UnknownEpochError, id="later leader"),
        pytest.param({"last_epoch": LeaderEpoch(9)}, InvalidRequestError, id="epoch to come"),
        pytest.param({"location": ""}, InvalidRequestError, id="no table"),
        pytest.param({"location": "x" * 1025}, InvalidRequestError, id="long name"),
        pytest.param({"end": 10}, InvalidRequestError, id="no record"),
    ],
)
def test_nothing_else_is_added(
    cluster: Cluster, stream: StreamMetadata, wrong: dict[str, Any], error: type[JetstreamError]
) -> None:
    commit(cluster, stream, 10)
    elected_again(cluster, stream)
    before = cluster.now(stream)
    with pytest.raises(error):
        commit(cluster, stream, **{"end": 20} | wrong)
    assert cluster.now(stream) == before
    assert commit(cluster, stream, 20).end == 20


def elected_again(cluster: Cluster, stream: StreamMetadata) -> None:
    """Have the only replica's node restart: its stream gets another leader epoch."""
    epoch = cluster.now(stream).leader_epoch
    cluster.register(0, feature_level_max=LAKE_LEVEL)
    assert cluster.now(stream).leader_epoch > epoch


def test_an_older_epoch_before_the_end_is_refused(cluster: Cluster, stream: StreamMetadata) -> None:
    elected_again(cluster, stream)
    mark = commit(cluster, stream, 10)
    assert mark.last_epoch == cluster.now(stream).leader_epoch > 0
    with pytest.raises(InvalidRequestError):
        commit(cluster, stream, 20, last_epoch=LeaderEpoch(0))


def test_a_repeated_commit_changes_nothing(cluster: Cluster, stream: StreamMetadata) -> None:
    """Who does not know what came of a commit may repeat it."""
    commit(cluster, stream, 10)
    again = {"expected_location": "", "version": 0, "begin": 0}
    before = cluster.now(stream)
    assert commit(cluster, stream, 10, **again) == before.lake
    assert cluster.now(stream) == before
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 11, **again)


def test_a_table_without_old_records_may_take_its_place(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    with pytest.raises(InvalidRequestError):
        commit(cluster, stream, 0, begin=0)  # There is no table.
    commit(cluster, stream, 10, begin=2)
    trimmed = commit(cluster, stream, 10, location="metadata/a.json", start=6)
    assert trimmed == LakeMark(6, 10, 0, "metadata/a.json", 2)
    again = {"version": 1, "expected_location": "metadata/10.json", "location": "metadata/a.json"}
    assert commit(cluster, stream, 10, start=6, **again) == trimmed
    assert commit(cluster, stream, 20, start=4).start == 6, "the start only rises"
    empty = commit(cluster, stream, 20, location="metadata/b.json", start=90)
    assert (empty.start, empty.end) == (20, 20), "and ends where the lake does"
    elected_again(cluster, stream)
    with pytest.raises(InvalidRequestError):
        commit(cluster, stream, 20)  # The epoch of the last record is another one.


def test_a_purge_raises_the_start_in_the_same_step(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    assert purge(cluster, stream, 2) == LakeMark(2, 2, -1, "", 1)
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 10, begin=0, version=0)  # It was under way.
    commit(cluster, stream, 10)
    assert purge(cluster, stream, 6) == LakeMark(6, 10, 0, "metadata/10.json", 3)
    assert commit(cluster, stream, 20).start == 6, "a commit under way does not undo it"
    beyond = purge(cluster, stream, 30)
    assert (beyond.start, beyond.end) == (30, 30)
    assert not beyond.holds_records
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 40, begin=20)  # What was uploaded meanwhile is purged.
    assert commit(cluster, stream, 40) == LakeMark(30, 40, 0, "metadata/40.json", 6)


def test_a_lake_without_records_goes_on_at_any_later_offset(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    """The lake was off, and retention went on beyond its end."""
    commit(cluster, stream, 10)
    purge(cluster, stream, 10)
    alter(cluster, stream, lake=False)
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 20)
    trimmed = commit(cluster, stream, 10, location="metadata/a.json", start=10)
    assert trimmed.location == "metadata/a.json", "what was purged leaves the table all the same"
    alter(cluster, stream, lake=True)
    assert commit(cluster, stream, 40, begin=25)[:2] == (25, 40)
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 60, begin=50)


def test_a_new_stream_takes_a_table_over(cluster: Cluster, stream: StreamMetadata) -> None:
    new = cluster.create("new", "new.>", replicas=(0,), config={"lake": True, "restoring": True})

    def adopt(of: StreamMetadata, **others: Any) -> LakeMark:
        fields: dict[str, Any] = {
            "leader_epoch": cluster.now(of).leader_epoch, "start": 3, "end": 9,
            "last_epoch": LeaderEpoch(7), "location": "metadata/a.json",
        }  # fmt: skip
        cluster.do(AdoptLake(stream_id=of.id, **fields | others))
        return cluster.now(of).lake

    with pytest.raises(PreconditionFailedError):
        adopt(stream)  # Publishers write to it.
    for wrong in ({"start": 9}, {"location": ""}, {"start": -1}, {"last_epoch": LeaderEpoch(-1)}):
        with pytest.raises(InvalidRequestError):
            adopt(new, **wrong)
    assert adopt(new) == LakeMark(3, 9, 7, "metadata/a.json", 1)
    assert cluster.now(new).leader_epoch == 8, "epochs never fall"
    before = cluster.now(new)
    assert adopt(new) == before.lake
    assert cluster.now(new) == before
    with pytest.raises(PreconditionFailedError):
        adopt(new, end=10)
    alter(cluster, new, restoring=False)
    assert commit(cluster, new, 20) == LakeMark(3, 20, 8, "metadata/20.json", 2)


def test_after_a_purge_beyond_the_end_records_of_older_epochs_are_added(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    """What the purge has left was appended before the leader was elected anew."""
    commit(cluster, stream, 10)
    elected_again(cluster, stream)
    purge(cluster, stream, 30)
    assert commit(cluster, stream, 40, last_epoch=LeaderEpoch(0))[:3] == (30, 40, 0)


def test_a_purge_during_an_upload_refuses_its_commit(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    commit(cluster, stream, 10)
    version = cluster.now(stream).lake.version
    purge(cluster, stream, 5)
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 20, version=version)
    assert commit(cluster, stream, 20).start == 5


@pytest.mark.parametrize(
    "config",
    [
        {"compact": True},
        {"key": "subject"},
        {"encryption": "aes-256-gcm"},
        {"max_messages": 1},
    ],
    ids=lambda config: next(iter(config)),
)
def test_streams_that_the_lake_cannot_keep_are_refused(
    cluster: Cluster, stream: StreamMetadata, config: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match="lake cannot be set"):
        cluster.create("other", "other.>", replicas=(0,), config=SETTINGS | config)
    if "key" not in config:
        with pytest.raises(InvalidRequestError, match="lake cannot be set"):
            alter(cluster, stream, **config)
    plain = cluster.create("plain", "plain.>", replicas=(0,), config=config)
    with pytest.raises(InvalidRequestError, match="lake cannot be set"):
        alter(cluster, plain, lake=True)


def test_a_stream_that_was_compacted_is_refused(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0,), config={"compact": True})
    alter(cluster, stream, compact=False)
    with pytest.raises(InvalidRequestError, match="compaction"):
        alter(cluster, stream, lake=True)


def test_a_stream_in_the_lake_has_replicas_and_observers_and_moves(cluster: Cluster) -> None:
    stream = cluster.create("other", "other.>", (0, 1), config=SETTINGS, observers=(NodeId(2),))
    mark = commit(cluster, stream, 10)
    cluster.do(ReassignStream(stream_id=stream.id, replicas=(NodeId(2),)))
    assert cluster.now(stream).target_replicas == (2,)
    assert cluster.now(stream).lake == mark


def test_local_limits_need_the_lake(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match="they need lake"):
        cluster.create(replicas=(0,), config={"local_max_bytes": 1})
    stream = cluster.create(replicas=(0,), config=SETTINGS | {"local_max_age_us": 1_000_000})
    with pytest.raises(InvalidRequestError, match="they need lake"):
        alter(cluster, stream, lake=False)
    alter(cluster, stream, lake=False, local_max_age_us=0)


def test_the_lake_is_not_switched_off_while_it_holds_records(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    commit(cluster, stream, 10)
    with pytest.raises(PreconditionFailedError, match="purge them first"):
        alter(cluster, stream, lake=False)
    purge(cluster, stream, 10)
    alter(cluster, stream, lake=False)
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 20)
    alter(cluster, stream, lake=True)
    assert commit(cluster, stream, 20).start == 10


def test_a_stream_without_the_lake_gets_no_commit(cluster: Cluster) -> None:
    stream = cluster.create(replicas=(0,))
    with pytest.raises(PreconditionFailedError):
        commit(cluster, stream, 10)


def test_the_mark_outlives_elections_and_snapshots(
    cluster: Cluster, stream: StreamMetadata
) -> None:
    mark = commit(cluster, stream, 10)
    elected_again(cluster, stream)
    assert cluster.now(stream).lake == mark
    restored = Registry()
    restored.restore(cluster.registry.snapshot())
    assert restored.streams[stream.id] == cluster.now(stream)
    assert restored.streams[stream.id].lake.end == 10


def test_older_software_sees_no_mark(cluster: Cluster) -> None:
    """It refuses rows with fields that it does not know."""
    stream = cluster.create(replicas=(0,))
    assert len(stream.to_row()) < len(replace(stream, lake=LakeMark(0, 1)).to_row())
    old = Cluster.at_level(3, FeatureLevel(5), LAKE_LEVEL)
    known = old.create(replicas=(0,))
    assert known.to_row() == StreamMetadata.from_row(known.to_row()).to_row()
    with pytest.raises(InvalidRequestError, match="lake"):
        old.create("other", "other.>", (0,), config=SETTINGS)


def test_commits_leave_no_activity(cluster: Cluster, stream: StreamMetadata) -> None:
    """There may be one a minute for years; `lake status` tells of them."""
    commit(cluster, stream, 10)
    assert [list(_events(change, LAKE_LEVEL)) for change in cluster.changes] == [[]]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ccccpel"), st.integers(0, 40)), max_size=30))
def test_the_lake_holds_each_offset_once_and_without_a_hole(steps: list[tuple[str, int]]) -> None:
    """Leaders upload, lose their leaderships, purge, and repeat commits that are over."""
    cluster = Cluster.at_level(2, LAKE_LEVEL)
    stream = cluster.create(replicas=(0,), config=SETTINGS)
    sent: list[CommitLake] = []
    held: list[tuple[int, int]] = []
    purged = 0
    for kind, number in steps:
        now = cluster.now(stream)
        before = now.lake
        if kind == "e":
            elected_again(cluster, stream)
        elif kind == "p":
            purged = max(purged, number)
            purge(cluster, stream, number)
        else:
            if kind == "c" or not sent:
                sent.append(
                    CommitLake(
                        stream_id=stream.id,
                        leader_epoch=now.leader_epoch,
                        expected_location=before.location,
                        version=before.version,
                        begin=max(before.end, purged),
                        end=max(before.end, purged) + number,
                        last_epoch=now.leader_epoch,
                        location=f"metadata/{len(sent)}.json",
                    )
                )
            command = sent[-1] if kind == "c" else sent[number % len(sent)]
            try:
                cluster.do(command)
            except JetstreamError:
                assert cluster.now(stream).lake == before
                continue
            if cluster.now(stream).lake != before:
                held.append((command.begin, command.end))
        after = cluster.now(stream).lake
        assert after.start >= before.start
        assert after.end >= before.end
        assert after.last_epoch >= before.last_epoch
        assert after.version - before.version in (0, 1)
        assert not after.holds_records or after.start >= purged
    for (_, end), (begin, _) in pairwise(held):
        assert begin == end or end < begin <= purged, "a hole, or an offset twice"
