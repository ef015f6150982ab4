"""Spark reads a stream's table in the lake by Iceberg's runtime: the same records as the log's."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jetstream_client import Client
from tests.spark.support import needs_jars
from tests.support.lake_streams import only_in_lake
from tests.support.s3 import SECRET, s3_server
from tests.support.server import ServerProcess


@needs_jars
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_the_table_has_the_records_of_the_log(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    (tmp_path / "lake").mkdir()
    environment, options = {"JETSTREAM_LAKE__URL": (tmp_path / "lake").as_uri()}, {}
    with ExitStack() as stack:
        if place == "bucket":
            environment, options = in_bucket(stack.enter_context(s3_server("lake")))
        server = ServerProcess(tmp_path / "data", environment=environment)
        server.start()
        stack.callback(server.kill)
        with Client(server.grpc, timeout=60) as client:
            only_in_lake(server, client, "old", 200)
            found = client.describe_lake("old")
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "rest",
            ".uri": f"{server.http}/iceberg",
            **options,
        }.items():
            spark.conf.set(f"spark.sql.catalog.{place}{key}", value)
        reader = spark.read.format("jetstream").options(servers=server.grpc, streams="old")
        log = summed(reader.load(), found.end_offset)
        assert log[0] == found.end_offset
        assert summed(spark.table(f"{place}.jetstream.old"), found.end_offset) == log
        if place == "folder":
            by_path = spark.read.format("iceberg").load(found.table_url)
            assert summed(by_path, found.end_offset) == log


def in_bucket(address: str) -> tuple[dict[str, str], dict[str, str]]:
    """The server's environment, and what the catalog needs beside."""
    server = {
        "JETSTREAM_LAKE__URL": "s3://lake/some/prefix",
        "JETSTREAM_LAKE__ENDPOINT": address,
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    catalog = {
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".client.region": "us-east-1",
        ".s3.endpoint": address,
        ".s3.path-style-access": "true",
        ".s3.access-key-id": "AKIDEXAMPLE",
        ".s3.secret-access-key": SECRET,
    }
    return server, catalog


def summed(records: DataFrame, end: int) -> tuple[int, int]:
    """How many records are before `end`, and the sum of hashes of offset, subject and value."""
    hashed = F.xxhash64("offset", "subject", "value").cast("decimal(38,0)")
    (row,) = records.where(F.col("offset") < end).select(F.count("*"), F.sum(hashed)).collect()
    return int(row[0]), int(row[1])
