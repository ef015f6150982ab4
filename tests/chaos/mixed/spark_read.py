"""What a batch read by Spark returns of each stream of a run, from a process of its own.

    python -m tests.chaos.mixed.spark_read SERVERS FOLDER

The last line on stdout is one JSON object: by stream, [offset, number of the message, key] of each
row. The JVM ends with the process. Certificates and token are those of the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.mixed.history import SparkRow
from tests.chaos.mixed.streams import STREAMS

TIMEOUT_SECONDS = 300.0


def rows(servers: str, folder: Path, environment: dict[str, str]) -> dict[str, list[SparkRow]]:
    """By stream. folder: for what Spark leaves. Raises OSError with what it complained of."""
    command = [sys.executable, "-m", "tests.chaos.mixed.spark_read", servers, str(folder)]
    own = {"PYSPARK_PYTHON": sys.executable, **environment}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env={**os.environ, **own},
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"Spark has not read all within {TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode:
        raise OSError(f"Spark: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: [SparkRow(*row) for row in of_stream] for name, of_stream in found.items()}


def main(servers: str, folder: str) -> None:
    from tests.spark.support import local_session

    read: dict[str, list[SparkRow]] = {}
    with local_session(Path(folder)) as spark:
        for stream in STREAMS:
            frame = spark.read.format("jetstream").options(servers=servers, streams=stream.name)
            found = frame.load().select("offset", "key", "value").collect()
            read[stream.name] = [
                SparkRow(
                    row.offset, stream.number(row.value), row.key.decode() if row.key else None
                )
                for row in found
            ]
    print(json.dumps(read))


if __name__ == "__main__":
    main(*sys.argv[1:])
