"""Batch reads: what the streams hold when the query is planned, split into tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jetstream_client import AsyncClient
from pyspark_jetstream import planning
from pyspark_jetstream.errors import OptionError, explained, log
from pyspark_jetstream.filters import Comparison, clipped, taken
from pyspark_jetstream.options import ReadOptions
from pyspark_jetstream.ranges import Range, tasks
from pyspark_jetstream.scan import Scan
from pyspark_jetstream.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

HAS_PUSH_DOWN = hasattr(DataSourceReader, "pushFilters")
"""From PySpark 4.1 on."""


class Task(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, parts: tuple[Range, ...]) -> None:
        super().__init__(parts)


class JetstreamReader(DataSourceReader):
    """The rows are those committed when the query is planned, or up to the ends asked for."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.scan = Scan.of(options)
        self.comparisons: list[Comparison] = []

    def partitions(self) -> Sequence[InputPartition]:
        with explained(self.options.servers):
            parts = asyncio.run(planned(self.options))
        parts = [clipped(part, self.comparisons) for part in parts]
        found = tasks(parts, self.options.min_partitions, self.options.max_records_per_partition)
        # Of an empty list Spark makes one task with nothing to go by.
        return [Task(parts) for parts in found or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.scan.read(partition.value)


async def planned(options: ReadOptions) -> list[Range]:
    """From options to offsets. Raises OptionError and the SDK's errors."""
    async with AsyncClient.from_config(options.config) as client:
        streams = planning.select(await client.list_streams(), options.selection)
        planning.check_found(streams, options.selection)
        known = await planning.held(client, streams)
        starts = await planning.resolve(client, streams, options.starting, known, options)
        stops = await planning.resolve(client, streams, options.ending, known, options)
    parts = []
    for number, stream in streams.items():
        start, stop = starts[number], stops[number]
        if start > stop and not _by_time(options):
            raise OptionError(
                f"stream {stream.full_name!r} would be read from offset {start} to {stop}: "
                f"{options.starting.option} must not lie behind {options.ending.option}"
            )
        parts.append(Range(number, stream.full_name, start, stop))
    return parts


def _by_time(options: ReadOptions) -> bool:
    """Between two times there may be nothing in one stream and something in another."""
    return "Timestamp" in options.starting.option + options.ending.option


class PushDownReader(JetstreamReader):
    """Takes over the conditions it can evaluate.

    Behind an option, for two reasons. Spark refuses to read from a reader that offers this while
    the session has it off. And PySpark 4.1 to 4.3 keep what one query pushed down for all others
    over the same DataFrame: who uses it makes a `load()` for each query.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self.comparisons, left = taken(filters)
        self.scan = Scan.of(self.options, self.comparisons)
        if self.comparisons:
            log.warning("filters are pushed down: use this DataFrame in no other query")
        return left


def batch_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    check_schema(schema, options.include_headers)
    if not options.push_down_filters:
        return JetstreamReader(options)
    if not HAS_PUSH_DOWN:
        raise OptionError("pushDownFilters needs PySpark 4.1 or newer: upgrade, or leave it out")
    return PushDownReader(options)
