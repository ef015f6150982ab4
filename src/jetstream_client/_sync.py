"""`Client`: the methods of `AsyncClient`, for programs without asyncio.

The asynchronous client runs in a thread of its own; every method hands its coroutine over and
waits. So a `Client` may be used from many threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from jetstream_client._ack import PublishResult
from jetstream_client._async import AsyncClient
from jetstream_client._blocking_publisher import Publisher
from jetstream_client._closing import Closing
from jetstream_client._config import ClientConfig, NatsOptions
from jetstream_client._consume import AsyncConsumer
from jetstream_client._headers import HeadersLike
from jetstream_client._loop_thread import LoopThread
from jetstream_client._messages import ROWS, Message, Messages
from jetstream_client._positions import Position
from jetstream_client._publisher import AsyncPublisher
from jetstream_client._reader import FETCH_BYTES
from jetstream_client._scan import AsyncScan, Scan
from jetstream_client._sender import (
    BATCH_BYTES,
    BUFFER_BYTES,
    DELIVERY_SECONDS,
    LINGER_SECONDS,
    Compression,
)
from jetstream_client._settings import AlterableSettings, StreamSettings
from jetstream_client._table import AsyncTable, Table
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

if TYPE_CHECKING:
    from typing import Self, Unpack


class Consumer(Closing):
    """An iterator over messages; `with` or `close()` ends its fetching ahead. See `consume`.

    `position` is the offset of the next record it will hand out. One thread at a time.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncConsumer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._rows: Iterator[Message] = iter(())
        self._position = consumer.position

    @property
    def position(self) -> int | None:
        return self._position

    @property
    def stop(self) -> int | None:
        """The offset before which it stops; None: nowhere."""
        return self._consumer.stop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while True:
            message = next(self._rows, None)
            if message is not None:
                self._position = message.offset + 1
                return message
            messages = self._thread.run(self._consumer.next_messages())
            if messages is None:
                raise StopIteration
            # One hand-over between threads per fetch, not per record.
            self._rows = iter(messages)

    def batches(self) -> Iterator[Messages]:
        """The same records as they were fetched: for `values()` and `to_arrow()`."""
        while (messages := self._thread.run(self._consumer.next_messages())) is not None:
            if len(messages):
                self._position = messages.next_offset
                yield messages

    def close(self) -> None:
        """Stop; a fetch under way is given up. Idempotent."""
        self._rows = iter(())
        if self._thread.is_running:
            self._thread.run(self._consumer.aclose())


class Client(Closing):
    """A connection to a cluster, made on first use; `with` closes it. Thread-safe.

    Arguments, methods and errors are those of `AsyncClient`. Of no use in a fork, where gRPC does
    not work: make it after forking, or start processes by `spawn`.
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
        self._client = AsyncClient.from_config(config)
        self._thread = LoopThread()

    def create_stream(
        self,
        name: str,
        subject: str,
        *,
        allow_same_name: bool = False,
        **settings: Unpack[StreamSettings],
    ) -> Stream:
        """See AsyncClient.create_stream."""
        return self._thread.run(
            self._client.create_stream(name, subject, allow_same_name=allow_same_name, **settings)
        )

    def alter_stream(
        self,
        stream: StreamLike,
        *,
        stream_epoch: int | None = None,
        **settings: Unpack[AlterableSettings],
    ) -> Stream:
        """See AsyncClient.alter_stream."""
        return self._thread.run(
            self._client.alter_stream(stream, stream_epoch=stream_epoch, **settings)
        )

    def describe_stream(self, stream: StreamLike) -> StreamDescription:
        """See AsyncClient.describe_stream."""
        return self._thread.run(self._client.describe_stream(stream))

    def list_streams(self, feeding_subject: str = "") -> list[Stream]:
        """See AsyncClient.list_streams."""
        return self._thread.run(self._client.list_streams(feeding_subject))

    def delete_stream(self, stream: StreamLike) -> None:
        """See AsyncClient.delete_stream."""
        self._thread.run(self._client.delete_stream(stream))

    def describe_cluster(self) -> ClusterInfo:
        """See AsyncClient.describe_cluster."""
        return self._thread.run(self._client.describe_cluster())

    def transfer_leader(self, stream: StreamLike, node: int) -> Stream:
        """See AsyncClient.transfer_leader."""
        return self._thread.run(self._client.transfer_leader(stream, node))

    def elect_uncleanly(
        self,
        stream: StreamLike,
        node: int,
        *,
        dry_run: bool = False,
        stream_epoch: int | None = None,
    ) -> UncleanElection:
        """See AsyncClient.elect_uncleanly."""
        return self._thread.run(
            self._client.elect_uncleanly(stream, node, dry_run=dry_run, stream_epoch=stream_epoch)
        )

    def drain_node(self, node: int, *, undo: bool = False) -> None:
        """See AsyncClient.drain_node."""
        self._thread.run(self._client.drain_node(node, undo=undo))

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
    ) -> PublishResult:
        """See AsyncClient.publish, which under asyncio.gather is many times faster."""
        return self._thread.run(
            self._client.publish(
                subject,
                value,
                key=key,
                headers=headers,
                acks=acks,
                ack_level=ack_level,
                msg_id=msg_id,
                expected_offset=expected_offset,
                timeout=timeout,
            )
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
    ) -> Publisher:
        """See AsyncClient.publisher. Connected and ready when this returns."""

        async def begin() -> AsyncPublisher:
            publisher = self._client.publisher(
                subject,
                linger=linger,
                max_bytes=max_bytes,
                compression=compression,
                acks=acks,
                delivery_timeout=delivery_timeout,
                buffer_bytes=buffer_bytes,
                producer_id=producer_id,
                first_sequence=first_sequence,
            )
            await publisher.begin()
            return publisher

        return Publisher(self._thread, self._thread.run(begin()))

    def fetch(
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
        """See AsyncClient.fetch."""
        return self._thread.run(
            self._client.fetch(
                stream,
                offset,
                stop=stop,
                max_messages=max_messages,
                max_wait=max_wait,
                max_bytes=max_bytes,
                last_epoch=last_epoch,
                read_from=read_from,
            )
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
    ) -> Consumer:
        """See AsyncClient.consume. Where it begins is settled before this returns."""

        async def begin() -> AsyncConsumer:
            consumer = self._client.consume(
                stream,
                start,
                stop=stop,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=patience,
            )
            await consumer.begin()
            return consumer

        return Consumer(self._thread, self._thread.run(begin()))

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
    ) -> Scan:
        """See AsyncClient.scan. Where it begins and stops is settled before this returns."""

        async def begin() -> AsyncScan:
            scan = self._client.scan(
                stream,
                start,
                stop,
                rows=rows,
                columns=columns,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=patience,
            )
            await scan.begin()
            return scan

        return Scan(self._thread, self._thread.run(begin()))

    def table(
        self, stream: StreamLike, *, wait: bool = True, stale_after: float | None = None
    ) -> Table:
        """The latest value of every key of a stream, kept up to date: see Table.

        Returns once it has all that is committed now, unless `wait` is False. stale_after: once no
        server has answered for so many seconds every look into it raises UnavailableError; without,
        it goes on to tell what it knows (`is_current`, `lag`).
        """

        async def begin() -> AsyncTable:
            return await self._client.table(stream, wait=wait, stale_after=stale_after).opened()

        return Table(self._thread, self._thread.run(begin()))

    def list_offsets(self, positions: Iterable[tuple[StreamLike, Position]]) -> list[OffsetAt]:
        """See AsyncClient.list_offsets."""
        return self._thread.run(self._client.list_offsets(positions))

    def offset_at(self, stream: StreamLike, position: Position) -> int:
        """See AsyncClient.offset_at."""
        return self._thread.run(self._client.offset_at(stream, position))

    def close(self) -> None:
        """Send what was published, close every connection, end the thread. Idempotent."""
        if self._thread.is_running:
            self._thread.run(self._client.aclose())
        self._thread.close()
