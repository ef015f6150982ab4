"""The batched publisher of programs without asyncio; any thread may use it.

The caller's thread adds records to the `RecordAccumulator`, so `send` passes nothing between
threads; the sender is woken once per batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from jetstream_client._closing import Closing
from jetstream_client._loop_thread import LoopThread
from jetstream_client._tracing import SWITCH as TRACING
from jetstream_client.publishing.batched_publisher import AsyncPublisher
from jetstream_client.publishing.deliveries import Delivery, ManyDelivery
from jetstream_client.publishing.many_records import ManyRecords
from jetstream_client.publishing.record_accumulator import RecordAccumulator
from jetstream_client.publishing.sender import no_room_error
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.records import block_of, one_a_record
from jetstream_client.values.type_variables import SK, S, Serialized

_T = TypeVar("_T")


class Publisher(Closing, Serialized[S, SK]):
    """Publishes many records to one subject in few messages. Each is stored once, in order.

    `Client.publisher` makes it. Thread-safe. `with` closes it when all records are acknowledged.
    """

    def __init__(self, thread: LoopThread, publisher: AsyncPublisher[S, SK]) -> None:
        self._thread = thread
        self._publisher = publisher
        self.subject = publisher.subject

    def __del__(self) -> None:
        """No caller can use it any more: what it holds is sent, and nothing is kept for it."""
        if hasattr(self, "_publisher"):  # Else LoopThread.begun closes it.
            self._thread.post(self._publisher.aclose_unasked())

    def __repr__(self) -> str:
        return f"<Publisher to {self.subject!r}: {self.buffered_bytes} bytes unacknowledged>"

    def send(
        self,
        value: S | None,
        key: SK | None = None,
        headers: HeadersLike | None = None,
    ) -> Delivery:
        """Add one record, after those of earlier calls. Waits only for room in the buffer. Returns
        the record's delivery.

        value: bytes or text, or what the publisher's `value_serializer` takes; None is a tombstone.
        key: the same, for its `key_serializer`. headers: not those that ask the server for
        something (Nats-Msg-Id, Jetstream-…), which raise InvalidRequestError; `publish` has
        arguments for them. Raises UnavailableError if there is no room within the delivery timeout.
        """
        tracing = TRACING.active
        if tracing is None:
            return self._send(value, key, headers)
        with tracing.batched(self.subject, 1) as span:
            delivery = self._send(value, key, span.headers(headers))
            span.ends_with([delivery])
        return delivery

    def _send(self, value: Any, key: Any, headers: HeadersLike | None) -> Delivery:
        self._thread.check_process()
        record = self._publisher.options.record(value, key, headers)
        buffer = self._publisher.senders.of(record).buffer
        found = buffer.put(*record) or self._patiently(buffer, partial(buffer.put, *record))
        return Delivery(found[0], self.subject, found[1])

    def publish_many(
        self,
        values: Iterable[S | None],
        keys: Iterable[SK | None] | None = None,
        *,
        header_blocks: Iterable[bytes] | None = None,
    ) -> ManyDelivery:
        """Add many records at once, in order. Returns one delivery for all of them.

        header_blocks: the headers of each record in the form of `Message.header_block`, b"" for
        none. They travel as they are, without a check, and without the header of a trace.

        values, keys and header_blocks may be any iterables, also generators, as long as each other.
        There is no work per record in Python, except that in a keyed group each key is hashed.
        """
        tracing = TRACING.active
        if tracing is None:
            return self._publish_many(values, keys, header_blocks)
        values = one_a_record("value", values)
        with tracing.batched(self.subject, len(values)) as span:
            trace = block_of(span.headers(None))
            many = self._publish_many(values, keys, header_blocks, trace)
            span.ends_with(many)
        return many

    def _publish_many(
        self,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        header_blocks: Iterable[bytes] | None = None,
        trace: bytes = b"",
    ) -> ManyDelivery:
        self._thread.check_process()
        record_values, record_keys = self._publisher.options.columns(values, keys)
        many = ManyRecords(
            self._publisher.senders, self.subject, record_values, record_keys, header_blocks, trace
        )
        with many.being_added():
            for share in many.shares:
                while share.left:
                    sender = share.next_sender()
                    self._patiently(sender.buffer, partial(many.put, share, sender))
        return many.delivery()

    def _patiently(self, buffer: RecordAccumulator, put: Callable[[], _T | None]) -> _T:
        """What `put` returns once there is room in the buffer. Raises UnavailableError."""
        seen = buffer.releases
        found = put()
        if found:
            return found
        timeout = self._publisher.options.delivery_timeout
        deadline = time.monotonic() + timeout
        while True:
            self._thread.check_caller()
            if not buffer.wait_for_release(seen, deadline - time.monotonic()):
                raise no_room_error(timeout)
            seen = buffer.releases
            found = put()
            if found:
                return found

    @property
    def batch_bytes(self) -> int:
        """The largest batch: `max_bytes`, or what the NATS server takes if that is less."""
        return self._publisher.batch_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait or are in flight: at most `buffer_bytes`, or one record."""
        return self._publisher.buffered_bytes

    def flush(self) -> None:
        """Send without lingering, and wait until all records added before are stored or have
        failed.

        Raises the first error that no caller has seen yet, so no error is lost.
        """
        self._thread.run(self._publisher.flush())

    def close(self) -> None:
        """Flush, and then take no more records. Idempotent."""
        if self._thread.is_running:
            self._thread.run(self._publisher.aclose())
