"""Streams that lose records after a query: it ends and says so, or goes on if it may."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from jetstream_client import Client
from tests.spark.support import (
    Collector,
    Log,
    forget_commits,
    last_line,
    publish,
    run_available,
    running,
    until,
)
from tests.support.server import ServerProcess

ADVICE = "set failOnDataLoss=false; to begin anew use a new checkpointLocation"


def refusal(spark: SparkSession, log: Log, checkpoint: Path) -> str:
    """The last line of the error with which a query ends that is started at the checkpoint."""
    frame = log.read_stream(spark)
    with pytest.raises(StreamingQueryException) as raised:
        run_available(frame, checkpoint, Collector())
    return last_line(raised.value)


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
    assert ADVICE in last_line(raised.value)
    # Another stream under the name is not the one that was read.
    Log.create(log.grpc, client, log.name).publish(range(3))
    assert "another made under its name" in refusal(spark, log, tmp_path)
    careless = log.read_stream(spark, failOnDataLoss="false")
    run_available(careless, tmp_path, sink)
    assert sink.batches[max(sink.batches)] == [0, 1, 2]


def test_records_that_retention_removes_before_they_are_read_are_missed(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    log = Log.create(server.grpc, client, "retained", segment_bytes=65_536)
    log.publish(range(10))
    sink = Collector()
    run_available(log.read_stream(spark, startingOffsets="earliest"), tmp_path, sink)
    for _ in range(6):
        publish(log.grpc, "retained.x", [bytes(1_000)] * 50)
    client.alter_stream(log.name, max_messages=100)
    until(lambda: client.offset_at(log.name, "earliest") > 10, "retention")
    first = client.offset_at(log.name, "earliest")
    said = refusal(spark, log, tmp_path)
    assert f"begins at offset {first}, and the query has read only up to 10" in said
    assert ADVICE in said
    run_available(log.read_stream(spark, failOnDataLoss="false"), tmp_path, sink)
    assert sink.offsets == [*range(10), *range(first, 310)]


def test_a_batch_of_a_compacted_stream_that_is_run_again_may_be_smaller_and_spark_says_so(
    spark: SparkSession, spark_said: Path, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    log = Log.create(server.grpc, client, "compacted", segment_bytes=65_536)
    for _ in range(12):
        publish(log.grpc, "compacted.x", [bytes(700)] * 50, key="one and the same")
    sink = Collector()
    frame = log.read_stream(spark, startingOffsets="earliest")
    run_available(frame, tmp_path, sink)
    assert sink.offsets == list(range(600))
    forget_commits(tmp_path)
    client.alter_stream(log.name, compact=True)
    until(lambda: client.describe_stream(log.name).compaction.cleaned_to > 300, "compaction")  # type: ignore[union-attr]
    run_available(frame, tmp_path, sink)
    ((number, before, again),) = sink.replaced
    assert number == 0
    assert before == list(range(600))
    assert set(again) < set(before)
    assert again[-1] == 599
    assert "compacted@compacted.> is compacted: a batch that is run again" in spark_said.read_text()


def test_a_log_that_was_replaced_or_cut_back_under_a_checkpoint_is_noticed(
    spark: SparkSession, tmp_path: Path
) -> None:
    server = ServerProcess(tmp_path / "data").start()
    try:
        with Client(server.grpc, timeout=60) as client:
            log = Log.create(server.grpc, client, "replaced")
            log.publish(range(10))
            server.kill()
            server.start()
            log.publish(range(10))
            checkpoint, sink = tmp_path / "checkpoint", Collector()
            run_available(log.read_stream(spark, startingOffsets="earliest"), checkpoint, sink)
            log.publish(range(5))
            # The log's last record that was read is of a later leadership than it says now.
            edit_marks(checkpoint / "offsets/0", epoch=-1)
            assert "cannot be read any more" in refusal(spark, log, checkpoint)
            careless = log.read_stream(spark, failOnDataLoss="false")
            run_available(careless, checkpoint, sink)
            assert sink.offsets == list(range(25))
            # It has read records that the log does not have now.
            edit_marks(max((checkpoint / "offsets").glob("[0-9]*")), offset=100)
            assert "its log was cut back" in refusal(spark, log, checkpoint)
            run_available(careless, checkpoint, sink)
            log.publish(range(5))
            run_available(careless, checkpoint, sink)
            assert sink.offsets == list(range(30))
    finally:
        server.kill()


def edit_marks(path: Path, **by: int) -> None:
    """Add to the numbers. Spark keeps a checksum beside the file; without one it does not look."""
    *head, offsets = path.read_text().splitlines()
    given = json.loads(offsets)
    for mark in given["streams"].values():
        mark |= {name: mark[name] + number for name, number in by.items()}
    path.write_text("\n".join([*head, json.dumps(given)]))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
