"""The run of a processing: it reads, calls the handler when the `Schedule` says so, publishes the
outputs, and commits what is done.

It has four tasks (reading, committing, waiting for the stop, noticing that no server answers) and
one for each record that is being handled.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from jetstream_client._closing import end_tasks
from jetstream_client._log import logger
from jetstream_client.processing.options import ProcessOptions
from jetstream_client.processing.outputs import Output, as_it_fits, dead_letter, message_id
from jetstream_client.processing.schedule import Schedule, State, Work
from jetstream_client.processing.sources import Source
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.cursor import CHECKPOINT_SECONDS
from jetstream_client.reading.deserializers import text_of
from jetstream_client.reading.messages import Message, Messages
from jetstream_client.transport.cursors import is_passing
from jetstream_client.transport.recovery import Caller, repeats
from jetstream_client.transport.retries import backoff
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.types import Payload, Value
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    PreconditionFailedError,
    UnsupportedHeaderError,
)

LETTING_GO_SECONDS = 30.0
"""How long a stream that goes to another member is waited for; the coordinator waits 60."""

_RETRY_MAX_SECONDS = 30.0
_OF_THE_RECORD = (InvalidRequestError, MessageTooLargeError, UnsupportedHeaderError)
"""Errors that come from the output itself: another output might be published."""

_HANDLES: ContextVar[Processor | None] = ContextVar("jetstream_processor", default=None)
"""Of which processing the handler is that is running; a thread of a handler knows it, too."""

_ASK_SHARE = 0.2
"""Of the client's timeout: between two questions of whether the stream's server answers. The answer
may take the rest."""

Attempt: TypeAlias = Callable[[Message], Awaitable[list[Output]]]
Ask: TypeAlias = Callable[[int, float], Awaitable[object]]
"""(stream id, seconds): raises what reading the stream would, if no server answers in time."""


class Publish(Protocol):
    """The type of `AsyncClient.publish`."""

    def __call__(
        self,
        subject: str,
        value: Value | None,
        *,
        key: Payload | None,
        headers: HeadersLike | None,
        msg_id: str,
    ) -> Coroutine[Any, Any, object]: ...


@dataclass(frozen=True, slots=True)
class Processed:
    """What `process` has done. records: handled successfully. dead_letters: failed, and published
    as dead letters. failures: attempts that failed, of both."""

    records: int
    dead_letters: int
    failures: int


class _Unfinished(Exception):
    """The processing must stop before a message could be published."""


class EndsProcessing(Exception):
    """Nothing more can be handled. The processing ends with the error that this was raised from."""


class Processor:
    """Call `run` once. attempt: makes one call of the handler. timeout: seconds, the client's."""

    def __init__(
        self,
        source: Source,
        attempt: Attempt,
        publish: Publish,
        ask: Ask,
        timeout: float,
        options: ProcessOptions,
    ) -> None:
        self._source = source
        self._attempt = attempt
        self._publish = publish
        self._ask = ask
        self._timeout = timeout
        self._options = options
        self._schedule = Schedule(
            options.concurrency, options.outstanding_max, options.outstanding_bytes
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._resets: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_reading = False
        self._failure: BaseException | None = None
        self._records = self._dead_letters = self._failures = 0
        self.has_ended = asyncio.Event()
        """Not set while it runs."""
        self.has_ended.set()

    def stop(self) -> None:
        """Begin nothing more; `run` returns once what is being handled has ended."""
        self._stopping.set()
        self._changed.set()

    async def end(self, deadline: float) -> None:
        """Stop, and return once what is being handled has ended and is committed, or at the
        deadline, on the loop's clock; one of its own handlers, which would wait for itself, at
        once."""
        self.stop()
        if _HANDLES.get() is not self:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self.has_ended.wait()

    async def run(self) -> Processed:
        """Runs until the source ends or `stop` was called. Raises the error that ended it."""
        try:
            await self._source.begin()
            beside = [
                asyncio.create_task(self._commit_on_and_on()),
                asyncio.create_task(self._notice_silence()),
            ]
            for task in beside:
                task.add_done_callback(self._has_ended)
            try:
                await self._read_until_stopped()
                await self._finish()
            finally:
                await end_tasks(*beside)
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure
        return Processed(self._records, self._dead_letters, self._failures)

    async def _read_until_stopped(self) -> None:
        reading = asyncio.create_task(self._read())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(reading, stopping)
        if not reading.cancelled() and reading.exception() is not None:
            self._fail(reading.exception())

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """A bug of ours must not leave it without commits."""
        if not task.cancelled():
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        if self._failure is None:
            self._failure = error
        self.stop()

    async def _finish(self) -> None:
        """Handle the rest of what was read, unless it is stopped; then let what runs end."""
        await self._until(lambda: self._schedule.records == 0 or self._stopping.is_set())
        streams = self._schedule.streams()
        for stream in streams:
            self._schedule.hold(stream)
        await self._until(lambda: not self._schedule.is_busy(streams))

    async def _end(self) -> None:
        """Commit what is done, once, and leave; cancelled, leave."""
        for stream in self._schedule.streams():
            self._schedule.hold(stream)
        try:
            await end_tasks(*self._tasks)
            if not self._source.is_lost:
                await self._commit_at_last(self._consumers())
        finally:
            for stream in self._schedule.streams():
                self._schedule.drop(stream)
            await self._source.aclose()

    def _consumers(self) -> list[AsyncConsumer]:
        """The consumers of the streams in the schedule."""
        return [each for each in self._source.consumers() if self._schedule.has(each.stream_id)]

    # Reading.

    async def _read(self) -> None:
        while (found := await self._next()) is not None:
            consumer, messages = found
            if await self._begin(consumer, messages) and await self._take(consumer, messages):
                self._schedule.passed(consumer.stream_id, messages.next_offset, messages.last_epoch)

    async def _next(self) -> tuple[AsyncConsumer, Messages] | None:
        self._is_reading = True
        try:
            return await self._source.next()
        finally:
            self._is_reading = False

    async def _notice_silence(self) -> None:
        """End the processing if no server answers for the client's timeout. A read that is under
        way notices that itself; while there is no room, and so no read, this asks."""
        while True:
            await asyncio.sleep(self._timeout * _ASK_SHARE)
            if self._stopping.is_set():
                continue
            try:
                self._source.check_heard(self._timeout)
                if not self._is_reading:
                    seconds = self._timeout * (1 - _ASK_SHARE)
                    asked = [self._ask(each.stream_id, seconds) for each in self._consumers()]
                    await asyncio.gather(*asked)
            except JetstreamError as error:
                # Other errors are the next read's, which knows what `on_reset` says of them.
                if error.retriable and not self._stopping.is_set():
                    logger.error("%r ends: %s", self._options.name, error.message)
                    self._fail(error)

    async def _begin(self, consumer: AsyncConsumer, messages: Messages) -> bool:
        """The schedule is to know the stream, also where it was sent elsewhere (`on_reset`). False:
        the stream is another's by now."""
        stream = consumer.stream_id
        if self._schedule.has(stream) and self._resets[stream] != consumer.reset_count:
            # The records before were of a history that is gone. Their handlers end first.
            self._schedule.hold(stream)
            while self._schedule.is_busy([stream]):
                await self._wait_for_change()
                if consumer not in self._source.consumers():
                    return False
            self._schedule.drop(stream)
        if not self._schedule.has(stream):
            offsets = messages.chunks[0].offsets() if len(messages) else (messages.next_offset,)
            self._schedule.begin(stream, offsets[0])
            self._resets[stream] = consumer.reset_count
            self._names[stream] = consumer.stream_name
        return True

    async def _take(self, consumer: AsyncConsumer, messages: Messages) -> bool:
        """Hand the records to the schedule, as far as there is room for them. False: the stream is
        another's by now."""
        schedule, stream = self._schedule, consumer.stream_id
        for chunk in messages.chunks:
            epoch = chunk.batch.header.leader_epoch
            for message in chunk.messages(messages.stream):
                while not schedule.has_room:
                    await self._wait_for_change()
                    if consumer not in self._source.consumers():
                        return False
                size = len(message.value or b"") + len(message.key or b"")
                size += len(message.header_block)
                schedule.add(stream, message.offset, epoch, message.key, size, message)
            self._pump()
        return True

    async def _wait_for_change(self) -> None:
        """Until a record has ended, or the streams of this member have changed: others wait for
        those that go, however long handlers take."""
        self._pump()
        self._changed.clear()
        waits = [
            asyncio.create_task(self._changed.wait()),
            asyncio.create_task(self._source.wait_for_news()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        await self._source.adjust()

    async def let_go(self, names: Sequence[str]) -> list[AsyncConsumer]:
        """The streams go to another member: wait until records being handled have ended, for a
        limited time. Call `gone` next, with the result."""
        consumers = [each for each in self._consumers() if each.stream_name in names]
        streams = [each.stream_id for each in consumers]
        for stream in streams:
            self._schedule.hold(stream)
        if not self._source.is_lost:
            try:
                async with asyncio.timeout(LETTING_GO_SECONDS):
                    await self._until(lambda: not self._schedule.is_busy(streams))
            except TimeoutError:
                logger.warning(
                    "%r: records of %s are still being handled after %g s; the next reader of the "
                    "stream repeats them",
                    self._options.name,
                    ", ".join(names),
                    LETTING_GO_SECONDS,
                )
        return consumers

    async def gone(self, consumers: Sequence[AsyncConsumer]) -> None:
        """Commit what is done of these, and forget them."""
        if not self._source.is_lost:
            await self._commit_at_last(consumers)
        for consumer in consumers:
            if self._schedule.has(consumer.stream_id):
                self._schedule.drop(consumer.stream_id)
        self._changed.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return once it holds. It may change with every record that ends."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # Handling.

    def _pump(self) -> None:
        """Begin what may be begun."""
        while not self._stopping.is_set() and (work := self._schedule.start()) is not None:
            task = asyncio.create_task(self._handle(work))
            self._tasks.add(task)
            task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())
        self._pump()
        self._changed.set()

    async def _handle(self, work: Work) -> None:
        """One attempt. However it ends, it is over then: the end of the processing waits for it."""
        _HANDLES.set(self)
        try:
            await self._try(work)
        finally:
            if work.state is State.RUNNING:
                self._schedule.rest(work)

    async def _try(self, work: Work) -> None:
        try:
            outputs = await self._attempt(work.record)
            for number, output in enumerate(outputs):
                await self._publish_output(work, number, output)
        except _Unfinished:
            return
        except EndsProcessing as error:
            self._fail(error.__cause__)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises
            await self._failed(work, error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            await self._failed(work, error)  # The handler has cancelled something of its own.
        else:
            self._records += not work.is_dropped
            self._schedule.end(work)

    async def _failed(self, work: Work, error: BaseException) -> None:
        work.attempts += 1
        stream, offset = self._names[work.reading.stream], work.offset
        if work.is_dropped:
            return
        self._failures += 1
        if work.attempts <= self._options.retries:
            seconds = self._backoff(work.attempts)
            logger.warning(
                "%r: attempt %d at record %d of %s failed (%s); again in %.1f s",
                self._options.name,
                work.attempts,
                offset,
                stream,
                type(error).__name__,
                seconds,
            )
            asyncio.get_running_loop().call_later(seconds, self._again, work)
            return
        tried = "once" if work.attempts == 1 else f"{work.attempts} times"
        if self._options.dead_letter is None:
            with suppress(Exception):  # An error may refuse notes, as a frozen dataclass does.
                error.add_note(f"handling record {offset} of stream {stream!r} was tried {tried}")
            self._fail(error)
            return
        try:
            await self._publish_dead_letter(work, error)
        except _Unfinished:
            return
        except JetstreamError as refusal:
            refusal.add_note(
                f"publishing record {offset} of stream {stream!r} as a dead letter, after its "
                f"handling was tried {tried}: {type(error).__name__}: {text_of(error)}"
            )
            self._fail(refusal)
        else:
            logger.error(
                "%r: record %d of %s is a dead letter on %r: handling it was tried %s: %s",
                self._options.name,
                offset,
                stream,
                self._options.dead_letter,
                tried,
                type(error).__name__,
            )
            self._dead_letters += 1
            self._schedule.end(work)

    def _again(self, work: Work) -> None:
        self._schedule.again(work)
        self._pump()

    def _backoff(self, failures: int) -> float:
        return backoff(self._options.retry_delay, _RETRY_MAX_SECONDS, failures, random.random())

    # Publishing.

    async def _publish_output(self, work: Work, number: int, output: Output) -> None:
        name = message_id(self._options.name, work.reading.stream, work.offset, number)
        try:
            await self._publish_surely(
                work, output.subject, output.value, output.key, output.headers, name
            )
        except _OF_THE_RECORD:
            raise
        except JetstreamError as error:
            error.add_note(f"publishing what record {work.offset} led to, on {output.subject!r}")
            raise EndsProcessing from error

    async def _publish_dead_letter(self, work: Work, error: BaseException) -> None:
        assert self._options.dead_letter is not None
        subject, stream = self._options.dead_letter, work.reading.stream
        name, record = message_id(self._options.name, stream, work.offset, "dead"), work.record

        async def publish(is_short: bool) -> None:
            key, headers = dead_letter(
                record,
                self._names[stream],
                stream,
                self._options.name,
                work.attempts,
                error,
                is_short=is_short,
            )
            await self._publish_surely(work, subject, record.value, key, headers, name)

        await as_it_fits(publish)

    async def _publish_surely(
        self,
        work: Work,
        subject: str,
        value: Value | None,
        key: Payload | None,
        headers: HeadersLike | None,
        msg_id: str,
    ) -> None:
        """Publish again and again until it is acknowledged; the message has an id, so it is stored
        once. Raises an error that does not go away, or _Unfinished."""
        failures = 0
        while True:
            if work.is_dropped:
                raise _Unfinished
            try:
                await self._publish(subject, value, key=key, headers=headers, msg_id=msg_id)
                return
            except JetstreamError as error:
                if not repeats(error, Caller.PUBLISH):
                    raise
                if self._stopping.is_set():
                    raise _Unfinished from error
                failures += 1
                seconds = self._backoff(failures)
                logger.warning("publishing on %r: %s; again in %.1f s", subject, error, seconds)
            try:
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    # Committing.

    async def _commit_on_and_on(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            await asyncio.gather(*map(self._commit_now, self._consumers()))

    async def _commit_now(self, consumer: AsyncConsumer) -> None:
        """Commit one consumer. Commits that are made at the same time share a call."""
        try:
            await self._commit(consumer)
        except JetstreamError as error:
            if is_passing(error):
                logger.warning("cursor not committed: %s; trying again", error.message)
            elif self._source.is_shared:
                # Its member notices at the next records, and joins anew.
                await consumer.fail(error)
            else:
                self._fail(error)

    async def _commit(self, consumer: AsyncConsumer) -> None:
        if self._schedule.has(consumer.stream_id):
            await consumer.commit_below(*self._schedule.checkpoint(consumer.stream_id))

    async def _commit_at_last(self, consumers: Sequence[AsyncConsumer]) -> None:
        await asyncio.gather(*map(self._commit_last, consumers))

    async def _commit_last(self, consumer: AsyncConsumer) -> None:
        try:
            await self._commit(consumer)
        except JetstreamError as error:
            # A group's stream may be another member's already.
            is_taken = self._source.is_shared and isinstance(error, PreconditionFailedError)
            if not is_passing(error) and not is_taken:
                self._fail(error)
                return
            # The next reader repeats the records since the last commit.
            logger.warning("cursor not committed at the end: %s", error.message)


def _is_cancelled() -> bool:
    """Whether somebody cancelled the task that is running."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
