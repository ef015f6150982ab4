"""Batch reads: the records that exist when the query is planned, split into tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jetstream_client import AsyncClient
from pyspark_jetstream import planning
from pyspark_jetstream.clients import asked_now
from pyspark_jetstream.errors import OptionError, explained, naming
from pyspark_jetstream.options import ReadOptions
from pyspark_jetstream.ranges import Range, tasks
from pyspark_jetstream.scan import Scan
from pyspark_jetstream.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Task(InputPartition):
    """The ranges that one task reads. has_newer: also the records after them at the time of
    reading."""

    def __init__(self, parts: tuple[Range, ...], has_newer: bool = False) -> None:
        super().__init__(parts)
        self.has_newer = has_newer


class JetstreamReader(DataSourceReader):
    """Reads the records committed when the query is planned, or those up to the given ends. Spark
    plans a DataFrame or a view once and runs it each time it is used. With `refresh`, one more task
    reads the records appended since then, each time.
    """

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        """schema: the columns that Spark wants; None: those that every stream has."""
        self.options = options
        self.scan = Scan.of(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        with explained(self.options.servers):
            parts = asyncio.run(planned(self.options))
        found = tasks(parts, self.options.min_partitions, self.options.max_records_per_partition)
        planned_tasks = [Task(parts) for parts in found]
        if self.options.refresh:
            ends = tuple(replace(part, start=part.stop) for part in parts)
            planned_tasks.append(Task(ends, has_newer=True))
        # From an empty list Spark would make one task without a range.
        return planned_tasks or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        parts = partition.value
        if isinstance(partition, Task) and partition.has_newer:
            parts = self.scan.up_to_now(parts)
        return self.scan.read(parts)


async def planned(options: ReadOptions) -> list[Range]:
    """Resolve the options to ranges. Raises OptionError and the SDK's errors."""

    async def ask(client: AsyncClient) -> list[Range]:
        return await planning.settled(lambda: _planned(client, options), options.config.timeout)

    return await asked_now(options.config, ask)


async def _planned(client: AsyncClient, options: ReadOptions) -> list[Range]:
    listed = await client.list_streams()
    planning.check_names(listed, options.selection)
    planning.warn_of_subjects(listed, options.selection)
    streams = planning.select(listed, options.selection)
    planning.check_found(streams, options.selection)
    with naming({number: stream.full_name for number, stream in streams.items()}):
        known = await planning.held(client, streams)
        starts = await planning.resolve(client, streams, options.starting, known, options)
        stops = await planning.resolve(client, streams, options.ending, known, options)
    parts = []
    for number, stream in streams.items():
        start, stop = starts[number], stops[number]
        if start > stop and not _by_time(options):
            raise OptionError(
                f"stream {stream.full_name!r} would be read from offset {start} to {stop}: "
                f"{options.starting.option} must not lie after {options.ending.option}"
            )
        parts.append(Range(number, stream.full_name, start, stop))
    return parts


def _by_time(options: ReadOptions) -> bool:
    """Whether the range is given by times: one stream may have no record between them."""
    return "Timestamp" in options.starting.option + options.ending.option


def batch_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    check_schema(schema, options.columns, options.typed)
    return JetstreamReader(options, schema)
