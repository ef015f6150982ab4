"""The member of a consumer group for programs without asyncio: `client.consume_group(…)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jetstream_client._closing import Closing
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading.group_consumer import AsyncGroupConsumer, Part
from jetstream_client.reading.messages import Message, Messages, check_rows

if TYPE_CHECKING:
    from typing import Self


class GroupConsumer(Closing):
    """An iterator over the records of the streams that this member reads, made by
    `Client.consume_group`. One thread at a time reads."""

    def __init__(self, thread: LoopThread, consumer: AsyncGroupConsumer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._rows: Iterator[Message] = iter(())
        self._part: Part | None = None

    def __repr__(self) -> str:
        return repr(self._consumer).replace("AsyncGroupConsumer", "GroupConsumer")

    @property
    def streams(self) -> list[str]:
        """The names of the streams that it reads now."""
        return self._consumer.streams

    @property
    def generation(self) -> int:
        """The generation of the group that the coordinator last told this member."""
        return self._consumer.generation

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while True:
            if self._part is not None:
                if self._consumer.must_adjust and not self._thread.run(self._consumer.goes_on()):
                    self._part = None
                    continue
                message = next(self._rows, None)
                if message is not None:
                    self._part.consumer.position = message.offset + 1
                    return message
            self._part = None
            found = self._thread.run(self._consumer.refill(exhausted=True, by_record=True))
            if found is None:
                raise StopIteration
            self._part, messages = found
            self._rows = iter(self._part.consumer.deserializers.each(messages))

    def batches(self, max_records: int | None = None) -> Iterator[Messages]:
        """Iterate over the same records as `Messages`, each of one stream. max_records: at most so
        many in each."""
        if max_records is not None:
            check_rows(max_records, "max_records")
        while True:
            found = self._thread.run(
                self._consumer.refill(exhausted=True, by_record=False, max_records=max_records)
            )
            if found is None:
                return
            yield found[1]

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
        self._rows, self._part = iter(()), None
        if self._thread.is_running:
            self._thread.run(self._consumer.aclose())
