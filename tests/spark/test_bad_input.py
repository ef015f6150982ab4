"""What is asked wrongly is answered in one line that says what to do.

Of each way in which Spark hands an error on there are one or two; the others are asked as Spark
asks, without it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StringType, StructField, StructType

from jetstream_client import Client, JetstreamError, UnavailableError
from pyspark_jetstream import options as connector_options
from pyspark_jetstream.checkpoint import Mark, Offsets
from pyspark_jetstream.options import read_options
from pyspark_jetstream.schema import read_schema
from pyspark_jetstream.source import JetstreamDataSource
from pyspark_jetstream.stream import HAS_ADMISSION_CONTROL, stream_reader
from tests.spark.support import PLANS_ONCE, Log, last_line, texts
from tests.support.server import ServerProcess

FIRST = "0three"
"""Sorts before other tests' streams: an error that lists those there are names ten."""


@pytest.fixture(scope="module")
def three(server: ServerProcess) -> Iterator[Log]:
    """A stream of three records."""
    with Client(server.grpc, timeout=60) as client:
        log = Log.create(server.grpc, client, FIRST)
        log.publish(range(3))
        yield log


NOBODY = {"servers": "127.0.0.1:1", "timeout": "1s"}

READS = [
    ({"failOnDataLos": "false"}, "did you mean failOnDataLoss?"),
    ({"startingOffsets": '{"STREAM": 99}'}, "it holds [0, 3); choose an offset in there"),
]
PLANS = [
    ({"streams": "no_such_stream"}, f"name one of those there are: {FIRST}@{FIRST}.>"),
    (NOBODY, "check that option servers (127.0.0.1:1) names nodes of the cluster"),
    ({"startingOffsets": '{"stranger": 1}'}, "leave it out or add it to option streams"),
    (
        {"startingOffsets": '{"STREAM": 2}', "endingOffsets": '{"STREAM": 1}'},
        "startingOffsets must not lie after endingOffsets",
    ),
    ({"streamPattern": "zzz.*", "streams": ""}, "`jetstream stream list` shows the streams"),
    ({"maxOffsetsPerTrigger": "5"}, "means nothing to a batch read: leave it out"),
]


def said(error: BaseException) -> str:
    """What Spark shows as the error's last line."""
    return last_line(RuntimeError("".join(traceback.format_exception(error))))


@pytest.mark.parametrize(("options", "advice"), READS, ids=lambda each: str(each)[:40])
def test_a_read_asked_for_wrongly_says_what_to_do(
    spark: SparkSession, three: Log, options: dict[str, str], advice: str
) -> None:
    given = {name: value.replace("STREAM", three.name) for name, value in options.items()}
    with pytest.raises(PySparkException) as raised:
        three.read(spark, **given).collect()
    assert advice in last_line(raised.value)


@pytest.mark.parametrize(("options", "advice"), PLANS, ids=lambda each: str(each)[:40])
def test_a_read_that_cannot_be_planned_says_what_to_do(
    three: Log, options: dict[str, str], advice: str
) -> None:
    given = {name: value.replace("STREAM", three.name) for name, value in options.items()}
    source = JetstreamDataSource({**three.options, **given})
    with pytest.raises(JetstreamError) as raised:
        source.reader(source.schema()).partitions()
    assert advice in said(raised.value)


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, three: Log) -> None:
    reader = spark.read.format("jetstream").options(**three.options).schema("value string")
    with pytest.raises(PySparkException) as raised:
        reader.load().collect()
    assert "leave .schema() out and select what you need" in last_line(raised.value)


def test_a_stream_that_is_deleted_under_a_dataframe_says_what_to_do(
    spark: SparkSession, client: Client, log: Log
) -> None:
    log.publish(range(3))
    frame = log.read(spark)
    assert frame.count() == 3
    client.delete_stream(log.name)
    with pytest.raises(PySparkException) as raised:
        frame.collect()
    # PySpark 4.0 plans the DataFrame anew.
    advice = "for what there is now load() again" if PLANS_ONCE else "there is no such stream"
    assert advice in last_line(raised.value)


STREAMING_READS = [
    ({"endingOffsets": "latest"}, "means nothing to a streaming read: leave it out"),
    ({"streams": "no_such_stream"}, "there is no such stream"),
]
if not HAS_ADMISSION_CONTROL:
    STREAMING_READS.append(({"maxOffsetsPerTrigger": "5"}, "need PySpark 4.2 or newer: upgrade"))


@pytest.mark.parametrize(("options", "advice"), STREAMING_READS, ids=lambda each: str(each)[:40])
def test_a_streaming_read_asked_for_wrongly_says_what_to_do(
    spark: SparkSession, three: Log, options: dict[str, str], advice: str
) -> None:
    frame = three.read_stream(spark, **options)
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination()
    assert advice in last_line(raised.value)


def test_a_query_whose_servers_refuse_connections_ends_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a batch read does, and not after the default time-out of a request."""
    monkeypatch.setattr(connector_options, "TIMEOUT_SECONDS", 3600.0)
    refused = {"servers": "127.0.0.1:1", "streams": FIRST}
    begun = Offsets("c", {1: Mark(f"{FIRST}@>", 3, 1)}).to_json()

    questions: list[Callable[[DataSourceStreamReader], object]] = [
        lambda reader: reader.initialOffset(),
        lambda reader: reader.partitions(begun, begun),  # Of a batch that is run again.
    ]
    for question in questions:
        options = read_options(refused, "stream")
        reader = stream_reader(options, read_schema(options.columns))
        with pytest.raises(UnavailableError, match=r"check that option servers \(127.0.0.1:1\)"):
            question(reader)
        reader.stop()


WRITES = [
    ("SELECT 1 AS number", {}, "to_json(struct(*)) AS value"),
    ("SELECT 'v' AS value, CAST(NULL AS STRING) AS subject", {}, "coalesce(subject"),
    ("SELECT 'v' AS value, 'nobody.listens' AS subject", {}, "create one"),
    ("SELECT 'v' AS value", {"natsCredentials": "/nowhere.creds"}, "cannot read /nowhere.creds"),
]
BEGINNINGS = [
    ({"subject": "nobody.listens"}, "create one"),
    ({"subject": "nobody"}, "--subject 'nobody'`"),
    ({"subject": f"{FIRST}.*"}, "name one subject"),
    ({"txnAppId": "nightly"}, "txnAppId and txnVersion belong together"),
]


@pytest.mark.parametrize(("query", "options", "advice"), WRITES, ids=lambda each: str(each)[:40])
def test_a_write_asked_for_wrongly_says_what_to_do(
    spark: SparkSession, three: Log, query: str, options: dict[str, str], advice: str
) -> None:
    writer = spark.sql(query).write.format("jetstream").mode("append")
    given = {"servers": three.grpc, "subject": f"{three.name}.x", **options}
    with pytest.raises(PySparkException) as raised:
        writer.options(**texts(given)).save()
    assert advice in last_line(raised.value)


@pytest.mark.parametrize(("options", "advice"), BEGINNINGS, ids=lambda each: str(each)[:40])
def test_a_write_that_cannot_begin_says_what_to_do(
    three: Log, options: dict[str, str], advice: str
) -> None:
    given = {"servers": three.grpc, "subject": f"{three.name}.x", **options}
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(JetstreamError) as raised:
        JetstreamDataSource(given).writer(schema, overwrite=False)
    assert advice in said(raised.value)


def test_overwriting_is_refused(spark: SparkSession, three: Log) -> None:
    writer = spark.sql("SELECT 'v' AS value").write.format("jetstream").mode("overwrite")
    with pytest.raises(PySparkException) as raised:
        writer.options(servers=three.grpc, subject=f"{three.name}.x").save()
    assert "use mode('append')" in last_line(raised.value)


def test_records_that_a_disk_has_lost_end_the_read_and_say_where_it_can_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    server = ServerProcess(tmp_path / "data").start()
    try:
        with Client(server.grpc, timeout=60) as client:
            log = Log.create(server.grpc, client, "rotten")
            log.publish(range(1_000))
            server.stop()
            (segment,) = (server.data / "streams").glob("*/*0.log")
            rotten = bytearray(segment.read_bytes())
            rotten[200] ^= 1
            segment.write_bytes(rotten)
            server.start()
            with pytest.raises(PySparkException) as raised:
                log.read(spark).collect()
        said = last_line(raised.value)
        assert re.search(r"node 0 has lost offsets \d+ to \d+ of stream 'rotten'", said)
        assert re.search(r"reading can continue from offset \d+", said)
    finally:
        server.kill()
