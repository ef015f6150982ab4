"""Three real nodes and a folder: the leader dies in the middle of an upload, a node loses its disk,
and each of them has every record."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest
import yaml

pytest.importorskip("pyiceberg")

from jetstream_client import Client
from jetstream_protocol.batch import iterate
from tests.support.cluster import TestCluster

NAME = "kept"
COUNT = 600
VALUE = b"x" * 1_000
COPY_SECONDS = 120
"""On a busy machine the process that copies, which has the lowest priority, gets little time."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "lake").mkdir()
    return folder


@pytest.fixture
def laked(tmp_path: Path, folder: Path) -> Iterator[TestCluster]:
    cluster = TestCluster(tmp_path / "cluster")
    config = cluster.cluster.config | {"lake": {"url": folder.as_uri()}}
    cluster.cluster.config_file.write_text(yaml.safe_dump(config))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def publish(client: Client, first: int, count: int) -> None:
    with client.publisher(NAME, linger=0) as publisher:
        for number in range(first, first + count, 10):
            publisher.publish_many([b"%d " % each + VALUE for each in range(number, number + 10)])
            publisher.flush()


def local_start(cluster: TestCluster, node: int, stream_id: int) -> int:
    """Where the first segment on that node's disk begins."""
    logs = (cluster.cluster.data(node) / "streams" / str(stream_id)).glob("*.log")
    return min((int(each.stem) for each in logs), default=0)


def digest_at(cluster: TestCluster, node: int, end: int) -> str:
    """Of the batches below `end` as that node sends them, in the log or from the lake."""
    offset, found = 0, blake2b(digest_size=16)
    while offset < end:
        batches = cluster.api(node).fetch(NAME, offset, bytes_max=1 << 18).batches
        found.update(batches)
        offset = list(iterate(batches))[-1].header.next_offset
    return found.hexdigest()


def test_every_replica_has_every_record(laked: TestCluster, folder: Path) -> None:
    with Client(laked.servers, timeout=60) as client:
        stream = client.create_stream(
            NAME, NAME, lake=True, segment_bytes=64 * 1024, local_max_bytes=64 * 1024,
            duplicate_window=0,
        )  # fmt: skip
        publish(client, 0, COUNT)
        # An object is there, and the table that names it is not, or not yet committed.
        laked.wait_for(
            "an upload is under way",
            lambda: any(folder.glob("*/*/data/*.parquet")),
            COPY_SECONDS,
        )
        leader = laked.settled(NAME).stream.leader
        laked.kill(leader)
        others = [node for node in laked.nodes if node != leader]
        laked.wait_for(
            "another leads", lambda: laked.describe(NAME, others).stream.leader in others
        )
        publish(client, COUNT, COUNT)
        laked.wait_for(
            "the followers' old records leave their disks, too",
            lambda: all(local_start(laked, node, stream.id) > COUNT for node in others),
            COPY_SECONDS,
        )
    shutil.rmtree(laked.cluster.data(leader))
    laked.restart(leader)
    laked.wait_for_isr(NAME, laked.nodes)
    begins = local_start(laked, leader, stream.id)
    assert begins > COUNT, "it has copied what is not in the lake alone"
    digests = {digest_at(laked, node, 2 * COUNT) for node in laked.nodes}
    assert len(digests) == 1
    values = laked.api(leader).values_upto(NAME, 2 * COUNT)
    assert values == [b"%d " % each + VALUE for each in range(2 * COUNT)]
