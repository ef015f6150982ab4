"""A query of an asynchronous client, in a thread of its own: DuckDB blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from jetstream_client._loop_thread import CallersLoop
from jetstream_client.reading.scan import AsyncScan, Scan
from jetstream_client.sql.query import Query, Streams
from jetstream_client.values.positions import Position
from jetstream_client.values.types import Stream, StreamLike, StreamSchema

if TYPE_CHECKING:
    import pyarrow

AGAIN_SECONDS = 0.05


class AsyncStreams(Protocol):
    """What a query asks an `AsyncClient` for."""

    async def list_streams(self, *, internal: bool = False) -> list[Stream]: ...

    async def describe_schema(self, stream: StreamLike) -> StreamSchema: ...

    def scan(self, *args: Any, **kwargs: Any) -> AsyncScan: ...


class _Streams:
    """The same, for another thread."""

    def __init__(self, client: AsyncStreams, loop: CallersLoop) -> None:
        self._client = client
        self._loop = loop

    def list_streams(self, *, internal: bool = False) -> list[Stream]:
        return self._loop.run(self._client.list_streams(internal=internal))

    def describe_schema(self, stream: StreamLike) -> StreamSchema:
        return self._loop.run(self._client.describe_schema(stream))

    def scan(self, stream: StreamLike, *positions: Position, **options: Any) -> Scan:
        async def begun() -> AsyncScan:
            scan = self._client.scan(stream, *positions, **options)
            await scan.begin()
            return scan

        return Scan(self._loop, self._loop.run(begun()))


async def answer(client: AsyncStreams, make: Callable[[Streams], Query]) -> pyarrow.Table:
    """What a query answers. make: it, from what it asks. If this is cancelled, the query ends soon
    after."""
    loop = CallersLoop()
    made: list[Query] = []

    def run() -> pyarrow.Table:
        query = make(_Streams(client, loop))
        made.append(query)
        with query.answer() as answer:
            return answer.read_all()

    # No thread of the loop's own: those find addresses for the connections that this waits for.
    pool = ThreadPoolExecutor(1, "jetstream-sql")
    running = pool.submit(run)
    try:
        return await asyncio.wrap_future(running)
    except BaseException:
        if not running.done():
            Thread(target=_end, args=(running, made), name="jetstream-sql-end", daemon=True).start()
        raise
    finally:
        loop.end()
        pool.shutdown(wait=False)


def _end(running: Future[pyarrow.Table], made: list[Query]) -> None:
    """Interrupt until it has ended: DuckDB forgets what comes before a query begins."""
    while not running.done():
        for query in made:
            query.interrupt()
        wait([running], AGAIN_SECONDS)
