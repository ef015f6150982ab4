"""The page of metrics: its sums, its cost, and its series of single streams."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.clocks import monotonic_clock
from jetstream_server.metadata.state.commands import FEATURE_LEVEL_MAX, SetCluster
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.grpc.cursor_lags import CursorLag
from jetstream_server.serving.metrics import stream_series
from jetstream_server.serving.metrics.histograms import Histograms
from jetstream_server.serving.metrics.page import (
    REPLICAS_PER_TURN,
    Matches,
    MetricsPage,
    Replicas,
)
from tests.support.descriptors import no_descriptor_left
from tests.support.loops import on_loop
from tests.support.node import Node

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
STREAMS = 10_000
STALL_SECONDS_MAX = 0.1
"""A turn of the page takes a few milliseconds."""


async def no_cursors(matches: Matches) -> tuple[list[CursorLag], int]:
    """Of a node that does not lead them."""
    return [], 0


def page(replicas: Replicas) -> MetricsPage:
    return MetricsPage(
        replicas,
        tuple,
        Histograms(),
        monotonic_clock,
        no_cursors,
    )


def series(text: bytes) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def number(replicas: Replicas, name: str, **labels: str) -> float:
    return series(await page(replicas).text())[name, tuple(sorted(labels.items()))]


def test_no_series_says_when_it_was_created() -> None:
    histograms = Histograms()
    histograms.flush_seconds.observe(0.01)
    names = {sample.name for family in histograms.collect() for sample in family.samples}
    assert "jetstream_flush_seconds_bucket" in names
    assert [name for name in names if name.endswith("_created")] == []


class Many:
    """One replica, so many times."""

    def __init__(self, replica: Replica, count: int) -> None:
        self.gone = Counters()
        self._replicas = [replica] * count

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)


@pytest.fixture
def own_garbage() -> None:
    """What earlier tests have left in this process is no matter of the garbage collector's."""
    gc.collect()
    gc.freeze()


async def longest_stall(done: asyncio.Event) -> float:
    """The longest time in which the loop ran nothing else, in seconds of this thread's processor
    time: the load of the machine does not count."""
    longest = 0.0
    while not done.is_set():
        begun = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - begun)
    return longest


@pytest.mark.usefixtures("own_garbage")
@on_loop
@pytest.mark.parametrize("pattern", ["", "*"])
async def test_ten_thousand_streams_take_less_than_a_second_and_never_hold_up_the_loop(
    tmp_path: Path, pattern: str
) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a")
    metrics = page(Many(replica, STREAMS))
    await metrics.text()  # The first one imports and compiles.
    done = asyncio.Event()
    stalls = asyncio.create_task(longest_stall(done))
    begun = time.process_time()
    text = await metrics.text(pattern)
    seconds = time.process_time() - begun
    done.set()
    assert await stalls < STALL_SECONDS_MAX
    assert seconds < 1
    found = series(text)
    assert found["jetstream_streams", ()] == STREAMS
    left_out = STREAMS - stream_series.STREAMS_MAX
    assert found.get(("jetstream_streams_left_out", ()), left_out) == left_out
    assert text.count(b"jetstream_stream_log_bytes{") == (
        stream_series.STREAMS_MAX if pattern else 0
    )


@on_loop
@pytest.mark.parametrize("pattern", ["", "*"])
async def test_what_comes_in_gets_several_turns_of_the_loop_between_two_of_the_page(
    tmp_path: Path, pattern: str
) -> None:
    """An ack needs several, and the flusher's thread: with one it waits for most of the page."""
    node = Node(tmp_path / "streams")
    node.start()
    replicas = Many(node.create(), STREAMS)
    writing = asyncio.create_task(page(replicas).text(pattern))
    turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    await writing
    assert turns > 10 * STREAMS / REPLICAS_PER_TURN


@on_loop
async def test_the_page_opens_no_file(tmp_path: Path) -> None:
    """It is looked at when descriptors run out."""
    shown = page(Node(tmp_path).start())
    with no_descriptor_left():
        assert b"jetstream_streams 0.0" in await shown.text()


@on_loop
async def test_what_a_deleted_stream_has_counted_stays_counted(tmp_path: Path) -> None:
    """A counter that falls would look like a restart."""
    node = Node(tmp_path / "streams")
    replicas = node.start()
    replica = node.create()
    node.append(replica, b"a", b"b")
    replica.counters.refused(3, "storage_full")
    node.delete(replica)
    assert len(replicas) == 0
    assert await number(replicas, "jetstream_records_appended_total") == 2
    assert await number(replicas, "jetstream_nacks_sent_total", reason="storage_full") == 3


@on_loop
async def test_a_pattern_gives_each_stream_that_matches_series_of_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    replicas = node.start()
    node.append(node.create("orders", 'orders."x".>'), b"a")
    node.append(node.create("prices", "prices"), b"a")
    found = series(await page(replicas).text("ord*"))
    label = (("stream", "orders"), ("subject", 'orders."x".>'))
    assert found["jetstream_stream_records_appended_total", label] == 1
    assert not any("prices" in str(labels) for _, labels in found)
    assert ("jetstream_stream_high_watermark", label) in series(
        await page(replicas).text("*@orders.*")
    )


@on_loop
async def test_a_follower_that_is_behind_shows_by_how_much_and_for_how_long(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams", nodes=3)
    node.start()
    replica = node.create(replicas=(0, 1, 2))
    leadership = replica.leadership
    assert leadership is not None
    follower = next(each for each in replica.stream.replicas if each != replica.node_id)
    now_us = node.clocks.monotonic()
    assert leadership.lag_of(follower, now_us) == (0, 0)
    node.append(replica, b"a", b"b")
    assert leadership.lag_of(follower, MonotonicUs(now_us + 7)) == (2, 7)
    assert await number(Many(replica, 2), "jetstream_replication_lag_records", follower="1") == 2


@on_loop
async def test_an_observer_s_lag_is_told_apart_from_that_of_replicas(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams", nodes=2)
    for node_id in range(2):
        node.cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    node.cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    node.start()
    replica = node.create(replicas=(0,), observers=(NodeId(1),))
    node.append(replica, b"a", b"b")
    assert await number(Many(replica, 1), "jetstream_observer_lag_records", follower="1") == 2
    assert await number(Many(replica, 1), "jetstream_streams_under_replicated") == 0
    told = series(await page(Many(replica, 1)).text("orders"))
    label = (("stream", "orders"), ("subject", "orders.>"))
    assert told["jetstream_stream_observers", label] == 1
    follower = (("follower", "1"), *label)
    assert told["jetstream_stream_replication_lag_records", follower] == 2
    assert ("jetstream_replication_lag_records", (("follower", "1"),)) not in told
