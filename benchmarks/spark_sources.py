"""What the Spark connector is measured against: sources for Spark's Python Data Source API.

* The ceiling yields one prebuilt record batch again and again: no network, no decoding, nothing a
  connector could be faster than.
* The tuples are the connector's own rows as Python tuples, which is what the API asks of a source
  that knows nothing of Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyspark_jetstream.batch import JetstreamReader
from pyspark_jetstream.options import NAMES_OF_COLUMNS, read_options
from pyspark_jetstream.scan import ROWS
from pyspark_jetstream.schema import read_schema
from pyspark_jetstream.source import JetstreamDataSource
from pyspark_jetstream.stream import JetstreamStreamReader


def prebuilt(size: int) -> pa.RecordBatch:
    """`ROWS` rows in the connector's columns, with values of `size` bytes."""
    return pa.record_batch(
        [
            pa.repeat("bench", ROWS),
            pa.repeat("bench.x", ROWS),
            pa.array(range(ROWS), pa.int64()),
            pa.repeat(pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC")), ROWS),
            pa.nulls(ROWS, pa.binary()),
            pa.array([bytes(size)] * ROWS, pa.binary()),
        ],
        names=read_schema(NAMES_OF_COLUMNS).names,
    )


class CeilingSource(DataSource):
    """Options rows, size, partitions."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return read_schema(NAMES_OF_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CeilingStreamReader(self.options)


class _Repeating:
    """The same batch as often as a partition wants rows."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.rows, self.size = int(options["rows"]), int(options["size"])
        self.count = int(options["partitions"])

    def parts(self, rows: int) -> Sequence[InputPartition]:
        return [InputPartition(rows // self.count)] * self.count

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = prebuilt(self.size)
        for _ in range(partition.value // ROWS):
            yield batch


class CeilingReader(_Repeating, DataSourceReader):
    """All rows in one read."""

    def partitions(self) -> Sequence[InputPartition]:
        return self.parts(self.rows)


class CeilingStreamReader(_Repeating, DataSourceStreamReader):
    """All rows in the first batch, and nothing after it."""

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {"rows": self.rows}

    def partitions(
        self, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Sequence[InputPartition]:
        return self.parts(end["rows"] - start["rows"])


class TupleSource(JetstreamDataSource):
    """The connector, a row at a time."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(read_options(self.options, "batch"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TupleStreamReader(read_options(self.options, "stream"))


def tuples(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TupleReader(JetstreamReader):
    """Plans as the connector does."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return tuples(super().read(partition))


class TupleStreamReader(JetstreamStreamReader):
    """The same of a streaming read."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return tuples(super().read(partition))
