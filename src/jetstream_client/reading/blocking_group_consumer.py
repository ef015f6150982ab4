"""The member of a consumer group for programs without asyncio: `client.consume_group(…)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from jetstream_client._closing import Closing
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading.blocking_consumer import Batches
from jetstream_client.reading.fetch_buffer import FetchBuffer
from jetstream_client.reading.group_consumer import AsyncGroupConsumer
from jetstream_client.reading.messages import Message, Messages
from jetstream_client.values.type_variables import K, Typed, V


class GroupConsumer(Closing, Typed[V, K]):
    """An iterator over the records of the streams that this member reads, made by
    `Client.consume_group`. One thread at a time reads."""

    def __init__(self, thread: LoopThread, consumer: AsyncGroupConsumer[V, K]) -> None:
        self._thread = thread
        self._consumer = consumer

    def __del__(self) -> None:
        """No caller can read any more, as when Ctrl-C came just as `consume_group` returned: its
        streams are for other members."""
        if hasattr(self, "_consumer"):  # Else LoopThread.begun closes it.
            self._thread.post(self._consumer.aclose())

    def __repr__(self) -> str:
        return repr(self._consumer).replace("AsyncGroupConsumer", "GroupConsumer")

    @property
    def streams(self) -> list[str]:
        """The names of the streams that it reads now."""
        return self._consumer.streams

    @property
    def generation(self) -> int:
        """The generation of the group that the coordinator last sent to this member."""
        return self._consumer.generation

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[V, K]:
        while True:
            part = self._consumer.current
            if part is not None:
                front = part.consumer.buffer.front
                message: Message[Any, Any] | None = front.record()
                if message is not None:
                    message = part.consumer.deserializers.apply(message)
                    # Nothing is called any more, so that no signal can come in between.
                    front.taken += 1
                    return message
            buffer = self._refill()
            if buffer is None:
                raise StopIteration
            buffer.begin_rows()

    def _refill(self) -> FetchBuffer | None:
        return self._thread.run(self._consumer.refill())

    def batches(self, max_records: int | None = None) -> Iterator[Messages]:
        """Iterate over the same records as `Messages`, each of one stream. max_records: at most so
        many in each."""
        return Batches(self._refill_in_time, max_records)

    def _refill_in_time(self) -> FetchBuffer | None:
        """**safety** The process may have been frozen since the records came: then they may be
        another member's by now."""
        while True:
            buffer, part = self._refill(), self._consumer.current
            if buffer is None or (part is not None and part.consumer.buffer is buffer):
                return buffer

    def commit(self) -> None:
        """Commit all records returned so far as done. Returns once that is committed. In
        `on_revoked` it commits those that are done: after an error in the block, all but the one
        that was being handled.

        Raises PreconditionFailedError for a stream that belongs to another member by now.
        """
        self._thread.run(self._consumer.commit())

    def _ended_well(self) -> None:
        self._consumer.finish()

    def close(self) -> None:
        """Commit what is done, and leave the group. Idempotent.

        Raises the error of that commit if a later one would fail, too. If no server answers, or the
        streams are others' already, that is only logged: the next reader repeats the records.
        """
        if self._thread.is_running:
            self._thread.run(self._consumer.aclose())
