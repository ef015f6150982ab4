"""The consumer of programs without asyncio: `for message in client.consume(…)`.

The asynchronous consumer runs in the client's thread; records are cut out of its fetches in the
caller's own. One thread reads; others may pause, resume and close it meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jetstream_client._closing import Closing
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.messages import Message, Messages, check_rows
from jetstream_client.values.positions import Position

if TYPE_CHECKING:
    from typing import Self


class Consumer(Closing):
    """An iterator over messages, made by `Client.consume`; `with` or `close()` ends its fetching.

    `position` is the offset of the next record that it will return. One thread at a time reads.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncConsumer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._rows: Iterator[Message] = iter(())
        self._kept: Iterator[Message] | None = None  # in place of `_rows`, while it is paused
        self._lock = threading.Lock()  # around both; a record of `_rows` is taken without
        self._position = consumer.position
        self._reset_count = consumer.reset_count
        consumer.position_told_by(self._where)
        consumer.failures_told_to(self._drop)

    def __repr__(self) -> str:
        stop = "" if self.stop is None else f", stops at {self.stop}"
        return f"<Consumer at offset {self._position}{stop}{', paused' if self.paused else ''}>"

    @property
    def position(self) -> int | None:
        """The offset to be read next; None: it was not entered, nor asked for a record yet."""
        return self._position

    @property
    def stop(self) -> int | None:
        """The offset before which it stops; None: it does not stop."""
        return self._consumer.stop

    def _where(self) -> int | None:
        return self._position

    def _drop(self) -> None:
        """In the client's thread: it has failed, so the next record raises."""
        with self._lock:
            self._rows = iter(())
            self._kept = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while True:
            message = next(self._rows, None)
            if message is not None:
                self._position = message.offset + self._consumer.step
                return message
            self._refill()

    def _refill(self) -> None:
        """One hand-over between threads per fetch, not per record. Raises StopIteration."""
        progress = self._consumer.progress
        with self._lock:
            if self._position is not None:
                progress.asks(self._position, exhausted=self._kept is None)
        if self._consumer.paused:
            self._thread.run(self._consumer.wait_resumed())
        with self._lock:
            kept, self._kept = self._kept, None
            if kept is not None:
                self._rows = kept
                progress.resumes()
                return
        messages = self._next_messages()
        if messages is None:
            raise StopIteration
        progress.gets(messages, by_record=True)
        rows = self._consumer.deserializers.each(messages)
        with self._lock:
            if self._consumer.paused:
                self._kept = rows
            else:
                self._rows = rows

    def _next_messages(self) -> Messages | None:
        messages = self._thread.run(self._consumer.next_messages())
        if self._consumer.reset_count != self._reset_count:
            self._reset_count = self._consumer.reset_count
            self._position = self._consumer.position
        return messages

    def seek(self, position: Position) -> None:
        """Go on from `position`, later or earlier; the stop does not change."""
        self._thread.run(self._consumer.seek(position))
        with self._lock:
            self._rows, self._kept = iter(()), None
        self._position = self._consumer.position

    def pause(self) -> None:
        """Return no records and fetch no more until another thread calls `resume`: calls for a
        record wait. Records that are fetched already are kept."""
        self._thread.run(self._set_paused(True))
        with self._lock:
            if self._kept is None:
                self._kept, self._rows = self._rows, iter(())

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
        if max_records is not None:
            check_rows(max_records, "max_records")
        progress = self._consumer.progress
        while True:
            if self._position is not None:
                progress.asks(self._position)
            messages = self._next_messages()
            if messages is None:
                return
            messages = self._consumer.first_of(messages, max_records)
            progress.gets(messages, by_record=False)
            if len(messages):
                self._position = messages.next_offset
                yield messages

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
        self._rows = iter(())
        if self._thread.is_running:
            self._thread.run(self._consumer.aclose())
