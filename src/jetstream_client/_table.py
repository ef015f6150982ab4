"""A stream as a table: the latest value of every key, kept up to date. `client.table("prices")`.

A table reads its stream from the start and follows it; what it holds is what its stream said up to
`position`. A null value (a tombstone) deletes its key, records without a key are passed over. It
does best on a stream with `compact`, whose log is hardly longer than its table.

A table is handed out when it has all that was committed then. While no server answers it stays as
it is and goes on trying: `is_current`, `lag` and `heard_at` say so, and with `stale_after` every
look into it raises. When it cannot go on (the stream is deleted, retention was quicker, committed
records were lost) every look into it raises why: a table is never silently out of date for good.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jetstream_client._closing import AsyncClosing, Closing
from jetstream_client._consume import AsyncConsumer
from jetstream_client._loop_thread import LoopThread
from jetstream_client._messages import Messages
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError

if TYPE_CHECKING:
    from typing import Self

_RETRY_SECONDS = 0.5
_WAIT_SECONDS = 2.0
"""So often a server answers although there is nothing new: it is heard to be there."""
_SILENCE_SECONDS = 2 * _WAIT_SECONDS


class Rows(Mapping[bytes, bytes]):
    """What both tables are: a mapping that another thread may be changing.

    Keys are bytes; looking one up, text stands for its UTF-8. position: the offset up to which it
    is, exclusive. stale_after: seconds without an answer after which it raises; None: never.
    """

    def __init__(self, stale_after: float | None = None) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._stale_after = stale_after
        self._high_watermark = 0
        self._heard = float("-inf")  # by the monotonic clock
        self.position = 0
        self.failure: JetstreamError | None = None
        self.heard_at: datetime | None = None
        """When a server last answered; None: none has yet."""
        self.trouble: JetstreamError | None = None
        """Why none does now, as far as that is known."""

    @property
    def lag(self) -> int | None:
        """How many offsets it was behind what was committed, when a server last answered; None:
        none has yet."""
        return None if self.heard_at is None else max(0, self._high_watermark - self.position)

    @property
    def is_current(self) -> bool:
        """It has all that is committed, as a server in touch has said within the last seconds."""
        in_touch = self.trouble is None and self._silence() < _SILENCE_SECONDS
        return self.failure is None and self.lag == 0 and in_touch

    def _silence(self) -> float:
        return time.monotonic() - self._heard

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
        self._heard_of(messages.high_watermark)

    def _heard_of(self, high_watermark: int) -> None:
        """A server has answered: committed is what is below that."""
        self._high_watermark = high_watermark
        self._heard, self.heard_at, self.trouble = time.monotonic(), datetime.now(UTC), None

    def _current(self) -> dict[bytes, bytes]:
        if self.failure is not None:
            raise self.failure
        if self._stale_after is not None and self._silence() > self._stale_after:
            reason = f": {self.trouble.message}" if self.trouble else ""
            raise UnavailableError(
                f"the table is stale: no server has answered since {self.heard_at}{reason}"
            )
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

    def __init__(
        self,
        consumer: AsyncConsumer,
        latest: Callable[[], Awaitable[int]],
        *,
        wait: bool,
        patience: float,
        stale_after: float | None,
    ) -> None:
        super().__init__(stale_after)
        self._wait = wait
        self._patience = patience
        self._consumer = consumer
        consumer.wait_max = _WAIT_SECONDS
        self._latest = latest
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def begin(self) -> None:
        """Begin to follow. Idempotent. Raises StreamNotFoundError."""
        if self._task is None and self.failure is None:
            await self._consumer.begin()
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def opened(self) -> Self:
        """Begin, and read to the end that is found, unless that was not to be waited for.

        Raises UnavailableError when nothing comes for the client's timeout.
        """
        await self.begin()
        while self._wait:
            before = self.position
            try:
                await self.wait_until_current(self._patience)
            except UnavailableError:
                if self.position > before:
                    continue  # It is long, and comes.
                await self.aclose()
                raise
            break
        return self

    async def __aenter__(self) -> Self:
        return await self.opened()

    async def wait_until_current(self, timeout: float | None = None) -> None:
        """Wait until the table has all that is committed now.

        Raises UnavailableError when that takes longer than `timeout` seconds.
        """
        await self.begin()
        try:
            async with asyncio.timeout(timeout):
                target = await self._latest()
                self._heard_of(target)
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
                self.trouble = error
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

    @property
    def lag(self) -> int | None:
        """How many offsets it was behind what was committed, when a server last answered; None:
        none has yet."""
        return self._table.lag

    @property
    def is_current(self) -> bool:
        """It has all that is committed, as a server in touch has said within the last seconds."""
        return self._table.is_current

    @property
    def heard_at(self) -> datetime | None:
        """When a server last answered; None: none has yet."""
        return self._table.heard_at

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
