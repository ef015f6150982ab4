"""Whether a task has seen all rows of its partition, or Spark has cut them off.

If Spark kills a task, or an earlier step of it fails, it closes the stream of rows to the Python
worker. To the iterator of rows this is an end like any other. But after the rows of a whole
partition Spark always writes one more word (END_OF_STREAM), which the worker reads after the task:
a stream that was cut off has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa

from jetstream_client import JetstreamError
from pyspark_jetstream.errors import log


class CutOffError(JetstreamError):
    """Spark has cut the rows of the partition off."""

    @property
    def code(self) -> str:
        return "cut_off"


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises CutOffError where they end too early. Use it in the worker's
    own thread."""
    yield from batches
    stream = _stream_of_the_worker()
    if stream is None:
        log.warning(
            "this version of PySpark does not show whether a task's rows were cut off: rows of a "
            "task that Spark kills may be stored twice; use PySpark 4.0 to 4.3"
        )
    elif not _has_more(stream):
        raise CutOffError(
            "Spark has ended this task before all of its rows came: the task was cancelled, or "
            "another step of it has failed; what is not sent yet is left to the next attempt"
        )


def _has_more(stream: Any) -> bool:
    try:
        return bool(stream.peek(1))
    except OSError:  # Spark has closed the connection.
        return False


def _stream_of_the_worker() -> Any:
    """The buffered stream that the worker's main function reads; None: there is none.

    Nothing public leads to it.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        stream = frame.f_locals.get("infile") if frame.f_code.co_name == "main" else None
        if hasattr(stream, "peek"):
            return stream
        frame = frame.f_back
    return None
