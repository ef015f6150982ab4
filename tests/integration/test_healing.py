"""Rot in flushed segments of real nodes: found, said, never delivered, and repaired.

The tests share clusters; each has a stream of its own, which is gone at its end.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import jetstream_client
from examples.cluster.local import LocalCluster
from jetstream_protocol.batch import BatchHeader
from jetstream_protocol.errors import JetstreamError, RecordsDamagedError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_server.node.config import split_address
from tests.support import unreadable_server
from tests.support.api import DataPlane, call
from tests.support.cluster import TestCluster
from tests.support.load import Load
from tests.support.rot import batches_of, rot

SEGMENT_BYTES = 64 * 1024
SLOW_SCRUB, FAST_SCRUB = 4096, 1 << 30
"""One that finds nothing before somebody else does, and one that finds it at once."""


class UnreadableCluster(LocalCluster):
    """Its nodes lose sectors when they are told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.sectors = self.directory.with_name("sectors")
        self.server = unreadable_server.command(self.sectors)


class ScrubbedCluster(UnreadableCluster):
    """Its nodes begin a round of the scrub every second, in place of every ten."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = unreadable_server.command(self.sectors, "1.0")


class Cluster(TestCluster):
    kind: type[LocalCluster] = UnreadableCluster

    def harm(self, node: int, segment: Path, how: str) -> BatchHeader:
        """Rot, or a sector that cannot be read, in the middle of a segment; the batch there."""
        if how == "flip":
            return rot(segment)
        assert isinstance(self.cluster, UnreadableCluster)
        batches = batches_of(segment)
        position, header = batches[len(batches) // 2]
        unreadable_server.make_unreadable(
            self.cluster.sectors, node, segment, position, position + header.length
        )
        return header


class Scrubbed(Cluster):
    kind = ScrubbedCluster


@pytest.fixture(scope="module")
def scrubbing(folder_on_disk: Path) -> Iterator[Cluster]:
    with running(folder_on_disk / "three", SLOW_SCRUB) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def scrubbed(folder_on_disk: Path) -> Iterator[Cluster]:
    with running(folder_on_disk / "scrubbed", FAST_SCRUB, kind=Scrubbed) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(folder_on_disk: Path) -> Iterator[Cluster]:
    with running(folder_on_disk / "alone", SLOW_SCRUB, nodes=1) as cluster:
        yield cluster


@contextmanager
def running(
    folder: Path, scrub_bytes_per_second: int, nodes: int = 3, kind: type[Cluster] = Cluster
) -> Iterator[Cluster]:
    cluster = kind(folder / "cluster", nodes)
    config = cluster.cluster.config
    config["log"] = {"scrub_bytes_per_second": scrub_bytes_per_second}
    cluster.cluster.config_file.write_text(yaml.safe_dump(config))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def segments_of(cluster: TestCluster, node: int, stream_id: int) -> list[Path]:
    folder = cluster.cluster.directory / f"node-{node}" / "streams" / str(stream_id)
    return sorted(folder.glob("*.log"))


def events(cluster: TestCluster, node: int, event: str, name: str) -> list[dict[str, object]]:
    """What the node has said of the stream."""
    lines = (json.loads(line) for line in cluster.log(node).splitlines() if line.startswith("{"))
    stream = f"{name}@{name}"
    return [line for line in lines if line["event"] == event and line["stream"] == stream]


def metric(cluster: TestCluster, node: int, name: str) -> float:
    host = cluster.cluster.config["nodes"][node]["http"]
    with urllib.request.urlopen(f"http://{host}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"jetstream_{name} "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


class Readers:
    """Read the stream from its start, again and again, each by another client."""

    def __init__(self, cluster: TestCluster, name: str, *read_from: str) -> None:
        self._cluster = cluster
        self._name = name
        self._stopping = threading.Event()
        self.rounds = 0
        self.wrong: list[str] = []
        self.refused: list[JetstreamError] = []
        self._threads = [
            threading.Thread(target=self._run, args=(each,), daemon=True) for each in read_from
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, read_from: str) -> None:
        seen: dict[int, bytes | None] = {}
        while not self._stopping.is_set():
            with jetstream_client.Client(self._cluster.servers, timeout=60) as client:
                try:
                    self._read(client, read_from, seen)
                    self.rounds += 1
                except JetstreamError as error:
                    self.refused.append(error)

    def _read(
        self, client: jetstream_client.Client, read_from: str, seen: dict[int, bytes | None]
    ) -> None:
        offset = 0
        while not self._stopping.is_set():
            got = client.fetch(self._name, offset, read_from=read_from)  # type: ignore[arg-type]
            if not len(got):
                return
            for at, value in zip(got.offsets(), got.values(), strict=True):
                if at != offset or seen.setdefault(at, value) != value:
                    self.wrong.append(f"{at} where {offset} is next: {value!r}, was {seen[at]!r}")
                offset = at + 1

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def under_load(
    cluster: TestCluster, name: str, *, records: int = 4000
) -> Iterator[tuple[Load, int]]:
    """A stream of many segments that is written to; and its id."""
    cluster.api(0).create(name, name, segment_bytes=SEGMENT_BYTES, replicas=len(cluster.nodes))
    load = Load(cluster.nats, name).start()
    try:
        load.wait_for_acks(records)
        stream_id = cluster.settled(name).stream.id
        while not all(len(segments_of(cluster, node, stream_id)) > 2 for node in cluster.nodes):
            load.wait_for_acks(500)  # Until segments are sealed.
        yield load, stream_id
    finally:
        load.stop()
        cluster.api(0).delete(name)


def read_on(
    client: jetstream_client.Client, name: str, offset: int, end: int = 1 << 60
) -> tuple[int, RecordsDamagedError | None]:
    """Read without a gap; where that ended, and by which error."""
    while offset < end:
        try:
            got = client.fetch(name, offset)
        except RecordsDamagedError as error:
            return offset, error
        assert list(got.offsets()) == list(range(offset, got.next_offset))
        offset = got.next_offset
    return offset, None


def healed(cluster: TestCluster, node: int, name: str) -> bool:
    return bool(events(cluster, node, "records_repaired", name))


@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("in_header", [False, True], ids=["body", "header"])
def test_rot_in_a_sealed_segment_is_said_never_read_and_repaired(
    scrubbing: Cluster, name: str, victim: str, in_header: bool
) -> None:
    with under_load(scrubbing, name) as (load, stream_id):
        leader = scrubbing.settled(name).stream.leader
        node = leader if victim == "leader" else next(n for n in scrubbing.nodes if n != leader)
        counters = ("damaged_ranges_found_total", "damaged_ranges_repaired_total")
        counted = [metric(scrubbing, node, counter) for counter in counters]
        segment = segments_of(scrubbing, node, stream_id)[0]
        before = segment.read_bytes()
        bad = rot(segment, in_header=in_header)
        assert segment.read_bytes() != before
        readers = Readers(scrubbing, name, "leader", "any", "any", "nearest")
        took = scrubbing.wait_for("it is repaired", lambda: healed(scrubbing, node, name), 60)
        scrubbing.wait_for_isr(name, scrubbing.nodes)
        print(f"repaired within {took:.2f} s; {readers.rounds} rounds of readers")
        assert segment.read_bytes() == before
        rounds = readers.rounds
        scrubbing.wait_for("readers go on", lambda: readers.rounds > rounds + 4)
        readers.stop()
        load.wait_for_acks(100)
        books = load.stop()
        assert not readers.wrong
        assert not readers.refused
        said = events(scrubbing, node, "records_damaged", name)
        assert said
        assert said[0]["start_offset"] <= bad.base_offset < said[0]["end_offset"]  # type: ignore[operator]
        if not in_header:
            assert (said[0]["start_offset"], said[0]["end_offset"]) == (
                bad.base_offset,
                bad.next_offset,
            )
        assert [metric(scrubbing, node, counter) for counter in counters] == [
            n + 1 for n in counted
        ]
        assert metric(scrubbing, node, "streams_damaged") == 0
        scrubbing.check_everywhere(name, books)


def test_what_all_replicas_have_lost_is_lived_with_as_the_page_on_operations_says(
    scrubbing: Cluster, name: str
) -> None:
    with under_load(scrubbing, name) as (load, stream_id):
        load.stop()
        folders = [segments_of(scrubbing, node, stream_id) for node in scrubbing.nodes]
        assert len({tuple(path.name for path in folder[:2]) for folder in folders}) == 1
        bad = [rot(folder[0]) for folder in folders]
        assert len({header.base_offset for header in bad}) == 1
        with jetstream_client.Client(scrubbing.servers, timeout=60) as client:

            def reads(node: int) -> bool:
                plane = DataPlane(split_address(scrubbing.cluster.config["nodes"][node]["data"]))
                plane.fetch(name, bad[0].base_offset, refused=True)
                plane.close()
                return bool(events(scrubbing, node, "records_damaged", name))

            for node in scrubbing.nodes:
                scrubbing.wait_for("its damage is found", lambda node=node: reads(node))
            scrubbing.wait_for("one is left", lambda: len(scrubbing.settled(name).stream.isr) == 1)
            with pytest.raises(JetstreamError):
                client.publish(name, b"refused", timeout=1)
            client.alter_stream(name, min_insync_replicas=1)
            end = client.publish(name, b"taken", msg_id="taken", timeout=60).offset + 1
            # Segments go as a whole.
            client.alter_stream(name, max_messages=end - int(folders[0][1].stem))
            scrubbing.wait_for_isr(name, scrubbing.nodes, 60)
            assert not client.describe_stream(name).damaged
            client.alter_stream(name, min_insync_replicas=2)
            client.publish(name, b"on three", msg_id="on three", timeout=60)


def test_a_search_for_a_time_that_meets_rot_has_it_looked_at_and_is_answered_by_who_has_it(
    scrubbing: Cluster, name: str
) -> None:
    with under_load(scrubbing, name) as (load, stream_id):
        leader = scrubbing.settled(name).stream.leader
        segment = segments_of(scrubbing, leader, stream_id)[0]
        (_, first), (_, second) = batches_of(segment)[:2]
        rot(segment, at=0, in_header=True)
        query = pb.ListOffsetsRequest.Query(
            stream=common_pb2.StreamRef(name=name), timestamp_us=second.append_timestamp
        )
        request = pb.ListOffsetsRequest(queries=[query])
        (result,) = call(scrubbing.api(leader).reads.ListOffsets, request).results
        assert result.error.retriable
        assert "is inspecting its file" in result.error.message
        scrubbing.wait_for("it is repaired", lambda: healed(scrubbing, leader, name))
        (result,) = call(
            scrubbing.api(scrubbing.settled(name).stream.leader).reads.ListOffsets, request
        ).results
        expected = first if first.append_timestamp == second.append_timestamp else second
        assert result.offset == expected.base_offset
        load.stop()


@pytest.mark.parametrize("how", ["flip", "unreadable"])
def test_one_replica_can_be_read_before_and_after_what_its_disk_has_lost(
    alone: Cluster, name: str, how: str
) -> None:
    with under_load(alone, name) as (load, stream_id):
        bad = alone.harm(0, segments_of(alone, 0, stream_id)[0], how)
        with jetstream_client.Client(alone.servers, timeout=60) as client:
            offset, told = read_on(client, name, 0)
            assert told is not None
            lost = range(told.start_offset, told.end_offset)
            assert offset == lost.start
            assert bad.base_offset in lost
            if how == "flip":
                assert lost == range(bad.base_offset, bad.next_offset)
            assert f"continue from offset {lost.stop}" in told.message
            assert not told.retriable
            load.wait_for_acks(200)  # Appends go on.
            end = client.describe_stream(name).high_watermark or 0
            offset, told = read_on(client, name, lost.stop, end)
            assert offset >= end
            assert told is None
            damaged = client.describe_stream(name).damaged
            assert [(d.node, d.start, d.end) for d in damaged] == [(0, lost.start, lost.stop)]
        assert "has lost" in alone.jetstream("stream", "describe", name)
        load.stop()
        for end_of_life in (alone.stop, alone.kill):
            end_of_life(0)
            alone.restart(0)
            with (
                jetstream_client.Client(alone.servers, timeout=60) as client,
                pytest.raises(RecordsDamagedError, match=f"from offset {lost.stop}"),
            ):
                client.fetch(name, lost.start)  # A restart knows.
            assert metric(alone, 0, "streams_damaged") == 1


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_the_scrub_finds_what_nobody_reads(scrubbed: Cluster, name: str, victim: str) -> None:
    with under_load(scrubbed, name) as (load, stream_id):
        books = load.stop()
        leader = scrubbed.settled(name).stream.leader
        node = leader if victim == "leader" else next(n for n in scrubbed.nodes if n != leader)
        rot(segments_of(scrubbed, node, stream_id)[0])
        took = scrubbed.wait_for("it is repaired", lambda: healed(scrubbed, node, name), 60)
        print(f"found and repaired within {took:.1f} s")
        assert metric(scrubbed, node, "scrubbed_bytes_total") > 0
        scrubbed.wait_for_isr(name, scrubbed.nodes)
        scrubbed.check_everywhere(name, books)


@pytest.mark.parametrize("how", ["flip", "unreadable"])
def test_bytes_that_a_follower_cannot_use_cost_its_other_streams_nothing(
    scrubbing: Cluster, name: str, how: str
) -> None:
    other = f"{name}_other"
    scrubbing.api(0).create(other, other)
    with under_load(scrubbing, name, records=1000) as (load, stream_id):
        leader = scrubbing.settled(name).stream.leader
        away = next(node for node in scrubbing.nodes if node != leader)
        scrubbing.kill(away)
        load.wait_for_acks(3000)
        leader = scrubbing.settled(name).stream.leader
        known = len(segments_of(scrubbing, away, stream_id))
        while len(segments_of(scrubbing, leader, stream_id)) <= known + 3:
            load.wait_for_acks(500)  # Until it misses segments.
        scrubbing.harm(leader, segments_of(scrubbing, leader, stream_id)[known + 1], how)
        scrubbing.restart(away)
        scrubbing.wait_for("it is repaired", lambda: healed(scrubbing, leader, name), 60)
        scrubbing.wait_for_isr(name, scrubbing.nodes, 60)
        scrubbing.wait_for_isr(other, scrubbing.nodes)
        books = load.stop()
        restarted = scrubbing.log(away).rpartition('"event": "session_held"')[2]
        lost = [line for line in restarted.splitlines() if '"leader_unreachable"' in line]
        # A leader may stand still, whatever it was asked for.
        assert [line for line in lost if json.loads(line)["reason"] != "it is silent"] == []
        scrubbing.check_everywhere(name, books)
    scrubbing.api(0).delete(other)


def test_a_client_s_word_alone_marks_nothing(alone: Cluster, name: str) -> None:
    with under_load(alone, name) as (load, _):
        load.stop()
        host, _, port = alone.cluster.config["nodes"][0]["data"].rpartition(":")
        data = DataPlane((host, int(port)))
        answer, batches = data.fetch(name, 10, refused=True)
        data.close()
        assert not answer.HasField("error")
        assert batches
        assert events(alone, 0, "records_found_intact", name)
        assert not events(alone, 0, "records_damaged", name)
        assert not alone.describe(name).damaged
