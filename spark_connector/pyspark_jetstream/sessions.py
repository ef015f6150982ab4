"""Makes a session whose Python workers find the source."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(**config: str) -> SparkSession:
    """Return the existing SparkSession, or a new one, whose workers use this Python.

    config: of the session, `session(**{"spark.master": "local[2]"})`. PYSPARK_PYTHON takes
    precedence if it is set. Raises RuntimeError if this package is missing in the workers of an
    existing session, or in the Python that PYSPARK_PYTHON names: Spark would fail with
    DATA_SOURCE_NOT_FOUND.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    python = spark.sparkContext.pythonExec
    # On a cluster the executors' Python is on other machines and cannot be checked here.
    if str(spark.sparkContext.master).startswith("local") and not _has_source(python):
        raise RuntimeError(
            f"Spark's workers run {python!r}, which does not have pyspark_jetstream: export "
            f"PYSPARK_PYTHON={sys.executable} before the program makes its session"
        )
    return spark


def _has_source(python: str) -> bool:
    try:
        command = [python, "-c", "import pyspark_jetstream"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False
