"""Spark reads a stream's table in the lake by Iceberg's runtime: the same records as the log's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jetstream_client import Client
from tests.spark.support import needs_jars
from tests.support.lake_streams import only_in_lake
from tests.support.server import ServerProcess


@needs_jars
def test_the_table_has_the_records_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    environment = {"JETSTREAM_LAKE__URL": (tmp_path / "lake").as_uri()}
    server = ServerProcess(tmp_path / "data", environment=environment)
    server.start()
    try:
        with Client(server.grpc) as client:
            only_in_lake(server, client, "old", 200)
            found = client.describe_lake("old")
        for key, value in (
            ("", "org.apache.iceberg.spark.SparkCatalog"),
            (".type", "rest"),
            (".uri", f"{server.http}/iceberg"),
        ):
            spark.conf.set(f"spark.sql.catalog.node{key}", value)
        reader = spark.read.format("jetstream").options(servers=server.grpc, streams="old")
        log = summed(reader.load(), found.end_offset)
        assert log[0] == found.end_offset
        assert summed(spark.read.format("iceberg").load(found.table_url), found.end_offset) == log
        assert summed(spark.table("node.jetstream.old"), found.end_offset) == log
    finally:
        server.kill()


def summed(records: DataFrame, end: int) -> tuple[int, int]:
    """How many records are before `end`, and the sum of hashes of offset, subject and value."""
    hashed = F.xxhash64("offset", "subject", "value").cast("decimal(38,0)")
    (row,) = records.where(F.col("offset") < end).select(F.count("*"), F.sum(hashed)).collect()
    return int(row[0]), int(row[1])
