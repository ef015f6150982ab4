"""The consumer of programs without asyncio: `for message in client.consume(…)`.

The asynchronous consumer runs in the client's thread; records are cut out of its fetches in the
caller's own. One thread reads; others, and signal handlers, may pause, resume, seek and close it
meanwhile. What is handed out next is a matter of its buffer (fetch_buffer.py), never of what a call
in the client's thread returns: a signal handler may raise just before that is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from jetstream_client._closing import Closing
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.fetch_buffer import FetchBuffer
from jetstream_client.reading.messages import Message, Messages, check_rows
from jetstream_client.values.positions import Position
from jetstream_client.values.type_variables import K, Typed, V


class Batches:
    """An iterator over batches. An exception of a signal handler does not end it.

    refill: returns the buffer from which the next batch is taken; None at the end.
    """

    def __init__(self, refill: Callable[[], FetchBuffer | None], max_records: int | None) -> None:
        self._refill = refill
        self._max_records = None if max_records is None else check_rows(max_records, "max_records")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Messages:
        while (buffer := self._refill()) is not None:
            found = buffer.batch(self._max_records)
            if found is None:
                continue
            fetched, messages = found
            count = len(messages)
            if not count:
                fetched.takes(0)
                continue
            is_whole = fetched.taken + count == len(fetched.messages)
            # As `takes` does. Nothing is called any more, so that no signal can come in between.
            fetched.size = count
            fetched.was_passed = is_whole
            fetched.taken += count
            return messages
        raise StopIteration


class Consumer(Closing, Typed[V, K]):
    """An iterator over messages, made by `Client.consume`; `with` or `close()` ends its fetching.

    `position` is the offset of the next record that it will return. One thread at a time reads.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncConsumer[V, K]) -> None:
        self._thread = thread
        self._consumer = consumer
        self._buffer = consumer.buffer
        deserializers = consumer.deserializers
        self._deserialize = deserializers.apply if deserializers else None

    def __repr__(self) -> str:
        return repr(self._consumer).replace("AsyncConsumer", "Consumer")

    @property
    def position(self) -> int | None:
        """The offset to be read next; None: it was not entered, nor asked for a record yet."""
        return self._consumer.position

    @property
    def stop(self) -> int | None:
        """The offset before which it stops; None: it does not stop."""
        return self._consumer.stop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[V, K]:
        """Between threads something is handed over per fetch, not per record."""
        while True:
            front = self._buffer.front
            message: Message[Any, Any] | None = front.record()
            if message is not None:
                if self._deserialize is not None:
                    message = self._deserialize(message)
                # Nothing is called any more, so that no signal can come in between.
                front.taken += 1
                return message
            if self._refill() is None:
                raise StopIteration
            self._buffer.begin_rows()

    def _refill(self) -> FetchBuffer | None:
        async def next_messages() -> bool:
            self._buffer.mark_handed_out_done()
            return await self._consumer.is_ready()

        return self._buffer if self._thread.run(next_messages()) else None

    def seek(self, position: Position) -> None:
        """Go on from `position`, later or earlier; the stop does not change."""
        self._thread.run(self._consumer.seek(position))

    def pause(self) -> None:
        """Return no records and fetch no more until another thread calls `resume`: calls for a
        record wait. Records that are fetched already are kept."""
        self._thread.run(self._set_paused(True))

    def resume(self) -> None:
        """Undo `pause`. Idempotent."""
        self._thread.run(self._set_paused(False))

    @property
    def paused(self) -> bool:
        """Whether `pause` was called, and `resume` not since."""
        return self._consumer.paused

    async def _set_paused(self, paused: bool) -> None:
        if paused:
            self._consumer.pause()
        else:
            self._consumer.resume()

    def batches(self, max_records: int | None = None) -> Iterator[Messages]:
        """Iterate over the same records in the batches in which they were fetched, as `Messages`:
        for `values()` and `to_arrow()`. max_records: at most so many in each."""
        return Batches(self._refill, max_records)

    # With a cursor.

    @property
    def committed(self) -> int | None:
        """The position of its cursor as it was last committed; None: it was never committed, or
        there is no cursor."""
        return self._consumer.committed

    def commit(self, offset: int | None = None, *, metadata: str = "") -> None:
        """Commit all records returned so far as done, or all below `offset`. Returns once that is
        committed.

        metadata: text to store with it, at most 1,024 bytes. Raises PreconditionFailedError if
        somebody else has committed or moved the cursor meanwhile; InvalidRequestError without a
        cursor.
        """
        self._thread.run(self._consumer.commit(offset, metadata=metadata))

    def _ended_well(self) -> None:
        self._consumer.finish()

    def close(self) -> None:
        """Stop, and commit the records that are done; a running fetch is cancelled. Idempotent.

        Raises the error of that commit if a later one would fail, too. If no server answers, that
        is only logged: the next consumer of the cursor repeats the records.
        """
        self._buffer.end()
        if self._thread.is_running:
            self._thread.run(self._consumer.aclose())
