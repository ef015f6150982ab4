"""Cuts a partition's rows into windows at places that only the rows decide.

Spark cuts them anywhere: `spark.sql.execution.arrow.maxRecordsPerBatch` and the version of Spark
decide where. The batches of a write are made from windows, so that they are the same in every
attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

ROWS = 10_000
"""Of a window. Spark's record batches have as many by default, and then nothing is copied."""

BYTES = 2 * 1024 * 1024
"""A window ends with the row whose values and keys reach this, if that comes first."""

ROW_BYTES = 32
"""Counted for a row in addition: more than the SDK counts, so that it cuts no batch."""


def windows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order. The last window may be shorter than the others."""
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, ROWS - rows)
            ends = pc.cumulative_sum(sizes_of(part))
            short = pc.sum(pc.less(ends, BYTES - size), min_count=0).as_py()
            part = part.slice(0, short + 1)
            parts.append(part)
            start += part.num_rows
            rows += part.num_rows
            size += ends[part.num_rows - 1].as_py()
            if rows == ROWS or size >= BYTES:
                yield _joined(parts)
                parts, rows, size = [], 0, 0
    if parts:
        yield _joined(parts)


def sizes_of(batch: pa.RecordBatch) -> pa.Array:
    """The bytes of each row, without its headers."""
    sizes = pa.repeat(pa.scalar(ROW_BYTES, pa.int64()), batch.num_rows)
    for name in ("value", "key"):
        if name in batch.schema.names:
            lengths = pc.binary_length(batch.column(name)).fill_null(0)
            sizes = pc.add(sizes, lengths.cast(pa.int64()))
    return sizes


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return whole
