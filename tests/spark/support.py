"""What the Spark tests share: a session, a stream of known records, a query that is watched."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from jetstream_client import AsyncClient, Client
from pyspark_jetstream.stream import HAS_ADMISSION_CONTROL

needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="PySpark bounds the batches of Python sources from 4.2 on"
)

PLANS_ONCE = pyspark.__version__ >= "4.1"
"""Whether a DataFrame that is used again has the same rows; PySpark 4.0 plans it anew."""

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM of some minutes spends more on compiling well than it gains."""
JARS = sorted(Path(sys.prefix).glob(f"jars-{pyspark.__version__.rpartition('.')[0]}/*.jar"))
"""Of Delta and Iceberg, for this version of Spark (scripts/spark-jars)."""

needs_jars = pytest.mark.skipif(
    not JARS,
    reason="no jars of Delta and Iceberg for this PySpark: scripts/test-spark 4.1 fetches some",
)

TABLE_FORMATS = {
    "spark.jars": ",".join(map(str, JARS)),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}

CONFIG = {
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    # To compile a query takes longer than to run it over a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
}
PATIENCE_SECONDS = 150.0


@contextmanager
def local_session(
    folder: Path, master: str = "local[2]", config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session whose JVM ends with it."""
    builder = SparkSession.builder.master(master).appName("tests")
    for name, value in {**CONFIG, "spark.sql.warehouse.dir": str(folder), **(config or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    gateway: Any = session.sparkContext._gateway
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE_SECONDS)
        type(session.sparkContext)._gateway = None
        type(session.sparkContext)._jvm = None


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Processes that are started meanwhile have the file as their stderr."""
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@dataclass(frozen=True)
class Log:
    """A stream on subjects `<name>.>` of the server at `grpc`."""

    grpc: str
    client: Client
    name: str

    @classmethod
    def create(cls, grpc: str, client: Client, name: str, **settings: Any) -> Log:
        client.create_stream(name, f"{name}.>", replicas=1, **settings)
        return cls(grpc, client, name)

    @property
    def options(self) -> dict[str, str]:
        return {"servers": self.grpc, "streams": self.name}

    def publish(self, numbers: Sequence[int], subject: str = "x", **more: Any) -> None:
        """Records with the values `0`, `1`, …, acknowledged, in order."""
        publish(self.grpc, f"{self.name}.{subject}", [b"%d" % n for n in numbers], **more)

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        reader = spark.read.format("jetstream").options(**self.options)
        return reader.options(**texts(options)).load()

    def read_stream(self, spark: SparkSession, **options: object) -> DataFrame:
        reader = spark.readStream.format("jetstream").options(**self.options)
        return reader.options(**texts(options)).load()


def texts(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def publish(
    grpc: str, subject: str, values: Sequence[bytes], *, run: str = "", **more: Any
) -> None:
    """run: a name that no other has: then each is stored once, whoever leads meanwhile."""

    def named(number: int) -> dict[str, str]:
        return {"msg_id": f"{run}-{number}"} if run else {}

    async def go() -> None:
        async with AsyncClient(grpc, timeout=60) as client:
            for start in range(0, len(values), 4_000):
                window = enumerate(values[start : start + 4_000], start)
                calls = (client.publish(subject, v, **named(n), **more) for n, v in window)
                await asyncio.gather(*calls)

    asyncio.run(go())


def last_line(error: BaseException) -> str:
    """The last line of the Python error that Spark shows among its own words."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = ("pyspark_jetstream.", "jetstream_protocol.", "jetstream_client.")
    said = [number for number, line in enumerate(lines) if line.startswith(ours)]
    assert said, str(error)
    later = [line for line in lines[said[-1] + 1 :] if re.match(r"\w*(Error|Exception): ", line)]
    assert later == [], str(error)
    return lines[said[-1]]


class Collector:
    """A sink for foreachBatch that remembers the offsets of each batch, by its id.

    Idempotent, as sinks must be for exactly-once: a batch that is run again replaces itself.
    """

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.replaced: list[tuple[int, list[int], list[int]]] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        found = sorted(row.offset for row in batch.select("offset").collect())
        if number in self.batches:
            self.replaced.append((number, self.batches[number], found))
        self.batches[number] = found

    @property
    def offsets(self) -> list[int]:
        return sorted(offset for found in self.batches.values() for offset in found)


@contextmanager
def running(
    frame: DataFrame, checkpoint: Path, sink: Callable[[DataFrame, int], None], **trigger: Any
) -> Iterator[StreamingQuery]:
    """A query over `frame`, stopped at the end."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield query
    finally:
        query.stop()


def run_available(
    frame: DataFrame, checkpoint: Path, sink: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Everything there is now, with AvailableNow. The query that ended with it."""
    # Before 4.2 a run that finds an unfinished batch ends with that one.
    offsets, commits = (
        len(list((checkpoint / each).glob("[0-9]*"))) for each in ("offsets", "commits")
    )
    for _ in range(1 if HAS_ADMISSION_CONTROL or offsets == commits else 2):
        with running(frame, checkpoint, sink, availableNow=True) as query:
            query.awaitTermination()
    return query


def forget_commits(checkpoint: Path) -> None:
    """The query died before it could say that its last batch was done."""
    for path in (checkpoint / "commits").iterdir():
        path.unlink()


def until(holds: Callable[[], bool], what: str, query: StreamingQuery | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if query is not None and query.exception() is not None:
            raise AssertionError(f"the query ended: {query.exception()}")
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_SECONDS} s"
        time.sleep(0.05)
