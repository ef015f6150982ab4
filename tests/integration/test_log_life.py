"""Retention and compaction on three real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client, CompactionInfo, Stream
from jetstream_protocol.batch import Batch, iterate
from jetstream_protocol.errors import OffsetOutOfRangeError
from tests.support.api import DataPlane, raw_nats
from tests.support.cluster import TestCluster
from tests.support.patient_server import PatientCluster
from tests.support.rot import rot
from tests.support.stages import cluster_stage

VALUE = bytes(10_000)

cluster = cluster_stage(kind=PatientCluster)


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
    with Client(cluster.servers, timeout=60) as client:
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
    with Client(cluster.servers, timeout=60) as client:
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


def test_every_replica_compacts_its_log_and_a_new_one_copies_the_gaps(cluster: TestCluster) -> None:
    """Readers of each node, from the start, end with the last value of each key; so does a node
    that lost its disk and fetched everything again, gaps and all."""
    expected = {b"key-%d" % key: b"%d" % (1200 + key) + VALUE[:500] for key in range(100)}
    with Client(cluster.servers, timeout=60) as client:
        stream = client.create_stream("prices", "prices", compact=True, segment_bytes=65_536)
        publish_keyed(cluster, "prices", 1300)
        for node in cluster.nodes:
            cluster.wait_for(
                f"node {node} has compacted its log",
                lambda node=node: len(offsets_of(cluster, node, "prices", 1300)) < 400,  # type: ignore[misc]
            )
            assert table_of(cluster, node, "prices", 1300) == expected
        cluster.wait_for(
            "the leader says so",
            lambda: (
                compaction_of(client, stream).cleaned_to > 900
                and compaction_of(client, stream).dirty_ratio < 0.5
            ),
        )
        found = compaction_of(client, stream)
        assert found.bytes_after < found.bytes_before
        assert found.ended_at is not None
        follower = next(n for n in cluster.nodes if n != client.describe_stream(stream).leader)
        cluster.kill(follower)
        for path in log_files(cluster, follower, stream.id):
            path.unlink()
        cluster.restart(follower)
        cluster.wait_for_isr("prices", cluster.nodes)
        cluster.wait_for(
            "the follower has everything again",
            lambda: offsets_of(cluster, follower, "prices", 1300)[-1] == 1299,
        )
        assert table_of(cluster, follower, "prices", 1300) == expected
        assert len(offsets_of(cluster, follower, "prices", 1300)) < 400
        read = {m.key: m.value for m in client.consume(stream, stop="latest")}
        assert read == expected


def test_rot_in_a_compacted_log_is_repaired_from_one_that_is_compacted_otherwise(
    cluster: TestCluster,
) -> None:
    expected = {b"key-%d" % key: b"%d" % (1200 + key) + VALUE[:500] for key in range(100)}
    with Client(cluster.servers, timeout=60) as client:
        stream = client.create_stream("quotes", "quotes", compact=True, segment_bytes=65_536)
        publish_keyed(cluster, "quotes", 1300)
        leader = client.describe_stream(stream).leader
        for node in (leader, next(node for node in cluster.nodes if node != leader)):
            cluster.wait_for(
                f"node {node} has compacted its log",
                lambda node=node: len(offsets_of(cluster, node, "quotes", 1300)) < 400,  # type: ignore[misc]
            )
            segment = log_files(cluster, node, stream.id)[3]
            bad = rot(segment, at=0.0)
            address = client.describe_cluster().nodes[node].data
            host, _, port = address.rpartition(":")
            data = DataPlane((host, int(port)))
            answer, _ = data.fetch("quotes", bad.base_offset, refused=True)
            data.close()
            assert answer.error.code == "records_damaged"  # type: ignore[attr-defined]
            said = f'"stream": "quotes@quotes", "node": {node}, "event": "records_repaired"'
            cluster.wait_for("it is repaired", lambda: said in cluster.log(node), 60)  # noqa: B023
            cluster.wait_for_isr("quotes", cluster.nodes)
            assert table_of(cluster, node, "quotes", 1300) == expected


def compaction_of(client: Client, stream: Stream) -> CompactionInfo:
    found = client.describe_stream(stream).compaction
    assert found is not None
    return found


def publish_keyed(cluster: TestCluster, subject: str, count: int) -> None:
    """Key i % 100 has value i, in batches as they come."""
    with raw_nats(cluster.nats) as client:
        client.subscribe("_INBOX.life")
        for index in range(count):
            headers = b"NATS/1.0\r\nJetstream-Key: key-%d\r\n\r\n" % (index % 100)
            value = b"%d" % index + VALUE[:500]
            client.publish(subject, value, "_INBOX.life", headers)
            if index % 20 == 19:
                for _ in range(20):
                    assert b'"seq"' in client.message()[1]


def batches_of(cluster: TestCluster, node: int, name: str, end: int) -> Iterator[Batch]:
    """What this very node serves below `end`."""
    offset = 0
    while offset < end:
        found = list(iterate(cluster.api(node).fetch(name, offset).batches))
        if not found:
            return
        yield from found
        offset = found[-1].header.next_offset


def offsets_of(cluster: TestCluster, node: int, name: str, end: int) -> list[int]:
    return [at for batch in batches_of(cluster, node, name, end) for at in batch.offsets()]


def table_of(
    cluster: TestCluster, node: int, name: str, end: int
) -> dict[bytes | None, bytes | None]:
    return {
        key: value
        for batch in batches_of(cluster, node, name, end)
        for key, value in zip(batch.keys(), batch.values(), strict=True)
    }


def test_a_follower_that_was_away_longer_than_the_grace_time_keeps_nothing_deleted(
    cluster: TestCluster,
) -> None:
    """The leader has no tombstone left to send it, so it copies the log anew."""
    with Client(cluster.servers, timeout=60) as client:
        stream = client.create_stream(
            "graves", "graves", compact=True, segment_bytes=65_536, tombstone_grace=0.1
        )
        client.publish("graves", b"here", key=b"doomed", msg_id="here")
        publish_keyed(cluster, "graves", 200)
        follower = next(n for n in cluster.nodes if n != client.describe_stream(stream).leader)
        cluster.wait_for(
            "the follower has it",
            lambda: table_of(cluster, follower, "graves", 201)[b"doomed"] == b"here",
        )
        cluster.kill(follower)
        cluster.wait_for_isr("graves", [n for n in cluster.nodes if n != follower])
        client.publish("graves", None, key=b"doomed", msg_id="gone")
        publish_keyed(cluster, "graves", 300)
        leader = client.describe_stream(stream).leader
        cluster.wait_for(
            "the leader has forgotten it",
            lambda: b"doomed" not in table_of(cluster, leader, "graves", 500),
        )
        expected = table_of(cluster, leader, "graves", 502)
        cluster.restart(follower)
        cluster.wait_for_isr("graves", cluster.nodes)
        cluster.wait_for(
            "the follower has all the others and nothing else",
            lambda: table_of(cluster, follower, "graves", 502) == expected,
        )
