"""Spark: the connector against the most a Python source can do, in one session, alternately.

Reads are of a whole stream into Spark's `noop` sink, in as many tasks as the session has threads.
Ceiling and tuples are in spark_sources.py. Latency is what a micro-batch takes, of a trickle from a
stream and of Spark's own `rate` source.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import this_server
from benchmarks.jetstream_peer import SUBJECT
from benchmarks.pairs import Progress
from benchmarks.processes import run_json
from benchmarks.report import Column, Report, environment, thousands, times
from benchmarks.spark_sources import CeilingSource, TupleSource
from jetstream_client import Client

THREADS = 2
TRICKLE_SECONDS = 0.05
TRICKLE_ROWS = 10
WARM_UP_BATCHES = 5
TREE = Path(__file__).parents[1]

TITLE = "medians; reads in thousands of rows per second, latency in milliseconds"
COLUMNS = (
    Column("what", lambda result: result["what"]),
    Column("ours", lambda result: _number(result, "ours")),
    Column("ceiling", lambda result: _number(result, "ceiling")),
    Column("of it", lambda result: times(result["ratio"])),
    Column("tuples", lambda result: _number(result, "tuples")),
    Column("of them", lambda result: times(result["over_tuples"]) if "tuples" in result else ""),
)


def _number(result: Mapping[str, Any], side: str) -> str:
    if side not in result:
        return ""
    return f"{result[side]:.0f} ms" if result["what"] == "micro-batch" else thousands(result[side])


def run(messages: int, size: int, pairs: int, seconds: float, progress: Progress) -> Report:
    """Read `messages` of `size` bytes `pairs` times on every side; trickle for `seconds`."""
    rows = messages // (THREADS * 10_000) * THREADS * 10_000
    # PySpark forks to start its JVM, which a process does better before it uses gRPC.
    with session() as spark, this_server.this_server() as addresses:
        load = ["--port", str(addresses.nats_port), "--subject", SUBJECT, "--size", str(size)]
        run_json("benchmarks.load", *load, "--messages", str(rows), "--warm-up", "0")
        progress(f"{rows:,} messages of {size} B written")
        ours = {"servers": addresses.grpc, "streams": this_server.STREAM}
        ours |= {"startingOffsets": "earliest", "minPartitions": str(THREADS)}
        ceiling = {"rows": str(rows), "size": str(size), "partitions": str(THREADS)}
        options = {"jetstream": ours, "ceiling": ceiling, "tuples": ours}
        results = [
            _reads("batch", partial(_batch, spark), options, rows, pairs, progress),
            _reads("stream", partial(_stream, spark), options, rows, pairs, progress),
            _latency(spark, addresses.grpc, seconds, progress),
        ]
    return Report(
        "spark",
        f"this server's connector, local[{THREADS}], {rows:,} rows of {size} B",
        "a source of one prebuilt record batch; the connector yielding tuples; for the latency of "
        "a micro-batch Spark's rate source",
        results,
        environment(),
    )


@contextmanager
def session() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers must find the sources of this package.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TREE), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master(f"local[{THREADS}]").appName("benchmarks")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for source in (CeilingSource, TupleSource):
        spark.dataSource.register(source)
    try:
        yield spark
    finally:
        spark.stop()


def _reads(
    what: str,
    read: Callable[[str, Mapping[str, str]], None],
    options: Mapping[str, Mapping[str, str]],
    rows: int,
    pairs: int,
    progress: Progress,
) -> dict[str, Any]:
    runs: dict[str, list[float]] = {}
    for number in range(-1, pairs):  # The first round warms everybody up.
        for side in list(options)[:: 1 if number % 2 == 0 else -1]:
            begin = time.perf_counter()
            read(side, options[side])
            rate = rows / (time.perf_counter() - begin)
            if number >= 0:
                runs.setdefault(side, []).append(rate)
        if runs:
            rates = ", ".join(f"{side} {runs[side][-1]:,.0f}/s" for side in options)
            progress(f"{what}, round {number + 1} of {pairs}: {rates}")
    return _result(what, {"ours" if s == "jetstream" else s: r for s, r in runs.items()})


def _result(what: str, runs: Mapping[str, list[float]]) -> dict[str, Any]:
    middle = {side: median(found) for side, found in runs.items()}
    result: dict[str, Any] = {"what": what}
    result |= {side: round(value, 1) for side, value in middle.items()}
    result["ratio"] = round(middle["ours"] / middle["ceiling"], 2)
    if "tuples" in middle:
        result["over_tuples"] = round(middle["ours"] / middle["tuples"], 2)
    return result | {f"{side}_runs": [round(v) for v in found] for side, found in runs.items()}


def _batch(spark: SparkSession, source: str, options: Mapping[str, str]) -> None:
    frame = spark.read.format(source).options(**options).load()
    frame.write.format("noop").mode("overwrite").save()


def _stream(spark: SparkSession, source: str, options: Mapping[str, str]) -> None:
    frame = spark.readStream.format(source).options(**options).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()


def _latency(spark: SparkSession, grpc: str, seconds: float, progress: Progress) -> dict[str, Any]:
    rate = spark.readStream.format("rate").option("rowsPerSecond", "200").load()
    ours = spark.readStream.format("jetstream").options(servers=grpc, streams="trickle").load()
    done = threading.Event()
    with Client(grpc) as client:
        client.create_stream("trickle", subject="trickle.>")
        trickle = threading.Thread(target=_trickle, args=(client, done), daemon=True)
        trickle.start()
        try:
            runs = {"ours": _durations(ours, seconds), "ceiling": _durations(rate, seconds)}
        finally:
            done.set()
            trickle.join()
    progress(", ".join(f"{side}: {median(found):.0f} ms" for side, found in runs.items()))
    return _result("micro-batch", runs)


def _trickle(client: Client, done: threading.Event) -> None:
    with client.publisher("trickle.x") as publisher:
        while not done.wait(TRICKLE_SECONDS):
            publisher.publish_many([b"drop"] * TRICKLE_ROWS)


def _durations(frame: DataFrame, seconds: float) -> list[float]:
    """Milliseconds of each micro-batch that had rows, after the first few."""
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end or len(found) <= WARM_UP_BATCHES:
                time.sleep(0.2)
                found |= _finished(query)
        finally:
            query.stop()
    return list(found.values())[WARM_UP_BATCHES:]


def _finished(query: StreamingQuery) -> dict[int, float]:
    if query.exception() is not None:
        raise RuntimeError(f"the query ended: {query.exception()}")
    return {
        progress["batchId"]: float(progress["durationMs"]["triggerExecution"])
        for progress in query.recentProgress
        if progress["numInputRows"]
    }
