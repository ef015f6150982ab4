"""Rows that Spark has cut off are told from those of a whole partition."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pytest

from pyspark_jetstream.ending import CutOffError, whole
from tests.support.spark_logs import connector_messages

BATCH = pa.record_batch({"value": [b"1"]})
END_OF_STREAM = (-4).to_bytes(4, signed=True)


def main(infile: BinaryIO) -> list[pa.RecordBatch]:
    """As a worker's: Spark's stream of rows is read by frames below it."""
    return list(whole(rows(infile)))


def rows(infile: BinaryIO) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(infile) as reader:
        yield from reader


@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("end", [b"", END_OF_STREAM])
def test_rows_are_whole_if_spark_has_more_to_say(is_marked: bool, end: bytes) -> None:
    """Whether or not Arrow's own mark is at the end of the rows."""
    spark, worker = socket.socketpair()
    with spark, worker, worker.makefile("rb") as infile:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, BATCH.schema) as writer:
            writer.write_batch(BATCH)
        written = sink.getvalue().to_pybytes()
        spark.sendall((written if is_marked or end else written[:-8]) + end)
        spark.shutdown(socket.SHUT_WR)
        if end:
            assert main(infile) == [BATCH]
        else:
            with pytest.raises(CutOffError, match="left to the next attempt"):
                main(infile)


def test_a_worker_whose_stream_is_not_found_goes_on_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert list(whole(iter([BATCH]))) == [BATCH]
    assert ["does not show whether" in each for each in connector_messages(caplog)] == [True]
