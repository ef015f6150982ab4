"""Batched publishing: `client.publisher("orders.eu")`, many records in one NATS message.

Callers add records to a `RecordAccumulator` and get deliveries back. The `Sender` sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from jetstream_client._closing import AsyncClosing
from jetstream_client.publishing.deliveries import Delivery, ManyDelivery
from jetstream_client.publishing.many_records import ManyRecords
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.sender import PublisherOptions
from jetstream_client.publishing.senders import Senders
from jetstream_client.publishing.subject_routes import SubjectRoutes
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.records import columns_of, record_of
from jetstream_client.values.types import Payload
from jetstream_protocol.errors import InvalidRequestError, JetstreamError


class AsyncPublisher(AsyncClosing):
    """Publishes many records to one subject in few messages, each stored once, in order. Made by
    `AsyncClient.publisher`; `async with` starts it, and closes it when everything is acknowledged.
    """

    def __init__(
        self, plain: PlainPublisher, routes: SubjectRoutes, subject: str, options: PublisherOptions
    ) -> None:
        self.subject = subject
        self.options = options
        self._plain = plain
        self._routes = routes
        self._beginning: asyncio.Task[None] | None = None
        self._senders: Senders | None = None
        self._closing = False

    def __repr__(self) -> str:
        return f"<AsyncPublisher to {self.subject!r}: {self.buffered_bytes} bytes unacknowledged>"

    @property
    def senders(self) -> Senders:
        """Once it has begun."""
        assert self._senders is not None
        return self._senders

    async def begin(self) -> None:
        """Look for the streams and connect. Idempotent. Raises NoStreamError."""
        if self._senders is None:
            if self._closing:
                raise InvalidRequestError("the publisher is closed")
            if self._beginning is None or self._beginning.done():
                self._beginning = asyncio.get_running_loop().create_task(self._begin())
            await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        route = await self._routes.ask(self.subject)
        Senders.check(route, self.subject, self.options)
        inbox = await self._plain.connected()
        self._senders = Senders(
            self._plain, self._routes, self.subject, self.options, route, inbox.max_payload
        )

    async def send(
        self,
        value: Any,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
    ) -> Delivery:
        """Add one record, in order; waits only for room. Returns its future. value: bytes or text,
        or what the publisher's `value_serializer` takes; None is a tombstone. key: any bytes.
        Headers that ask the server for something (Nats-Msg-Id, Jetstream-…) cannot travel in a
        batch: InvalidRequestError; `publish` has arguments for them. Raises UnavailableError when
        there is no room within the timeout.
        """
        if self._senders is None:
            await self.begin()
        record = record_of(self.options.serialized(value), key, headers)
        sender = self.senders.of(record)
        while (found := sender.buffer.put(*record)) is None:
            await sender.wait_for_room()
        return Delivery(found[0], self.subject, found[1])

    async def publish_many(
        self,
        values: Sequence[Any],
        keys: Sequence[Payload | None] | None = None,
    ) -> ManyDelivery:
        """Add many records at once, in order, without work per record in Python, but for the hash
        of each key where the subject belongs to a keyed group."""
        if self._senders is None:
            await self.begin()
        if self.options.value_serializer is not None:
            values = list(map(self.options.serialized, values))
        values, keys = columns_of(values, keys)
        many = ManyRecords(self.senders, self.subject, values, keys)
        for share in many.shares:
            while share.left:
                sender = share.next_sender()
                if not many.put(share, sender):
                    await sender.wait_for_room()
        return many.delivery()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait or are in flight: at most `buffer_bytes`, or one record."""
        return 0 if self._senders is None else self._senders.buffered

    async def flush(self) -> None:
        """Send without lingering, and wait until everything handed over before is done.

        Raises the first error that no caller has seen yet: errors are never lost.
        """
        if self._senders is None:
            return
        every = self._senders.all
        for sender in every:
            sender.buffer.seal()
        batches = [batch for sender in every for batch in sender.batches]
        if batches:
            outcomes = [asyncio.wrap_future(batch.future) for batch in batches]
            await asyncio.gather(*outcomes, return_exceptions=True)
        for sender in every:
            sender.raise_failure()

    async def aclose(self) -> None:
        """`flush`, then take nothing more. Idempotent."""
        if self._closing:
            return
        self._closing = True
        try:
            await self.flush()
        finally:
            await self.abort(InvalidRequestError("the publisher is closed"))

    async def abort(self, error: JetstreamError) -> None:
        """End at once: deliveries of unsent records fail with `error`, those that may be stored
        with UnknownOutcomeError. Idempotent."""
        self._closing = True
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        if self._senders is not None:
            await self._senders.stop(error)
