"""The table of settings agrees with all that is written by hand, and nobody moved a row."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jetstream_client.migration.manifest import settings_of
from jetstream_client.transport.wire import stream_of, to_config
from jetstream_client.values.settings import StreamSettings as GivenSettings
from jetstream_client.values.types import ClusterInfo
from jetstream_protocol.generated import api_pb2
from jetstream_protocol.setting_messages import NUMBERS
from jetstream_protocol.settings import CLUSTER_SETTINGS, FOR_PEOPLE, STREAM_SETTINGS, Kind, Setting
from jetstream_server.metadata.state.cluster import ClusterSettings
from jetstream_server.metadata.state.commands import SetCluster
from jetstream_server.metadata.state.streams import StreamMetadata, StreamSettings
from jetstream_server.serving.grpc.convert import config_from_proto, stream_to_proto
from tests.unit.metadata.cluster import Cluster

PLACE_IN_GROUP = {"group", "partition", "partitions"}


def other_value(setting: Setting) -> Any:
    """An allowed one that is not the default."""
    match setting.kind:
        case Kind.FLAG:
            return True
        case Kind.CHOICE:
            return setting.choices[-1]
        case Kind.TEXT:
            return '{"team": "orders"}'
        case _:
            return max(setting.least, 2)


@pytest.fixture
def stream() -> StreamMetadata:
    """With every setting other than by default."""
    plain = Cluster(3).create()
    values = {each.field: other_value(each) for each in STREAM_SETTINGS}
    return dataclasses.replace(plain, config=StreamSettings(**values))


def test_the_order_of_rows_in_the_metadata_never_changes() -> None:
    """Rows are written without names."""
    assert [each.name for each in dataclasses.fields(StreamSettings)] == [
        "replicas", "min_insync_replicas", "flush", "acks", "max_age_us", "max_bytes",
        "max_messages", "compact", "tombstone_grace_us", "duplicate_window_us", "segment_bytes",
        "segment_age_us", "restoring", "encryption", "observers", "max_message_bytes",
        "key", "lake", "local_max_age_us", "local_max_bytes", "lake_lag_us", "lake_object_bytes",
        "on_mismatch", "description", "labels",
    ]  # fmt: skip


def test_the_clusters_settings_are_the_same_everywhere() -> None:
    fields = {each.field for each in CLUSTER_SETTINGS}
    assert fields == {each.name for each in api_pb2.ClusterConfig.DESCRIPTOR.fields}
    assert fields <= {each.name for each in dataclasses.fields(ClusterSettings)}
    assert fields <= {each.name for each in dataclasses.fields(SetCluster)}
    assert {each.name for each in CLUSTER_SETTINGS} <= {
        each.name for each in dataclasses.fields(ClusterInfo)
    }


def test_settings_of_later_levels_come_last() -> None:
    levels = [each.level for each in STREAM_SETTINGS]
    assert levels == sorted(levels)


def test_people_see_every_setting_once() -> None:
    assert sorted(each.name for each in FOR_PEOPLE) == sorted(each.name for each in STREAM_SETTINGS)


def test_the_message_has_a_field_for_every_setting_and_no_other() -> None:
    fields = {each.name for each in api_pb2.StreamConfig.DESCRIPTOR.fields}
    assert fields == {each.field for each in STREAM_SETTINGS} | PLACE_IN_GROUP


def test_every_choice_of_the_messages_enum_is_in_the_table() -> None:
    for field, numbers in NUMBERS.items():
        enum = api_pb2.StreamConfig.DESCRIPTOR.fields_by_name[field].enum_type
        assert sorted([0, *numbers.values()]) == sorted(each.number for each in enum.values)


def test_programs_can_give_every_setting() -> None:
    names = {each.name for each in STREAM_SETTINGS}
    assert set(GivenSettings.__annotations__) == names | PLACE_IN_GROUP


def test_a_default_is_within_its_range() -> None:
    for each in STREAM_SETTINGS:
        if isinstance(each.default, int):
            assert each.allows(each.default), each.name
        if each.kind is Kind.TEXT:
            each.check_text(str(each.default))
        elif isinstance(each.default, str):
            assert each.default in each.choices, each.name


def test_every_setting_passes_the_messages_unchanged(stream: StreamMetadata) -> None:
    message = stream_to_proto(stream)
    back = config_from_proto(message.config)
    for each in STREAM_SETTINGS:
        assert back[each.field] == getattr(stream.config, each.field)


def test_the_sdk_reads_and_gives_every_setting(stream: StreamMetadata) -> None:
    message = stream_to_proto(stream)
    read = stream_of(message)
    given = {each.name: getattr(read, each.name) for each in STREAM_SETTINGS
             if each.name not in ("replicas", "observers")}  # fmt: skip
    config = to_config({**given, "replicas": 2, "observers": 2})  # type: ignore[typeddict-item]
    assert config == message.config


def test_a_choice_of_a_newer_server_stays_a_number(stream: StreamMetadata) -> None:
    message = stream_to_proto(stream)
    message.config.flush = 77  # type: ignore[assignment]
    message.config.encryption = api_pb2.ENCRYPTION_UNSPECIFIED
    read = stream_of(message)
    assert (read.flush, read.encryption) == ("77", "node")


def test_a_backup_has_the_settings_that_a_restore_gives(stream: StreamMetadata) -> None:
    kept = settings_of(stream_of(stream_to_proto(stream)))
    assert kept.keys() | {"replicas", "restoring", "observers"} == PLACE_IN_GROUP | {
        each.name for each in STREAM_SETTINGS
    } | {"observers"}
