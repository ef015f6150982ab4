"""Streams of Jetstream as Spark tables: `spark.read.format("jetstream")`.

Spark imports every installed top-level module named `pyspark_*` and registers its `DefaultSource`,
so there is nothing to call. `session()` makes a session whose workers have the source. If one such
module fails to import, Spark switches the discovery off for all of them. So this one imports
nothing but Spark's base class, and guards that import; SDK, gRPC and Arrow are imported where they
are used.

    options.py, positions.py   the user's options, checked
    planning.py                the cluster's answers: streams and positions to offsets
    ranges.py                  offsets to tasks
    checkpoint.py, admission.py   a streaming query's offsets, and how far its next batch goes
    batch.py, stream.py        Spark's reader interfaces over these
    scan.py, headers.py, filters.py   on the executors: a range as Arrow record batches
    writer.py, publish.py      Arrow record batches to publishes, acknowledged
    sessions.py, progress.py   for programs: a session that finds the source, how far a query is

docs/spark.md is the manual.
"""

from __future__ import annotations

from pyspark_jetstream.progress import offsets_behind_latest
from pyspark_jetstream.sessions import session

__all__ = ["offsets_behind_latest", "session"]

try:
    from pyspark_jetstream.source import JetstreamDataSource as DefaultSource
except ImportError as error:  # PySpark is missing, or older than 4.0.
    if (error.name or "").partition(".")[0] != "pyspark":
        raise
else:
    __all__ += ["DefaultSource"]
