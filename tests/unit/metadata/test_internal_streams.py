"""The server's own streams: without a subject, and nobody else's to change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_protocol.stream_names import check_own_name
from jetstream_server.clocks import WallUs
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    AlterStream,
    CreateStream,
    DeleteStream,
    PurgeStream,
    SetCluster,
    SetStreamAccess,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.operations import check_feature
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.unit.metadata.cluster import cluster_at

from .cluster import Cluster

cluster = cluster_at(3, FEATURE_LEVEL_MAX)


def create(cluster: Cluster) -> StreamMetadata:
    config = {"acks": "off", "compact": True}
    return cluster.create("__cursors", "", (0, 1, 2), config=config, internal=True)


def minimum_of(stream: StreamMetadata, minimum: int, **others: Any) -> AlterStream:
    config = {"min_insync_replicas": minimum, **others}
    return AlterStream(stream_id=stream.id, stream_epoch=stream.stream_epoch, config=config)


def test_it_has_a_leader_and_replicas_and_no_subject(cluster: Cluster) -> None:
    stream = create(cluster)
    assert (stream.subject, stream.full_name, stream.is_internal) == ("", "__cursors", True)
    assert stream.leader in stream.isr == (0, 1, 2)
    assert stream.config.min_insync_replicas == 2
    assert cluster.registry.resolve("__cursors") is stream
    assert create(cluster).id == stream.id
    assert cluster.registry.feeding("__cursors") == []
    copy = Registry()
    copy.restore(cluster.registry.snapshot())
    assert copy.streams == cluster.registry.streams


def test_nobody_changes_or_deletes_it(cluster: Cluster) -> None:
    stream = create(cluster)
    commands: list[Command] = [
        DeleteStream(stream_id=stream.id),
        AlterStream(stream_id=stream.id, stream_epoch=0, config={"max_age_us": 1_000_000}),
        PurgeStream(stream_id=stream.id, leader_epoch=stream.leader_epoch, offset=1),
        SetStreamAccess(stream_id=stream.id, readonly=True),
    ]
    for command in commands:
        with pytest.raises(InvalidRequestError, match="the server's own stream"):
            cluster.do(command)
    assert cluster.now(stream) is stream


def test_only_its_minimum_can_be_altered(cluster: Cluster) -> None:
    stream = create(cluster)
    for minimum in (1, 3):
        cluster.do(minimum_of(cluster.now(stream), minimum))
        assert cluster.now(stream).config == replace(stream.config, min_insync_replicas=minimum)
    with pytest.raises(InvalidRequestError, match="more than the stream's 3 replicas"):
        cluster.do(minimum_of(cluster.now(stream), 4))
    with pytest.raises(InvalidRequestError, match="only its min_insync_replicas can be altered"):
        cluster.do(minimum_of(cluster.now(stream), 1, flush="none"))
    assert cluster.now(stream).config.min_insync_replicas == 3


def test_its_minimum_stays_while_some_node_has_older_software() -> None:
    cluster = Cluster()
    cluster.register(0, feature_level_max=FeatureLevel(4))
    cluster.do(SetCluster(feature_level=FeatureLevel(4)))
    stream = cluster.create("__cursors", "", (0,), internal=True)
    metadata = cast("RaftMetadataLog", SimpleNamespace(registry=cluster.registry))
    streams = Streams(metadata, lambda: WallUs(0), nodes_configured=1)
    settings = {"min_insync_replicas": 1, "group": "", "partition": 0, "partitions": 0}
    with pytest.raises(PreconditionFailedError, match=r"level 5.*nodes \[0\] run older software"):
        asyncio.run(streams.alter(stream, settings, None))
    for command in (minimum_of(stream, 1), minimum_of(stream, 0)):
        with pytest.raises(InvalidRequestError) as refused:
            cluster.do(command)
        assert refused.value.message == (
            "__cursors is the server's own stream: it cannot be altered, paused, purged or deleted"
        ), "the words of older software: results are part of the state"


@pytest.mark.parametrize(
    ("name", "subject", "group"), [("cursors", "", ""), ("__c", "a.>", ""), ("__c", "", "g")]
)
def test_it_is_told_by_its_name(cluster: Cluster, name: str, subject: str, group: str) -> None:
    with pytest.raises(InvalidRequestError, match="an internal stream"):
        cluster.create(name, subject, group=group, internal=True)


def test_a_stream_of_a_user_has_a_subject_and_another_name(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match="invalid subject"):
        cluster.create("orders", "")
    with pytest.raises(InvalidRequestError, match="for the server's own"):
        check_own_name("__orders")
    check_own_name("_orders")


def test_older_software_is_never_asked_for_one() -> None:
    cluster = Cluster(nodes=3)
    command = CreateStream(
        name="__cursors", subject="", replicas=(0, 1, 2), created_at_us=0, internal=True
    )
    with pytest.raises(PreconditionFailedError, match=r"nodes \[0, 1, 2\] run older software"):
        check_feature(cluster.registry, command.needed_level, command.op)
    with pytest.raises(InvalidRequestError, match="unknown fields 'internal'"):
        cluster.do(command)
    with pytest.raises(StreamNotFoundError):
        cluster.registry.resolve("__cursors")
