"""One node of a real cluster loses a file of a stream, or has a bit flipped: no other loses any.

The tests share a cluster; each has a stream of its own.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support import command
from tests.support.cluster import TestCluster
from tests.support.load import Books, Load

SEGMENT_BYTES = 64 * 1024
INTERVAL, GROUP = 2, 3


def folder_of(cluster: TestCluster, node: int, stream_id: int) -> Path:
    return cluster.cluster.directory / f"node-{node}" / "streams" / str(stream_id)


def segments_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def verify(path: Path) -> list[dict[str, object]]:
    done = command.jetstream("log", "verify", "--json", str(path))
    return [json.loads(line) for line in done.stdout.splitlines()]


def fill(cluster: TestCluster, name: str, flush: int = INTERVAL) -> Books:
    """A stream of several segments, everything acknowledged and everywhere."""
    cluster.api(0).create(name, name, segment_bytes=SEGMENT_BYTES, flush=flush)
    cluster.wait_for_isr(name, cluster.nodes)
    load = Load(cluster.nats, name).start()
    stream_id = cluster.settled(name).stream.id
    while any(len(segments_of(folder_of(cluster, n, stream_id))) < 4 for n in cluster.nodes):
        load.wait_for_acks(1_000)
    books = load.stop()
    cluster.check_everywhere(name, books)
    return books


@pytest.mark.parametrize("lost", ["oldest segment", "middle segment", "folder"])
def test_a_follower_that_lost_files_copies_anew_and_takes_nothing_from_the_others(
    cluster: TestCluster, name: str, lost: str
) -> None:
    books = fill(cluster, name)
    stream = cluster.settled(name).stream
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
    missing = [each for each in verify(folder.parents[1]) if each["kind"] == "missing_records"]
    assert any(str(folder) in str(each) and not each["repairable"] for each in missing)
    options_before = len(cluster.log(follower))
    cluster.restart(follower)
    assert "log_damaged" in cluster.log(follower)[options_before:]
    cluster.wait_for_isr(name, cluster.nodes)
    cluster.hand_over(name, follower)
    assert cluster.settled(name).log_start_offset == 0
    cluster.check_everywhere(name, books)


@pytest.mark.parametrize("flush", [INTERVAL, GROUP], ids=["interval", "group"])
def test_a_replica_whose_last_batch_rotted_while_all_were_down_does_not_win(
    cluster: TestCluster, name: str, flush: int
) -> None:
    books = fill(cluster, name, flush)
    stream = cluster.settled(name).stream
    leader = stream.leader
    for node in cluster.nodes:
        cluster.kill(node)
    last = segments_of(folder_of(cluster, leader, stream.id))[-1]
    content = bytearray(last.read_bytes())
    content[-20] ^= 1
    last.write_bytes(content)
    # It comes first, and one that is whole right after it; the third one after a while.
    others = [node for node in cluster.nodes if node != leader]
    cluster.restart(leader, others[0])
    cluster.restart(others[1])
    cluster.wait_for_isr(name, cluster.nodes)
    cluster.check_everywhere(name, books)


def test_an_only_replica_whose_last_batch_rotted_gives_no_offset_twice(
    cluster: TestCluster, name: str
) -> None:
    cluster.api(0).create(name, name, replicas=1)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(2_000)
    books = load.stop()
    stream = cluster.settled(name).stream
    leader = stream.leader
    cluster.kill(leader)
    last = segments_of(folder_of(cluster, leader, stream.id))[-1]
    content = bytearray(last.read_bytes())
    content[-20] ^= 1
    last.write_bytes(content)
    options_before = len(cluster.log(leader))
    cluster.restart(leader)
    assert "log_damaged" in cluster.log(leader)[options_before:]
    cluster.wait_for("it is led", lambda: cluster.api(leader).describe(name).stream.leader >= 0)
    load = Load(cluster.nats, name).start()
    cluster.wait_for("it is refused", lambda: len(load.books.nacked) > 100)
    assert not load.stop().acked
    readable = cluster.api(leader).describe(name).high_watermark
    assert 0 < readable < len(books.acked) + 1


def test_a_node_that_lost_all_streams_says_so_though_it_is_killed_before_it_has_joined(
    cluster: TestCluster, name: str
) -> None:
    books = fill(cluster, name, GROUP)
    stream = cluster.settled(name).stream
    follower = next(node for node in cluster.nodes if node != stream.leader)
    folder = folder_of(cluster, follower, stream.id)
    for node in cluster.nodes:
        cluster.kill(node)
    shutil.rmtree(folder.parent)
    options_before = len(cluster.log(follower))
    cluster.cluster.start_node(follower)
    cluster.wait_for(
        "it waits for the others",
        lambda: "waiting_for_metadata_leader" in cluster.log(follower)[options_before:],
    )
    cluster.kill(follower)
    cluster.restart(*cluster.nodes)
    assert f"{folder} was lost with the folder" in cluster.log(follower)[options_before:]
    cluster.wait_for_isr(name, cluster.nodes)
    cluster.hand_over(name, follower)
    cluster.check_everywhere(name, books)
