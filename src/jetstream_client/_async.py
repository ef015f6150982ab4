"""`AsyncClient`: everything a program can ask of a cluster, for asyncio."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from jetstream_client import _wire
from jetstream_client._ack import PublishResult
from jetstream_client._config import ClientConfig, NatsOptions
from jetstream_client._consume import AsyncConsumer
from jetstream_client._control import ControlPlane
from jetstream_client._data_plane import DataPlane
from jetstream_client._feeds import Feeds
from jetstream_client._headers import HeadersLike
from jetstream_client._messages import ROWS, Messages, check_rows
from jetstream_client._positions import Position
from jetstream_client._publish import PlainPublisher, Wishes
from jetstream_client._publisher import AsyncPublisher
from jetstream_client._reader import FETCH_BYTES, Reader
from jetstream_client._scan import AsyncScan
from jetstream_client._sender import (
    BATCH_BYTES,
    BUFFER_BYTES,
    DELIVERY_SECONDS,
    LINGER_SECONDS,
    Compression,
    PublisherOptions,
)
from jetstream_client._settings import AlterableSettings, StreamSettings
from jetstream_client._streams import Streams
from jetstream_client._table import AsyncTable
from jetstream_client._types import (
    AckLevel,
    ClusterInfo,
    OffsetAt,
    Payload,
    ReadFrom,
    Stream,
    StreamDescription,
    StreamLike,
    UncleanElection,
)
from jetstream_protocol.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from typing import Self, Unpack


class AsyncClient:
    """A connection to a cluster, made on first use; `async with` closes it.

    servers: "host:port" of any node, several as a list or with commas; without, the environment
    variable JETSTREAM_SERVERS, else localhost:9292. nats: URLs to publish to instead of those the
    cluster names. timeout: seconds a call may take, retries included. in_flight_max: publishes
    that wait for acknowledgements at a time; others wait their turn. rack: where this program runs,
    for `read_from="nearest"`; without, the environment variable JETSTREAM_RACK.

    Every method raises from the tree of jetstream_client.JetstreamError: UnavailableError when
    no server answers in time, UnknownOutcomeError where something may have been done all the
    same. Belongs to the event loop it is first used on.
    """

    def __init__(
        self,
        servers: str | Iterable[str] | None = None,
        *,
        nats: str | Iterable[str] | None = None,
        nats_options: NatsOptions | None = None,
        timeout: float = 10.0,
        in_flight_max: int = 16_384,
        rack: str | None = None,
    ) -> None:
        self._set_up(ClientConfig.of(servers, nats, nats_options, timeout, in_flight_max, rack))

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """A client as configured elsewhere: the configuration can be pickled, a client cannot."""
        client = cls.__new__(cls)
        client._set_up(config)
        return client

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: pickle its `config`, and make another "
            "with `from_config`"
        )

    def _set_up(self, config: ClientConfig) -> None:
        self.config = config
        self._closed = False
        self._control = ControlPlane(config)
        self._streams = Streams(self._control)
        data_plane = DataPlane(
            self._streams.cluster,
            self._streams.leader_of,
            self._streams.registered,
            config.timeout,
            config.rack,
        )
        self._reader = Reader(self._streams, data_plane, self._control, config.timeout)
        self._feeds = Feeds(self._streams.find)
        self._publisher = PlainPublisher(config, self._feeds, self._nats_urls)
        self._consumers: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()
        self._publishers: weakref.WeakSet[AsyncPublisher] = weakref.WeakSet()

    async def _nats_urls(self) -> Sequence[str]:
        return (await self._streams.cluster()).nats

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequestError("the client is closed")

    # Streams.

    async def create_stream(
        self,
        name: str,
        subject: str,
        *,
        allow_same_name: bool = False,
        **settings: Unpack[StreamSettings],
    ) -> Stream:
        """Create a stream, or find it: creating the same again returns the one there is.

        When this returns, the stream listens: what is published from now on is stored. Settings
        (see StreamSettings and AlterableSettings) left out take the server's defaults. Raises
        StreamExistsError where it exists with another configuration, or the name on another
        subject: everybody would have to say name@subject then. allow_same_name: make it all the
        same.
        """
        self._check_open()
        stream = await self._streams.create(
            name, subject, settings, allow_same_name=allow_same_name
        )
        self._feeds.forget_all()
        return stream

    async def alter_stream(
        self,
        stream: StreamLike,
        *,
        stream_epoch: int | None = None,
        **settings: Unpack[AlterableSettings],
    ) -> Stream:
        """Change settings (see AlterableSettings) of a running stream; returns it as it is then.

        stream_epoch: only if the stream has not changed since it had that epoch; else
        PreconditionFailedError.
        """
        self._check_open()
        return await self._streams.alter(stream, settings, stream_epoch)

    async def describe_stream(self, stream: StreamLike) -> StreamDescription:
        """With what its leader knows; where it does not answer, with what any node does.

        Raises StreamNotFoundError, AmbiguousStreamError.
        """
        self._check_open()
        return await self._streams.describe(stream)

    async def list_streams(self, feeding_subject: str = "") -> list[Stream]:
        """All streams; with `feeding_subject`, those that a message published there goes to."""
        self._check_open()
        return await self._streams.find(feeding_subject)

    async def delete_stream(self, stream: StreamLike) -> None:
        """Delete a stream and its records, for good. Raises StreamNotFoundError."""
        self._check_open()
        await self._streams.delete(stream)
        self._feeds.forget_all()

    async def describe_cluster(self) -> ClusterInfo:
        """The nodes, the controller, and where NATS is."""
        self._check_open()
        return await self._streams.cluster()

    async def transfer_leader(self, stream: StreamLike, node: int) -> Stream:
        """Hand a stream's leadership to another node, which must be in its ISR and not draining.

        Returns the stream as it is led then. Raises PreconditionFailedError where the node cannot
        lead it now.
        """
        self._check_open()
        return await self._streams.transfer_leader(stream, node)

    async def elect_uncleanly(
        self,
        stream: StreamLike,
        node: int,
        *,
        dry_run: bool = False,
        stream_epoch: int | None = None,
    ) -> UncleanElection:
        """Elect a replica of a stream that nobody leads, although committed records may be lost.

        dry_run: only tell what it would cost. stream_epoch: only if the stream has not changed
        since it had that epoch. Raises PreconditionFailedError where the stream has a leader, or
        the replica cannot lead.
        """
        self._check_open()
        return await self._streams.elect_uncleanly(
            stream, node, dry_run=dry_run, stream_epoch=stream_epoch
        )

    async def drain_node(self, node: int, *, undo: bool = False) -> None:
        """Mark a node as draining: its leaderships move away, and new streams go to it only where
        there are too few other nodes. The mark outlives the node's restarts.

        Returns before they have moved: `describe_stream` shows when. undo: take the mark back.
        """
        self._check_open()
        await self._streams.drain_node(node, not undo)

    # Publishing.

    def publish(
        self,
        subject: str,
        value: Payload | None,
        *,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
        acks: str | Sequence[str] = "all",
        ack_level: AckLevel | None = None,
        msg_id: str | None = None,
        expected_offset: int | None = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, PublishResult]:
        """Publish an ordinary NATS message and wait until streams acknowledge it.

        value: None is a tombstone, b"" an empty value. key: UTF-8 text. acks: "all" streams the
        subject feeds, "any" one of them, or the names of some. ack_level: the stream's, unless
        given; with "none" nothing is waited for. msg_id: within its `duplicate_window` a stream
        stores one message of that id; a further one is acknowledged with the first one's offset, as
        `duplicate`. expected_offset: store it only as the record of that offset.

        Raises NoStreamError at once where no stream listens; a refusal as its own class (nothing
        was stored by that stream; PreconditionFailedError: another record has that offset);
        UnknownOutcomeError when `timeout` passes.
        """
        self._check_open()
        return self._publisher.publish(
            subject,
            value,
            key,
            headers,
            Wishes(acks, ack_level, msg_id, expected_offset),
            self.config.timeout if timeout is None else timeout,
        )

    def publisher(
        self,
        subject: str,
        *,
        linger: float = LINGER_SECONDS,
        max_bytes: int = BATCH_BYTES,
        compression: Compression | None = None,
        acks: str | Sequence[str] = "all",
        delivery_timeout: float = DELIVERY_SECONDS,
        buffer_bytes: int = BUFFER_BYTES,
        producer_id: int | None = None,
        first_sequence: int = 0,
    ) -> AsyncPublisher:
        """A publisher of many records in few messages, each record stored once, in order.

        linger: seconds a record may wait for others to share its batch; 0: each call is a batch.
        max_bytes: of a batch before compression; what NATS takes in one message is a further
        limit. compression: of batches, "zstd" or "lz4". acks: as in `publish`. delivery_timeout:
        seconds within which a batch is stored, whatever has to be repeated for that, or fails:
        with UnknownOutcomeError where it may be stored, else with what stood in the way.
        buffer_bytes: what may wait and be in flight; beyond it `send` waits.

        producer_id, first_sequence: only for those who publish the very same batches again after a
        restart and want them recognised; such a publisher ends with its first failure.

        Raises NoStreamError where no stream listens, InvalidRequestError for a subject of a group.
        """
        self._check_open()
        options = PublisherOptions(
            linger=linger,
            max_bytes=max_bytes,
            compression=compression,
            acks=acks,
            delivery_timeout=delivery_timeout,
            buffer_bytes=buffer_bytes,
            producer_id=producer_id,
            first_sequence=first_sequence,
        )
        publisher = AsyncPublisher(self._publisher, self._feeds, subject, options)
        self._publishers.add(publisher)
        return publisher

    # Reading.

    async def fetch(
        self,
        stream: StreamLike,
        offset: Position = "earliest",
        *,
        stop: Position | None = None,
        max_messages: int | None = None,
        max_wait: float = 0.0,
        max_bytes: int = FETCH_BYTES,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
    ) -> Messages:
        """Committed records from `offset` on, before `stop`: up to `max_messages`, `max_bytes`.

        Where there is none yet, waits up to `max_wait` seconds for the first, else returns an
        empty `Messages`. The first batch is read whole even if longer than `max_bytes`.
        last_epoch: `Messages.last_epoch` of what was read before; see DivergedError. read_from: the
        "leader", the "nearest" replica in sync (in the client's `rack`, else the quickest), or
        "any" of them. Others than the leader have a record a moment later.

        Raises OffsetOutOfRangeError below the log's start or beyond its end.
        """
        self._check_open()
        return await self._reader.fetch(
            stream,
            offset,
            stop=stop,
            max_messages=max_messages,
            max_wait=max_wait,
            max_bytes=max_bytes,
            last_epoch=last_epoch,
            read_from=read_from,
        )

    def consume(
        self,
        stream: StreamLike,
        start: Position = "earliest",
        *,
        stop: Position | None = None,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        patience: float | None = None,
    ) -> AsyncConsumer:
        """Records from `start` on, without end, or up to but not including `stop`.

        `stop="latest"` stops at what is committed when reading begins. last_epoch, read_from: as in
        `fetch`; a reader that moves to another replica goes on where it was.
        patience: seconds to wait for a further record before UnavailableError; None: for ever.
        """
        self._check_open()
        return self._tracked(
            self._reader.consume(
                stream,
                start,
                stop,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=patience,
            )
        )

    def _tracked(self, consumer: AsyncConsumer) -> AsyncConsumer:
        """`consumer`, which ends with the client."""
        self._consumers.add(consumer)
        return consumer

    def scan(
        self,
        stream: StreamLike,
        start: Position = "earliest",
        stop: Position = "latest",
        *,
        rows: int = ROWS,
        columns: Iterable[str] | None = None,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        patience: float | None = None,
    ) -> AsyncScan:
        """The records of [start, stop) as Arrow record batches: see AsyncScan.

        rows: at most so many a batch. columns: only these; the others are not built. last_epoch,
        read_from: as in `fetch`, of the record before `start`. patience: as in `consume`, but the
        client's timeout by default: a scan ends. Needs `jetstream-log[arrow]`.
        """
        self._check_open()
        ref = _wire.to_ref(stream)
        waits = self.config.timeout if patience is None else patience

        def consume(start: Position, stop: Position, pinned: bool) -> AsyncConsumer:
            self._check_open()
            return self._tracked(
                self._reader.consume(
                    stream,
                    start,
                    stop,
                    last_epoch=last_epoch,
                    read_from=read_from,
                    patience=waits,
                    pinned=pinned,
                    ref=ref,
                )
            )

        return AsyncScan(consume, start, stop, check_rows(rows), columns)

    def table(
        self, stream: StreamLike, *, wait: bool = True, stale_after: float | None = None
    ) -> AsyncTable:
        """The latest value of every key of a stream, kept up to date: see AsyncTable.

        `async with` begins it, and waits until it has all that is committed then, unless `wait` is
        False. stale_after: once no server has answered for so many seconds every look into it
        raises UnavailableError; without, it goes on to tell what it knows (`is_current`, `lag`).
        """
        self._check_open()
        consumer = self._tracked(self._reader.consume(stream, "earliest", None))

        async def latest() -> int:
            return await self.offset_at(stream, "latest")

        return AsyncTable(
            consumer, latest, wait=wait, patience=self.config.timeout, stale_after=stale_after
        )

    async def list_offsets(
        self, positions: Iterable[tuple[StreamLike, Position]]
    ) -> list[OffsetAt]:
        """Resolve positions of many streams in one call, in their order. An offset is itself."""
        self._check_open()
        return await self._reader.list_offsets(list(positions))

    async def offset_at(self, stream: StreamLike, position: Position) -> int:
        """The offset of a position; of "latest" it is the next record's."""
        self._check_open()
        return (await self._reader.resolve(stream, position, None))[0]

    # Living.

    async def aclose(self) -> None:
        """Send what was published, close every connection. Idempotent."""
        self._closed = True
        for consumer in list(self._consumers):
            await consumer.aclose()
        for publisher in list(self._publishers):
            await publisher.abort(UnavailableError("the client is closed"))
        await self._publisher.close()
        await self._feeds.close()
        await self._reader.close()
        await self._control.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
