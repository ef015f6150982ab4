"""A stream as a table: the latest value of every key, kept up to date. `client.table("prices")`.

A table reads its stream from the start and follows it; what it holds is what its stream said up to
`position`. A null value (a tombstone) deletes its key, records without a key are passed over. It
does best on a stream with `compact`, whose log is hardly longer than its table.

While no server answers a table stays as it is and goes on trying. When it cannot go on (the stream
is deleted, retention was quicker, committed records were lost) every look into it raises why: a
table is never silently out of date for good.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping

from jetstream_client._closing import AsyncClosing, Closing
from jetstream_client._consume import AsyncConsumer
from jetstream_client._loop_thread import LoopThread
from jetstream_client._messages import Messages
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError

_RETRY_SECONDS = 0.5


class Rows(Mapping[bytes, bytes]):
    """What both tables are: a mapping that another thread may be changing.

    Keys are bytes; looking one up, text stands for its UTF-8. position: the offset up to which it
    is, exclusive.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self.position = 0
        self.failure: JetstreamError | None = None

    def apply(self, messages: Messages) -> None:
        """Bring it up to the end of `messages`."""
        rows = self._rows
        for chunk in messages.chunks:
            for key, value in zip(chunk.keys(), chunk.values(), strict=True):
                if key is None:
                    continue
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
        self.position = messages.next_offset

    def _current(self) -> dict[bytes, bytes]:
        if self.failure is not None:
            raise self.failure
        return self._rows

    def __getitem__(self, key: bytes | str) -> bytes:
        return self._current()[key.encode() if isinstance(key, str) else key]

    def __contains__(self, key: object) -> bool:
        return (key.encode() if isinstance(key, str) else key) in self._current()

    def __iter__(self) -> Iterator[bytes]:
        # A copy, made at once: the table may grow while somebody walks over it.
        return iter(list(self._current()))

    def __len__(self) -> int:
        return len(self._current())

    def snapshot(self) -> dict[bytes, bytes]:
        """A copy that stays as it is."""
        return dict(self._current())


class AsyncTable(Rows, AsyncClosing):
    """See AsyncClient.table. `async with`, or the first `wait_until_current`, begins it."""

    def __init__(self, consumer: AsyncConsumer, latest: Callable[[], Awaitable[int]]) -> None:
        super().__init__()
        self._consumer = consumer
        self._latest = latest
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def begin(self) -> None:
        """Begin to follow. Idempotent. Raises StreamNotFoundError."""
        if self._task is None and self.failure is None:
            await self._consumer.begin()
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def wait_until_current(self, timeout: float | None = None) -> None:
        """Wait until the table has all that is committed now.

        Raises UnavailableError when that takes longer than `timeout` seconds.
        """
        await self.begin()
        try:
            async with asyncio.timeout(timeout):
                target = await self._latest()
                if self.failure is None and self.position < target:
                    reached = asyncio.get_running_loop().create_future()
                    self._waiting.append((target, reached))
                    await reached
        except TimeoutError as error:
            raise UnavailableError(f"the table is at {self.position} after {timeout} s") from error
        self._current()

    async def _follow(self) -> None:
        while True:
            try:
                messages = await self._consumer.next_messages()
            except JetstreamError as error:
                if not error.retriable:
                    self._end(error)
                    return
                await asyncio.sleep(_RETRY_SECONDS * (0.5 + random.random()))
                continue
            if messages is None:
                self._end(InvalidRequestError("the table is closed"))
                return
            self.apply(messages)
            self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for target, reached in waiting:
            if self.failure is None and self.position < target:
                self._waiting.append((target, reached))
            elif not reached.done():
                reached.set_result(None)

    def _end(self, error: JetstreamError) -> None:
        self.failure = self.failure or error
        self._tell()

    async def aclose(self) -> None:
        """Stop following; from now on the table raises. Idempotent."""
        await self._consumer.aclose()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end(InvalidRequestError("the table is closed"))


class Table(Mapping[bytes, bytes], Closing):
    """See AsyncClient.table. Any thread may look into it; `with` or `close()` ends it."""

    def __init__(self, thread: LoopThread, table: AsyncTable) -> None:
        self._thread = thread
        self._table = table

    @property
    def position(self) -> int:
        """The offset up to which the table is, exclusive."""
        return self._table.position

    def wait_until_current(self, timeout: float | None = None) -> None:
        """See AsyncTable.wait_until_current."""
        self._thread.run(self._table.wait_until_current(timeout))

    def snapshot(self) -> dict[bytes, bytes]:
        """A copy that stays as it is."""
        return self._table.snapshot()

    def __getitem__(self, key: bytes | str) -> bytes:
        return self._table[key]

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def close(self) -> None:
        """Stop following; from now on the table raises. Idempotent."""
        if self._thread.is_running:
            self._thread.run(self._table.aclose())
