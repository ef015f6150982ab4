"""A range of a stream as Arrow record batches: `client.scan("orders")`.

A scan is a range, not a position: start and stop are resolved once, and it can be read again and
again, each time from its start. A reading returns every record of the range or fails. Only if the
start was no offset may a later reading begin at a later record, because retention may have removed
the first ones. Only if the stop is "latest" may a reading of a compacted stream go on to later
records: where compaction was faster, a reading would miss keys otherwise. The first answer fixes
the stream's id, as for a consumer.

Batches are returned as they are fetched, with the next fetch under way, so a scan takes the memory
of two fetches no matter how long the stream is. Nothing is done per row in Python, and every buffer
is validated before Arrow sees it (`_arrow`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from jetstream_client._closing import ClientClosedError
from jetstream_client._loop_thread import CallersLoop, LoopThread
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.dataframes import to_pandas, to_polars
from jetstream_client.values.checks import names_in
from jetstream_client.values.positions import Position

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from jetstream_client.reading.messages import Messages
    from jetstream_client.reading.typed import ConditionalDecoder, Decoder
    from jetstream_protocol.schema import Schema


class AsyncScan:
    """`async for batch in scan` gives record batches with the columns of `Messages.to_arrow()`.

    start, stop: the offsets once `begin` or the first reading has resolved them; None before.
    schema: of every batch; a typed one learns it then, too.
    """

    def __init__(
        self,
        consume: Callable[[Position, Position, bool], AsyncConsumer],
        start: Position,
        stop: Position,
        rows: int,
        columns: Iterable[str] | None,
        decoder: Callable[[list[str] | None], Awaitable[Decoder]] | None = None,
    ) -> None:
        from jetstream_client.reading.arrow import schema_of

        self._columns = None if columns is None else names_in("columns", columns)
        self._find_decoder = decoder
        self._decoder: Decoder | ConditionalDecoder | None = None
        self.schema: pyarrow.Schema = schema_of(None if decoder else self._columns)
        self.start: int | None = None
        self.stop: int | None = None
        self.rows = rows
        self._consume = consume
        self._wanted = (start, stop, isinstance(start, int))

    def __repr__(self) -> str:
        return f"<AsyncScan of offsets [{self.start}, {self.stop})>"

    async def begin(self) -> None:
        """Resolve start and stop. Idempotent."""
        if self._find_decoder is not None and self._decoder is None:
            self._decoder = await self._find_decoder(self._columns)
            self.schema = self._decoder.schema
        if self.start is None:
            consumer = self._consume(*self._wanted)
            await consumer.begin()
            if consumer.position is None:
                raise ClientClosedError("the client was closed while the scan began")
            self.start, self.stop = consumer.position, consumer.stop
            await consumer.aclose()

    async def open(self) -> AsyncConsumer:
        """A consumer of the range, of the reader's own."""
        await self.begin()
        assert self.start is not None
        assert self.stop is not None
        consumer = self._consume(self.start, max(self.start, self.stop), self._wanted[2])
        consumer.stop_may_move = self._wanted[1] == "latest"
        return consumer

    async def __aiter__(self) -> AsyncGenerator[pyarrow.RecordBatch, None]:
        consumer = await self.open()
        try:
            async for messages in consumer.batches():
                for batch in self.batches_of(messages):
                    yield batch
        finally:
            await consumer.aclose()

    def narrowed(self, columns: Sequence[str], schema: Schema, condition: Any) -> AsyncScan:
        """The same range with other columns, which may be fields of the schema, and of records that
        meet a condition of pyarrow; None: of all."""
        from jetstream_client.reading.typed import ConditionalDecoder

        other = copy(self)
        other._find_decoder = None
        other._decoder = ConditionalDecoder(schema, columns, condition)
        other.schema = other._decoder.schema
        return other

    def batches_of(self, messages: Messages) -> Iterator[pyarrow.RecordBatch]:
        """The record batches of what was fetched."""
        if self._decoder is not None:
            return self._decoder.batches(messages, self.rows)
        return messages.iter_batches(self.rows, self.schema.names)

    async def to_table(self) -> pyarrow.Table:
        """The whole range as a pyarrow table, in memory."""
        import pyarrow

        batches = [batch async for batch in self]
        return pyarrow.Table.from_batches(batches, self.schema)

    async def to_polars(self) -> polars.DataFrame:
        """The whole range as a Polars frame. Needs polars."""
        return to_polars(await self.to_table())

    async def to_pandas(self) -> pandas.DataFrame:
        """The whole range as a pandas frame. Needs pandas."""
        return to_pandas(await self.to_table())


class Scan:
    """`for batch in scan` gives record batches with the columns of `Messages.to_arrow()`; engines
    that take Arrow streams can read it, too.

    DuckDB queries the variable itself (`duckdb.sql("select count(*) from scan")`), Polars takes it
    as `polars.DataFrame(scan)`, pyarrow as `pyarrow.table(scan)`: all use `__arrow_c_stream__`. If
    a reading is abandoned in the middle, its fetching ahead ends.
    """

    def __init__(self, thread: LoopThread | CallersLoop, scan: AsyncScan) -> None:
        assert scan.start is not None
        assert scan.stop is not None
        self._thread = thread
        self._scan = scan
        self.schema = scan.schema
        self.start = scan.start
        self.stop = scan.stop

    def __repr__(self) -> str:
        return f"<Scan of offsets [{self.start}, {self.stop})>"

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        consumer = self._thread.run(self._scan.open())
        try:
            while (messages := self._thread.run(consumer.next_messages())) is not None:
                yield from self._scan.batches_of(messages)
        finally:
            # The garbage collector may run this in any thread, also where waiting is impossible.
            self._thread.post(consumer.aclose())

    def narrowed(self, columns: Sequence[str], schema: Schema, condition: Any) -> Scan:
        """The same range with other columns, which may be fields of the schema, and of records that
        meet a condition of pyarrow; None: of all."""
        return Scan(self._thread, self._scan.narrowed(columns, schema, condition))

    def reader(self) -> pyarrow.RecordBatchReader:
        """A pyarrow.RecordBatchReader for one reading. Arrow turns errors of the SDK into
        its own."""
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pyarrow.Table:
        """The whole range as a pyarrow table, in memory."""
        import pyarrow

        return pyarrow.Table.from_batches(iter(self), self.schema)

    def to_polars(self) -> polars.DataFrame:
        """The whole range as a Polars frame. Needs polars."""
        return to_polars(self.to_table())

    def to_pandas(self) -> pandas.DataFrame:
        """The whole range as a pandas frame. Needs pandas."""
        return to_pandas(self.to_table())

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """The Arrow PyCapsule interface: a separate reading for each engine that asks."""
        return self.reader().__arrow_c_stream__(requested_schema)
