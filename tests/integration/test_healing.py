"""Rot in flushed segments of real nodes: found, said, never delivered, and repaired."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import jetstream_client
from jetstream_protocol.errors import JetstreamError
from tests.support.cluster import TestCluster, running_cluster
from tests.support.load import Load
from tests.support.rot import rot

SEGMENT_BYTES = 64 * 1024
FAST_SCRUB = str(1 << 30)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestCluster]:
    monkeypatch.setenv("JETSTREAM_LOG__SCRUB_BYTES_PER_SECOND", "4096")  # Not to find it first.
    with running_cluster(tmp_path / "cluster") as running:
        yield running


def segments_of(cluster: TestCluster, node: int, stream_id: int) -> list[Path]:
    folder = cluster.cluster.directory / f"node-{node}" / "streams" / str(stream_id)
    return sorted(folder.glob("*.log"))


def events(cluster: TestCluster, node: int, event: str) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in cluster.log(node).splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == event]


def metric(cluster: TestCluster, node: int, name: str) -> float:
    host = cluster.cluster.config["nodes"][node]["http"]
    with urllib.request.urlopen(f"http://{host}/metrics", timeout=5) as answer:
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
            with jetstream_client.Client(self._cluster.servers) as client:
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
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def under_load(cluster: TestCluster, *, records: int = 4000) -> Iterator[tuple[Load, int]]:
    """A stream of many segments that is written to; and its id."""
    cluster.api(0).create("orders", "orders", segment_bytes=SEGMENT_BYTES)
    load = Load(cluster.nats, "orders").start()
    load.wait_for_acks(records)
    stream_id = cluster.settled("orders").stream.id
    cluster.wait_for(
        "segments are sealed",
        lambda: all(len(segments_of(cluster, node, stream_id)) > 2 for node in cluster.nodes),
        60,
    )
    yield load, stream_id


def healed(cluster: TestCluster, node: int) -> bool:
    return bool(events(cluster, node, "records_repaired"))


@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("in_header", [False, True], ids=["body", "header"])
def test_rot_in_a_sealed_segment_is_said_never_read_and_repaired(
    cluster: TestCluster, victim: str, in_header: bool
) -> None:
    with under_load(cluster) as (load, stream_id):
        leader = cluster.settled("orders").stream.leader
        node = leader if victim == "leader" else next(n for n in cluster.nodes if n != leader)
        segment = segments_of(cluster, node, stream_id)[0]
        before = segment.read_bytes()
        bad = rot(segment, in_header=in_header)
        assert segment.read_bytes() != before
        readers = Readers(cluster, "orders", "leader", "any", "any", "nearest")
        took = cluster.wait_for("it is repaired", lambda: healed(cluster, node), 60)
        cluster.wait_for_isr("orders", cluster.nodes, 30)
        print(f"repaired within {took:.2f} s; {readers.rounds} rounds of readers")
        assert segment.read_bytes() == before
        rounds = readers.rounds
        cluster.wait_for("readers go on", lambda: readers.rounds > rounds + 4)
        readers.stop()
        load.wait_for_acks(100)
        books = load.stop()
    assert not readers.wrong
    assert not readers.refused
    said = events(cluster, node, "records_damaged")
    assert said
    assert said[0]["start_offset"] <= bad.base_offset < said[0]["end_offset"]  # type: ignore[operator]
    if not in_header:
        assert (said[0]["start_offset"], said[0]["end_offset"]) == (
            bad.base_offset,
            bad.next_offset,
        )
    assert metric(cluster, node, "damaged_ranges_found_total") == 1
    assert metric(cluster, node, "damaged_ranges_repaired_total") == 1
    assert metric(cluster, node, "streams_damaged") == 0
    cluster.check_everywhere("orders", books)
    if victim == "leader":
        assert cluster.settled("orders").stream.leader_epoch > 0
