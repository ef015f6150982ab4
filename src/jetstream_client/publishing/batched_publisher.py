"""Batched publishing: `client.publisher("orders.eu")`, many records in one NATS message.

Callers add records to a `RecordAccumulator` and get deliveries back. The `Sender` sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

from jetstream_client._closing import AsyncClosing, Beginning, ClientClosedError, close_after
from jetstream_client._log import logger
from jetstream_client._tracing import SWITCH as TRACING
from jetstream_client._tracing import Tracing
from jetstream_client.publishing.deliveries import Delivery, ManyDelivery
from jetstream_client.publishing.many_records import ManyRecords
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.sender import NATS_PAYLOAD_BYTES, PublisherOptions
from jetstream_client.publishing.senders import Senders
from jetstream_client.publishing.subject_routes import SubjectRoute, SubjectRoutes
from jetstream_client.publishing.ways import REACH_SECONDS
from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.records import block_of, one_a_record
from jetstream_client.values.type_variables import SK, S, Serialized
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError


class AsyncPublisher(AsyncClosing, Serialized[S, SK]):
    """Publishes many records to one subject in few messages. Each is stored once, in order.

    `AsyncClient.publisher` makes it. `async with` starts it, and closes it when all records are
    acknowledged.
    """

    def __init__(
        self,
        plain: PlainPublisher,
        routes: SubjectRoutes,
        subject: str,
        options: PublisherOptions,
        running: set[AsyncPublisher[Any, Any]],
        data_plane: DataPlane | None = None,
    ) -> None:
        """running: where it stands from its beginning to its end, so that it can be ended even if
        the program has let go of it. data_plane: for options that say "direct" or "auto"."""
        self.subject = subject
        self.options = options
        self._plain = plain
        self._routes = routes
        self._running = running
        self._data_plane = None if options.via == "nats" else data_plane
        self._beginning = Beginning()
        self._senders: Senders | None = None
        self._closing = False
        self._ending = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<AsyncPublisher to {self.subject!r}: {self.buffered_bytes} bytes unacknowledged>"

    @property
    def senders(self) -> Senders:
        """Once it has begun."""
        assert self._senders is not None
        return self._senders

    async def begin(self) -> None:
        """Find the streams on the subject, and connect. Idempotent. Raises NoStreamError."""
        if self._senders is None:
            if self._closing:
                raise ClientClosedError("the publisher is closed")
            self._plain.home.here()
            self._running.add(self)
            await self._beginning.wait(self._begin)
            if self._senders is None:
                raise ClientClosedError("the publisher is closed")

    async def _begin(self) -> None:
        try:
            if self.options.via == "nats":
                await self._plain.loaded()
            deadline = asyncio.get_running_loop().time() + self._plain.timeout
            route = await self._plain.route(self.subject, deadline)
            Senders.check(route, self.subject, self.options)
            max_payload = await self._max_payload(route, deadline)
            self._senders = Senders(
                self._plain, self._routes, self.subject, self.options, route, max_payload,
                self._data_plane,
            )  # fmt: skip
        except BaseException:
            self._running.discard(self)
            raise

    async def _max_payload(self, route: SubjectRoute, deadline: float) -> int:
        """The most bytes that one message, or one frame, may have."""
        seconds = deadline - asyncio.get_running_loop().time()
        if self._data_plane is not None and self.options.via == "direct":
            return await self._data_plane.produce_bytes_max(route.ids.values(), seconds)
        if self._data_plane is not None and all(
            place.route.goes_straight for place in route.places(self.subject)
        ):
            seconds = min(seconds, REACH_SECONDS)
            try:
                found = await self._data_plane.produce_bytes_max(route.ids.values(), seconds)
            except (UnavailableError, InvalidRequestError) as error:
                logger.info("publishing to %r by NATS: %s", self.subject, error.message)
            else:
                return min(found, NATS_PAYLOAD_BYTES)
        return (await self._plain.connected(deadline)).max_payload

    def send(
        self,
        value: S | None,
        key: SK | None = None,
        headers: HeadersLike | None = None,
    ) -> Coroutine[Any, Any, Delivery]:
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
        return self._send_traced(tracing, value, key, headers)

    async def _send_traced(
        self, tracing: Tracing, value: Any, key: Any, headers: HeadersLike | None
    ) -> Delivery:
        with tracing.batched(self.subject, 1) as span:
            delivery = await self._send(value, key, span.headers(headers))
            span.ends_with([delivery])
        return delivery

    async def _send(self, value: Any, key: Any, headers: HeadersLike | None) -> Delivery:
        if self._senders is None:
            await self.begin()
        record = self.options.record(value, key, headers)
        sender = self.senders.of(record)
        found = sender.buffer.put(*record)
        if found is None:
            found = await sender.patiently(partial(sender.buffer.put, *record))
        return Delivery(found[0], self.subject, found[1])

    async def publish_many(
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
            return await self._publish_many(values, keys, header_blocks)
        values = one_a_record("value", values)
        with tracing.batched(self.subject, len(values)) as span:
            trace = block_of(span.headers(None))
            many = await self._publish_many(values, keys, header_blocks, trace)
            span.ends_with(many)
        return many

    async def _publish_many(
        self,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        header_blocks: Iterable[bytes] | None = None,
        trace: bytes = b"",
    ) -> ManyDelivery:
        if self._senders is None:
            await self.begin()
        record_values, record_keys = self.options.columns(values, keys)
        many = ManyRecords(
            self.senders, self.subject, record_values, record_keys, header_blocks, trace
        )
        with many.being_added():
            for share in many.shares:
                while share.left:
                    sender = share.next_sender()
                    await sender.patiently(partial(many.put, share, sender))
        return many.delivery()

    @property
    def batch_bytes(self) -> int:
        """The largest batch: `max_bytes`, or what NATS or the server takes if that is less. Raises
        InvalidRequestError before `async with` or the first record has started the publisher."""
        if self._senders is None:
            raise InvalidRequestError(
                "batch_bytes is not known yet: use the publisher in `async with`, or send first"
            )
        return self.senders.all[0].buffer.batch_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait or are in flight: at most `buffer_bytes`, or one record."""
        return 0 if self._senders is None else self._senders.buffered

    async def flush(self) -> None:
        """Send without lingering, and wait until all records added before are stored or have
        failed.

        Raises the first error that no caller has seen yet, so no error is lost.
        """
        if self._senders is None:
            return
        self.hurry()
        every = self._senders.all
        batches = [batch for sender in every for batch in sender.batches]
        if batches:
            outcomes = [batch.future.awaited() for batch in batches]
            await asyncio.gather(*outcomes)
        for sender in every:
            sender.raise_failure()

    def hurry(self) -> None:
        """Send what was added without lingering. Does not wait."""
        for sender in () if self._senders is None else self._senders.all:
            sender.buffer.seal()

    async def aclose(self) -> None:
        """Flush, and then take no more records. Idempotent."""
        await self.end(ClientClosedError("the publisher is closed"))

    async def aclose_unasked(self) -> None:
        """The same, for a caller that hears of no failure: it is logged."""
        if not self._closing:
            await close_after(GeneratorExit(), self.aclose())

    async def end(self, error: JetstreamError, deadline: float | None = None) -> None:
        """The same; what is not acknowledged by the deadline, on the loop's clock, fails as with
        `abort`."""
        try:
            # Whoever closes it, too, waits until all is flushed.
            async with asyncio.timeout_at(deadline), self._ending:
                if not self._closing:
                    self._closing = True
                    await self.flush()
        except TimeoutError:
            pass  # `abort` says what is left.
        finally:
            await self.abort(error)

    async def abort(self, error: JetstreamError) -> None:
        """End at once: deliveries of unsent records fail with `error`, and those of records that
        may be stored with UnknownOutcomeError. Idempotent."""
        self._closing = True
        await self._beginning.end()
        if self._senders is not None:
            self.hurry()
            count = sum(len(batch) for each in self._senders.all for batch in each.batches)
            if count:
                logger.warning(
                    "the publisher to %r ends with %d records that are not acknowledged: %s",
                    self.subject, count, error.message,
                )  # fmt: skip
            await self._senders.stop(error)
        self._running.discard(self)
