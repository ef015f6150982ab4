"""Writes that Spark interrupts and repeats: every row is stored once.

    python -m tests.spark.interruptions [--rounds 50] [--kinds cancelled,stopped,…] [--seed S]

Each round has a stream of its own. A write is interrupted at a place that the seed chooses, and
repeated, by Spark itself or under the same transaction or checkpoint, with rows that Spark cuts
into other record batches. Exit code 1 if a row was stored twice, or not at all.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from jetstream_client import Client
from pyspark_jetstream.stream import HAS_ADMISSION_CONTROL
from tests.spark.standalone import running_standalone
from tests.spark.support import Log, local_session, until
from tests.support.server import running_server

ROWS = 100_000
ROW_BYTES = 150
BATCHES = (3, 10, 17)
"""What a record batch has of the rows, in hundredths: eight batches of five in two partitions."""

FORMAT = "jetstream"
RECORDS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
SOURCE = "source"


@dataclass
class Round:
    """One write. stored: rows that the stream had when the interruption came; attempts that had
    sent some of theirs, if they are speculative."""

    spark: SparkSession
    log: Log
    random: Random
    folder: Path
    count: int
    stored: int = 0

    def cut(self) -> None:
        """Choose how Spark cuts rows into record batches."""
        each = self.count // 100 * self.random.choice(BATCHES)
        self.spark.conf.set(RECORDS_PER_BATCH, str(each))

    def rows(self) -> DataFrame:
        self.cut()
        ids = self.spark.range(0, self.count, 1, 2)
        return ids.selectExpr(f"lpad(CAST(id AS STRING), {ROW_BYTES}, '0') AS value")

    def write(self, rows: DataFrame) -> None:
        writer = rows.write.format(FORMAT).mode("append")
        options = {"servers": self.log.grpc, "subject": f"{self.log.name}.x"}
        writer.options(**options, txnAppId=self.log.name, txnVersion="1").save()

    def interrupted(self, write: Callable[[], object], interrupt: Callable[[], object]) -> None:
        """Interrupt the write once so many rows are stored as chance wants."""
        wanted = self.random.randrange(1, self.count // 2)

        def wait() -> None:
            while not done.is_set() and self.end() < wanted:
                time.sleep(0.002)
            interrupt()
            self.stored = self.end()

        done = threading.Event()
        thread = threading.Thread(target=wait)
        thread.start()
        try:
            write()
        except (PySparkException, Py4JJavaError) as error:
            print(f"{self.log.name} was interrupted: {type(error).__name__}", flush=True)
        finally:
            done.set()
            thread.join()

    def end(self) -> int:
        return int(self.log.client.offset_at(self.log.name, "latest"))

    def check(self) -> None:
        """Raise AssertionError unless every row is stored once."""
        found: Counter[int] = Counter()
        for message in self.log.client.consume(self.log.name, start="earliest", stop="latest"):
            found[int(message.value or b"")] += 1
        twice = sum(count - 1 for count in found.values())
        missing = self.count - len(found)
        assert (missing, twice) == (0, 0), f"{missing} of {self.count} rows missing, {twice} twice"


def cancelled(each: Round) -> None:
    """`cancelAllJobs`, as Ctrl-C and notebooks do, and the write again."""
    each.interrupted(lambda: each.write(each.rows()), each.spark.sparkContext.cancelAllJobs)
    each.write(each.rows())


def killed(each: Round) -> None:
    """Tasks are killed, which Spark runs again."""
    spark: Any = each.spark.sparkContext._jsc.sc()

    def kill() -> None:
        for stage in each.spark.sparkContext.statusTracker().getActiveStageIds():
            tasks = spark.statusStore().taskList(stage, 0, 100)
            for place in range(tasks.size()):
                number = tasks.apply(place).taskId()
                spark.killTaskAttempt(number, each.random.random() < 0.5, "a test")

    each.interrupted(lambda: each.write(each.rows()), kill)


def failed(each: Round) -> None:
    """A step before the write fails: in one attempt of a task, or in all until the job ends, with
    its other tasks."""
    rows = each.rows()
    for_ever = each.random.random() < 0.5
    batches = each.random.randrange(1, 6)
    fault = each.folder / "fault"
    fault.touch()

    def step(batches_of_rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        fails = fault.exists() and (for_ever or context.attemptNumber() == 0)
        for number, batch in enumerate(batches_of_rows):
            if fails and context.partitionId() == 1 and number == batches:
                raise ValueError("a fault of this test")
            yield batch

    with suppress(PySparkException):
        each.write(rows.mapInArrow(step, rows.schema))
    each.stored = each.end()
    fault.unlink()
    each.write(rows.mapInArrow(step, rows.schema))


def stopped(each: Round) -> None:
    """A streaming query is stopped in the middle of a batch, and started again."""
    source = Log(each.log.grpc, each.log.client, SOURCE)

    def start(**trigger: Any) -> Any:
        each.cut()
        rows = source.read_stream(each.spark, startingOffsets="earliest", minPartitions=2)
        writer = rows.select("value").writeStream.format(FORMAT).trigger(**trigger)
        writer = writer.options(servers=each.log.grpc, subject=f"{each.log.name}.x")
        return writer.option("checkpointLocation", str(each.folder / "checkpoint")).start()

    query = start(processingTime="0 seconds")
    each.interrupted(lambda: until(lambda: not query.isActive, "the query ends"), query.stop)
    for _ in range(1 if HAS_ADMISSION_CONTROL else 2):  # See run_available.
        start(availableNow=True).awaitTermination()


def speculative(each: Round) -> None:
    """A second attempt of a slow task runs beside the first, which waits for it amid its rows.
    Whichever ends first, the other is killed."""
    rows = each.rows()
    waits_at = each.random.randrange(1, 3)
    pauses = [each.random.uniform(0, 0.2) for _ in range(2)]
    folder = each.folder

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        if context.partitionId() != 0:
            yield from batches
            return
        sent = folder / f"sent-{attempt}"
        for number, batch in enumerate(batches):
            sent.write_text(str(number))
            deadline = time.monotonic() + 60
            while attempt == 0 and number == waits_at and not (folder / "sent-1").exists():
                assert time.monotonic() < deadline, "Spark runs no second attempt"
                time.sleep(0.01)
            time.sleep(pauses[min(attempt, 1)])
            yield batch
        sent.write_text("all")

    each.write(rows.mapInArrow(step, rows.schema))
    cut = [text for file in folder.glob("sent-*") if (text := file.read_text()) not in ("0", "all")]
    each.stored = len(cut)


KINDS: dict[str, Callable[[Round], None]] = {
    each.__name__: each for each in (cancelled, killed, failed, stopped, speculative)
}
CLUSTER_ONLY = {"speculative"}
"""Kinds that Spark does only where executors are processes of their own."""

SPECULATION = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


def make_source(grpc: str, client: Client, rows: int = ROWS) -> None:
    Log.create(grpc, client, SOURCE)
    with client.publisher(f"{SOURCE}.x") as publisher:
        publisher.publish_many([b"%0*d" % (ROW_BYTES, number) for number in range(rows)])


def run(
    spark: SparkSession,
    grpc: str,
    client: Client,
    kind: str,
    number: int,
    seed: str,
    folder: Path,
    rows: int = ROWS,
) -> Round:
    """One round, checked. Raises AssertionError."""
    log = Log.create(grpc, client, f"{kind}_{number}")
    place = folder / log.name
    place.mkdir(parents=True)
    each = Round(spark, log, Random(f"{seed} {kind} {number}"), place, rows)
    KINDS[kind](each)
    each.check()
    return each


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.interruptions")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", default=secrets.token_hex(4))
    asked = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    kinds = asked.kinds.split(",")
    print(f"seed {asked.seed}", flush=True)
    wrong = 0
    with tempfile.TemporaryDirectory() as name, running_server(Path(name) / "data") as server:
        folder = Path(name)
        for is_cluster in (False, True):
            chosen = [kind for kind in kinds if (kind in CLUSTER_ONLY) == is_cluster]
            if chosen:
                wrong += _rounds(chosen, is_cluster, server.grpc, asked, folder)
    return 1 if wrong else 0


def _rounds(kinds: list[str], is_cluster: bool, grpc: str, asked: Any, folder: Path) -> int:
    """The number of rounds that went wrong."""
    if is_cluster:
        with (
            running_standalone(folder) as cluster,
            local_session(folder, cluster.url, SPECULATION) as spark,
        ):
            return sum(_kind(spark, kind, grpc, asked, folder) for kind in kinds)
    with local_session(folder, "local[2,4]") as spark:
        return sum(_kind(spark, kind, grpc, asked, folder) for kind in kinds)


def _kind(spark: SparkSession, kind: str, grpc: str, asked: Any, folder: Path) -> int:
    wrong = within = 0
    start = time.monotonic()
    with Client(grpc) as client:
        if kind == "stopped":
            make_source(grpc, client)
        for number in range(asked.rounds):
            try:
                each = run(spark, grpc, client, kind, number, asked.seed, folder)
                within += 0 < each.stored < ROWS
            except (AssertionError, PySparkException) as error:
                wrong += 1
                said = getattr(error, "_desc", error)
                print(f"{kind} {number}: {said}", flush=True)
            client.delete_stream(f"{kind}_{number}")
    seconds = time.monotonic() - start
    print(
        f"{kind}: {asked.rounds} rounds in {seconds:.0f} s, in {within} some of the rows were "
        f"stored when the interruption came, {wrong} wrong",
        flush=True,
    )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
