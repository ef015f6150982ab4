"""Every row is stored once, wherever Spark interrupts a write.

`python -m tests.spark.interruptions` has longer ones, and speculation, which takes a cluster.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import Client
from tests.spark import interruptions
from tests.support.server import ServerProcess

ROWS = 30_000


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("kind", ["cancelled", "killed", "failed", "stopped"])
def test_rows_of_an_interrupted_write_are_stored_once(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path, kind: str
) -> None:
    if kind == "stopped":
        interruptions.make_source(server.grpc, client, ROWS)
    interruptions.run(spark, server.grpc, client, kind, 0, "suite", tmp_path, ROWS)
