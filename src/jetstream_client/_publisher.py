"""Batched publishing: `client.publisher("orders.eu")`, many records in one NATS message.

What callers see: records go into a `Buffer`, deliveries come back. The `Sender` does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from jetstream_client._batching import ends_of
from jetstream_client._deliveries import BatchDelivery, Delivery, ManyDelivery
from jetstream_client._feeds import Feeds
from jetstream_client._headers import HeadersLike
from jetstream_client._publish import PlainPublisher
from jetstream_client._records import columns_of, record_of
from jetstream_client._sender import PublisherOptions, Sender
from jetstream_client._types import Payload
from jetstream_protocol.errors import InvalidRequestError, JetstreamError

if TYPE_CHECKING:
    from typing import Self


class AsyncPublisher:
    """See AsyncClient.publisher. `async with` begins it, and ends it when all is acknowledged."""

    def __init__(
        self, plain: PlainPublisher, feeds: Feeds, subject: str, options: PublisherOptions
    ) -> None:
        self.subject = subject
        self.options = options
        self._plain = plain
        self._feeds = feeds
        self._beginning: asyncio.Task[None] | None = None
        self._sender: Sender | None = None
        self._closing = False

    @property
    def sender(self) -> Sender:
        """Once it has begun."""
        assert self._sender is not None
        return self._sender

    async def begin(self) -> None:
        """Look for the streams and connect. Idempotent. Raises NoStreamError."""
        if self._sender is None:
            if self._closing:
                raise InvalidRequestError("the publisher is closed")
            if self._beginning is None or self._beginning.done():
                self._beginning = asyncio.get_running_loop().create_task(self._begin())
            await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        feed = await self._feeds.ask(self.subject)
        feed.wanted_of_batches(self.subject, self.options.acks)  # Or it raises.
        inbox = await self._plain.connected()
        self._sender = Sender(
            self._plain, self._feeds, self.subject, self.options, feed, inbox.max_payload
        )

    async def send(
        self,
        value: Payload | None,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
    ) -> Delivery:
        """Hand over one record, in order; waits only for room. The delivery is its future.

        value: None is a tombstone. key: any bytes. Headers that ask the server for something
        (Nats-Msg-Id, Jetstream-…) cannot travel in a batch: InvalidRequestError; `publish` has
        arguments for them. Raises UnavailableError when there is no room within the timeout.
        """
        if self._sender is None:
            await self.begin()
        record = record_of(value, key, headers)
        while (found := self.sender.buffer.put(*record)) is None:
            await self.sender.wait_for_room()
        return Delivery(found[0], self.subject, found[1])

    async def publish_many(
        self,
        values: Sequence[Payload | None],
        keys: Sequence[Payload | None] | None = None,
    ) -> ManyDelivery:
        """Hand over many records at once, in order: nothing is done for each of them in Python."""
        if self._sender is None:
            await self.begin()
        values, keys = columns_of(values, keys)
        ends = ends_of(values, keys)
        self.sender.buffer.check(ends)
        parts: list[BatchDelivery] = []
        start = 0
        while start < len(values):
            found = self.sender.buffer.put_many(values, keys, ends, start)
            if found is None:
                await self.sender.wait_for_room()
                continue
            batch, place, stop = found
            parts.append(BatchDelivery(batch, self.subject, place, stop - start))
            start = stop
        return ManyDelivery(parts)

    @property
    def buffered_bytes(self) -> int:
        """What waits and is in flight; never more than `buffer_bytes`, but for one record."""
        return 0 if self._sender is None else self._sender.buffer.buffered

    async def flush(self) -> None:
        """Send without lingering, and wait until everything handed over before is done.

        Raises the first failure whose delivery nobody has asked: errors are never lost.
        """
        if self._sender is None:
            return
        self._sender.buffer.seal()
        batches = self._sender.batches
        if batches:
            await asyncio.wait([asyncio.wrap_future(batch.future) for batch in batches])
        self._sender.raise_failure()

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
        """End at once: what is not stored gets `error`, what may be is unknown. Idempotent."""
        self._closing = True
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        if self._sender is not None:
            await self._sender.stop(error)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except JetstreamError:
            if error is None:
                raise
