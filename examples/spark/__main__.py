"""Run it: `python -m examples.spark`. Exit code 1 if Spark's answer is not the direct one."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from examples.flights.dataset import DatasetError, Flight, archive, flights
from examples.flights.replay import STREAM, SUBJECT, publish
from examples.flights.server import DevServer
from examples.spark.delays import by_streaming, directly, write_back
from jetstream_client import AsyncClient, Client

RESULTS = "delays"


def main(
    limit: Annotated[int, typer.Option(min=0, help="Only the first N flights; 0: all.")] = 0,
) -> None:
    """Aggregate a year of flights with Structured Streaming."""
    if not has_java():
        sys.exit("Spark needs Java and there is none: install a JRE (17 or 21), or set JAVA_HOME")
    try:
        source = list(flights(archive()))[: limit or None]
    except DatasetError as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory(prefix="jetstream-spark-") as folder:
        server = DevServer(Path(folder))
        server.start()
        try:
            asyncio.run(fill(server.grpc, source))
            print(f"{len(source):,} flights published")
            begin = time.perf_counter()
            spark = session()
            found = by_streaming(spark, server.grpc, Path(folder) / "checkpoint")
            print(f"Spark has aggregated them in {time.perf_counter() - begin:.1f} s")
            if found != directly(source):
                sys.exit("Spark's answer is not the direct one")
            write_back(spark, server.grpc, found, RESULTS)
            with Client(server.grpc) as client:
                for message in client.fetch(RESULTS):
                    print(message.subject, (message.value or b"").decode())
            spark.stop()
        finally:
            server.stop()


async def fill(grpc: str, source: list[Flight]) -> None:
    async with AsyncClient(grpc) as client:
        await client.create_stream(STREAM, subject=SUBJECT)
        await client.create_stream(RESULTS, subject=f"{RESULTS}.>")
        await publish(client, source, lambda _: None)


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return os.access(Path(home) / "bin/java", os.X_OK) if home else shutil.which("java") is not None


def session() -> SparkSession:
    # Spark's workers are this Python, not whatever `python3` is on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("flights")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    typer.run(main)
