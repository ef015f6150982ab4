"""`Queue`: a work queue for programs without asyncio."""

from __future__ import annotations

from typing import Self

from jetstream_client._closing import Closing
from jetstream_client._loop_thread import LoopThread
from jetstream_client.processing.queue import AsyncQueue, AsyncQueueMessage
from jetstream_client.reading.messages import Message
from jetstream_client.values.consumers import ConsumerDescription
from jetstream_client.values.durations import Seconds


class QueueMessage(Message):
    """A message of a queue. deliveries: how often it was delivered, this time included. Any thread
    may acknowledge it."""

    __slots__ = ("_message", "_queue", "deliveries")

    def __init__(self, queue: Queue, message: AsyncQueueMessage) -> None:
        super().__init__(
            message.stream,
            message.offset,
            message.timestamp_us,
            message.subject,
            message.key,
            message.value,
            message.header_block,
        )
        self.deliveries = message.deliveries
        self._message = message
        self._queue = queue  # Which lives as long as this can be acknowledged.

    def ack(self) -> bool:
        """Say that it is done. Returns once that is committed: no reader gets it again. False: it
        comes again all the same, because another node leads the stream now and had not heard of its
        delivery."""
        return self._queue._thread.run(self._message.ack())

    def nak(self, delay: Seconds = 0) -> bool:
        """Give it back: it is delivered again, to whoever asks, after `delay` seconds. False: it is
        done, or was delivered again already."""
        return self._queue._thread.run(self._message.nak(delay))

    def extend(self) -> bool:
        """Say that it is still being worked on: `ack_wait` begins anew. False: it is done, or was
        delivered again, and whoever got it then works on it."""
        return self._queue._thread.run(self._message.extend())

    def term(self) -> bool:
        """Give it up: it is never delivered again. Returns once that is committed."""
        return self._queue._thread.run(self._message.term())


class Queue(Closing):
    """An iterator over messages, made by `Client.queue`; `with` or `close()` ends it. One thread at
    a time iterates."""

    def __init__(self, thread: LoopThread, queue: AsyncQueue) -> None:
        self._thread = thread
        self._queue = queue
        self.name = queue.name

    def __del__(self) -> None:
        """No caller can read it any more, nor acknowledge: what it was not handed is for others."""
        if hasattr(self, "_queue"):  # Else LoopThread.begun closes it.
            self._thread.post(self._queue.aclose())

    def __repr__(self) -> str:
        return repr(self._queue).replace("AsyncQueue", "Queue")

    @property
    def consumer(self) -> ConsumerDescription | None:
        """The consumer as it was at the begin."""
        return self._queue.consumer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> QueueMessage:
        self._thread.check_process()  # What was fetched is for the parent to hand out.
        while (message := self._queue.front()) is None:
            if not self._thread.run(self._queue.is_ready()):
                raise StopIteration
        found, waiting = QueueMessage(self, message), self._queue.buffer
        self._thread.post(self._queue.refill())
        try:
            # Last, and by no call, after which a signal handler may raise: it would be lost.
            del waiting[0]
        except IndexError:  # Somebody closes it.
            raise StopIteration from None
        return found

    def close(self) -> None:
        """Stop pulling, and give back what the program was not handed. Idempotent. What it was
        handed and has not acknowledged comes again after `ack_wait`."""
        if self._thread.is_running:
            self._thread.run(self._queue.aclose())
