"""A range of a stream as Arrow record batches: `client.scan("orders")`.

A scan is a range, not a position: where it begins and stops is settled once, and it may be read as
often as one likes, each time from its start. A reading brings every record of the range or fails;
only where the start was said in words may a later reading begin at a later record: retention may
have removed the first ones. The first answer pins the stream's id, as for a consumer.

Batches come one after the other as they are fetched, the next fetch under way meanwhile, so a scan
takes the memory of two fetches however long the stream is. Nothing is done per row in Python, and
every buffer is validated before Arrow sees it (`_arrow`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jetstream_client._consume import AsyncConsumer
from jetstream_client._loop_thread import LoopThread
from jetstream_client._positions import Position

if TYPE_CHECKING:
    import pyarrow


class AsyncScan:
    """`async for batch in scan`: record batches of the columns of `Messages.to_arrow()`.

    start, stop: the offsets once they are settled, by `begin` or the first reading; None before.
    schema: of every batch.
    """

    def __init__(
        self,
        consume: Callable[[Position, Position, bool], AsyncConsumer],
        start: Position,
        stop: Position,
        rows: int,
        columns: Iterable[str] | None,
    ) -> None:
        from jetstream_client._arrow import schema_of  # Without pyarrow it fails here.

        self.schema: pyarrow.Schema = schema_of(columns)
        self.start: int | None = None
        self.stop: int | None = None
        self.rows = rows
        self._consume = consume
        self._wanted = (start, stop, isinstance(start, int))

    async def begin(self) -> None:
        """Settle where it begins and stops. Idempotent."""
        if self.start is None:
            consumer = self._consume(*self._wanted)
            await consumer.begin()
            self.start, self.stop = consumer.position, consumer.stop
            await consumer.aclose()

    async def open(self) -> AsyncConsumer:
        """A consumer of the range, of the reader's own."""
        await self.begin()
        assert self.start is not None
        assert self.stop is not None
        return self._consume(self.start, max(self.start, self.stop), self._wanted[2])

    async def __aiter__(self) -> AsyncGenerator[pyarrow.RecordBatch, None]:
        consumer = await self.open()
        try:
            async for messages in consumer.batches():
                for batch in messages.iter_batches(self.rows, self.schema.names):
                    yield batch
        finally:
            await consumer.aclose()

    async def to_table(self) -> pyarrow.Table:
        """The whole range in memory."""
        import pyarrow

        return pyarrow.Table.from_batches([batch async for batch in self], self.schema)


class Scan:
    """`for batch in scan`: the same without asyncio, and for engines that take Arrow streams.

    DuckDB queries the variable itself (`duckdb.sql("select count(*) from scan")`), Polars takes it
    as `polars.DataFrame(scan)`, pyarrow as `pyarrow.table(scan)`: all by `__arrow_c_stream__`.
    A reading abandoned in the middle ends its fetching ahead.
    """

    def __init__(self, thread: LoopThread, scan: AsyncScan) -> None:
        assert scan.start is not None
        assert scan.stop is not None
        self._thread = thread
        self._scan = scan
        self.schema = scan.schema
        self.start = scan.start
        self.stop = scan.stop

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        consumer = self._thread.run(self._scan.open())
        try:
            while (messages := self._thread.run(consumer.next_messages())) is not None:
                yield from messages.iter_batches(self._scan.rows, self.schema.names)
        finally:
            # A garbage collector may run this in any thread, also where waiting is impossible.
            self._thread.post(consumer.aclose())

    def reader(self) -> pyarrow.RecordBatchReader:
        """One reading. Errors of the SDK come out of it as what Arrow makes of them."""
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pyarrow.Table:
        """The whole range in memory."""
        import pyarrow

        return pyarrow.Table.from_batches(iter(self), self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """The Arrow PyCapsule interface: a reading of its own for each engine that asks."""
        return self.reader().__arrow_c_stream__(requested_schema)
