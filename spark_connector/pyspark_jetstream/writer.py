"""Writes: every task publishes its rows, and waits until the streams have acknowledged them.

A task that was acknowledged in full is done. Any other task fails, and Spark runs it again. Rows
that a failed attempt has published stay published. So each batch carries an identity that a second
attempt repeats (`publish.Identity`), by which the server recognises it. The identity of a streaming
write is its query and micro-batch, also in a batch write inside `foreachBatch`. For another batch
write it is the options txnAppId and txnVersion; without them only attempts of the same write are
recognised.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from jetstream_client import AsyncClient, Stream
from jetstream_protocol.subjects import example_pattern, matches
from pyspark_jetstream.clients import asked_now
from pyspark_jetstream.ending import whole
from pyspark_jetstream.errors import OptionError, explained, log
from pyspark_jetstream.options import WriteOptions
from pyspark_jetstream.publish import Identity, publish
from pyspark_jetstream.rows import check_columns
from pyspark_jetstream.transactions import Reached, Target, begin, complete

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # PySpark 4.0 hands rows to streaming writers.
    HAS_STREAM_ARROW = False
else:
    HAS_STREAM_ARROW = True

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties of a streaming query's tasks."""

ROWS = 10_000
"""Rows put into one record batch if Spark passes single rows."""


class Published(WriterCommitMessage):
    """What a task has published. duplicates: how many of the rows were stored before. targets: the
    ids of the streams that have them, in a transaction."""

    def __init__(self, rows: int, duplicates: int, targets: frozenset[int] = frozenset()) -> None:
        self.rows = rows
        self.duplicates = duplicates
        self.targets = targets


def _counts(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """How many rows the tasks have published, and how many of them were stored before."""
    done = [each for each in messages if isinstance(each, Published)]
    return sum(each.rows for each in done), sum(each.duplicates for each in done)


class _Writer:
    """The common part of batch and streaming writers. Made on the driver, picklable."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.subject)
        if "subject" in schema.names:
            options = replace(options, subject="")
            if options.transaction is not None:
                options = replace(options, transaction=replace(options.transaction, subject=""))
        self.targets: tuple[Target, ...] = ()
        if options.subject or options.transaction:
            with explained(options.servers):
                self.targets = asyncio.run(begin_write(options))
        self.options = options
        self.schema = schema

    def published(self, batches: Iterator[pa.RecordBatch], run: str) -> Published:
        """Publish. run: names this write, the same in every attempt."""
        context = TaskContext.get()
        assert context is not None
        identity = Identity(run, context.partitionId())
        with explained(self.options.servers):
            reached = Reached(self.targets)
            rows, duplicates = publish(self.options, whole(batches), identity, reached)
        return Published(rows, duplicates, frozenset(reached.ids))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("jetstream").mode("append")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Made once, on the driver: all attempts of all tasks have it.
        self.run = str(options.transaction) if options.transaction else uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        run = self.run if self.options.transaction else micro_batch() or self.run
        return self.published(iterator, run)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        rows, duplicates = _counts(messages)
        if self.options.transaction:
            if duplicates:
                log.warning(
                    "%s: %d of its %d rows were stored before, by an earlier write of it",
                    self.options.transaction,
                    duplicates,
                    rows,
                )
            with explained(self.options.servers):
                asyncio.run(self._complete(messages, rows))
        elif duplicates:
            log.warning(
                "a write: %d of its %d rows were published before, by an attempt that failed or, "
                "inside foreachBatch, perhaps by another write with the same rows: if you want "
                "both, give each its own txnAppId",
                duplicates,
                rows,
            )

    async def _complete(self, messages: Sequence[WriterCommitMessage | None], rows: int) -> None:
        assert self.options.transaction is not None
        reached: set[int] = set()
        for message in messages:
            if isinstance(message, Published):
                reached |= message.targets
        if reached:
            targets = [each for each in self.targets if each.id in reached]
            async with AsyncClient.from_config(self.options.config) as client:
                await complete(client, self.options.transaction, targets, rows)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        done, _ = _counts(messages)
        log.warning("a write failed; at least %d rows of it are published and stay", done)


class _StreamWriter(_Writer):
    """`df.writeStream.format("jetstream")`."""

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> Published:
        run = micro_batch()
        if not run:
            raise OptionError("Spark does not say which query and batch this is: report a bug")
        return self.published(batches, run)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _, duplicates = _counts(messages)
        if duplicates:
            log.warning("batch %d: %d rows were published before", batchId, duplicates)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the failure. Published rows stay; Spark runs the batch again, and duplicates are
        found."""


class StreamRowWriter(_StreamWriter, DataSourceStreamWriter):
    """For PySpark 4.0."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self.write_batches(self._batches(iterator))

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema)
        waiting: list[dict[str, object]] = []
        for row in rows:
            waiting.append(row.asDict(recursive=True))
            if len(waiting) == ROWS:
                yield pa.RecordBatch.from_pylist(waiting, schema)
                waiting = []
        yield pa.RecordBatch.from_pylist(waiting, schema)


if HAS_STREAM_ARROW:

    class StreamArrowWriter(_StreamWriter, DataSourceStreamArrowWriter):
        """From PySpark 4.1 on."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self.write_batches(iterator)


def micro_batch() -> str:
    """The streaming query and batch that the task belongs to; "" if it belongs to none."""
    context = TaskContext.get()
    assert context is not None
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return f"{query}/{batch}" if query and batch else ""


async def begin_write(options: WriteOptions) -> tuple[Target, ...]:
    """What is known of the transaction in each stream; nothing without a transaction. Raises
    OptionError if no stream listens on the subject of all rows."""

    async def ask(client: AsyncClient) -> tuple[Target, ...]:
        streams = await client.list_streams()
        if options.subject:
            check_heard(streams, options.subject)
        if options.transaction is None:
            return ()
        return await begin(client, options.transaction, streams)

    return await asked_now(options.config, ask)


def check_heard(streams: Iterable[Stream], subject: str) -> None:
    if not any(matches(stream.subject, subject) for stream in streams):
        first = subject.partition(".")[0]
        raise OptionError(
            f"option subject: no stream listens on {subject!r}; create one, for example by "
            f"`jetstream stream create {first} --subject '{example_pattern(subject)}'`"
        )


def batch_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> BatchWriter:
    """Make the writer. Raises OptionError."""
    if overwrite:
        raise OptionError(
            "a stream cannot be overwritten, records are only added: use mode('append')"
        )
    return BatchWriter(options, schema)


def stream_writer(options: WriteOptions, schema: StructType) -> DataSourceStreamWriter:
    """Make the writer. Raises OptionError."""
    if options.transaction:
        raise OptionError(
            "a streaming write is known by its query and batch: leave txnAppId and txnVersion out"
        )
    if HAS_STREAM_ARROW:
        return StreamArrowWriter(options, schema)
    return StreamRowWriter(options, schema)
