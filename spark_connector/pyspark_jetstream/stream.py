"""Streaming reads: Spark's micro-batches over the follower's answers.

On the driver, one Python process per query keeps one reader. Tasks get pickled copies in other
processes, which only call `read`. So everything that lasts is made at its first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_jetstream.admission import Limits
from pyspark_jetstream.batch import Task
from pyspark_jetstream.checkpoint import Offsets
from pyspark_jetstream.clients import asked_now
from pyspark_jetstream.errors import START_ANEW, OptionError, explained
from pyspark_jetstream.following import Follower
from pyspark_jetstream.options import ReadOptions
from pyspark_jetstream.ranges import Range, tasks
from pyspark_jetstream.scan import Scan
from pyspark_jetstream.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark 4.0 and 4.1 have no admission control.
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True

NO_MAXIMUM = 2**63 - 1

_T = TypeVar("_T")


class JetstreamStreamReader(DataSourceStreamReader):
    """Without admission control: every batch takes all records that exist."""

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        """schema: the columns that Spark wants; None: those that every stream has."""
        self.options = options
        self.scan = replace(Scan.of(options, schema), after_loss=START_ANEW)
        self._runner: asyncio.Runner | None = None
        self._follower: Follower | None = None
        self._initial: Offsets | None = None
        self._position: Offsets | None = None
        self._targets: dict[int, int] | None = None

    def _ask(self, question: Coroutine[Any, Any, _T]) -> _T:
        assert self._runner is not None
        with explained(self.options.servers):
            return self._runner.run(question)

    @property
    def follower(self) -> Follower:
        if self._follower is None:
            self._runner = self._runner or asyncio.Runner()
            # Servers that all refuse connections are not waited for as long as others.
            self._ask(asked_now(self.options.config, lambda client: client.describe_cluster()))
            self._follower = Follower(self.options)
        return self._follower

    def initialOffset(self) -> dict[str, Any]:
        """The initial offsets. The same each time: Spark asks more than once."""
        follower = self.follower
        if self._initial is None:
            self._initial = self._ask(follower.initial())
        return self._initial.to_json()

    def latestOffset(
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next batch. PySpark passes `start` and `limit` from version 4.2 on."""
        follower = self.follower
        before = self._position or self._initial if start is None else Offsets.from_json(start)
        limits = self._limits(limit)
        self._position = self._ask(follower.next_offsets(before, limits, self._targets))
        if self._position is before and start is not None:
            return dict(start)  # Exactly the same: Spark compares text.
        return self._position.to_json()

    def _limits(self, limit: Any) -> Limits:
        return Limits(0, 0, 0.0)

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        follower = self.follower
        begin, stop = Offsets.from_json(start), Offsets.from_json(end)
        self._position = stop
        follower.check_losses(begin, stop)
        starts = {number: begin.start_of(number, stop) for number in stop.streams}
        unknown = [number for number, offset in starts.items() if offset is None]
        if unknown:
            starts |= self._ask(follower.earliest(unknown))
        parts = []
        for number, mark in stop.streams.items():
            offset = starts[number]
            if offset is None:
                continue  # Deleted.
            seen = begin.streams.get(number)
            epoch = seen.epoch if seen is not None and seen.offset == offset else -1
            parts.append(Range(number, mark.name, offset, mark.offset, epoch, mark.epoch))
        options = self.options
        found = tasks(parts, options.min_partitions, options.max_records_per_partition)
        return [Task(parts) for parts in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.scan.read(partition.value)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Show the position by a cursor. Spark's checkpoint decides where the query continues."""
        if self.options.cursor:
            self._ask(self.follower.show(self.options.cursor, Offsets.from_json(end)))

    def stop(self) -> None:
        follower, runner = self._follower, self._runner
        self._follower = self._runner = None
        if runner is not None:
            with runner:
                if follower is not None:
                    runner.run(follower.close())


if HAS_ADMISSION_CONTROL:

    class AdmittingStreamReader(JetstreamStreamReader, SupportsTriggerAvailableNow):
        """With admission control, and a trigger that stops at the end that it finds when it
        begins."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return a maximum even if only a minimum is wanted: any other limit then comes from a
            trigger that wants all records at once."""
            options = self.options
            if options.max_offsets_per_trigger or options.min_offsets_per_trigger:
                return ReadMaxRows(options.max_offsets_per_trigger or NO_MAXIMUM)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            self._targets = self._ask(self.follower.targets())

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """The latest offsets. The lag is this minus a batch's end, for each stream."""
            latest = self.follower.latest
            if not latest:
                return None
            names = self.follower.names
            return {
                "streams": {
                    str(number): {"name": names[number], "offset": end}
                    for number, end in latest.items()
                }
            }

        def _limits(self, limit: Any) -> Limits:
            options = self.options
            if not isinstance(limit, ReadMaxRows):
                return Limits(0, 0, 0.0)
            if self._targets is not None:
                return Limits(limit.max_rows, 0, 0.0)
            minimum = options.min_offsets_per_trigger
            return Limits(limit.max_rows, minimum, options.max_trigger_delay)


class RefusedStreamReader(DataSourceStreamReader):
    """For wrong options: raises their error at Spark's first question."""

    def __init__(self, message: str) -> None:
        self.message = message

    def _refuse(self) -> NoReturn:
        raise OptionError(self.message)

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        self._refuse()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()


def stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """Make the reader. Raises OptionError for what this PySpark cannot do."""
    check_schema(schema, options.columns, options.typed)
    if HAS_ADMISSION_CONTROL:
        return AdmittingStreamReader(options, schema)
    if options.max_offsets_per_trigger or options.min_offsets_per_trigger:
        raise OptionError(
            "maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2 or newer: upgrade, or "
            "leave them out"
        )
    return JetstreamStreamReader(options, schema)
