"""What Spark does in lake_spark.py. For a Python that has PySpark 4.1 and, of this project, at most
the Spark source.

    python lake_spark_job.py JAR CATALOG FILES SERVERS QUERY [ROUNDS]

CATALOG: the URL of a node's catalog. FILES: the objects of the table, with commas between them.
SERVERS: where the Spark source finds the stream. QUERY: of `{}`, for which each way to read the
table stands. Prints the rows, and seconds, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from typing import Any

from pyspark.sql import SparkSession


def main(jar: str, catalog: str, files: str, servers: str, query: str, rounds: str = "3") -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # For Spark's own processes.
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jar)
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalog.node": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.node.type": "rest",
        "spark.sql.catalog.node.uri": catalog,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.read.parquet(*files.split(",")).createOrReplaceTempView("objects")
    ways = {"iceberg": "node.jetstream.readings", "parquet": "objects"}
    if find_spec("pyspark_jetstream") is not None:
        from pyspark_jetstream import DefaultSource

        spark.dataSource.register(DefaultSource)
        source = spark.read.format("jetstream").option("servers", servers)
        source.option("typed", "true").load("readings").createOrReplaceTempView("stream")
        ways["source"] = "stream"
    answer: dict[str, Any] = {"version": spark.version}
    for way, table in ways.items():
        took = []
        for _ in range(int(rounds)):
            begun = time.perf_counter()
            rows = [row.asDict() for row in spark.sql(query.format(table)).collect()]
            took.append(time.perf_counter() - begun)
        answer[way] = {"rows": rows, "seconds": took}
    spark.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
