"""Writes: what a task has committed is in the log, and a batch that is run again is there once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.support import Log, forget_commits, last_line, publish, run_available


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


def test_a_write_straight_to_the_leader_needs_no_nats_and_none_of_its_limits(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETSTREAM_NATS_CREDS", "/nowhere.creds")  # Who connects to NATS fails.
    frame = spark.sql(
        "SELECT repeat('x', IF(id = 7, 3000000, 10)) AS value, CAST(id AS STRING) AS key "
        "FROM range(100)"
    ).repartition(2)
    options = {"servers": log.grpc, "subject": f"{log.name}.x", "via": "direct"}
    frame.write.format("jetstream").mode("append").options(**options).save()
    found = list(log.client.fetch(log.name, max_bytes=64 << 20))
    assert sorted(int(message.key or b"") for message in found) == list(range(100))
    assert sum(len(message.value or b"") for message in found) == 3_000_000 + 99 * 10


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
    frame = log.read_stream(spark, startingOffsets="earliest")
    writer = frame.select("value").writeStream.format("jetstream")
    writer = writer.options(servers=log.grpc, subject=f"{copy.name}.x")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    values = log.client.fetch(copy.name).values()
    assert sorted(int(value or b"") for value in values) == list(range(500))


def test_a_batch_whose_commit_was_lost_is_published_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """Rows of several producers and batches, headers among them; Spark runs the batch again."""
    copy = Log.create(log.grpc, log.client, f"{log.name}_copy")
    publish(log.grpc, f"{log.name}.x", [b"%04d" % n * 16_384 for n in range(60)])
    publish(log.grpc, f"{log.name}.y", [b"%04d" % n for n in range(60, 100)])
    frame = log.read_stream(spark, startingOffsets="earliest").selectExpr(
        "value",
        "CAST(offset AS STRING) AS key",
        f"IF(offset % 3 = 0, '{copy.name}.a', '{copy.name}.b') AS subject",
        "IF(offset % 2 = 0, array(struct('h' AS key, 'v' AS value)), NULL) AS headers",
    )
    writer = frame.writeStream.format("jetstream").option("servers", log.grpc)
    writer = writer.option("checkpointLocation", str(tmp_path))

    def run() -> None:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    def keys() -> list[int]:
        return [int(message.key or b"") for message in log.client.fetch(copy.name)]

    run()
    once = keys()
    assert sorted(once) == list(range(100))
    forget_commits(tmp_path)
    run()
    assert keys() == once
    log.publish(range(5))
    run()
    assert sorted(keys()) == list(range(105))


def test_rows_longer_than_a_batch_and_many_subjects_arrive(spark: SparkSession, log: Log) -> None:
    frame = spark.sql(
        f"""SELECT repeat('x', IF(id % 7 = 0, 700000, 10)) AS value,
                   concat('{log.name}.s', id % 20) AS subject
            FROM range(100)"""
    )
    frame.write.format("jetstream").mode("append").option("servers", log.grpc).save()
    found = list(log.client.fetch(log.name, max_bytes=64 << 20))
    assert len(found) == 100
    assert len({message.subject for message in found}) == 20
    assert sum(len(message.value or b"") for message in found) == 15 * 700_000 + 85 * 10


def test_a_batch_write_inside_foreach_batch_is_stored_once_when_the_batch_is_run_again(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """Two writes to one subject in each batch, which are not taken for one another."""
    copy = Log.create(log.grpc, log.client, f"{log.name}_copy")
    log.publish(range(100))
    frame = log.read_stream(spark, startingOffsets="earliest").select("value")

    def sink(rows: DataFrame, _: int) -> None:
        for where in ("value < 50", "value >= 50"):
            part = rows.where(where.replace("value", "CAST(CAST(value AS STRING) AS INT)"))
            writer = part.write.format("jetstream").mode("append")
            writer.options(servers=log.grpc, subject=f"{copy.name}.x").save()

    def stored() -> list[int]:
        return [int(value or b"") for value in log.client.fetch(copy.name).values()]

    run_available(frame, tmp_path, sink)
    assert sorted(stored()) == list(range(100))
    forget_commits(tmp_path)
    run_available(frame, tmp_path, sink)
    assert sorted(stored()) == list(range(100))
    log.publish(range(100))
    run_available(frame, tmp_path, sink)
    assert sorted(stored()) == sorted(2 * list(range(100)))


def test_a_transaction_that_is_written_again_is_stored_once(spark: SparkSession, log: Log) -> None:
    """In other partitions and another order, too. A smaller version is no repetition."""

    def write(partitions: int, application: str, version: int, subject: str = "x") -> None:
        frame = spark.range(0, 100, 1, partitions).selectExpr("CAST(id AS STRING) AS value")
        writer = frame.write.format("jetstream").mode("append")
        writer = writer.options(servers=log.grpc, subject=f"{log.name}.{subject}")
        writer.options(txnAppId=application, txnVersion=version).save()

    def count() -> int:
        return len(log.client.fetch(log.name))

    for partitions, version in ((1, 2), (1, 2), (3, 2), (1, 4)):
        write(partitions, "nightly", version)
    assert count() == 200
    write(2, "nightly", 3)
    assert count() == 300
    write(1, "weekly", 2)
    write(1, "nightly", 2, subject="y")
    assert count() == 500
    found = {each.name: each.metadata for each in log.client.list_cursors(stream=log.name)}
    digests = {name: name.rpartition("-")[0] for name in found}
    assert sorted(digests.values()) == ["spark-transaction-nightly"] * 2 + [
        "spark-transaction-weekly"
    ]
    assert '{"complete":[[2,4]],"begun":null}' in found.values()


def test_a_transaction_to_subjects_of_a_column_is_left_out_where_it_is_complete(
    spark: SparkSession, log: Log
) -> None:
    other = Log.create(log.grpc, log.client, f"{log.name}_other")

    def write(partitions: int, *names: str) -> None:
        each = ", ".join(f"'{name}.x'" for name in names)
        frame = spark.range(0, 50, 1, partitions).selectExpr(
            "CAST(id AS STRING) AS value", f"explode(array({each})) AS subject"
        )
        writer = frame.write.format("jetstream").mode("append").option("servers", log.grpc)
        writer.options(txnAppId="nightly", txnVersion=1).save()

    write(1, log.name)
    write(3, log.name, other.name)
    assert [len(log.client.fetch(each.name)) for each in (log, other)] == [50, 50]


def test_a_stream_with_keys_headers_and_tombstones_is_copied(spark: SparkSession, log: Log) -> None:
    copy = Log.create(log.grpc, log.client, f"{log.name}_copy")
    log.client.publish(f"{log.name}.x", b"1", key="k", headers={"a": ["1", "2"], "b": "ü"})
    log.client.publish(f"{log.name}.x", None, key="k", headers={"why": "gone"})
    log.client.publish(f"{log.name}.x", None, key="k")
    log.client.publish(f"{log.name}.x", b"2", ack_level="leader")
    rows = log.read(spark, includeHeaders=True).orderBy("offset").coalesce(1)
    found = rows.select("key", "value", "headers")
    writer = found.write.format("jetstream").mode("append")
    writer.options(servers=log.grpc, subject=f"{copy.name}.x").save()
    copied = [(m.key, m.value, m.headers.multi_items()) for m in log.client.fetch(copy.name)]
    assert copied == [
        (b"k", b"1", [("a", "1"), ("a", "2"), ("b", "ü")]),
        (b"k", None, [("why", "gone")]),
        (b"k", None, []),
        (None, b"2", []),
    ]
    again = (
        copy.read(spark, includeHeaders=True).orderBy("offset").select("key", "value", "headers")
    )
    assert again.collect() == found.collect()


def test_nothing_is_stored_of_rows_of_which_one_cannot_be(spark: SparkSession, log: Log) -> None:
    query = f"""SELECT CAST(id AS STRING) AS value,
                       IF(id = 99, '{log.name}.*', '{log.name}.x') AS subject,
                       IF(id = 98, array(struct('Nats-Msg-Id' AS key, '1' AS value)), NULL)
                           AS headers FROM range(100)"""
    for rows, advice in (("id <> 98", "name one subject"), ("id <> 99", "can be left out")):
        frame = spark.sql(f"SELECT * FROM ({query.replace('AS value', 'AS value, id', 1)})")
        writer = frame.where(rows).drop("id").coalesce(1).write.format("jetstream").mode("append")
        with pytest.raises(PySparkException) as raised:
            writer.option("servers", log.grpc).save()
        assert advice in last_line(raised.value)
    assert len(log.client.fetch(log.name)) == 0
