"""Purging on three real nodes: the records are gone on all, and stay so when leaders change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetstream_client import Client, OffsetOutOfRangeError, Stream, StreamNotFoundError
from jetstream_client.cli.main import run
from tests.support.cluster import TestCluster

BATCH = 10


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


def filled(client: Client, name: str, batches: int = 5) -> Stream:
    """A stream of numbered records, ten in a batch."""
    stream = client.create_stream(name, name)
    fill(client, name, batches)
    return stream


def fill(client: Client, name: str, batches: int) -> None:
    start = client.offset_at(name, "latest")
    with client.publisher(name, linger=0) as publisher:
        for number in range(start, start + batches * BATCH, BATCH):
            publisher.publish_many([b"%d" % each for each in range(number, number + BATCH)])
            publisher.flush()


def starts(cluster: TestCluster, name: str, end: int) -> list[int]:
    return [cluster.api(node).fetch(name, end).log_start_offset for node in cluster.nodes]


def test_the_oldest_records_are_purged_in_whole_batches_on_every_node(
    cluster: TestCluster, client: Client
) -> None:
    filled(client, "oldest")
    assert client.purge_stream("oldest", 25) == 20
    assert client.fetch("oldest").offsets() == list(range(20, 50))
    with pytest.raises(OffsetOutOfRangeError):
        client.fetch("oldest", 19)
    cluster.wait_for(
        "the followers have purged as well", lambda: starts(cluster, "oldest", 50) == [20] * 3
    )
    assert client.purge_stream("oldest", 25) == 20
    assert client.purge_stream("oldest", 5) == 20


def test_a_stream_that_is_purged_as_a_whole_goes_on_where_it_was(
    cluster: TestCluster, client: Client
) -> None:
    stream = filled(client, "whole")
    assert client.purge_stream(stream) == 50
    assert client.fetch("whole").offsets() == []
    cluster.wait_for("all nodes", lambda: starts(cluster, "whole", 50) == [50] * 3)
    folders = list(cluster.cluster.directory.glob(f"node-*/streams/{stream.id}"))
    assert len(folders) == 3
    cluster.wait_for(
        "no node keeps the files",
        lambda: not any(path.stat().st_size for f in folders for path in f.glob("*.log")),
    )
    fill(client, "whole", 1)
    assert client.fetch("whole").offsets() == list(range(50, 60))


def test_what_is_not_committed_cannot_be_purged(client: Client) -> None:
    filled(client, "beyond")
    with pytest.raises(OffsetOutOfRangeError, match="not committed"):
        client.purge_stream("beyond", 51)
    with pytest.raises(StreamNotFoundError):
        client.purge_stream("nowhere")
    assert client.fetch("beyond").offsets() == list(range(50))


def test_a_purge_outlives_the_leader_that_carried_it_out(
    cluster: TestCluster, client: Client
) -> None:
    """The leader is killed at once: its successor knows of the purge only from the metadata."""
    filled(client, "outlived")
    fill(client, "outlived", 1)
    leader = client.describe_stream("outlived").leader
    assert client.purge_stream("outlived", 40) == 40
    cluster.kill(leader)
    try:
        cluster.wait_for(
            "another node leads",
            lambda: client.describe_stream("outlived").leader not in (leader, -1),
        )
        cluster.wait_for("it has purged", lambda: client.fetch("outlived").offsets()[:1] == [40])
        fill(client, "outlived", 1)
        assert client.fetch("outlived").offsets() == list(range(40, 70))
    finally:
        cluster.restart(leader)
    cluster.wait_for_isr("outlived", cluster.nodes)
    cluster.wait_for(
        "the one that came back has not taken it back",
        lambda: starts(cluster, "outlived", 70) == [40] * 3,
    )


def test_a_node_that_was_away_purges_when_it_is_back(cluster: TestCluster, client: Client) -> None:
    filled(client, "away")
    leader = client.describe_stream("away").leader
    follower = next(node for node in cluster.nodes if node != leader)
    cluster.kill(follower)
    try:
        fill(client, "away", 2)
        assert client.purge_stream("away", 60) == 60
    finally:
        cluster.restart(follower)
    cluster.wait_for_isr("away", cluster.nodes)
    cluster.wait_for("it begins there, too", lambda: starts(cluster, "away", 70) == [60] * 3)


def test_the_command_purges_and_says_where_the_log_begins(
    cluster: TestCluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(client, "said")
    purge = ["--server", cluster.servers, "stream", "purge", "said", "--yes"]
    assert run([*purge, "--before", "-20"]) == 0
    assert capsys.readouterr().out == "purged said: its first offset is 30 now\n"
    assert run([*purge, "--before", "35"]) == 0
    assert capsys.readouterr().out == (
        "purged said: its first offset is 30 now, where the batch of 35 begins\n"
    )
    assert run(["--json", *purge]) == 0
    assert capsys.readouterr().out == '{"purged":"said","log_start_offset":50}\n'


def test_a_compacted_stream_is_purged_and_compacted_further(
    cluster: TestCluster, client: Client
) -> None:
    """The purge meets a log with gaps, and later passes a log that begins elsewhere."""
    client.create_stream("compacted", "compacted", compact=True, segment_bytes=65_536)

    def write(rounds: range) -> None:
        with client.publisher("compacted", linger=0, max_bytes=8_192) as publisher:
            for number in rounds:
                for key in range(50):
                    publisher.send(b"%d " % number + bytes(700), key=b"%d" % key)

    def passed() -> int:
        found = client.describe_stream("compacted").compaction
        assert found is not None
        return found.cleaned_to

    write(range(8))
    cluster.wait_for("a pass is over", lambda: passed() > 100)
    start = client.purge_stream("compacted", 250)
    assert 0 < start <= 350  # Compaction may have left nothing between 250 and the last round.
    offsets = client.fetch("compacted", "earliest").offsets()
    assert offsets[0] >= start
    assert offsets[-50:] == list(range(350, 400))
    before = passed()
    write(range(8, 16))
    cluster.wait_for("another pass is over", lambda: passed() > max(before, 400))
    with client.consume("compacted", "earliest", stop="latest") as consumer:
        latest = {message.key: message.value[:2] for message in consumer}
    assert latest == {b"%d" % key: b"15" for key in range(50)}
    end = client.offset_at("compacted", "latest")
    assert client.purge_stream("compacted") == end
    cluster.wait_for("all nodes", lambda: starts(cluster, "compacted", end) == [end] * 3)
    write(range(16, 17))
    assert client.fetch("compacted").offsets() == list(range(end, end + 50))
