"""Reading a stream on and on: `async for message in client.consume(…)`.

The next fetch is under way while the records of the last are handed out. The first answer pins
the stream's id: should the stream be deleted and another made under its name, the consumer ends
with StreamNotFoundError rather than read on in a stranger. An offset that retention has passed by
is OffsetOutOfRangeError, never a silent jump. A start said in other words ("earliest", a time, the
last N) means the first record still there: it follows retention until the first record has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from jetstream_client._closing import AsyncClosing
from jetstream_client._messages import Message, Messages
from jetstream_protocol.errors import JetstreamError, OffsetOutOfRangeError, UnavailableError

if TYPE_CHECKING:
    from typing import Self

WAIT_SECONDS = 20.0
"""How long one fetch waits for records; then it is asked anew. Only idle streams see it."""


class Fetch(Protocol):
    """How a consumer gets its records: bound to one stream by the client."""

    def __call__(
        self, offset: int, last_epoch: int, stop: int | None, max_wait: float
    ) -> Awaitable[Messages]: ...


class AsyncConsumer(AsyncClosing):
    """An endless async iterator of messages, or one that ends before its stop.

    resolve: where to begin and to stop (None: never). pinned: the beginning was given as an offset.
    last_epoch: as in AsyncClient.fetch. patience: seconds without a record after which it raises
    UnavailableError; None: none, it waits.

    Entering it (`async with`) or the first record asked for settles where it begins. `position`
    is the offset of the next record it will hand out; None before that.
    """

    def __init__(
        self,
        fetch: Fetch,
        resolve: Callable[[], Awaitable[tuple[int, int | None]]],
        *,
        pinned: bool,
        last_epoch: int = -1,
        patience: float | None = None,
    ) -> None:
        self._fetch = fetch
        self._resolve = resolve
        self._pinned = pinned
        self._stop: int | None = None
        self._patience = patience
        self._waited = 0.0
        self._began = False
        self._closed = False
        self._next_offset = 0
        self._last_epoch = last_epoch
        self._ahead: asyncio.Future[Messages] | None = None
        self._batch: list[Message] = []  # the last fetch, in reverse: pop() hands out in order
        self.position: int | None = None
        self.wait_max = WAIT_SECONDS
        """How long a server may keep one question while there is nothing new."""

    @property
    def stop(self) -> int | None:
        """Where it stops; None: nowhere, or not settled yet."""
        return self._stop

    async def begin(self) -> None:
        """Settle where to begin and to stop. Idempotent."""
        if self._began:
            return
        self._next_offset, self._stop = await self._resolve()
        if self._stop is not None and self._next_offset > self._stop:
            # Behind the stop there is nothing to read; far behind it is a mistake.
            await self._fetch(self._next_offset, -1, None, 0.0)
        self.position = self._next_offset
        self._began = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._batch:
            messages = await self.next_messages()
            if messages is None:
                raise StopAsyncIteration
            self._batch = list(messages)
            self._batch.reverse()
        message = self._batch.pop()
        self.position = message.offset + 1
        return message

    async def batches(self) -> AsyncIterator[Messages]:
        """The same records as they were fetched: for `values()` and `to_arrow()`."""
        while (messages := await self.next_messages()) is not None:
            if len(messages):
                self.position = messages.next_offset
                yield messages

    async def next_messages(self) -> Messages | None:
        """What was fetched ahead, possibly nothing; None at the end. Fetches ahead again."""
        await self.begin()
        if self._closed or self._at_stop:
            return None
        if self._ahead is None:
            self._ahead = self._fetch_ahead()
        ahead = self._ahead
        try:
            # Shielded: a caller who waits with a timeout must not lose records by it.
            messages = await asyncio.shield(ahead)
        except OffsetOutOfRangeError as error:
            self._ahead = None
            if self._pinned or self._last_epoch >= 0:
                raise
            # Retention was quicker than our first fetch: the first record is a later one now.
            self._next_offset = max(error.log_start_offset, self._next_offset)
            return await self.next_messages()
        except asyncio.CancelledError:
            if _is_cancelled() or not ahead.cancelled():
                raise
            return None  # Closed while somebody waits in it: that is an end, not a failure.
        except JetstreamError:
            self._ahead = None  # Asked again, the fetch is tried again.
            raise
        self._check_patience(messages)
        self._next_offset = messages.next_offset
        self._last_epoch = messages.last_epoch
        self._ahead = None if self._closed or self._at_stop else self._fetch_ahead()
        return messages

    def _check_patience(self, messages: Messages) -> None:
        # Offsets that compaction emptied are progress, too.
        progress = messages.next_offset > self._next_offset
        self._waited = 0.0 if progress else self._waited + self._wait
        if self._patience is not None and self._waited >= self._patience:
            self._ahead = None
            raise UnavailableError(
                f"no record of {messages.stream!r} for {self._waited:.1f} s at offset "
                f"{messages.next_offset}: committed are those below {messages.high_watermark}"
            )

    @property
    def _wait(self) -> float:
        return self.wait_max if self._patience is None else min(self._patience, self.wait_max)

    @property
    def _at_stop(self) -> bool:
        return self._stop is not None and self._next_offset >= self._stop

    def _fetch_ahead(self) -> asyncio.Future[Messages]:
        fetched = self._fetch(self._next_offset, self._last_epoch, self._stop, self._wait)
        task = asyncio.ensure_future(fetched)
        task.add_done_callback(_retrieve)
        return task

    async def aclose(self) -> None:
        """Stop; a fetch under way is given up. Idempotent."""
        self._closed = True
        self._batch = []
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)


def _is_cancelled() -> bool:
    """Whether somebody cancelled the task that is running."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _retrieve(task: asyncio.Future[Messages]) -> None:
    """An abandoned consumer's failure is nobody's concern; asyncio would log it otherwise."""
    if not task.cancelled():
        task.exception()
