"""`AsyncClient`: everything a program can ask of a cluster, for asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

from jetstream_client._closing import ClientClosedError, close_after
from jetstream_client._log import logger
from jetstream_client._tracing import SWITCH as TRACING
from jetstream_client.clients.async_keyed_groups import AsyncKeyedGroups
from jetstream_client.clients.async_processing import AsyncProcessing
from jetstream_client.clients.async_queues import AsyncQueues
from jetstream_client.clients.async_reading import AsyncReading
from jetstream_client.clients.one_name import with_one_name
from jetstream_client.processing.queue import AsyncQueue
from jetstream_client.publishing.ack import PublishResult
from jetstream_client.publishing.batched_publisher import AsyncPublisher
from jetstream_client.publishing.direct_publisher import DirectPublisher
from jetstream_client.publishing.plain_publisher import PlainPublisher, PublishOptions
from jetstream_client.publishing.sender import (
    BATCH_BYTES,
    BUFFER_BYTES,
    DELIVERY_SECONDS,
    LINGER_SECONDS,
    Compression,
    PublisherOptions,
    Serializer,
)
from jetstream_client.publishing.subject_routes import SubjectRoutes
from jetstream_client.publishing.ways import check_via
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.group_consumer import AsyncGroupConsumer
from jetstream_client.reading.reader import Reader
from jetstream_client.transport.cluster import AsyncCluster, describe_cluster
from jetstream_client.transport.connection_events import Callbacks, ConnectionEvents
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.cursors import AsyncCursors, Cursors
from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.transport.groups import AsyncGroups
from jetstream_client.transport.lags import Lags
from jetstream_client.transport.lake import AsyncLake
from jetstream_client.transport.schemas import AsyncSchemas
from jetstream_client.transport.security import AsyncSecurity
from jetstream_client.transport.streams import AsyncStreams, Streams
from jetstream_client.values.config import ClientConfig, NatsOptions
from jetstream_client.values.durations import Seconds, to_seconds
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.sizes import Size, to_size
from jetstream_client.values.tls import TlsConfig
from jetstream_client.values.type_variables import SK, S
from jetstream_client.values.types import (
    AckLevel,
    Payload,
    Value,
    Via,
)
from jetstream_protocol.memory import keep_freed_memory

_HANDLING_SHARE = 0.9
"""Of the time for closing: what handlers may take, so that something is left for the rest."""
_GRACE_SHARE, _GRACE_SECONDS = 0.05, 1.0
"""So much longer than the timeout consumers may take: a commit takes all of it, then they leave."""
_FAILED_FLUSH_SECONDS = 1.0
"""So long a client whose block has failed waits for what its publishers hold."""


@with_one_name
class AsyncClient(
    AsyncProcessing,
    AsyncQueues,
    AsyncReading,
    AsyncKeyedGroups,
    AsyncGroups,
    AsyncCursors,
    AsyncSchemas,
    AsyncLake,
    AsyncStreams,
    AsyncCluster,
    AsyncSecurity,
):
    """A connection to a cluster, made on first use; `async with` closes it.

        async with AsyncClient("localhost:9292") as client:
            await client.publish("orders.eu", b"3 pears")

    servers: "host:port" of any node; several as a list or separated by commas. nats: URLs to
    publish to, instead of those that the cluster names. timeout: seconds that a call may take,
    retries included. in_flight_max: how many calls of `publish` may wait for acknowledgements at a
    time; further ones wait their turn. rack: where this program runs, for `read_from="nearest"`.
    token: tells the servers which principal this program is. tls: True, or a TlsConfig, to speak
    TLS. Arguments that are left out come from the environment: JETSTREAM_SERVERS (else
    localhost:9292), JETSTREAM_RACK, JETSTREAM_TOKEN, and for TLS JETSTREAM_CA, JETSTREAM_CERT and
    JETSTREAM_KEY. nats_options, too: JETSTREAM_NATS_CA, _CERT and _KEY, and JETSTREAM_NATS_CREDS.

    disconnected_cb, reconnected_cb: called with a ConnectionEvent when a connection is lost or
    found again. error_cb: called with the JetstreamError of a call that is tried again. closed_cb:
    called when the client is closed.

    Every error is a jetstream_client.JetstreamError: UnavailableError if no server answers in time,
    UnknownOutcomeError if the call may have been carried out anyway. Belongs to the event loop it
    is first used on.
    """

    def __init__(
        self,
        servers: str | Iterable[str] | None = None,
        *,
        nats: str | Iterable[str] | None = None,
        nats_options: NatsOptions | None = None,
        timeout: Seconds = 10.0,
        in_flight_max: int = 16_384,
        rack: str | None = None,
        token: str | None = None,
        tls: bool | TlsConfig | None = None,
        **callbacks: Unpack[Callbacks],
    ) -> None:
        self._set_up(
            ClientConfig.of(servers, nats, nats_options, timeout, in_flight_max, rack, token, tls),
            callbacks,
        )

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """A client with this configuration. A configuration can be pickled, a client cannot."""
        return cls.observed(config, Callbacks())

    @classmethod
    def observed(cls, config: ClientConfig, callbacks: Callbacks) -> Self:
        """The same, with callbacks."""
        client = cls.__new__(cls)
        client._set_up(config, callbacks)
        return client

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: pickle its `config`, and make another "
            "with `from_config`"
        )

    def __repr__(self) -> str:
        return f"<AsyncClient of {', '.join(self.config.servers)}>"

    def _set_up(self, config: ClientConfig, callbacks: Callbacks) -> None:
        keep_freed_memory()
        self.config = config
        self._closed = False
        self._flush_seconds = config.timeout
        self._events = ConnectionEvents(callbacks)
        self._control = ControlPlane(config, self._events)
        self._streams = Streams(self._control)
        streams, met = self._streams, self._control.has_met_one
        nodes = partial(describe_cluster, self._control)
        self._data_plane = DataPlane(
            nodes, streams.leader_of, streams.registered, met, config, self._events
        )
        self._cursors = Cursors(self._control)
        self._reader = Reader(self._streams, self._data_plane, self._control, config.timeout)
        self._lags = Lags(self._streams, self._reader.appended_us)
        self._routes = SubjectRoutes(
            self._streams.find, self._streams.as_led, lambda: self._streams.ack_cluster
        )
        self._publisher = PlainPublisher(
            config, self._routes, self._nats_urls, lambda: self._control.trouble, self._events
        )
        self._direct = DirectPublisher(self._publisher, self._routes, self._data_plane)
        self._consumers: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()
        self._group_consumers: weakref.WeakSet[AsyncGroupConsumer] = weakref.WeakSet()
        self._processors = weakref.WeakSet()
        self._queues: weakref.WeakSet[AsyncQueue] = weakref.WeakSet()
        self._publishers: set[AsyncPublisher] = set()  # Those that have begun and not ended.

    async def _nats_urls(self) -> Sequence[str]:
        return (await describe_cluster(self._control)).nats

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    def _forget_routes(self) -> None:
        self._routes.forget_all()

    # Publishing.

    def publish(
        self,
        subject: str,
        value: Value | None,
        *,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
        acks: str | Sequence[str] = "all",
        ack_level: AckLevel | None = None,
        msg_id: str | None = None,
        expected_offset: int | None = None,
        timeout: Seconds | None = None,
        via: Via = "nats",
    ) -> Coroutine[Any, Any, PublishResult]:
        """Publish an ordinary NATS message and wait until streams acknowledge it.

        value: None is a tombstone, b"" an empty value. key: text is stored as UTF-8; in a keyed
        group the key chooses the stream. acks: wait for "all" streams on the subject, for "any" one
        of them, or for those with the given names. ack_level: when a stream acknowledges: "all"
        (committed, the default), "leader" (appended); with "none" the call waits for nothing.
        msg_id: within its `duplicate_window` a stream stores only one message with this id; a
        repeated one is acknowledged as `duplicate`, with the offset of the first. expected_offset:
        store the message only if it gets this offset. timeout: seconds; default: the client's. via:
        "direct" sends it straight to the leader of each stream on the subject, past NATS: nobody
        else who listens there hears it. "auto" does so where exactly one stream listens, and its
        leader can be reached; else the message goes by NATS.

        Raises NoStreamError at once if no stream listens; the error of a stream that refuses, which
        has then stored nothing (PreconditionFailedError: another record has the expected offset);
        UnknownOutcomeError if `timeout` passes without an answer.

            ack = await client.publish("orders.eu", b"3 pears", key=b"42")
            print(ack.stream, ack.offset)

        This publishes one message at a time; a `publisher` is many times faster.
        """
        self._check_open()
        check_via(via)
        options = PublishOptions(acks, ack_level, msg_id, expected_offset)
        seconds = self.config.timeout if timeout is None else to_seconds("timeout", timeout)
        tracing = TRACING.active
        publish = self._publisher.publish
        if via != "nats":
            publish = partial(self._direct.publish, or_nats=via == "auto")
        if tracing is None:
            return publish(subject, value, key, headers, options, seconds)
        return tracing.publish(
            subject, headers, lambda sent: publish(subject, value, key, sent, options, seconds)
        )

    def publisher(
        self,
        subject: str,
        *,
        linger: Seconds = LINGER_SECONDS,
        max_bytes: Size = BATCH_BYTES,
        compression: Compression | None = None,
        acks: str | Sequence[str] = "all",
        delivery_timeout: Seconds = DELIVERY_SECONDS,
        buffer_bytes: Size = BUFFER_BYTES,
        producer_id: int | None = None,
        first_sequence: int = 0,
        value_serializer: Serializer[S] | None = None,
        via: Via = "nats",
        key_serializer: Serializer[SK] | None = None,
    ) -> AsyncPublisher[S, SK]:
        """A publisher that packs many records into few messages. Each record is stored once, in
        order.

        linger: seconds that a record may wait for others to share its batch; 0: each call is a
        batch. max_bytes: size of a batch before compression; NATS's limit for one message holds
        too. compression: of batches, "zstd" or "lz4". acks: as in `publish`. delivery_timeout:
        seconds after which a batch fails that is not acknowledged, retries included: with
        UnknownOutcomeError if it may be stored, otherwise with the error that prevented it.
        buffer_bytes: how many bytes may wait and be in flight; beyond that `send` waits.
        value_serializer: turns each value that is not None into bytes or text, for example
        `json.dumps`; key_serializer: the same for keys. via: "nats" sends batches as NATS messages;
        "direct" sends them to the leader of each stream on the subject itself: NATS and its limits
        are not involved, and nobody else who listens on the subject hears them.

        producer_id, first_sequence: only for programs that publish exactly the same batches again
        after a restart; such a publisher ends with its first failure. Raises NoStreamError if no
        stream listens, InvalidRequestError for a subject of a group that is not keyed.
        """
        self._check_open()
        options = PublisherOptions(
            linger=to_seconds("linger", linger),
            max_bytes=to_size("max_bytes", max_bytes),
            compression=compression,
            acks=acks,
            delivery_timeout=to_seconds("delivery_timeout", delivery_timeout),
            buffer_bytes=to_size("buffer_bytes", buffer_bytes),
            producer_id=producer_id,
            first_sequence=first_sequence,
            value_serializer=value_serializer,
            via=via,
            key_serializer=key_serializer,
        )
        return AsyncPublisher(
            self._publisher, self._routes, subject, options, self._publishers, self._data_plane
        )

    # Living.

    async def aclose(self) -> None:
        """Let `process` end what it handles, commit what consumers are done with, send what
        publishers that are still open hold, then close every connection. Idempotent. Waits for the
        client's `timeout` at most: records that are not acknowledged by then fail, which is logged.
        After an error in the block of `async with`, publishers and handlers get a second for that.

        Raises what the `aclose` of a consumer or publisher does."""
        began = self._control.home.here().time()
        deadline = began + self._flush_seconds
        self._hurry()
        async with AsyncExitStack() as closing:  # Closes all, whatever fails.
            for part in (
                self._events,
                self._control,
                self._cursors,
                self._reader,
                self._routes,
                self._publisher,
                self._direct,
            ):
                closing.push_async_callback(part.close)
            # What members hand over when they leave is sent, too.
            closing.push_async_callback(self._end_publishers, deadline)
            closing.push_async_callback(self._close_consumers, began)
            closing.callback(self._take_no_more)  # A handler may use the client to its end.
            handled_by = began + self._flush_seconds * _HANDLING_SHARE
            closing.push_async_callback(self._end_processings, handled_by)

    def _hurry(self) -> None:
        """Publishers send while others are waited for."""
        for publisher in self._publishers:
            publisher.hurry()

    def _take_no_more(self) -> None:
        self._closed = True
        self._hurry()

    async def _end_processings(self, deadline: float) -> None:
        await _all_of(each.end(deadline) for each in list(self._processors))

    async def _close_consumers(self, began: float) -> None:
        """All at a time: their commits share a call, and its time limit. Listeners, which may never
        return, have no other one."""
        consumers = [*self._consumers, *self._group_consumers, *self._queues]
        longest = self.config.timeout * (1 + _GRACE_SHARE) + _GRACE_SECONDS
        try:
            async with asyncio.timeout_at(began + longest):
                await _all_of(each.aclose() for each in consumers)
        except TimeoutError:
            logger.warning("closed before all consumers were: a listener has not returned in time")

    async def _end_publishers(self, deadline: float) -> None:
        error = ClientClosedError("the client is closed")
        await _all_of(each.end(error, deadline) for each in list(self._publishers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._flush_seconds = min(self._flush_seconds, _FAILED_FLUSH_SECONDS)
        await close_after(error, self.aclose())


async def _all_of(closing: Iterable[Coroutine[Any, Any, None]]) -> None:
    """At a time. Raises the first failure once all have ended."""
    for failure in await asyncio.gather(*closing, return_exceptions=True):
        if failure is not None:
            raise failure
