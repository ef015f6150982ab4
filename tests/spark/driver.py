"""A Spark application of its own process: `python -m tests.spark.driver JOBS …`, where JOBS are
`batch` and `stream`, those that are to be run in this order, with a comma between.

It and its workers talk to the test by files in a folder, so that a leader can be killed, or this
process, at a known point of a read.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_jetstream.stream import HAS_ADMISSION_CONTROL
from tests.spark.support import local_session

PATIENCE_SECONDS = 300.0
BEFORE_THE_KILL = 1_000
"""Rows that a task reads before it waits for the kill."""


def batch(spark: SparkSession, servers: str, stream: str, folder: Path) -> None:
    """Every offset that was read, in two tasks that are in the middle when the leader is killed."""
    reader = spark.read.format("jetstream").options(servers=servers, streams=stream)
    frame = reader.option("minPartitions", "2").load().select("offset")
    reading, killed = folder / "reading", folder / "killed"

    def offsets(rows: Iterator[Row]) -> Iterator[int]:
        for number, row in enumerate(rows):
            if number == BEFORE_THE_KILL:
                reading.touch()
                wait_for(killed)
            yield row.offset

    found = frame.rdd.mapPartitions(offsets).collect()
    publish_result(folder / "offsets.json", found)


def stream(spark: SparkSession, servers: str, stream: str, folder: Path) -> None:
    query(spark, servers, stream, folder).awaitTermination()


def query(spark: SparkSession, servers: str, stream: str, folder: Path) -> StreamingQuery:
    """One file of offsets for each batch, written anew when a batch is run again."""
    reader = spark.readStream.format("jetstream").options(servers=servers, streams=stream)
    if HAS_ADMISSION_CONTROL:
        reader = reader.option("maxOffsetsPerTrigger", "2500")
    frame = reader.option("startingOffsets", "earliest").load()

    def sink(rows: DataFrame, number: int) -> None:
        found = [row.offset for row in rows.select("offset").collect()]
        publish_result(folder / f"batch-{number}.json", found)

    writer = frame.writeStream.foreachBatch(sink)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def publish_result(path: Path, offsets: list[int]) -> None:
    """Whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(offsets))
    new.replace(path)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not come")
        time.sleep(0.05)


def main() -> None:
    jobs, servers, name, folder = sys.argv[1:]
    with local_session(Path(folder)) as spark:
        for job in jobs.split(","):
            {"batch": batch, "stream": stream}[job](spark, servers, name, Path(folder))


if __name__ == "__main__":
    main()
