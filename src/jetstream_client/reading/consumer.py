"""Reading a stream without end: `async for message in client.consume(…)`. `seek` moves a consumer,
`pause` holds it. One task at a time reads; others may seek, pause, resume and close meanwhile. The
next fetch is under way while the records of the last one are returned. The first answer fixes the
stream's id. If the stream is deleted and another one created under its name, the consumer ends with
StreamNotFoundError instead of reading the new one. An offset that retention has removed raises
OffsetOutOfRangeError; the consumer never jumps silently. Any other start ("earliest", a time, the
last N) means the first record that is still there: it follows retention until the first record has
come. A log that ends before the consumer's offset (an election has lost records) raises it, too.

With a cursor it resumes where the last consumer of that cursor stopped, and commits its progress
(progress.py) every second and when it is closed.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from jetstream_client._closing import AsyncClosing
from jetstream_client._log import logger
from jetstream_client._tracing import SWITCH as TRACING
from jetstream_client.reading.cursor import CHECKPOINT_SECONDS, ConsumerCursor
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.messages import Message, Messages, check_rows
from jetstream_client.reading.progress import Progress
from jetstream_client.transport.cursors import is_passing
from jetstream_client.values.positions import Position, check_offset
from jetstream_protocol.errors import (
    DivergedError,
    InvalidRequestError,
    JetstreamError,
    OffsetOutOfRangeError,
    UnavailableError,
)

if TYPE_CHECKING:
    from typing import Self

WAIT_SECONDS = 20.0
"""How long one fetch waits for records before the next one. It matters only for idle streams."""


class Fetch(Protocol):
    """How a consumer gets its records: bound to one stream by the client."""

    def __call__(
        self, offset: int, last_epoch: int, stop: int | None, max_wait: float
    ) -> Awaitable[Messages]: ...


Resolve: TypeAlias = Callable[[Position, Position | None], Awaitable[tuple[int, int | None]]]
"""(start, stop): their offsets, as of one moment."""
_AS_STORED = Deserializers()


class AsyncConsumer(AsyncClosing):
    """An endless async iterator of messages, or one that ends before its stop.

    resolve: offsets of a start and a stop (None: no stop). pinned: whether the records at the start
    must exist; by default they must if it is an offset. deserializers: for the records that are
    iterated over. last_epoch: as in AsyncClient.fetch. reverse: newest first; `fetch` goes on below
    the offset that it gets, and stops at the start. patience: seconds without a record after which
    it raises UnavailableError; None: it waits for ever. cursor: keeps its position.

    Entering it (`async with`), or asking for the first record, resolves the start. `position` is
    the offset of the next record that it will return; in reverse it is that of the last one
    returned; None before that.
    """

    def __init__(
        self,
        fetch: Fetch,
        resolve: Resolve,
        start: Position,
        stop: Position | None,
        *,
        reverse: bool = False,
        pinned: bool | None = None,
        last_epoch: int = -1,
        patience: float | None = None,
        deserializers: Deserializers = _AS_STORED,
        cursor: ConsumerCursor | None = None,
    ) -> None:
        self._fetch = fetch
        self._resolve = resolve
        self._wanted = start, stop
        self.reverse = reverse
        self.step = 0 if reverse else 1
        """From the offset of a record handed out to `position`."""
        self._pinned = isinstance(start, int) if pinned is None else pinned
        self._going = asyncio.Event()  # cleared while it is paused
        self._going.set()
        self.deserializers = deserializers
        self._stop: int | None = None
        self._patience = patience
        self._waited = 0.0
        self._began = False
        self._closed = False
        self._next_offset = 0
        self._last_epoch = last_epoch
        self._ahead: asyncio.Future[Messages] | None = None
        self._batch: list[Message] = []  # the last fetch, in reverse: pop() hands out in order
        self._kept: list[Message] = []  # in place of `_batch`, while it is paused
        self._rest: Messages | None = None  # of a fetch that was handed out in part
        self._cursor = cursor
        self._progress = Progress()
        self._checkpoints: asyncio.Task[None] | None = None
        self._failure: JetstreamError | None = None
        self._failure_is_told = False
        self.position: int | None = None
        self._tell: weakref.WeakMethod[Callable[[], int | None]] | None = None
        self._told_of_failure: weakref.WeakMethod[Callable[[], None]] | None = None
        self.reset_count = 0
        """How often it went on elsewhere because the stream did not hold its position any more."""
        self.wait_max = WAIT_SECONDS
        """How long a server may hold a fetch while there is nothing new."""

    def __repr__(self) -> str:
        stop = "" if self._stop is None else f", stops at {self._stop}"
        paused = ", paused" if self.paused else ""
        return f"<AsyncConsumer at offset {self.position}{stop}{paused}>"

    @property
    def stop(self) -> int | None:
        """The offset before which it stops; None: it does not stop, or the stop is not resolved
        yet."""
        return self._stop

    async def begin(self) -> None:
        """Resolve start and stop. Idempotent."""
        if self._began:
            return
        start, stop = self._wanted
        resumed = None if self._cursor is None else await self._cursor.open()
        if resumed is not None:
            start, self._last_epoch = resumed
            self._pinned = True
        elif self._cursor is not None and self._cursor.reset_to is not None:
            start, self._pinned = self._cursor.reset_to, False
        first, end = await self._resolve(start, stop)
        if self.reverse:
            assert end is not None
            first, end = end, first
        self._next_offset, self._stop = first, end
        if self._stop is not None and not self.reverse and self._next_offset > self._stop:
            # There is nothing to read behind the stop; a start far behind it is a mistake.
            await self._fetch(self._next_offset, -1, None, 0.0)
        self.position = self._next_offset
        self._progress.begin(self._next_offset, self._last_epoch)
        self._began = True
        if self._cursor is not None and self._cursor.auto_commit:
            checkpoints = _checkpoint_on_and_on(weakref.ref(self))
            self._checkpoints = asyncio.get_running_loop().create_task(checkpoints)

    async def seek(self, position: Position) -> None:
        """Go on from `position`, later or earlier; the stop does not change. A call that waits for
        a record then waits for one from the new position."""
        await self.begin()
        offset, _ = await self._resolve(position, None)
        self._batch = []
        self._kept = []
        self._rest = None
        self._next_offset = self.position = offset
        self._progress.begin(offset)
        self._last_epoch = -1
        self._pinned = isinstance(position, int)
        self._waited = 0.0
        await self._give_up()

    def pause(self) -> None:
        """Return no records and fetch no more until `resume`: calls for a record wait. Records that
        are fetched already are kept."""
        if not self._kept:
            self._kept, self._batch = self._batch, []
        self._going.clear()

    def resume(self) -> None:
        """Undo `pause`. Idempotent."""
        self._going.set()

    @property
    def paused(self) -> bool:
        """Whether `pause` was called, and `resume` not since."""
        return not self._going.is_set()

    async def wait_resumed(self) -> None:
        """Return once it is not paused, or closed."""
        await self._going.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._batch:
            await self._refill()
        message = self._batch[-1]
        if self.deserializers is not _AS_STORED:
            message = self.deserializers.apply(message)
        self._batch.pop()  # Not earlier: a record that cannot be deserialised must not be skipped.
        self.position = message.offset + self.step
        return message

    async def _refill(self) -> None:
        """Raises StopAsyncIteration."""
        if self.position is not None:
            self._progress.asks(self.position, exhausted=not self._kept)
        await self._going.wait()
        if self._kept:
            self._batch, self._kept = self._kept, []
            self._progress.resumes()
            return
        messages = await self.next_messages()
        if messages is None:
            raise StopAsyncIteration
        self._progress.gets(messages, by_record=True)
        self._batch = list(messages)
        self._batch.reverse()

    async def batches(self, max_records: int | None = None) -> AsyncIterator[Messages]:
        """Iterate over the same records in the batches in which they were fetched, as `Messages`:
        for `values()` and `to_arrow()`. max_records: at most so many in each."""
        if max_records is not None:
            check_rows(max_records, "max_records")
        while (messages := await self._next_batch(max_records)) is not None:
            if len(messages):
                self.position = messages.next_offset
                yield messages

    async def _next_batch(self, max_records: int | None) -> Messages | None:
        await self.begin()
        assert self.position is not None
        self._progress.asks(self.position)
        messages = await self.next_messages()
        if messages is not None:
            messages = self.first_of(messages, max_records)
            self._progress.gets(messages, by_record=False)
        return messages

    def first_of(self, messages: Messages, max_records: int | None) -> Messages:
        """At most so many of what `next_messages` has returned; it returns the others next."""
        if max_records is not None:
            messages, self._rest = messages.split(max_records, newest_first=self.reverse)
        return messages

    async def next_messages(self) -> Messages | None:
        """The records fetched ahead, possibly none; None at the end. Starts the next fetch."""
        await self.begin()
        await self._going.wait()
        self.check()
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        if self._closed or self._at_stop:
            return None
        if self._ahead is None:
            self._ahead = self._fetch_ahead()
        ahead = self._ahead
        try:
            # Shielded: a caller who waits with a timeout must not lose records by it.
            messages = await asyncio.shield(ahead)
            await self._going.wait()
        except OffsetOutOfRangeError as error:
            if ahead is not self._ahead:
                return await self.next_messages()
            self._ahead = None
            may_be_later = not self._pinned and self._last_epoch < 0
            if may_be_later and error.log_start_offset > self._next_offset:
                # Retention was faster than the first fetch: the first record is a later one now.
                self._next_offset = error.log_start_offset
                return await self.next_messages()
            if self._cursor is None:
                raise
            await self._reset(self._cursor.reset_by(error))
            return await self.next_messages()
        except asyncio.CancelledError:
            if _is_cancelled() or not ahead.cancelled():
                raise
            # Closed, which is no failure, or moved by `seek`.
            return await self.next_messages()
        except JetstreamError as error:
            if ahead is not self._ahead:
                return await self.next_messages()  # The fetch was for the old position.
            self._ahead = None  # The next call fetches again.
            if self._cursor is None or not isinstance(error, DivergedError):
                raise
            await self._reset(self._cursor.reset_by(error))
            return await self.next_messages()
        if ahead is not self._ahead:
            return await self.next_messages()  # Moved meanwhile.
        self._check_patience(messages)
        self._next_offset = messages.next_offset
        self._last_epoch = messages.last_epoch
        self._ahead = None if self._closed or self._at_stop else self._fetch_ahead()
        if TRACING.active is not None:
            TRACING.active.received(messages)
        return messages

    async def _reset(self, start: Position) -> None:
        """The cursor's position is gone: go on from `start`."""
        self._next_offset, _ = await self._resolve(start, None)
        self.position = self._next_offset
        self.reset_count += 1
        self._last_epoch = -1
        self._pinned = False
        self._progress.begin(self._next_offset)

    # With a cursor.

    def position_told_by(self, tell: Callable[[], int | None]) -> None:
        """`tell`, a method, says where it is, in place of `position`: its records are handed out in
        another thread."""
        self._tell = weakref.WeakMethod(tell)

    def failures_told_to(self, told: Callable[[], None]) -> None:
        """`told`, a method, is called when it fails: records that it handed out, and that the
        caller has not seen, are not to be handled any more. `check` says why."""
        self._told_of_failure = weakref.WeakMethod(told)

    def _where(self) -> int | None:
        if self._tell is None:
            return self.position
        tell = self._tell()
        return None if tell is None else tell()

    @property
    def progress(self) -> Progress:
        """What of its records is done."""
        return self._progress

    @property
    def committed(self) -> int | None:
        """The position of its cursor as it was last committed; None: it was never committed, or
        there is no cursor."""
        return None if self._cursor is None else self._cursor.committed

    async def commit(self, offset: int | None = None, *, metadata: str = "") -> None:
        """Commit all records returned so far as done, or all below `offset`. Returns once that is
        committed.

        metadata: text to store with it, at most 1,024 bytes. Raises PreconditionFailedError if
        somebody else has committed or moved the cursor meanwhile; InvalidRequestError without a
        cursor.
        """
        if self._cursor is None:
            raise InvalidRequestError("this consumer has no cursor: consume(…, cursor=NAME)")
        await self.begin()
        position = self._where() if offset is None else check_offset(offset)
        assert position is not None
        self._progress.says_done(position)  # Or the next checkpoint would take it back.
        epoch = self._progress.epoch_before(position)
        await self._cursor.commit(position, epoch, metadata)

    async def commit_below(self, offset: int, last_epoch: int) -> None:
        """Commit `offset`, unless it is committed: the caller knows what is done. last_epoch: of
        the record before it; -1: not known."""
        assert self._cursor is not None
        if offset != self._cursor.committed:
            await self._cursor.commit(offset, last_epoch)

    async def checkpoint(self) -> None:
        """Commit what is done, if that is not committed. The first one keeps where a new cursor
        began: "latest" would be another place for the next consumer."""
        position = self._where()
        if self._cursor is None or position is None or self._failure is not None:
            return
        done = self._progress.done(position)
        if done != self._cursor.committed:
            await self._cursor.commit(done, self._progress.epoch_before(done))

    async def _end_checkpoints(self) -> JetstreamError | None:
        """The last commit. Returns an error that the caller must hear of: nothing more of this
        consumer can be committed, and the caller does not know."""
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints is None:
            return None
        checkpoints.cancel()
        await asyncio.gather(checkpoints, return_exceptions=True)
        if self._failure is not None:
            return None if self._failure_is_told else self._failure
        try:
            await self.checkpoint()
        except JetstreamError as error:
            if not is_passing(error):
                return error
            # The next consumer of the cursor repeats the records since the last commit.
            logger.warning("cursor not committed at the end: %s", error.message)
        return None

    @property
    def stream_name(self) -> str:
        """`name@subject` of the stream of its cursor, once it has begun."""
        assert self._cursor is not None
        return self._cursor.stream.full_name

    @property
    def stream_id(self) -> int:
        """The id of the stream of its cursor, once it has begun."""
        assert self._cursor is not None
        return self._cursor.stream.id

    async def abandon(self) -> None:
        """Close, and commit nothing: the stream is another's."""
        if self._checkpoints is not None:
            self._checkpoints.cancel()
            await asyncio.gather(self._checkpoints, return_exceptions=True)
            self._checkpoints = None
        await self.aclose()

    async def fail(self, error: JetstreamError) -> None:
        """Raise the error in the task that reads, now or at the next record."""
        self._failure = error
        self._batch = []
        self._kept = []
        told = None if self._told_of_failure is None else self._told_of_failure()
        if told is not None:
            told()
        await self._give_up()

    def check(self) -> None:
        """Raise the error by which it has failed, if it has."""
        if self._failure is not None:
            self._failure_is_told = True
            raise self._failure

    def _check_patience(self, messages: Messages) -> None:
        # Offsets without a record after compaction are progress, too.
        progress = messages.next_offset != self._next_offset
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
        if self._stop is None:
            return False
        if self.reverse:
            return self._next_offset <= self._stop
        return self._next_offset >= self._stop

    def _fetch_ahead(self) -> asyncio.Future[Messages]:
        fetched = self._fetch(self._next_offset, self._last_epoch, self._stop, self._wait)
        task = asyncio.ensure_future(fetched)
        task.add_done_callback(_retrieve)
        return task

    def _ended_well(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Count all records returned so far as done: the block that handled them ended without an
        error."""
        position = self._where()
        if position is not None:
            self._progress.asks(position, exhausted=False)

    async def aclose(self) -> None:
        """Stop, and commit the records that are done; a running fetch is cancelled. Idempotent.

        Raises the error of that commit if a later one would fail, too. If no server answers, that
        is only logged: the next consumer of the cursor repeats the records.
        """
        error = None if self._closed else await self._end_checkpoints()
        self._closed = True
        self._batch = []
        self._kept = []
        self._rest = None
        self.resume()
        await self._give_up()
        if error is not None:
            raise error

    async def _give_up(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)


async def _checkpoint_on_and_on(reference: weakref.ref[AsyncConsumer]) -> None:
    """Commit again and again, until the consumer is closed or garbage-collected."""
    while True:
        consumer = reference()
        if consumer is None:
            return
        try:
            await consumer.checkpoint()
        except JetstreamError as error:
            if not is_passing(error):
                await consumer.fail(error)
                return
            logger.warning("cursor not committed: %s; trying again", error.message)
        del consumer
        await asyncio.sleep(CHECKPOINT_SECONDS)


def _is_cancelled() -> bool:
    """Whether somebody cancelled the task that is running."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _retrieve(task: asyncio.Future[Messages]) -> None:
    """Nobody needs the failure of an abandoned consumer; asyncio would log it otherwise."""
    if not task.cancelled():
        task.exception()
