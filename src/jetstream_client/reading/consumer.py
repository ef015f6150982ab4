"""Reading a stream without end: `async for message in client.consume(…)`. `seek` moves a consumer,
`pause` holds it. One task at a time reads; others may seek, pause, resume and close meanwhile. The
next fetch is under way while the records of the last one are returned. The first answer fixes the
stream's id. If the stream is deleted and another one created under its name, the consumer ends with
StreamNotFoundError instead of reading the new one. An offset that retention has removed raises
OffsetOutOfRangeError; the consumer never jumps silently. Any other start ("earliest", a time, the
last N) means the first record that is still there: it follows retention until the first record has
come. A log that ends before the consumer's offset (an election has lost records) raises it, too.

With a cursor it resumes where the last consumer of that cursor stopped, and commits its progress
(fetch_buffer.py) every second and when it is closed.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, Self, TypeAlias

from jetstream_client._closing import AsyncClosing, Beginning, end_tasks
from jetstream_client._log import logger
from jetstream_client._tracing import SWITCH as TRACING
from jetstream_client.reading.byte_budget import ByteBudget
from jetstream_client.reading.cursor import CHECKPOINT_SECONDS, ConsumerCursor
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.fetch_buffer import NOTHING, Course, FetchBuffer
from jetstream_client.reading.messages import Message, Messages, check_rows
from jetstream_client.transport.cursors import is_passing
from jetstream_client.transport.recovery import Caller, Recovery, recovery
from jetstream_client.values.positions import Position, check_offset
from jetstream_client.values.type_variables import K, Typed, V
from jetstream_protocol.errors import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
    UnavailableError,
)

FETCH_BYTES = 8 * 1024 * 1024
"""Size of one fetch by default: large enough for a fast reader, small enough for memory."""

WAIT_SECONDS = 20.0
"""How long one fetch waits for records before the next one. It matters only for idle streams."""


class Fetch(Protocol):
    """How a consumer gets its records: bound to one stream by the client."""

    def __call__(
        self, offset: int, last_epoch: int, stop: int | None, max_wait: float
    ) -> Awaitable[Messages]: ...


Resolve: TypeAlias = Callable[[Position, Position | None], Awaitable[tuple[int, int | None]]]
"""(start, stop): their offsets, as of one moment."""
_AS_STORED: Deserializers[Any, Any] = Deserializers()


class AsyncBatches:
    """An iterator over batches. A call that is cancelled, as by a time limit, does not end it.

    next_batch: the next one, possibly without records, that was handed out; None at the end.
    """

    def __init__(
        self,
        next_batch: Callable[[int | None], Awaitable[Messages | None]],
        max_records: int | None,
    ) -> None:
        self._next_batch = next_batch
        self._max_records = None if max_records is None else check_rows(max_records, "max_records")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Messages:
        while (messages := await self._next_batch(self._max_records)) is not None:
            if len(messages):
                return messages
        raise StopAsyncIteration


class AsyncConsumer(AsyncClosing, Typed[V, K]):
    """An endless async iterator of messages, or one that ends before its stop.

    resolve: offsets of a start and a stop (None: no stop). pinned: whether the records at the start
    must exist; by default they must if it is an offset. deserializers: for the records that are
    iterated over. last_epoch: as in AsyncClient.fetch. reverse: newest first; `fetch` goes on below
    the offset that it gets, and stops at the start. patience: seconds without a record after which
    it raises UnavailableError; None: it waits for ever. cursor: keeps its position. budget: what it
    fetches counts there; `fetch` asks for a share of it. leave: called once it fetches no more.

    Entering it (`async with`), or asking for the first record, resolves the start. `position` is
    the offset of the next record that it will return; in reverse it is that of the last one
    returned; None before that. buffer: says what is handed out next.
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
        deserializers: Deserializers[V, K] = _AS_STORED,
        cursor: ConsumerCursor | None = None,
        budget: ByteBudget | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        _LIVING.add(self)
        self._fetch = fetch
        self._leave = leave
        self._resolve = resolve
        self._wanted = start, stop
        self.reverse = reverse
        self._pinned = isinstance(start, int) if pinned is None else pinned
        self._going = asyncio.Event()  # cleared while it is paused
        self._going.set()
        self.deserializers = deserializers
        self._stop: int | None = None
        self.stop_may_move = stop == "latest" and not reverse
        """Whether it reads on after its stop if compaction was faster than it, and has removed
        records for later ones that are after: it would miss their keys."""
        self._patience = patience
        self._waited = 0.0
        self._beginning = Beginning()
        self._ending = asyncio.Lock()
        self._began = False
        self._closed = False
        self._last_epoch = last_epoch
        self.buffer = FetchBuffer(reverse=reverse)
        self._ahead: asyncio.Future[Messages] | None = None
        self._ahead_bytes = 0  # of what was fetched ahead
        self._cursor = cursor
        self._budget = budget
        self._checkpoints: asyncio.Task[None] | None = None
        self._close_was_cancelled = False  # The next consumer may have the cursor by now.
        self.is_unanswered = False
        """Whether nobody has said so far that its last commit is committed."""
        self._failure: JetstreamError | None = None
        self._failure_is_reported = False
        self._on_failure: weakref.WeakMethod[Callable[[], None]] | None = None
        self.reset_count = 0
        """How often it went on elsewhere because the stream did not hold its position any more."""
        self.wait_max = WAIT_SECONDS
        """How long a server may hold a fetch while there is nothing new."""

    def __repr__(self) -> str:
        stop = "" if self._stop is None else f", stops at {self._stop}"
        paused = ", paused" if self.paused else ""
        return f"<AsyncConsumer at offset {self.position}{stop}{paused}>"

    @property
    def position(self) -> int | None:
        """See the class."""
        return self.buffer.course.position if self._began else None

    @property
    def stop(self) -> int | None:
        """The offset before which it stops; None: it does not stop, or the stop is not resolved
        yet."""
        return self._stop

    async def begin(self) -> None:
        """Resolve start and stop. Idempotent. Of several tasks that begin it one does."""
        if not (self._began or self._closed):
            await self._beginning.wait(self._begin)

    async def _begin(self) -> None:
        start, stop = self._wanted
        last_epoch = self._last_epoch
        resumed = None if self._cursor is None else await self._cursor.open()
        if resumed is not None:
            start, last_epoch = resumed
            self._pinned = True
        elif self._cursor is not None and self._cursor.reset_to is not None:
            start, self._pinned = self._cursor.reset_to, False
        first, end = await self._resolve(start, stop)
        if self.reverse:
            assert end is not None
            first, end = end, first
        if end is not None and not self.reverse and first > end:
            # There is nothing to read after the stop; a start far after it is a mistake.
            try:
                await self._fetch(first, last_epoch, None, 0.0)
            except JetstreamError as error:
                first, last_epoch = await self._after(error), -1
                self._pinned = False
                self.reset_count += 1
        self._stop = end
        self.buffer.go_to(first, last_epoch)
        if self._cursor is not None:
            self._cursor.began = first
        self._began = True
        if self._cursor is not None and self._cursor.auto_commit and not self._closed:
            checkpoints = _checkpoint_on_and_on(weakref.ref(self))
            self._checkpoints = asyncio.get_running_loop().create_task(checkpoints)

    async def _has_begun(self) -> None:
        """Raises InvalidRequestError if it was closed before."""
        await self.begin()
        if not self._began:
            raise InvalidRequestError("the consumer is closed")

    async def seek(self, position: Position) -> None:
        """Go on from `position`, later or earlier; the stop does not change. A call that waits for
        a record then waits for one from the new position."""
        await self._has_begun()
        offset, _ = await self._resolve(position, None)
        self.buffer.go_to(offset)
        self._pinned = isinstance(position, int)
        self._waited = 0.0
        await self._give_up()

    def pause(self) -> None:
        """Return no records and fetch no more until `resume`: calls for a record wait. Records that
        are fetched already are kept."""
        if not self.buffer.has_ended:  # Else whoever asks for a record would wait for ever.
            self.buffer.pause()
            self._going.clear()

    def resume(self) -> None:
        """Undo `pause`. Idempotent."""
        self.buffer.resume()
        self._going.set()

    @property
    def paused(self) -> bool:
        """Whether `pause` was called, and `resume` not since."""
        return self.buffer.is_paused

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[V, K]:
        while True:
            front = self.buffer.front
            message: Message[Any, Any] | None = front.record()
            if message is not None:
                if self.deserializers is not _AS_STORED:
                    message = self.deserializers.apply(message)
                front.taken += 1  # Not earlier: what cannot be deserialised is not passed over.
                return message
            self.buffer.mark_handed_out_done()
            if not await self.is_ready():
                raise StopAsyncIteration
            self.buffer.begin_rows()

    def batches(self, max_records: int | None = None) -> AsyncIterator[Messages]:
        """Iterate over the same records in the batches in which they were fetched, as `Messages`:
        for `values()` and `to_arrow()`. max_records: at most so many in each."""
        return AsyncBatches(self.next_messages, max_records)

    async def next_messages(self, max_records: int | None = None) -> Messages | None:
        """Hand out the next records together, possibly none; None at the end. All that was handed
        out before is done."""
        self.buffer.mark_handed_out_done()
        while await self.is_ready():
            messages = self.takes_batch(max_records)
            if messages is not None:
                return messages
        return None

    def takes_batch(self, max_records: int | None) -> Messages | None:
        """Hand out what is at hand of the next records; None: nothing."""
        found = self.buffer.batch(max_records)
        if found is None:
            return None
        fetched, messages = found
        fetched.takes(len(messages))
        return messages

    async def is_ready(self) -> bool:
        """Return once `buffer` has something to hand out; False at the end. Starts the next
        fetch."""
        await self.begin()
        while True:
            await self._going.wait()
            self.check()
            if self._closed or self.buffer.has_ended:
                return False
            is_found = self.buffer.course.advance()
            if self._ahead is None and not self._at_stop:
                self._ahead = self._fetch_ahead()
            self._count()
            if is_found:
                return True
            if self._ahead is None:
                return False
            await self._arrival(self._ahead)

    async def _arrival(self, ahead: asyncio.Future[Messages]) -> None:
        """Wait for the fetch. Raises its error, unless it is to be repeated, here or elsewhere."""
        await asyncio.wait([ahead])  # A caller who waits with a timeout loses no records by it.
        if ahead is not self._ahead:
            return  # Moved by `seek`, or closed, which is no failure.
        self._ahead = None
        if ahead.cancelled():
            return
        try:
            messages = ahead.result()
        except JetstreamError as error:
            await self._recover(error)
            return
        self._ahead_bytes = 0
        self._check_patience(messages)
        if self._stop is not None and self.stop_may_move:
            self._stop = max(self._stop, messages.compacted_below)
        self.buffer.course.add(messages)
        if TRACING.active is not None:
            TRACING.active.received(messages)

    async def _recover(self, error: JetstreamError) -> None:
        """Say where the next fetch goes on. Raises the error if no option permits it."""
        course = self.buffer.course
        if isinstance(error, OffsetOutOfRangeError):
            may_be_later = not self._pinned and course.last_epoch < 0
            if may_be_later and error.log_start_offset > course.next_offset:
                # Retention was faster than the first fetch: the first record is a later one now.
                course.next_offset = error.log_start_offset
                return
        offset = await self._after(error)
        if course is self.buffer.course:
            self.buffer.go_to(offset)
            self._pinned = False
            self.reset_count += 1

    async def _after(self, error: JetstreamError) -> int:
        """Where to go on because the cursor's position is gone. Raises the error if that is not
        what it says, or `on_reset` does not permit it."""
        if self._cursor is None or recovery(error, Caller.READ) is not Recovery.RESET:
            raise error
        offset, _ = await self._resolve(self._cursor.reset_by(error), None)
        return offset

    # With a cursor.

    def failures_told_to(self, told: Callable[[], None]) -> None:
        """`told`, a method, is called when it fails: records that it handed out, and that the
        caller has not seen, are not to be handled any more. `check` says why. It may have failed
        already."""
        self._on_failure = weakref.WeakMethod(told)
        if self._failure is not None:
            told()

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
        await self._has_begun()
        course = self.buffer.course
        position = course.position if offset is None else check_offset(offset)
        course.mark_done_below(position)  # Or the next checkpoint would take it back.
        await self._commit(self._cursor, position, course.epoch_before(position), metadata)

    async def _commit(self, cursor: ConsumerCursor, offset: int, *more: Any) -> None:
        self.is_unanswered = True
        try:
            await cursor.commit(offset, *more)
        except JetstreamError as error:
            self.is_unanswered = is_passing(error)
            raise
        self.is_unanswered = False

    async def commit_below(self, offset: int, last_epoch: int) -> None:
        """Commit `offset`, unless it is committed: the caller knows what is done. last_epoch: of
        the record before it; -1: not known."""
        assert self._cursor is not None
        if offset != self._cursor.committed:
            await self._commit(self._cursor, offset, last_epoch)

    async def checkpoint(self) -> None:
        """Commit what is done, if that is not committed. The first one keeps where a new cursor
        began: "latest" would be another place for the next consumer."""
        if self._cursor is None or not self._began or self._failure is not None:
            return
        done, last_epoch = self.buffer.course.done()
        if done != self._cursor.committed:
            await self._commit(self._cursor, done, last_epoch)

    async def _end_checkpoints(self) -> JetstreamError | None:
        """The last commit. Returns an error that the caller must hear of: nothing more of this
        consumer can be committed, and the caller does not know."""
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints is None:
            return None
        try:
            await end_tasks(checkpoints)
            if self._failure is not None:
                return None if self._failure_is_reported else self._failure
            return await self._checkpoint_at_last()
        except asyncio.CancelledError:
            self._checkpoints = checkpoints  # The next call makes the last commit.
            self._close_was_cancelled = True
            raise

    async def _checkpoint_at_last(self) -> JetstreamError | None:
        try:
            await self.checkpoint()
        except JetstreamError as error:
            is_taken = self._close_was_cancelled and isinstance(error, PreconditionFailedError)
            if not is_passing(error) and not is_taken:
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
        await end_tasks(self._checkpoints)
        self._checkpoints = None
        await self.aclose()

    async def fail(self, error: JetstreamError) -> None:
        """Raise the error in the task that reads, now or at the next record."""
        self._failure = error
        self.buffer.end()
        self.resume()
        on_failure = None if self._on_failure is None else self._on_failure()
        if on_failure is not None:
            on_failure()
        await self._give_up()

    def check(self) -> None:
        """Raise the error by which it has failed, if it has."""
        if self._failure is not None:
            self._failure_is_reported = True
            raise self._failure.with_traceback(None)

    def _check_patience(self, messages: Messages) -> None:
        # Offsets without a record after compaction are progress, too.
        progress = messages.next_offset != self.buffer.course.next_offset
        self._waited = 0.0 if progress else self._waited + self._wait
        if self._patience is not None and self._waited >= self._patience:
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
        next_offset = self.buffer.course.next_offset
        return next_offset <= self._stop if self.reverse else next_offset >= self._stop

    def _fetch_ahead(self) -> asyncio.Future[Messages]:
        task = asyncio.ensure_future(self._fetch_next(self.buffer.course))
        task.add_done_callback(self._has_fetched)
        return task

    async def _fetch_next(self, course: Course) -> Messages:
        if self._budget is not None:
            await self._budget.wait_for_room()
            self._count()  # Not what it asks for: a long poll of an idle stream brings nothing.
        return await self._fetch(course.next_offset, course.last_epoch, self._stop, self._wait)

    def _has_fetched(self, task: asyncio.Future[Messages]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if task is self._ahead:  # Until it is in the buffer.
            self._ahead_bytes = 0 if failed else task.result().length_bytes
            self._count()

    def _count(self) -> None:
        """Tell the budget what it has in memory."""
        if self._budget is not None and not self._closed:
            self._budget.set_used(self, self.buffer.course.length_bytes + self._ahead_bytes)

    def _ended_well(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Count all records returned so far as done: the block that handled them ended without an
        error."""
        self.buffer.mark_handed_out_done()

    async def aclose(self) -> None:
        """Stop, and commit the records that are done; a running fetch is cancelled. Idempotent. One
        that was cancelled has perhaps not committed, and may be called again.

        Raises the error of that commit if a later one would fail, too. If no server answers, that
        is only logged: the next consumer of the cursor repeats the records.
        """
        self.buffer.end()  # Nothing is handed out after the last commit.
        async with self._ending:  # Whoever closes it, too, waits for the last commit.
            await self._end()

    async def _end(self) -> None:
        try:
            await self._beginning.end()
            error = None if self._closed else await self._end_checkpoints()
            self._closed = True
        finally:
            self.resume()
            await self._give_up()
            if self._leave is not None:
                self._leave()
            if self._budget is not None:
                self._budget.remove(self)
        if error is not None:
            raise error

    async def _give_up(self) -> None:
        ahead, self._ahead = self._ahead, None
        self._ahead_bytes = 0
        self._count()
        await end_tasks(ahead)


_LIVING: weakref.WeakSet[AsyncConsumer[Any, Any]] = weakref.WeakSet()


def _is_fork() -> None:
    """What was fetched is for the parent to hand out."""
    for consumer in _LIVING:
        consumer.buffer.front = NOTHING


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_is_fork)


async def _checkpoint_on_and_on(reference: weakref.ref[AsyncConsumer[Any, Any]]) -> None:
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
        except Exception as error:  # noqa: BLE001  a bug of ours must not leave it without commits
            await consumer.fail(InternalError(f"committing failed: {error!r}"))
            return
        del consumer
        await asyncio.sleep(CHECKPOINT_SECONDS)
