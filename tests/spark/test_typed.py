"""The option `typed`: the fields of a stream's schema as columns of a DataFrame."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from jetstream_protocol.schema import Schema
from jetstream_protocol.typed_json import compiled
from tests.property.arrow_rows import streamed
from tests.property.typed_records import documents, schemas
from tests.spark.support import Log, last_line, run_available

SCHEMA = "id bigint, price double, ship struct<city string, at timestamp>, tags list<string>, n int"
COLUMNS = ["id", "price", "ship", "tags", "n", "_error"]
NUMBERS = count()


def publish(log: Log, *values: bytes) -> None:
    for value in values:
        log.client.publish(f"{log.name}.x", value)


def rows(frame: DataFrame) -> list[Any]:
    return [tuple(row) for row in frame.collect()]


def test_a_batch_read_has_the_fields_with_their_types(spark: SparkSession, log: Log) -> None:
    log.client.set_schema(log.name, SCHEMA)
    publish(
        log,
        b'{"id":1,"price":2,"ship":{"city":"Zug","at":"2026-01-31T10:00:00Z"},"tags":["a",null]}',
        b'{"id":1.5,"n":7}',
        b"\xff",
    )
    frame = log.read(spark, typed=True, includeHeaders=True).orderBy("offset")
    assert frame.columns[-len(COLUMNS) :] == COLUMNS
    assert frame.schema["ship"].dataType.simpleString() == "struct<city:string,at:timestamp>"
    found = frame.selectExpr("id", "price", "ship.city", "year(ship.at)", "tags", "n", "_error")
    assert rows(found) == [
        (1, 2.0, "Zug", 2026, ["a", None], None, None),
        (None, None, None, None, None, 7, "id is not a bigint"),
        (None, None, None, None, None, None, "the value is not JSON"),
    ]
    few = log.read(spark, typed=True, columns="n,offset,_error", subject=f"{log.name}.x")
    assert few.columns == ["offset", "n", "_error"]
    assert rows(few.where("n = 7")) == [(1, 7, "id is not a bigint")]
    with pytest.raises(PySparkException) as caught:
        log.read(spark, typed=True, columns="nn")
    assert "columns names nn: the schema has id, price" in last_line(caught.value)


def test_a_streaming_query_goes_on_over_a_change_and_stops_at_another(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.client.set_schema(log.name, "id int, note string")
    publish(log, b'{"id":1,"note":"a"}')
    found: dict[int, list[Any]] = {}

    def sink(batch: DataFrame, number: int) -> None:
        found[number] = rows(batch.select("id", "note", "_error").orderBy("id"))

    frame = log.read_stream(spark, typed=True, startingOffsets="earliest")
    run_available(frame, tmp_path, sink)
    log.client.set_schema(log.name, "number bigint alias id, note string, more date")
    publish(log, b'{"id":2}', b'{"number":3,"more":"2026-01-31"}', b'{"number":3000000000}')
    run_available(frame, tmp_path, sink)
    assert [row for each in sorted(found) for row in found[each]] == [
        (1, "a", None),
        (None, None, "id is not an int"),
        (2, None, None),
        (3, None, None),
    ]
    log.client.set_schema(log.name, "")
    log.client.set_schema(log.name, "id string")
    publish(log, b'{"id":"x"}')
    with pytest.raises(PySparkException, match=r"the schema of stream .* is another one now"):
        run_available(frame, tmp_path, sink)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.lists(documents(), min_size=1, max_size=40))
def test_any_record_is_what_the_sdk_has(
    spark: SparkSession, log: Log, schema: Schema, values: list[bytes | None]
) -> None:
    name = f"any-{next(NUMBERS)}"
    any_log = Log.create(log.grpc, log.client, name)
    log.client.set_schema(name, str(schema))
    with log.client.publisher(f"{name}.x") as publisher:
        publisher.publish_many(values, keys=[b"key"] * len(values)).result(60)
    columns = [*schema.names, "_error"]
    frame = any_log.read(spark, typed=True).orderBy("offset").select(columns)
    found = log.client.scan(name, columns=columns, typed=True).to_table()
    assert frame.toArrow().to_pylist() == found.to_pylist()


def test_without_a_schema_there_are_no_typed_columns(spark: SparkSession, log: Log) -> None:
    with pytest.raises(PySparkException) as caught:
        log.read(spark, typed=True)
    assert "has no schema: jetstream schema set" in last_line(caught.value)


@pytest.mark.skipif(compiled is None, reason="nothing is compiled here")
def test_rows_of_arrow_are_read(spark: SparkSession, log: Log) -> None:
    log.client.set_schema(log.name, "id bigint, tags list<string> using arrow")
    row = pa.record_batch({"tags": [["a"]], "id": [1]})
    publish(log, streamed(row), bytes(row.select(["id"]).serialize()), b"{}")
    found = log.read(spark, typed=True).orderBy("offset").select("id", "tags", "_error")
    assert rows(found) == [
        (1, ["a"], None),
        (1, None, None),
        (None, None, "the value is not Arrow IPC"),
    ]


@pytest.mark.skipif(compiled is None, reason="nothing is compiled here")
def test_avro_is_read_by_its_ids(spark: SparkSession, log: Log) -> None:
    log.client.set_schema(
        log.name, "id bigint not null, note string alias text using avro (7) <id int, text string>"
    )
    publish(log, b"\0\0\0\0\7\2\4hi", b"\0\0\0\0\x08\2\4hi")
    found = log.read(spark, typed=True).orderBy("offset").select("id", "note", "_error")
    assert rows(found) == [
        (1, "hi", None),
        (None, None, "the value begins with no schema id known"),
    ]
