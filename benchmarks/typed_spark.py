"""Typed columns in Spark, against what a user writes without a schema, and against Parquet.

One node holds records of eight fields, in JSON. The same jobs are run in turn by the columns of the
schema, by `from_json` of `value`, and over the same columns in a file of Parquet, which is what an
export, made beforehand, would give. What counts is the processor time of Spark, its workers in
Python included; the node's stands beside it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks import this_server
from benchmarks.pairs import Progress
from benchmarks.report import Column, Report, environment, times
from benchmarks.spark import THREADS, session
from benchmarks.typed import export, fill
from benchmarks.usage import exact_processor_seconds, seconds_of_others
from jetstream_client import Client

WAYS = ("typed", "from_json", "parquet")
TITLE = "nanoseconds of Spark's processors for a record, and of the node's behind the +"
COLUMNS = (
    Column("job", lambda r: r["job"]),
    Column("typed", lambda r: _both(r["typed"])),
    Column("from_json", lambda r: _both(r["from_json"])),
    Column("faster", lambda r: times(r["from_json"]["spark_ns"] / r["typed"]["spark_ns"])),
    Column("Parquet", lambda r: _both(r["parquet"])),
    Column("faster", lambda r: times(r["parquet"]["spark_ns"] / r["typed"]["spark_ns"])),
    Column("seconds", lambda r: " / ".join(f"{r[way]['seconds']:.1f}" for way in WAYS)),
)


class Job(NamedTuple):
    """A query, and the fields that `from_json` has to find for it."""

    name: str
    query: str
    fields: str


JOBS = (
    Job("one field", "select round(avg(price), 6) from {}", "price double"),
    Job(
        "two fields, grouped by one",
        "select country, count(*), round(avg(price), 6) from {} group by country order by country",
        "country string, price double",
    ),
)


def run(records: int, runs: int, progress: Progress) -> Report:
    """runs: of each job in each way, after one that is not counted. Raises AssertionError unless
    all ways tell the same."""
    # PySpark forks to start its JVM, which a process does better before it uses gRPC.
    with session() as spark, this_server.nodes(1) as addresses:
        with Client(addresses.grpc, timeout=60) as client:
            size = fill(client, records)
            parquet = export(client, addresses.folder)
        progress(f"{records:,} records are written")
        (node,) = addresses.pids
        results = []
        for job in JOBS:
            tables = _tables(spark, addresses.grpc, parquet, job)
            taken: dict[str, list[dict[str, float]]] = defaultdict(list)
            answers = {}
            for number in range(-1, runs):
                for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                    tables[way].createOrReplaceTempView(way)
                    begun = _clocks(node)
                    answers[way] = spark.sql(job.query.format(way)).collect()
                    if number >= 0:
                        taken[way].append(_since(begun, _clocks(node), records))
            assert answers["typed"] == answers["from_json"] == answers["parquet"], answers
            results.append(_result(job, taken))
            progress(f"{job.name}: typed {_both(results[-1]['typed'])} ns")
    about = f"typed, local[{THREADS}], {records:,} records of {size / records:,.0f} bytes"
    peers = "from_json of the value; Parquet, exported before"
    return Report("typed: spark", about, peers, results, environment())


def _tables(spark: SparkSession, grpc: str, parquet: str, job: Job) -> dict[str, DataFrame]:
    reader = spark.read.format("jetstream").options(
        servers=grpc, streams="orders", startingOffsets="earliest", minPartitions=str(THREADS)
    )
    parsed = f"from_json(cast(value as string), '{job.fields}') as fields"
    return {
        "from_json": reader.load().selectExpr(parsed).select("fields.*"),
        "typed": reader.option("typed", "true").load(),
        "parquet": spark.read.parquet(parquet),
    }


class _Clocks(NamedTuple):
    seconds: float
    spark: float
    node: float


def _clocks(node: int) -> _Clocks:
    return _Clocks(time.perf_counter(), seconds_of_others([node]), exact_processor_seconds(node))


def _since(before: _Clocks, now: _Clocks, records: int) -> dict[str, float]:
    return {
        "seconds": now.seconds - before.seconds,
        "spark_ns": (now.spark - before.spark) * 1e9 / records,
        "node_ns": (now.node - before.node) * 1e9 / records,
    }


def _result(job: Job, taken: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    middle = {
        way: {what: median(each[what] for each in runs) for what in runs[0]}
        for way, runs in taken.items()
    }
    return {"job": job.name, **middle, "every": dict(taken)}


def _both(found: dict[str, float]) -> str:
    return f"{found['spark_ns']:,.0f} + {found['node_ns']:,.0f}"
