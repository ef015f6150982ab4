"""Streaming reads: every record in exactly one batch, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from jetstream_client import Client
from tests.spark.support import Collector, Log, last_line, publish, running, until
from tests.support.server import ServerProcess


def failing_before(commit_of: int, sink: Collector) -> Callable[[DataFrame, int], None]:
    """A sink that dies when a batch is written and not yet committed."""

    def write(batch: DataFrame, number: int) -> None:
        sink(batch, number)
        if number == commit_of:
            raise RuntimeError("killed before the commit")

    return write


def test_available_now_reads_what_is_there_in_bounded_batches_and_a_restart_goes_on(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.publish(range(1_000))
    frame = log.read_stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=400)
    sink = Collector()
    with running(frame, tmp_path, sink, availableNow=True) as query:
        query.awaitTermination()
    assert [len(batch) for batch in sink.batches.values()] == [400, 400, 200]
    log.publish(range(10))
    with running(frame, tmp_path, sink, availableNow=True) as query:
        query.awaitTermination()
        progress = json.loads(query.lastProgress["sources"][0]["latestOffset"])  # type: ignore[index]
    assert sink.offsets == list(range(1_010))
    assert [stream["offset"] for stream in progress["streams"].values()] == [1_010]


def test_records_that_come_while_the_query_runs_are_read_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.publish(range(10))
    sink = Collector()
    frame = log.read_stream(spark, startingOffsets="earliest", subject=f"{log.name}.x")
    with running(frame, tmp_path, sink) as query:
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
    with running(frame, tmp_path, sink, availableNow=True) as query:
        query.awaitTermination()
    assert sink.replaced == [(0, first, first)]
    assert sink.offsets == list(range(10, 15))


def test_a_batch_that_is_run_again_is_the_same_batch(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.publish(range(100))
    sink = Collector()
    frame = log.read_stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    with (
        running(frame, tmp_path, failing_before(1, sink)) as query,
        pytest.raises(StreamingQueryException),
    ):
        query.awaitTermination(150)
    log.publish(range(100))
    with running(frame, tmp_path, sink, availableNow=True) as query:
        query.awaitTermination()
    again = list(range(40, 80))
    assert sink.replaced == [(1, again, again)]
    assert sink.offsets == list(range(200))


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
    with running(frame, tmp_path, sink, availableNow=True) as query:
        query.awaitTermination()
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


def test_a_stream_deleted_in_mid_query_ends_it_and_says_so(
    spark: SparkSession, client: Client, log: Log, tmp_path: Path
) -> None:
    log.publish(range(10))
    sink = Collector()
    frame = log.read_stream(spark, startingOffsets="earliest")
    with running(frame, tmp_path, sink) as query:
        until(lambda: len(sink.offsets) == 10, "the first records", query)
        client.delete_stream(log.name)
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination(150)
    assert "was deleted" in last_line(raised.value)
    assert "set failOnDataLoss=false; to begin anew use a new checkpointLocation" in last_line(
        raised.value
    )
    # Another stream under the name is not the one that was read.
    Log.create(log.grpc, client, log.name).publish(range(3))
    with (
        running(frame, tmp_path, sink, availableNow=True) as query,
        pytest.raises(StreamingQueryException) as raised,
    ):
        query.awaitTermination()
    assert "another made under its name" in last_line(raised.value)
    careless = log.read_stream(spark, failOnDataLoss="false")
    with running(careless, tmp_path, sink, availableNow=True) as query:
        query.awaitTermination()
    assert sink.batches[max(sink.batches)] == [0, 1, 2]


def test_a_log_that_was_replaced_behind_a_checkpoint_is_noticed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The checkpoint says that record 14 is of an earlier leadership than it is."""
    server = ServerProcess(tmp_path / "data").start()
    try:
        with Client(server.grpc) as client:
            log = Log.create(server.grpc, client, "replaced")
            log.publish(range(10))
            server.kill()
            server.start()
            log.publish(range(10))
            frame = log.read_stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=15)
            checkpoint, sink = tmp_path / "checkpoint", Collector()
            with running(frame, checkpoint, sink, once=True) as query:
                query.awaitTermination()
            assert sink.offsets == list(range(20))
            edit_epoch(checkpoint / "offsets/0", by=-1)
            log.publish(range(5))
            with (
                running(frame, checkpoint, sink, availableNow=True) as query,
                pytest.raises(StreamingQueryException) as raised,
            ):
                query.awaitTermination()
            assert "cannot be read any more" in last_line(raised.value)
            careless = log.read_stream(spark, failOnDataLoss="false")
            with running(careless, checkpoint, sink, availableNow=True) as query:
                query.awaitTermination()
            assert sink.offsets == list(range(25))
    finally:
        server.kill()


def edit_epoch(path: Path, by: int) -> None:
    """Spark keeps a checksum beside the file; without one it does not look."""
    *head, offsets = path.read_text().splitlines()
    given = json.loads(offsets)
    for mark in given["streams"].values():
        mark["epoch"] += by
    path.write_text("\n".join([*head, json.dumps(given)]))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
