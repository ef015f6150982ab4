"""A work queue: the messages of a consumer, shared with its other readers and acknowledged one by
one.

    pull ─> buffer ─> the program: ack, nak, extend, term ─> one call for all that wait

What is in the buffer is extended as long as the program lives, so that only what it was handed runs
against `ack_wait`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Self, TypeAlias

from jetstream_client._closing import AsyncClosing, Beginning
from jetstream_client._log import logger
from jetstream_client.processing.outputs import as_it_fits, dead_letter, message_id
from jetstream_client.reading.messages import Message
from jetstream_client.transport.consumers import Consumers, to_ms
from jetstream_client.transport.recovery import Caller, repeats
from jetstream_client.transport.retries import backoff
from jetstream_client.values.consumers import ConsumerDescription
from jetstream_client.values.durations import Seconds
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import consumers_pb2 as pb

PREFETCH: Final = 32
PREFETCH_MAX: Final = 1000
_WAIT_MS: Final = 5000
ACKS_AT_ONCE: Final = 1000
_RETRY_SECONDS: Final = 0.1
_RETRY_MAX_SECONDS: Final = 5.0
_DEAD_LETTER_RETRY_MS: Final = 5000
_CLOSE_SECONDS: Final = 2.0

_Ack = pb.AcknowledgeMessagesRequest.Acknowledgement
_Kind = pb.AcknowledgeMessagesRequest.Kind
_Asked: TypeAlias = tuple[_Ack, asyncio.Future[bool]]
Publish = Callable[..., Awaitable[Any]]


class _Lane:
    """Acknowledgements that share calls, one after the other. waiting: those that are not sent."""

    def __init__(self) -> None:
        self.waiting: list[_Asked] = []
        self.sending: asyncio.Task[None] | None = None


class AsyncQueueMessage(Message):
    """A message of a queue. deliveries: how often it was delivered, this time included."""

    __slots__ = ("_is_others", "_queue", "deliveries")

    def __init__(
        self, queue: AsyncQueue, stream: str, found: pb.DeliveredMessage, deliveries: int
    ) -> None:
        super().__init__(
            stream,
            found.offset,
            found.appended_us,
            found.subject,
            found.key if found.HasField("key") else None,
            found.value if found.HasField("value") else None,
            found.headers,
        )
        self.deliveries = deliveries
        self._is_others = False
        self._queue = queue

    async def ack(self) -> bool:
        """Say that it is done. Returns once that is committed: no reader gets it again. False: it
        comes again all the same, because another node leads the stream now and had not heard of its
        delivery."""
        return await self._queue.acknowledge(_named(self, _Kind.ACK))

    async def nak(self, delay: Seconds = 0) -> bool:
        """Give it back: it is delivered again, to whoever asks, after `delay` seconds. False: it is
        done, or was delivered again already."""
        return await self._queue.acknowledge(_named(self, _Kind.NAK, to_ms("delay", delay)))

    async def extend(self) -> bool:
        """Say that it is still being worked on: `ack_wait` begins anew. False: it is done, or was
        delivered again, and whoever got it then works on it."""
        return await self._queue.acknowledge(_named(self, _Kind.IN_PROGRESS))

    async def term(self) -> bool:
        """Give it up: it is never delivered again. Returns once that is committed."""
        return await self._queue.acknowledge(_named(self, _Kind.TERM))


def _named(message: AsyncQueueMessage, kind: _Kind, delay_ms: int = 0) -> _Ack:
    """An acknowledgement of this delivery of a message."""
    return _Ack(offset=message.offset, kind=kind, delay_ms=delay_ms, delivery=message.deliveries)


class AsyncQueue(AsyncClosing):
    """An asynchronous iterator over messages, made by `AsyncClient.queue`. One task at a time
    iterates; any may acknowledge."""

    def __init__(
        self,
        consumers: Consumers,
        create: Callable[[], Awaitable[ConsumerDescription]],
        publish: Publish,
        name: str,
        prefetch: int,
        max_wait: float | None = None,
        timeout: float = 0.0,
    ) -> None:
        """create: makes the consumer, or finds it. publish: for dead letters. max_wait: seconds
        without a message after which the iteration ends. timeout: how long it then bears that no
        node answers."""
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise InvalidRequestError(f"prefetch must be from 1 to {PREFETCH_MAX}")
        self.name = name
        self._consumers = consumers
        self._create = create
        self._publish = publish
        self._prefetch = prefetch
        self._max_wait = max_wait
        self._timeout = timeout
        self._about: ConsumerDescription | None = None
        self._buffer: deque[AsyncQueueMessage] = deque()
        self._changed, self._taken, self._asked = (asyncio.Event() for _ in range(3))
        self._ends_at: float | None = None
        """When the program has waited for `max_wait`; None: it does not wait."""
        self._is_over = False
        self._failure: BaseException | None = None
        # What is acknowledged is answered once that is committed, and may wait. What is extended or
        # given back must not wait for it: it would be delivered to others meanwhile.
        self._kept, self._passing = _Lane(), _Lane()
        self._tasks: set[asyncio.Task[None]] = set()
        self._burials: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None
        self._beginning = Beginning()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r}>"

    @property
    def consumer(self) -> ConsumerDescription | None:
        """The consumer as it was at the begin; None: it has not begun."""
        return self._about

    async def begin(self) -> None:
        """Create the consumer, and begin to pull. Idempotent."""
        if self._about is None and not self._is_closed:
            await self._beginning.wait(self._begin)
        if self._is_closed:
            raise InvalidRequestError("the queue is closed")

    async def _begin(self) -> None:
        self._about = about = await self._create()
        self._pulling = self._spawn(self._pull_on_and_on(about))
        self._spawn(self._extend_buffered(about))

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncQueueMessage:
        while await self.is_ready():
            message = self.take()
            if message is not None:
                await self.refill()
                return message
        raise StopAsyncIteration

    async def is_ready(self) -> bool:
        """Wait until there is a message to `take`; False: it was closed, or no message has come for
        `max_wait`."""
        if self._about is None or not self._is_closed:
            await self.begin()
        try:
            while not self._is_closed:
                if self._buffer:
                    return True
                if self._failure is not None:
                    raise self._failure.with_traceback(None)
                if self._is_over:
                    return False
                self._note_asked()
                self._taken.set()  # What was left to others has made room.
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._asked.clear()
            self._ends_at = None
        return False

    def _note_asked(self) -> None:
        self._asked.set()
        if self._max_wait is not None and self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + self._max_wait

    @property
    def buffer(self) -> deque[AsyncQueueMessage]:
        """What is here, and was not handed out."""
        return self._buffer

    def front(self) -> AsyncQueueMessage | None:
        """The next message that is here, and stays; None: there is none. Any thread may call it.
        Who takes it from the buffer has `refill` run."""
        try:
            while (message := self._buffer[0])._is_others:
                self._buffer.popleft()
            return message
        except IndexError:
            return None

    def take(self) -> AsyncQueueMessage | None:
        """Hand out the next message that is here; None: there is none. Any thread may call it, and
        then has `refill` run."""
        message = self.front()
        if message is not None:
            self._buffer.popleft()
        return message

    async def refill(self) -> None:
        """Pull more, if there is room."""
        self._taken.set()

    # Pulling.

    async def _pull_on_and_on(self, about: ConsumerDescription) -> None:
        now = asyncio.get_running_loop().time
        failures, failed_at = 0, 0.0
        try:
            while not self._is_over:
                if len(self._buffer) > self._prefetch // 2:
                    await self._wait_for_room()
                    continue
                try:
                    await self._pull_or_end(about)
                    failures = 0
                except JetstreamError as error:
                    if not repeats(error, Caller.COMMIT):
                        raise
                    failed_at = failed_at if failures else now()
                    if self._max_wait is not None and now() - failed_at >= self._timeout:
                        raise
                    failures += 1
                    say = logger.warning if failures == 1 else logger.debug
                    say("queue %r: %s; trying again", self.name, error.message)
                    await asyncio.sleep(
                        backoff(_RETRY_SECONDS, _RETRY_MAX_SECONDS, failures, random.random())
                    )
        except Exception as error:  # noqa: BLE001 - the program gets it at the next message
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Pull nothing more: the program gets the error once it has what is here."""
        self._failure = self._failure or error
        if self._pulling is not None and self._pulling is not asyncio.current_task():
            self._pulling.cancel()
        self._changed.set()

    async def _wait_for_room(self) -> None:
        self._taken.clear()
        await self._taken.wait()

    async def _pull_or_end(self, about: ConsumerDescription) -> None:
        """Pull once; end the iteration if the program has waited for `max_wait`, and there is
        nothing."""
        if self._max_wait is None:
            await self._pull(about, _WAIT_MS)
            return
        ends_at, wait_ms = self._ends_at, 0
        if ends_at is not None:
            left = ends_at - asyncio.get_running_loop().time()
            wait_ms = max(0, min(_WAIT_MS, int(left * 1000)))
        # Only a pull that does not wait says that nothing is there: one that waits may have ended
        # because another node leads now.
        if await self._pull(about, wait_ms) or wait_ms:
            return
        if ends_at is None:  # The program works on what it has.
            await self._asked.wait()
            return
        if self._burials:  # Closing would cut them off.
            await asyncio.wait(self._burials)
            return
        self._is_over = True
        self._changed.set()

    async def _pull(self, about: ConsumerDescription, wait_ms: int) -> bool:
        """Returns whether there were messages."""
        found = await self._consumers.pull(
            pb.PullMessagesRequest(
                stream=common_pb2.StreamRef(id=about.stream_id),
                name=self.name,
                messages_max=self._prefetch - len(self._buffer),
                wait_ms=wait_ms,
                created_us=about.created_us,
            )
        )
        name = about.stream.partition("@")[0]  # As every other reader calls it.
        for each in found.messages:
            message = AsyncQueueMessage(self, name, each, each.deliveries)
            if about.dead_letter and each.deliveries > about.max_deliver > 0:
                burial = self._spawn(self._bury(message, about))
                self._burials.add(burial)
                burial.add_done_callback(self._burials.discard)
            else:
                self._buffer.append(message)
        self._changed.set()
        return bool(found.messages)

    async def _extend_buffered(self, about: ConsumerDescription) -> None:
        """What waits in the buffer must not be delivered to others meanwhile. What was all the
        same, is left to them."""
        while True:
            await asyncio.sleep(min((about.ack_wait, *about.backoff)) / 3)
            for message in self._buffer.copy():  # At once: another thread may take from it.
                answer = self._send(_named(message, _Kind.IN_PROGRESS))
                answer.add_done_callback(partial(self._extended, message))

    def _extended(self, message: AsyncQueueMessage, answer: asyncio.Future[bool]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            message._is_others |= not answer.result()

    # Dead letters.

    async def _bury(self, message: AsyncQueueMessage, about: ConsumerDescription) -> None:
        """Publish a message that was delivered too often as a dead letter, and end it. What will
        fail again is the program's to see to: it gets the error, and the message stays."""
        times = message.deliveries - 1
        error = TimeoutError(f"it was delivered {times} times, and not acknowledged")
        name = message_id(self.name, about.stream_id, message.offset, "dead")

        async def publish(is_short: bool) -> None:
            key, headers = dead_letter(
                message, about.stream, about.stream_id, self.name, times, error, is_short=is_short
            )
            await self._publish(
                about.dead_letter, message.value, key=key, headers=headers, msg_id=name
            )

        try:
            await as_it_fits(publish)
            await message.term()
            logger.error(
                "queue %r: record %d of %s is a dead letter on %r: %s",
                self.name, message.offset, about.stream, about.dead_letter, error,
            )  # fmt: skip
        except JetstreamError as refusal:
            logger.warning(
                "queue %r: record %d of %s was not published as a dead letter: %s; it comes again",
                self.name, message.offset, about.stream, refusal.message,
            )  # fmt: skip
            if not repeats(refusal, Caller.PUBLISH):
                refusal.add_note(
                    f"publishing record {message.offset} of stream {about.stream!r} as a dead "
                    f"letter on {about.dead_letter!r}: {error}"
                )
                self._fail(refusal)
            self._send(_named(message, _Kind.NAK, _DEAD_LETTER_RETRY_MS))

    # Acknowledging.

    async def acknowledge(self, ack: _Ack) -> bool:
        """Returns whether the leader took notice of it. Raises JetstreamError."""
        if self._is_closed:
            raise InvalidRequestError("the queue is closed")
        return await self._send(ack)

    def _send(self, ack: _Ack) -> asyncio.Future[bool]:
        """Have it sent with all that wait."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieved)
        lane = self._kept if ack.kind in (_Kind.ACK, _Kind.TERM) else self._passing
        lane.waiting.append((ack, answer))
        if lane.sending is None:
            lane.sending = self._spawn(self._send_waiting(lane))
        return answer

    async def _send_waiting(self, lane: _Lane) -> None:
        asked: list[_Asked] = []
        try:
            while lane.waiting:
                asked, lane.waiting = lane.waiting[:ACKS_AT_ONCE], lane.waiting[ACKS_AT_ONCE:]
                await self._send_some(asked)
        finally:
            lane.sending = None
            waiting, lane.waiting = lane.waiting, []
            perhaps = UnknownOutcomeError(
                "the queue was closed before the acknowledgement was answered: it may or may not "
                "have been carried out"
            )
            _fail(asked, perhaps)
            _fail(waiting, UnavailableError("the queue is closed"))

    async def _send_some(self, asked: list[_Asked]) -> None:
        about = self._about
        assert about is not None, "its messages came"
        try:
            found = await self._consumers.acknowledge(
                pb.AcknowledgeMessagesRequest(
                    stream=common_pb2.StreamRef(id=about.stream_id),
                    name=self.name,
                    created_us=about.created_us,
                    acknowledgements=[ack for ack, _ in asked],
                )
            )
        except JetstreamError as error:
            _fail(asked, error)
            return
        unknown, late = set(found.unknown), set(found.late)
        for place, (ack, answer) in enumerate(asked):
            if not answer.done():
                answer.set_result(ack.offset not in unknown and place not in late)

    async def aclose(self) -> None:
        """Stop pulling, and give back what the program was not handed. Idempotent. What it was
        handed and has not acknowledged comes again after `ack_wait`."""
        self._is_closed = True
        self._changed.set()
        try:
            await self._beginning.end()
            if self._pulling is not None:
                self._pulling.cancel()  # What it would bring, the server gives to others.
                await asyncio.gather(self._pulling, return_exceptions=True)
            while (message := self.take()) is not None:
                self._send(_named(message, _Kind.NAK))
            sending = [each.sending for each in (self._kept, self._passing) if each.sending]
            if sending:
                await asyncio.wait(sending, timeout=_CLOSE_SECONDS)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _fail(asked: list[_Asked], error: JetstreamError) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)


def _retrieved(answer: asyncio.Future[bool]) -> None:
    if not answer.cancelled():
        answer.exception()
