"""Retention on three real nodes: what the leader removes, its followers remove."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from jetstream_protocol.errors import OffsetOutOfRangeError
from tests.support.api import raw_nats
from tests.support.cluster import TestCluster, running_cluster

VALUE = bytes(10_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with running_cluster(tmp_path_factory.mktemp("life") / "cluster") as running:
        yield running


def publish(cluster: TestCluster, subject: str, count: int) -> None:
    """One batch each, acknowledged."""
    with raw_nats(cluster.nats) as client:
        client.subscribe("_INBOX.life")
        for _ in range(count):
            client.publish(subject, VALUE, "_INBOX.life")
            assert b'"seq"' in client.message()[1]


def log_files(cluster: TestCluster, node: int, stream_id: int) -> list[Path]:
    folder = cluster.cluster.directory / f"node-{node}" / "streams" / str(stream_id)
    return sorted(folder.glob("*.log"))


def log_start(cluster: TestCluster, node: int, name: str, end: int) -> int:
    return cluster.api(node).fetch(name, end).log_start_offset


def test_a_limit_set_on_a_running_stream_is_kept_by_leader_and_followers(
    cluster: TestCluster,
) -> None:
    """Nothing is published once the limit is set: the followers have nothing to fetch."""
    with Client(cluster.servers) as client:
        stream = client.create_stream("limited", "limited", segment_bytes=65_536)
        publish(cluster, "limited", 40)
        client.alter_stream(stream, max_messages=10)
        cluster.wait_for(
            "the leader keeps ten messages and less than a segment more",
            lambda: 23 < client.describe_stream(stream).log_start_offset <= 30,
        )
        start = client.describe_stream(stream).log_start_offset
        for node in cluster.nodes:
            cluster.wait_for(
                f"node {node} starts there, too",
                lambda node=node: log_start(cluster, node, "limited", 40) == start,  # type: ignore[misc]
            )
            cluster.wait_for(
                f"node {node} has removed the files below",
                lambda node=node: (  # type: ignore[misc]
                    log_files(cluster, node, stream.id)[0].name == f"{start:020d}.log"
                ),
            )
            with pytest.raises(OffsetOutOfRangeError) as caught:
                cluster.api(node).fetch("limited", start - 1)
            assert (caught.value.log_start_offset, caught.value.high_watermark) == (start, 40)


def test_records_grow_too_old_on_every_node_of_an_idle_stream(cluster: TestCluster) -> None:
    with Client(cluster.servers) as client:
        stream = client.create_stream("aging", "aging", max_age=0.5, segment_age=0.2)
        publish(cluster, "aging", 3)
        for node in cluster.nodes:
            cluster.wait_for(
                f"node {node} holds nothing any more",
                lambda node=node: (  # type: ignore[misc]
                    log_start(cluster, node, "aging", 3) == 3
                    and [path.stat().st_size for path in log_files(cluster, node, stream.id)] == [0]
                ),
            )
        publish(cluster, "aging", 1)
        assert client.describe_stream(stream).high_watermark == 4
