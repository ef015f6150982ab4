"""Batch reads on a real server: rows, ranges, filters, splitting."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jetstream_client import Client
from tests.spark.support import PLANS_ONCE, Log, last_line, publish


def test_every_column_arrives_as_it_was_published(spark: SparkSession, log: Log) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    log.client.publish(f"{log.name}.eu", b"\x00\xff", key="k", headers={"a": ["1", "2"], "b": "ü"})
    log.client.publish(f"{log.name}.us", None, key="k")
    log.client.publish(f"{log.name}.us", b"")
    rows = log.read(spark, includeHeaders=True).orderBy("offset").collect()
    assert [row.stream for row in rows] == [log.name] * 3
    assert [row.subject for row in rows] == [f"{log.name}.{each}" for each in ("eu", "us", "us")]
    assert [row.offset for row in rows] == [0, 1, 2]
    assert [row.key for row in rows] == [b"k", b"k", None]
    assert [row.value for row in rows] == [b"\x00\xff", None, b""]
    headers = [(each.key, bytes(each.value)) for each in rows[0].headers]
    assert headers[:3] == [("a", b"1"), ("a", b"2"), ("b", "ü".encode())]
    assert rows[2].headers is None
    times = [row.timestamp.replace(tzinfo=UTC) for row in rows]
    assert before < times[0] <= times[1] <= times[2] <= datetime.now(UTC) + timedelta(seconds=1)


def test_the_schema_is_the_documented_one(spark: SparkSession, log: Log) -> None:
    assert log.read(spark).schema.simpleString() == (
        "struct<stream:string,subject:string,offset:bigint,timestamp:timestamp,"
        "key:binary,value:binary>"
    )
    assert log.read(spark, includeHeaders="true").schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


def test_an_empty_stream_is_an_empty_table(spark: SparkSession, log: Log) -> None:
    assert log.read(spark).collect() == []


def test_ranges_are_split_evenly_and_read_whole(spark: SparkSession, log: Log) -> None:
    log.publish(range(5_000))
    frame = log.read(spark, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert [len(part) for part in frame.select("offset").rdd.glom().collect()] == [1_250] * 4
    assert sorted(row.offset for row in frame.collect()) == list(range(5_000))
    assert log.read(spark, maxRecordsPerPartition=500).rdd.getNumPartitions() == 10
    assert [int(row.value) for row in log.read(spark).orderBy("offset").collect()] == list(
        range(5_000)
    )


def test_offsets_bound_a_read_and_the_end_is_exclusive(spark: SparkSession, log: Log) -> None:
    log.publish(range(100))

    def offsets(**options: object) -> list[int]:
        return sorted(row.offset for row in log.read(spark, **options).select("offset").collect())

    full_name = f"{log.name}@{log.name}.>"
    assert offsets(startingOffsets=json.dumps({log.name: 90})) == list(range(90, 100))
    assert offsets(endingOffsets=json.dumps({full_name: 10})) == list(range(10))
    assert offsets(
        startingOffsets=json.dumps({log.name: -2}), endingOffsets=json.dumps({log.name: -1})
    ) == list(range(100))
    assert (
        offsets(startingOffsets=json.dumps({log.name: 5}), endingOffsets=json.dumps({log.name: 5}))
        == []
    )
    assert offsets(startingOffsets=json.dumps({log.name: 5000}), failOnDataLoss="false") == []


def test_timestamps_bound_a_read_by_the_moment_of_the_append(spark: SparkSession, log: Log) -> None:
    log.publish(range(10))
    last = max(message.timestamp for message in log.client.fetch(log.name))
    while True:
        log.client.publish(f"{log.name}.x", b"later")
        later = log.client.fetch(log.name, 10)[0].timestamp
        if later.timestamp() * 1000 // 1 > last.timestamp() * 1000 // 1 + 1:
            break
        log = Log.create(log.grpc, log.client, log.name + "_again")
        log.publish(range(10))
        last = max(message.timestamp for message in log.client.fetch(log.name))
    boundary = last + timedelta(milliseconds=1)
    iso = boundary.isoformat()
    milliseconds = int(boundary.timestamp() * 1000)
    for start in (iso, milliseconds):
        rows = log.read(spark, startingTimestamp=start).collect()
        assert [row.offset for row in rows] == [10]
    rows = log.read(spark, endingTimestamp=iso).collect()
    assert sorted(row.offset for row in rows) == list(range(10))


def test_streams_are_chosen_by_list_by_pattern_and_by_subject(
    spark: SparkSession, client: Client, log: Log
) -> None:
    for name in ("chosen_a", "chosen_b"):
        client.create_stream(name, f"{name}.>")
        for region in ("eu", "us"):
            publish(log.grpc, f"{name}.{region}.x", [b"1"] * 3)

    def counts(**options: str) -> dict[str, int]:
        reader = spark.read.format("jetstream").option("servers", log.grpc).options(**options)
        return {
            row.subject: row["count"] for row in reader.load().groupBy("subject").count().collect()
        }

    everything = {f"chosen_{n}.{r}.x": 3 for n in "ab" for r in ("eu", "us")}
    assert counts(streams="chosen_a, chosen_b@chosen_b.>") == everything
    assert counts(streamPattern="chosen_.*") == everything
    assert counts(streamPattern="chosen_.*", subject="*.eu.>") == {
        "chosen_a.eu.x": 3,
        "chosen_b.eu.x": 3,
    }
    assert counts(subject="chosen_b.us.*") == {"chosen_b.us.x": 3}


def test_a_limit_ends_the_reading_early(spark: SparkSession, log: Log) -> None:
    log.publish(range(3_000))
    assert len(log.read(spark).limit(5).collect()) == 5


def test_a_dataframe_that_is_filtered_first_has_all_its_rows_afterwards(
    spark: SparkSession, log: Log
) -> None:
    log.publish(range(300))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = log.read(spark)
        few, others = frame.where("offset < 10"), frame.where("offset >= 290")
        assert (few.count(), frame.count(), others.count()) == (10, 300, 10)
        assert sorted(row.offset for row in few.union(others).collect()) == [
            *range(10), *range(290, 300)
        ]  # fmt: skip
        assert few.join(frame, "offset").count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.skipif(not PLANS_ONCE, reason="PySpark 4.0 plans a DataFrame anew for each use")
def test_a_dataframe_is_planned_once_and_its_rows_stay_the_same(
    spark: SparkSession, log: Log
) -> None:
    log.publish(range(5))
    frame = log.read(spark)
    assert frame.count() == 5
    log.publish(range(5))
    assert frame.count() == 5
    assert log.read(spark).count() == 10


def test_a_table_and_a_view_over_it_are_fresh_in_every_query(spark: SparkSession, log: Log) -> None:
    log.publish(range(7))
    spark.sql("CREATE TABLE fresh USING jetstream")
    try:
        spark.sql(
            "CREATE OR REPLACE TEMPORARY VIEW fresh_view AS SELECT * FROM fresh "
            f"WITH (servers = '{log.grpc}', streams = '{log.name}')"
        )
        for wanted in (7, 14, 21):
            found = spark.sql("SELECT count(*) AS n, max(offset) AS last FROM fresh_view").first()
            assert found is not None
            assert (found["n"], found["last"]) == (wanted, wanted - 1)
            log.publish(range(7))
        with pytest.raises(PySparkException) as raised:
            spark.sql("SELECT * FROM fresh").collect()
        assert "WITH (streams = 'orders')" in last_line(raised.value)
        with pytest.raises(PySparkException) as raised:
            spark.sql(f"CREATE TABLE lost USING jetstream OPTIONS (streams '{log.name}')")
        assert "Spark forgets the OPTIONS of a table" in last_line(raised.value)
    finally:
        spark.sql("DROP TABLE fresh")


def test_only_the_columns_asked_for_are_handed_over(spark: SparkSession, log: Log) -> None:
    log.publish(range(3), "eu")
    log.publish(range(3, 5), "us")
    frame = log.read(spark, columns="value, offset")
    assert frame.columns == ["offset", "value"]
    assert sorted((row.offset, int(row.value)) for row in frame.collect()) == [
        (n, n) for n in range(5)
    ]
    some = log.read(spark, columns="offset", subject=f"{log.name}.us")
    assert sorted(row.offset for row in some.collect()) == [3, 4]
    named = log.read(spark, columns="headers", includeHeaders=True)
    assert named.count() == 5


def test_a_start_by_time_can_be_another_for_each_stream(spark: SparkSession, log: Log) -> None:
    other = Log.create(log.grpc, log.client, f"{log.name}_other")
    for each in (log, other):
        each.publish(range(3))
    future = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp() * 1000)
    frame = (
        spark.read.format("jetstream")
        .options(servers=log.grpc, streams=f"{log.name},{other.name}")
        .option("startingOffsetsByTimestamp", json.dumps({log.name: future, other.name: 0}))
        .load()
    )
    assert {row.stream: row["count"] for row in frame.groupBy("stream").count().collect()} == {
        other.name: 3
    }


def test_a_view_with_refresh_shows_at_each_query_what_has_come(
    spark: SparkSession, log: Log
) -> None:
    log.publish(range(7))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW refreshed USING jetstream "
        f"OPTIONS (servers '{log.grpc}', streams '{log.name}', refresh 'true')"
    )
    for wanted in (7, 14):
        rows = spark.sql("SELECT offset, value FROM refreshed ORDER BY offset").collect()
        assert [row.offset for row in rows] == list(range(wanted))
        log.publish(range(7))
    with pytest.raises(PySparkException) as raised:
        log.read(spark, refresh=True, endingOffsets=json.dumps({log.name: 3})).collect()
    assert "leave one of them out" in last_line(raised.value)


def test_a_view_passes_its_options(spark: SparkSession, log: Log) -> None:
    log.publish(range(7))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW seven USING jetstream "
        f"OPTIONS (servers '{log.grpc}', streams '{log.name}')"
    )
    assert spark.sql("SELECT count(*) AS n FROM seven WHERE offset > 2").first()["n"] == 4  # type: ignore[index]
