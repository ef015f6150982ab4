"""What a stream's settings may be, what they are by default, and how they are altered."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_protocol.errors import InvalidRequestError, StreamExistsError
from jetstream_server.metadata.state.commands import AlterStream, CreateStream, SetCluster
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.streams import StreamMetadata, StreamSettings
from tests.unit.metadata.cluster import Cluster

SECOND = 1_000_000


def test_a_stream_keeps_everything_by_default() -> None:
    config = Cluster(3).create().config
    assert (config.max_age_us, config.max_bytes, config.max_messages) == (0, 0, 0)
    assert not config.compact
    assert not config.has_limits
    assert config.tombstone_grace_us == 24 * 3600 * SECOND
    assert config.duplicate_window_us == 120 * SECOND


@pytest.mark.parametrize(
    "setting",
    [
        {"max_age_us": 3600 * SECOND},
        {"max_bytes": 10_000_000_000},
        {"max_messages": 5},
        {"compact": True},
        {"tombstone_grace_us": 0},
        {"duplicate_window_us": 0},
        {"segment_bytes": 65_536},
        {"segment_age_us": 60 * SECOND},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_every_setting_is_kept_and_can_be_altered(setting: dict[str, Any]) -> None:
    cluster = Cluster(3)
    created = cluster.create(config=setting)
    altered = cluster.create("plain", "plain")
    cluster.do(AlterStream(stream_id=altered.id, stream_epoch=0, config=setting))
    for stream in (created, cluster.now(altered)):
        for name, value in setting.items():
            assert getattr(stream.config, name) == value
    other = {name: value is not True and value + SECOND for name, value in setting.items()}
    with pytest.raises(StreamExistsError, match=next(iter(setting)).removesuffix("_us")):
        cluster.create(config=other)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"max_age_us": 5}, "max_age is 5e-06 s; it must be 0 or from 0.1 s to 3153600000 s"),
        ({"max_age_us": 1 << 62}, "max_age"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"max_messages": "many"}, "max_messages"),
        ({"compact": 1}, "compact"),
        ({"segment_bytes": 100}, "segment_bytes is 100; it must be 0 or from 65536"),
        ({"duplicate_window_us": 10}, "duplicate_window"),
        ({"colour": "red"}, "unknown fields 'colour'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(setting: dict[str, Any], says: str) -> None:
    cluster = Cluster(3)
    with pytest.raises(InvalidRequestError, match=says):
        cluster.create(config=setting)


def test_altering_one_setting_leaves_the_others() -> None:
    cluster = Cluster(3)
    stream = cluster.create(config={"max_age_us": SECOND, "compact": True})
    cluster.do(AlterStream(stream_id=stream.id, stream_epoch=0, config={"max_bytes": 7}))
    config = cluster.now(stream).config
    assert (config.max_age_us, config.compact, config.max_bytes) == (SECOND, True, 7)


def test_a_stream_that_was_ever_compacted_is_known_as_such() -> None:
    cluster = Cluster(3)
    stream = cluster.create()
    assert not stream.was_compacted
    for epoch, compact in enumerate((True, False)):
        config = {"compact": compact}
        cluster.do(AlterStream(stream_id=stream.id, stream_epoch=epoch, config=config))
        assert cluster.now(stream).config.compact is compact
        assert cluster.now(stream).was_compacted
    assert cluster.create("c", "c", config={"compact": True}).was_compacted


def test_rows_written_before_a_setting_existed_take_its_default() -> None:
    stream = Cluster(3).create()
    row = stream.to_row()
    at = row.index(list(stream.config.to_row()))
    row[at] = row[at][:4]
    assert StreamMetadata.from_row(row[:-1]) == stream


def test_equal_settings_are_one_object() -> None:
    cluster = Cluster(3)
    streams = [cluster.create(name, name, config={"max_bytes": 9}) for name in ("a", "b")]
    assert streams[0].config is streams[1].config
    assert StreamSettings.with_defaults(3, max_bytes=9) is streams[0].config


def test_restoring_is_unknown_below_its_feature_level_and_its_stream_s_row_is_as_before() -> None:
    cluster = Cluster(3)
    with pytest.raises(InvalidRequestError, match="unknown fields 'restoring'"):
        cluster.create(config={"restoring": True})
    wanted = CreateStream(
        name="a", subject="a", replicas=(), created_at_us=0, config={"restoring": True}
    )  # type: ignore[arg-type]
    assert wanted.needed_level == 2
    assert "restoring" not in cluster.create().config.to_row()
    assert len(cluster.create("b", "b").config.to_row()) == 12  # What level 1 knows.


def test_a_stream_is_restored_from_its_creation_on_or_never() -> None:
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FeatureLevel(2))
    cluster.do(SetCluster(feature_level=FeatureLevel(2)))
    plain, restored = cluster.create(), cluster.create("r", "r", config={"restoring": True})
    assert (plain.is_silent, restored.is_silent) == (False, True)
    assert StreamMetadata.from_row(restored.to_row()) == restored
    with pytest.raises(InvalidRequestError, match="only a new stream is restored"):
        cluster.do(AlterStream(stream_id=plain.id, stream_epoch=0, config={"restoring": True}))
    cluster.do(AlterStream(stream_id=restored.id, stream_epoch=0, config={"restoring": False}))
    assert not cluster.now(restored).is_silent
    with pytest.raises(InvalidRequestError, match="only a new stream is restored"):
        cluster.do(AlterStream(stream_id=restored.id, stream_epoch=1, config={"restoring": True}))


def test_encryption_is_unknown_below_its_feature_level_and_rows_without_it_are_as_before() -> None:
    cluster = Cluster(3)
    with pytest.raises(InvalidRequestError, match="unknown fields 'encryption'"):
        cluster.create(config={"encryption": "aes-256-gcm"})
    wanted = CreateStream(
        name="a", subject="a", replicas=(), created_at_us=0, config={"encryption": "aes-256-gcm"}
    )
    assert wanted.needed_level == 2
    assert len(cluster.create().config.to_row()) == 12


def test_encryption_is_set_and_altered() -> None:
    cluster = Cluster()
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FeatureLevel(2))
    cluster.do(SetCluster(feature_level=FeatureLevel(2)))
    stream = cluster.create(config={"encryption": "aes-256-gcm"})
    assert stream.config.is_encrypted
    assert StreamMetadata.from_row(stream.to_row()) == stream
    cluster.do(AlterStream(stream_id=stream.id, stream_epoch=0, config={"encryption": "node"}))
    assert not cluster.now(stream).config.is_encrypted
    assert len(cluster.now(stream).config.to_row()) == 12
    with pytest.raises(InvalidRequestError, match="aes-256-gcm"):
        cluster.create("b", "b", config={"encryption": "rot13"})
