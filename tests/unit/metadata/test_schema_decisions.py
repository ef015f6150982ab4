"""Schemas in the metadata: versions, who may follow whom, what is written of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_protocol.schema import FIELDS_MAX, TEXT_LENGTH_MAX
from jetstream_protocol.types import StreamId, WallUs
from jetstream_server.metadata.state.commands import SCHEMA_LEVEL, CreateStream, SetSchema
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.stream_decisions import VERSIONS_MAX
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.unit.metadata.cluster import Cluster


def with_stream(level: int = SCHEMA_LEVEL) -> tuple[Cluster, StreamId]:
    cluster = Cluster.at_level(1, FeatureLevel(level), known=SCHEMA_LEVEL)
    (node,) = cluster.registry.nodes
    command = CreateStream(
        name="orders", subject="orders.>", replicas=(node,), created_at_us=WallUs(1)
    )
    return cluster, StreamId(cluster.do(command)["stream_id"])


def set_schema(cluster: Cluster, stream_id: int, schema: str, version: int) -> Any:
    command = SetSchema(stream_id=StreamId(stream_id), schema=schema, schema_version=version)
    return cluster.do(command)["schema_version"]


def stream_of(cluster: Cluster, stream_id: StreamId) -> StreamMetadata:
    return cluster.registry.streams[stream_id]


def test_versions_follow_each_other_and_are_in_the_snapshot() -> None:
    cluster, stream_id = with_stream()
    assert set_schema(cluster, stream_id, "a int", 0) == 1
    assert set_schema(cluster, stream_id, "a bigint", 1) == 2
    stream = stream_of(cluster, stream_id)
    assert (stream.schemas, stream.schema) == (("a int", "a bigint"), "a bigint")
    assert StreamMetadata.from_row(stream.to_row()) == stream
    restored = Registry()
    restored.restore(cluster.registry.snapshot())
    assert restored.streams[stream_id] == stream


def test_the_same_schema_again_is_no_version() -> None:
    cluster, stream_id = with_stream()
    assert set_schema(cluster, stream_id, "a int", 0) == 1
    assert set_schema(cluster, stream_id, "a  INTEGER", 0) == 1
    assert stream_of(cluster, stream_id).schemas == ("a int",)
    assert cluster.changes == []


@pytest.mark.parametrize(
    ("schema", "version", "error", "why"),
    [
        ("a string", 1, InvalidRequestError, "cannot change from int to string"),
        ("b int", 1, InvalidRequestError, "a is gone"),
        ("a", 1, InvalidRequestError, "a has no type"),
        ("a bigint", 0, PreconditionFailedError, "at version 1, not 0"),
        ("", 2, PreconditionFailedError, "at version 1, not 2"),
    ],
)
def test_what_is_refused_changes_nothing(
    schema: str, version: int, error: type[JetstreamError], why: str
) -> None:
    cluster, stream_id = with_stream()
    set_schema(cluster, stream_id, "a int", 0)
    before = stream_of(cluster, stream_id)
    with pytest.raises(error, match=why):
        set_schema(cluster, stream_id, schema, version)
    assert stream_of(cluster, stream_id) == before


def test_a_schema_that_was_taken_away_can_be_followed_by_any() -> None:
    cluster, stream_id = with_stream()
    set_schema(cluster, stream_id, "a int", 0)
    assert set_schema(cluster, stream_id, "", 1) == 2
    assert set_schema(cluster, stream_id, "a string", 2) == 3
    assert stream_of(cluster, stream_id).schemas == ("a int", "", "a string")


def test_only_the_newest_versions_are_kept() -> None:
    cluster, stream_id = with_stream()
    names = [", ".join(f"a{n} int" for n in range(count)) for count in range(1, VERSIONS_MAX + 3)]
    for version, schema in enumerate(names):
        set_schema(cluster, stream_id, schema, version)
    stream = stream_of(cluster, stream_id)
    assert stream.schemas == tuple(names[-VERSIONS_MAX:])
    assert stream.schema_version == len(names)


def test_the_longest_schema_is_kept() -> None:
    cluster, stream_id = with_stream()
    text = ", ".join(f"{f'field_{number}_':_<23} bigint" for number in range(FIELDS_MAX))
    assert len(text) > 15_900
    assert set_schema(cluster, stream_id, text, 0) == 1
    restored = Registry()
    restored.restore(cluster.registry.snapshot())
    assert restored.streams[stream_id].schema == text
    with pytest.raises(InvalidRequestError, match="of at most 16384 characters"):
        set_schema(cluster, stream_id, text.ljust(TEXT_LENGTH_MAX + 1), 1)


def test_a_stream_without_a_schema_is_written_as_before() -> None:
    cluster, stream_id = with_stream(level=2)
    row = stream_of(cluster, stream_id).to_row()
    assert len(row) <= [each.name for each in fields(StreamMetadata)].index("schemas")
    with pytest.raises(InvalidRequestError, match="at feature level 2"):
        set_schema(cluster, stream_id, "a int", 0)


def test_no_schema_of_no_stream() -> None:
    cluster, stream_id = with_stream()
    with pytest.raises(StreamNotFoundError):
        set_schema(cluster, stream_id + 1, "a int", 0)
