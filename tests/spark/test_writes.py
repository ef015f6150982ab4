"""Writes: what a task has committed is in the log, and a batch that is run again is there once."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.support import Log


def test_a_batch_write_publishes_every_row_with_key_headers_and_subject(
    spark: SparkSession, log: Log
) -> None:
    frame = spark.sql(
        f"""SELECT CAST(id AS STRING) AS value, CAST(concat('k', id) AS BINARY) AS key,
                   IF(id % 2 = 0, '{log.name}.even', '{log.name}.odd') AS subject,
                   IF(id = 3, array(struct('h' AS key, 'v' AS value)), NULL) AS headers
            FROM range(1000)"""
    )
    frame.repartition(3).write.format("jetstream").mode("append").option("servers", log.grpc).save()
    found = list(log.client.fetch(log.name))
    assert sorted(int(message.value or b"") for message in found) == list(range(1000))
    for message in found:
        number = int(message.value or b"")
        assert message.key == b"k%d" % number
        assert message.subject == f"{log.name}.{'odd' if number % 2 else 'even'}"
        assert message.headers.get("h") == ("v" if number == 3 else None)


def test_a_null_value_with_a_key_is_a_tombstone(spark: SparkSession, log: Log) -> None:
    frame = spark.sql("SELECT CAST(NULL AS BINARY) AS value, 'k' AS key")
    options = {"servers": log.grpc, "subject": f"{log.name}.x"}
    frame.write.format("jetstream").mode("append").options(**options).save()
    (message,) = log.client.fetch(log.name)
    assert (message.key, message.value) == (b"k", None)


def test_a_streaming_write_carries_a_stream_over(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    copy = Log.create(log.grpc, log.client, f"{log.name}_copy")
    log.publish(range(500))
    frame = log.read_stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=200)
    writer = frame.select("value").writeStream.format("jetstream")
    writer = writer.options(servers=log.grpc, subject=f"{copy.name}.x")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    values = log.client.fetch(copy.name).values()
    assert sorted(int(value or b"") for value in values) == list(range(500))
