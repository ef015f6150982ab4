"""Spark over the typed table of a stream in the lake, compared with the stream.

Iceberg's runtime for Spark is a jar of its own, for certain versions of Spark: docs/lake.md says
which. So a Python of its own runs Spark (lake_spark_job.py). It groups all records by a field of
the schema: through the node's catalog, in the objects themselves and, if that Python has it, by
this project's Spark source. DuckDB does the same to what the SDK reads from the stream.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.table import StaticTable

from benchmarks import lake
from benchmarks.pairs import Progress
from benchmarks.report import Report, environment

VERSION = "1.12.0"
RUNTIME = "iceberg-spark-runtime-4.1_2.13"
JAR = f"org/apache/iceberg/{RUNTIME}/{VERSION}/{RUNTIME}-{VERSION}.jar"
SCHEMA = "id bigint, sensor string, celsius double, state string, note string"
QUERY = (
    'select state, count(*) as n, sum("offset") as offsets, sum(id) as ids, count(_error) as bad, '
    'round(sum(celsius), 3) as celsius from {} where "offset" < {} group by state order by state'
)
SECONDS_MAX = 600
WAYS = ("iceberg", "parquet", "source")


def run(python: str, jar: Path, records: int, progress: Progress) -> Report:
    """Raises AssertionError unless all tell the same."""
    if not jar.exists():
        raise FileNotFoundError(f"{jar} is not there: mvn dependency:get gets it")
    results = lake.Results()
    with lake.new_ground() as ground:
        client = ground.client
        lake.fill(ground, records, SCHEMA)
        client.alter_stream(lake.NAME, lake=True, lake_lag=1)
        lake.until(lambda: client.describe_lake(lake.NAME).end_offset > records // 2, "copies")
        found = client.describe_lake(lake.NAME)
        url, end = found.table_url, found.end_offset
        progress(f"{end:,} records are in the lake; Spark reads them")
        files = [each.file.file_path for each in StaticTable.from_metadata(url).scan().plan_files()]
        scan = client.scan(lake.NAME, stop=end, typed=True)
        stream = pa.Table.from_batches(list(scan), scan.schema)
        connection = duckdb.connect()
        connection.register("stream", stream)
        wanted = connection.execute(QUERY.format("stream", end)).fetchall()
        answer = _job(python, jar, ground, files, QUERY.format("{}", end))
    for way in [way for way in WAYS if way in answer]:
        rows, seconds = answer[way]["rows"], answer[way]["seconds"]
        assert [tuple(row.values()) for row in rows] == wanted, f"{way}: {rows}; stream: {wanted}"
        assert sum(row["n"] for row in rows) == end
        results.note(
            f"Spark {answer['version']}, {way}: the stream's records by a field",
            f"the same as the stream's; {median(seconds):.2f} s (first {seconds[0]:.2f})",
            seconds=seconds,
        )
    return Report("lake", f"{end:,} typed records", "none", results, environment())


def _job(
    python: str, jar: Path, ground: lake.Ground, files: list[str], query: str
) -> dict[str, Any]:
    script = Path(__file__).with_name("lake_spark_job.py")
    servers = ",".join(ground.cluster.grpc_addresses)
    asked = [str(jar), ground.catalog, ",".join(files), servers, query.replace('"', "`")]
    done = subprocess.run(
        [python, str(script), *asked], stdout=subprocess.PIPE, check=True, timeout=SECONDS_MAX
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
