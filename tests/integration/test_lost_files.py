"""One node of a real cluster loses a file of a stream, or has a bit flipped: no other loses any."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import TestCluster, running_cluster
from tests.support.load import Books, Load

SEGMENT_BYTES = 64 * 1024
INTERVAL, GROUP = 2, 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with running_cluster(tmp_path / "cluster") as running:
        yield running


def folder_of(cluster: TestCluster, node: int, stream_id: int) -> Path:
    return cluster.cluster.directory / f"node-{node}" / "streams" / str(stream_id)


def segments_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def verify(path: Path) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "jetstream_client", "log", "verify", "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def fill(cluster: TestCluster, flush: int = INTERVAL) -> Books:
    """A stream of several segments, everything acknowledged and everywhere."""
    cluster.api(0).create("orders", "orders", segment_bytes=SEGMENT_BYTES, flush=flush)
    cluster.wait_for_isr("orders", cluster.nodes)
    load = Load(cluster.nats, "orders").start()
    load.wait_for_acks(20_000)
    books = load.stop()
    cluster.check_everywhere("orders", books)
    return books


def lead(cluster: TestCluster, node: int) -> None:
    cluster.jetstream("stream", "transfer-leader", "orders", str(node))
    cluster.wait_for(f"node {node} leads", lambda: cluster.settled("orders").stream.leader == node)


@pytest.mark.parametrize("lost", ["oldest segment", "middle segment", "folder"])
def test_a_follower_that_lost_files_copies_anew_and_takes_nothing_from_the_others(
    cluster: TestCluster, lost: str
) -> None:
    books = fill(cluster)
    stream = cluster.settled("orders").stream
    follower = next(node for node in cluster.nodes if node != stream.leader)
    folder = folder_of(cluster, follower, stream.id)
    assert len(segments_of(folder)) >= 3
    cluster.stop(follower)
    if lost == "folder":
        shutil.rmtree(folder)
    else:
        segment = segments_of(folder)[0 if lost == "oldest segment" else 1]
        segment.unlink()
        segment.with_suffix(".index").unlink()
    found = verify(folder.parents[1])
    assert any(each["kind"] == "missing_records" and not each["repairable"] for each in found)
    cluster.restart(follower)
    assert "log_damaged" in cluster.log(follower)
    cluster.wait_for_isr("orders", cluster.nodes)
    lead(cluster, follower)
    assert cluster.settled("orders").log_start_offset == 0
    cluster.check_everywhere("orders", books)


@pytest.mark.parametrize("flush", [INTERVAL, GROUP], ids=["interval", "group"])
def test_a_replica_whose_last_batch_rotted_while_all_were_down_does_not_win(
    cluster: TestCluster, flush: int
) -> None:
    books = fill(cluster, flush)
    stream = cluster.settled("orders").stream
    leader = stream.leader
    for node in cluster.nodes:
        cluster.kill(node)
    last = segments_of(folder_of(cluster, leader, stream.id))[-1]
    content = bytearray(last.read_bytes())
    content[-20] ^= 1
    last.write_bytes(content)
    # It comes first, and one that is whole right behind it; the third one after a while.
    others = [node for node in cluster.nodes if node != leader]
    cluster.cluster.start_node(leader)
    cluster.cluster.start_node(others[0])
    cluster.cluster.wait_for_nodes(leader, others[0])
    cluster.restart(others[1])
    cluster.wait_for_isr("orders", cluster.nodes)
    cluster.check_everywhere("orders", books)


def test_an_only_replica_whose_last_batch_rotted_gives_no_offset_twice(
    cluster: TestCluster,
) -> None:
    cluster.api(0).create("single", "single", replicas=1)
    load = Load(cluster.nats, "single").start()
    load.wait_for_acks(2_000)
    books = load.stop()
    stream = cluster.settled("single").stream
    leader = stream.leader
    cluster.kill(leader)
    last = segments_of(folder_of(cluster, leader, stream.id))[-1]
    content = bytearray(last.read_bytes())
    content[-20] ^= 1
    last.write_bytes(content)
    cluster.restart(leader)
    assert "log_damaged" in cluster.log(leader)
    cluster.wait_for("it is led", lambda: cluster.api(leader).describe("single").stream.leader >= 0)
    load = Load(cluster.nats, "single").start()
    cluster.wait_for("it is refused", lambda: len(load.books.nacked) > 100)
    assert not load.stop().acked
    readable = cluster.api(leader).describe("single").high_watermark
    assert 0 < readable < len(books.acked) + 1
