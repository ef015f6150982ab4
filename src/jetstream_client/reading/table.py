"""A stream as a table: the latest value of every key, kept up to date. `client.table("prices")`.

A table reads its stream from the start and follows it; it holds the result of all records up to
`position`. A null value (a tombstone) deletes its key; records without a key are skipped. It does
best on a stream with `compact`, whose log is hardly longer than its table.

A table is ready when it has everything that was committed at its start. While no server answers it
keeps its contents and goes on trying: `is_current`, `lag` and `heard_at` show that, and with
`stale_after` every access raises. One that was away for so long that it may have missed deletions
(table_build.py) keeps its contents, too, while it reads the stream from the start again. If it
cannot go on (the stream is deleted, retention was faster, committed records were lost) every access
raises the reason: a table is never silently out of date for ever.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from jetstream_client._closing import AsyncClosing, Closing, close_after, end_tasks
from jetstream_client._log import logger
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.deserializers import Deserializers, text_of
from jetstream_client.reading.messages import Messages
from jetstream_client.reading.table_build import Build
from jetstream_client.transport.recovery import Caller, repeats
from jetstream_client.values.type_variables import K, V
from jetstream_protocol.errors import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    UnavailableError,
)

_RETRY_SECONDS = 0.5
_WAIT_SECONDS = 2.0
"""How often a server answers although there is nothing new, so that the table knows that it is
there."""
_SILENCE_SECONDS = 2 * _WAIT_SECONDS
_boot_clock: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):  # Where there is none, a suspension is not noticed.
    _boot_clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
_AS_STORED: Deserializers[Any, Any] = Deserializers()


class Rows(Mapping[K, V]):
    """The base of both tables: a mapping that another thread may be changing.

    Keys and values are bytes, or what `deserializers` return. If keys are bytes, they can be looked
    up by text, too, which stands for its UTF-8. stale_after: seconds without an answer after which
    it raises; None: never.
    """

    def __init__(
        self, stale_after: float | None = None, deserializers: Deserializers[V, K] = _AS_STORED
    ) -> None:
        self._build = self._shown = Build(_boot_clock())
        """What is being read, and what is shown: another one while it is built anew."""
        self._deserializers = deserializers
        self._stale_after = stale_after
        self._high_watermark = 0
        self._heard = float("-inf")  # by the monotonic clock
        self.failure: JetstreamError | None = None
        self.heard_at: datetime | None = None
        """When a server last answered; None: none has yet."""
        self.trouble: JetstreamError | None = None
        """Why none answers now, as far as that is known."""

    @property
    def position(self) -> int:
        """The offset up to which records are applied, exclusive."""
        return self._shown.position

    @property
    def lag(self) -> int | None:
        """How many offsets it was behind the high watermark when a server last answered; None: none
        has answered yet. Too little right after an election: see `is_current`."""
        return None if self.heard_at is None else max(0, self._high_watermark - self.position)

    @property
    def is_current(self) -> bool:
        """Whether it has everything that is committed, by what a server answered in the last
        seconds.

        For a moment after an election, above all after a restart of all nodes, a leader may not
        know all that is committed, and does not say so here. `wait_until_current` waits until one
        knows.
        """
        in_touch = self.trouble is None and self._silence() < _SILENCE_SECONDS
        return self.failure is None and self.lag == 0 and in_touch and self._shown is self._build

    def _silence(self) -> float:
        return time.monotonic() - self._heard

    def apply(self, messages: Messages) -> None:
        """Bring it up to the end of `messages`. Raises what a deserialiser raises."""
        if self._deserializers:
            self._apply_deserialized(messages)
        else:
            self._apply_stored(messages)
        self._build.position = messages.next_offset
        if self._build.is_whole:
            self._shown = self._build
        self._heard_of(messages.high_watermark)

    def _apply_stored(self, messages: Messages) -> None:
        rows = self._build.rows
        for chunk in messages.chunks:
            for key, value in zip(chunk.keys(), chunk.values(), strict=True):
                if key is None:
                    continue
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value

    def _apply_deserialized(self, messages: Messages) -> None:
        rows = self._build.rows
        for stored in messages:
            if stored.key is None:
                continue
            message = self._deserializers.apply(stored)
            if stored.value is None:
                rows.pop(message.key, None)
            else:
                rows[message.key] = message.value

    def _heard_of(self, high_watermark: int) -> None:
        """A server has answered: committed is what is below that."""
        self._high_watermark = high_watermark
        self._heard, self.heard_at, self.trouble = time.monotonic(), datetime.now(UTC), None

    def _key(self, key: object) -> Any:
        return key.encode() if self._deserializers.key is None and isinstance(key, str) else key

    def _current(self) -> dict[K, V]:
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self._stale_after is not None and self._silence() > self._stale_after:
            reason = f": {self.trouble.message}" if self.trouble else ""
            raise UnavailableError(
                f"the table is stale: no server has answered since {self.heard_at}{reason}"
            )
        return self._shown.rows

    def __getitem__(self, key: K | str) -> V:
        return self._current()[self._key(key)]

    def __contains__(self, key: object) -> bool:
        return self._key(key) in self._current()

    def __iter__(self) -> Iterator[K]:
        # A copy: the table may grow while somebody iterates over it.
        return iter(list(self._current()))

    def __len__(self) -> int:
        return len(self._current())

    def snapshot(self) -> dict[K, V]:
        """A copy that does not change."""
        return dict(self._current())

    def __repr__(self) -> str:
        state = "current" if self.is_current else f"lag {self.lag}"
        if self.heard_at is not None and (self.trouble or self._silence() >= _SILENCE_SECONDS):
            state += f", no server has answered since {self.heard_at:%Y-%m-%dT%H:%M:%SZ}"
        if self.failure is not None:
            state = f"ended: {self.failure.message}"
        return f"<Table of {len(self._shown.rows)} keys at offset {self.position}, {state}>"


class AsyncTable(Rows[K, V], AsyncClosing):
    """A mapping from every key of a stream to its latest value; it follows the stream.

    `AsyncClient.table` makes it. `async with`, or the first `wait_until_current`, begins it. A null
    value deletes its key; records without a key are skipped.
    """

    def __init__(
        self,
        consumer: AsyncConsumer[V, K],
        latest: Callable[[], Awaitable[int]],
        grace: Callable[[], Awaitable[float]],
        *,
        wait: bool,
        patience: float,
        stale_after: float | None,
    ) -> None:
        super().__init__(stale_after, consumer.deserializers)
        self._wait = wait
        self._patience = patience
        self._consumer = consumer
        consumer.wait_max = _WAIT_SECONDS
        self._latest = latest
        self._grace = grace
        self._begins_anew = False
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def _current(self) -> dict[K, V]:
        if self._task is None and self.failure is None:  # It would seem to be empty.
            raise InvalidRequestError("the table has not begun: use it in `async with`")
        return super()._current()

    def __repr__(self) -> str:
        return super().__repr__().replace("Table", "AsyncTable", 1)

    async def begin(self) -> None:
        """Begin to follow. Idempotent. Raises StreamNotFoundError."""
        await self._consumer.begin()
        if self._task is None and self.failure is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def opened(self) -> Self:
        """Start, and read to the current end, unless `wait` is False. Raises UnavailableError when
        nothing comes for the client's timeout. A table that is not opened is closed.
        """
        try:
            await self.begin()
            while self._wait and not await self._is_loaded():
                pass
        except BaseException as error:  # Cancelled, too: nothing else would close it.
            await close_after(error, self.aclose())
            raise
        return self

    async def _is_loaded(self) -> bool:
        before = self._build, self._build.position
        try:
            await self.wait_until_current(self._patience)
        except UnavailableError:
            if (self._build, self._build.position) != before:
                return False  # It is long, but records keep coming.
            raise
        return True

    async def __aenter__(self) -> Self:
        return await self.opened()

    async def wait_until_current(self, timeout: float | None = None) -> None:
        """Wait until the table has everything that is committed now.

        Raises UnavailableError if that takes longer than `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.begin()
                target = await self._latest()
                self._heard_of(target)
                if self.failure is None and not self._has(target):
                    reached = asyncio.get_running_loop().create_future()
                    self._waiting.append((target, reached))
                    try:
                        await reached
                    finally:  # Also after a time limit: no caller waits for it any more.
                        self._waiting = [w for w in self._waiting if w[1] is not reached]
        except TimeoutError as error:
            raise UnavailableError(f"the table is at {self.position} after {timeout} s") from error
        self._current()

    def _has(self, target: int) -> bool:
        """Whether it has everything that is committed below an offset."""
        build = self._build
        return build is self._shown and build.is_whole and build.position >= target

    async def _next(self) -> Messages | None:
        if self._begins_anew:
            await self._consumer.seek("earliest")
            self._begins_anew = False
        if not self._build.has_answers:
            self._build.begun = _boot_clock()
        return await self._consumer.next_messages()

    async def _misses_deletions(self, messages: Messages) -> bool:
        """Whether compaction has removed tombstones that it should have seen."""
        if not self._build.take(messages):
            return False
        try:
            grace = await self._grace()
        except JetstreamError:
            grace = 0.0
        return not self._build.is_unharmed(messages, _boot_clock(), grace)

    async def _follow(self) -> None:
        while True:
            try:
                messages = await self._next()
            except JetstreamError as error:
                if not repeats(error, Caller.TABLE):
                    self._end(error)
                    return
                self.trouble = error
                await asyncio.sleep(_RETRY_SECONDS * (0.5 + random.random()))
                continue
            except Exception as error:  # noqa: BLE001  a bug of ours must not leave it out of date
                self._end(InternalError(f"following the stream failed: {error!r}"))
                return
            if messages is None:
                self._end(InvalidRequestError("the table is closed"))
                return
            if await self._misses_deletions(messages):
                logger.warning(
                    "table of %s at offset %d: compaction has removed tombstones that it has not "
                    "seen; the stream is read from the start again",
                    messages.stream, self._build.position,
                )  # fmt: skip
                self._build = Build(_boot_clock(), whole_from=self.position)
                self._begins_anew = True
                continue
            try:
                self.apply(messages)
            except Exception as error:  # noqa: BLE001 the program's own function raises what it likes
                self._end(_record_error(messages, error))
                return
            self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for target, reached in waiting:
            if self.failure is None and not self._has(target):
                self._waiting.append((target, reached))
            elif not reached.done():
                reached.set_result(None)

    def _end(self, error: JetstreamError) -> None:
        self.failure = self.failure or error
        self._tell()

    async def aclose(self) -> None:
        """Stop following; from now on the table raises. Idempotent."""
        try:
            await self._consumer.aclose()
            await end_tasks(self._task)
        finally:
            self._end(InvalidRequestError("the table is closed"))


def _record_error(messages: Messages, error: Exception) -> InvalidRequestError:
    notes = "; ".join(getattr(error, "__notes__", ()))
    which = notes or f"a record of stream {messages.stream!r} below {messages.next_offset}"
    failure = InvalidRequestError(f"{which} failed: {type(error).__name__}: {text_of(error)}")
    failure.__cause__ = error
    return failure


class Table(Mapping[K, V], Closing):
    """A mapping from every key of a stream to its latest value; it follows the stream.

    `Client.table` makes it. Any thread may read it; `with` or `close()` ends it. A null value
    deletes its key; records without a key are skipped.
    """

    def __init__(self, thread: LoopThread, table: AsyncTable[K, V]) -> None:
        self._thread = thread
        self._table = table

    @property
    def _here(self) -> AsyncTable[K, V]:
        """Raises InvalidRequestError in a fork, where nothing would follow the stream."""
        self._thread.check_process()
        return self._table

    def __del__(self) -> None:
        """No caller can read it any more: nothing is to be fetched for it."""
        if hasattr(self, "_table"):  # Else LoopThread.begun closes it.
            self._thread.post(self._table.aclose())

    @property
    def position(self) -> int:
        """The offset up to which records are applied, exclusive."""
        return self._table.position

    @property
    def lag(self) -> int | None:
        """How many offsets it was behind the high watermark when a server last answered; None: none
        has answered yet. Too little right after an election: see `is_current`."""
        return self._table.lag

    @property
    def is_current(self) -> bool:
        """Whether it has everything that is committed, by what a server answered in the last
        seconds.

        For a moment after an election, above all after a restart of all nodes, a leader may not
        know all that is committed, and does not say so here. `wait_until_current` waits until one
        knows.
        """
        return self._table.is_current

    @property
    def heard_at(self) -> datetime | None:
        """When a server last answered; None: none has answered yet."""
        return self._table.heard_at

    def __repr__(self) -> str:
        return repr(self._table).replace("AsyncTable", "Table", 1)

    def wait_until_current(self, timeout: float | None = None) -> None:
        """Wait until the table has everything that is committed now.

        Raises UnavailableError if that takes longer than `timeout` seconds.
        """
        self._thread.run(self._table.wait_until_current(timeout))

    def snapshot(self) -> dict[K, V]:
        """A copy that does not change."""
        return self._here.snapshot()

    def __getitem__(self, key: K | str) -> V:
        return self._here[key]

    def __contains__(self, key: object) -> bool:
        return key in self._here

    def __iter__(self) -> Iterator[K]:
        return iter(self._here)

    def __len__(self) -> int:
        return len(self._here)

    def close(self) -> None:
        """Stop following; from now on the table raises. Idempotent."""
        if self._thread.is_running:
            self._thread.run(self._table.aclose())
