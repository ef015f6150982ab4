"""Streaming reads: every record in exactly one batch, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from jetstream_client import Client
from pyspark_jetstream import offsets_behind_latest
from tests.spark.support import (
    Collector,
    Log,
    needs_admission_control,
    publish,
    run_available,
    running,
    until,
)

SAYS_IDLE_EVERY = "spark.sql.streaming.noDataProgressEventInterval"


def failing_before(commit_of: int, sink: Collector) -> Callable[[DataFrame, int], None]:
    """A sink that dies when a batch is written and not yet committed."""

    def write(batch: DataFrame, number: int) -> None:
        sink(batch, number)
        if number == commit_of:
            raise RuntimeError("killed before the commit")

    return write


@needs_admission_control
def test_available_now_reads_what_is_there_in_bounded_batches_and_a_restart_goes_on(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.publish(range(1_000))
    frame = log.read_stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=400)
    sink = Collector()
    query = run_available(frame, tmp_path, sink)
    assert [len(batch) for batch in sink.batches.values()] == [400, 400, 200]
    # The lag of each batch: what there is less what has been read.
    assert [latest - end for end, latest in progress(query)] == [600, 200, 0]
    log.publish(range(10))
    query = run_available(frame, tmp_path, sink)
    assert sink.offsets == list(range(1_010))
    assert progress(query)[-1] == (1_010, 1_010)
    last = query.lastProgress
    assert last is not None
    assert offsets_behind_latest(last) == [
        {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 0, "avgOffsetsBehindLatest": 0}
    ]
    (named,) = json.loads(last["sources"][0]["latestOffset"])["streams"].values()
    assert named["name"] == f"{log.name}@{log.name}.>"


def progress(query: StreamingQuery) -> list[tuple[int, int]]:
    """The offsets that each batch has read to and that there were; of one stream."""

    def offset(given: str) -> int:
        (stream,) = json.loads(given)["streams"].values()
        return int(stream["offset"])

    sources = [each["sources"][0] for each in query.recentProgress]
    return [(offset(each["endOffset"]), offset(each["latestOffset"])) for each in sources]


@pytest.mark.parametrize("trigger", [{}, {"processingTime": "300 milliseconds"}], ids=str)
def test_records_that_come_while_the_query_runs_are_read_once(
    spark: SparkSession, log: Log, tmp_path: Path, trigger: dict[str, str]
) -> None:
    log.publish(range(10))
    sink = Collector()
    frame = log.read_stream(spark, startingOffsets="earliest", subject=f"{log.name}.x")
    with running(frame, tmp_path, sink, **trigger) as query:
        until(lambda: len(sink.offsets) == 10, "the first records", query)
        for _ in range(3):
            log.publish(range(20))
            log.publish(range(5), "y")
        until(lambda: len(sink.offsets) == 70, "the records that came", query)
    assert len(set(sink.offsets)) == 70


def test_a_query_from_latest_that_dies_before_its_first_commit_skips_nothing(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """Spark asks anew where such a query begins; "latest" is later by then."""
    log.publish(range(10))
    sink = Collector()
    frame = log.read_stream(spark)
    with (
        running(frame, tmp_path, failing_before(0, sink)) as query,
        pytest.raises(StreamingQueryException),
    ):
        query.awaitTermination(150)
    first = sink.batches[0]
    assert not list((tmp_path / "commits").glob("[0-9]*"))
    log.publish(range(5))
    run_available(frame, tmp_path, sink)
    assert sink.replaced == [(0, first, first)]
    assert sink.offsets == list(range(10, 15))


def test_a_batch_that_is_run_again_is_the_same_batch(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.publish(range(40))
    sink = Collector()
    frame = log.read_stream(spark, startingOffsets="earliest")
    with running(frame, tmp_path, failing_before(1, sink)) as query:
        until(lambda: 0 in sink.batches, "the first batch", query)
        log.publish(range(60))
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(150)
    died_in = sink.batches[1]
    log.publish(range(100))
    run_available(frame, tmp_path, sink)
    assert sink.replaced == [(1, died_in, died_in)]
    assert sink.offsets == list(range(200))


@needs_admission_control
def test_a_batch_waits_for_its_minimum_unless_the_trigger_wants_all_there_is(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.publish(range(50))
    sink = Collector()
    options = {"minOffsetsPerTrigger": 40, "maxTriggerDelay": "1h"}
    frame = log.read_stream(spark, startingOffsets="earliest", **options)
    with running(frame, tmp_path, sink) as query:
        until(lambda: len(sink.offsets) == 50, "the first batch", query)
        log.publish(range(30))
        until(lambda: query.status["isDataAvailable"] is False, "an idle query", query)
        log.publish(range(10))
        until(lambda: len(sink.offsets) == 90, "a batch of the minimum", query)
    log.publish(range(5))
    run_available(frame, tmp_path, sink)
    assert [len(batch) for batch in sink.batches.values() if batch] == [50, 40, 5]


def test_a_stream_that_appears_later_is_read_from_its_start(
    spark: SparkSession, client: Client, log: Log, tmp_path: Path
) -> None:
    reader = spark.readStream.format("jetstream").option("servers", log.grpc)
    frame = reader.option("streamPattern", f"{log.name}.*").load()
    sink = Collector()
    with running(frame, tmp_path, sink) as query:
        until(lambda: "Waiting" in query.status["message"], "an idle query", query)
        client.create_stream(f"{log.name}_later", "appears.>")
        publish(log.grpc, "appears.x", [b"1"] * 7)
        until(lambda: sink.offsets == list(range(7)), "the new stream's records", query)


class Idle(StreamingQueryListener):
    """Notes when a query was told that there is nothing new: what it tells may come later."""

    def __init__(self) -> None:
        self.times: list[datetime] = []

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.times.append(datetime.fromisoformat(event.timestamp))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def test_an_idle_query_asks_about_once_a_second(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """Spark itself would ask a hundred times a second."""
    idle = Idle()
    spark.streams.addListener(idle)
    spark.conf.set(SAYS_IDLE_EVERY, "1ms")
    try:
        with running(log.read_stream(spark), tmp_path, Collector()) as query:
            until(lambda: len(idle.times) >= 6, "an idle query", query)
            # The first ones are answered at once.
            assert (idle.times[5] - idle.times[2]).total_seconds() > 2.0
    finally:
        spark.conf.unset(SAYS_IDLE_EVERY)
        spark.streams.removeListener(idle)


@needs_admission_control
def test_a_cursor_shows_how_far_a_query_is(
    spark: SparkSession, log: Log, client: Client, tmp_path: Path
) -> None:
    log.publish(range(300))
    frame = log.read_stream(
        spark, startingOffsets="earliest", maxOffsetsPerTrigger=100, cursor="nightly"
    )
    sink = Collector()
    run_available(frame, tmp_path, sink)
    found = client.describe_cursor("nightly", log.name)
    assert found.offset in (200, 300)  # Spark says that a batch is done when it plans the next.
    assert (found.metadata, found.last_epoch, found.lag) == ("spark", 0, 300 - found.offset)
    # It is only shown: the query goes on by its checkpoint.
    client.seek_cursor("nightly", log.name, 0)
    log.publish(range(10))
    run_available(frame, tmp_path, sink)
    assert sink.offsets == list(range(310))
