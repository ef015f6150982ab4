"""The methods of `AsyncClient` that read, and make what reads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jetstream_client.reading.batches import FetchedBatches
from jetstream_client.reading.consumer import FETCH_BYTES, AsyncConsumer
from jetstream_client.reading.cursor import ConsumerCursor
from jetstream_client.reading.deserializers import Deserializer, Deserializers
from jetstream_client.reading.group_consumer import SESSION_SECONDS, AsyncGroupConsumer, Listener
from jetstream_client.reading.membership import Membership
from jetstream_client.reading.messages import ROWS, Message, Messages, check_rows
from jetstream_client.reading.reader import Reader, filter_of
from jetstream_client.reading.scan import AsyncScan
from jetstream_client.reading.table import AsyncTable
from jetstream_client.transport import wire
from jetstream_client.transport.groups import AsyncGroups, Groups
from jetstream_client.transport.schemas import AsyncSchemas
from jetstream_client.transport.streams import AsyncStreams
from jetstream_client.values.checks import check_text
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.durations import Seconds, to_seconds
from jetstream_client.values.positions import Position, needed
from jetstream_client.values.sizes import Size, to_size
from jetstream_client.values.type_variables import K, V
from jetstream_client.values.types import OffsetAt, OnReset, Payload, ReadFrom, StreamLike
from jetstream_protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow

    from jetstream_client.reading.typed import Decoder


class AsyncReading(AsyncGroups, AsyncSchemas, AsyncStreams):
    """A part of `AsyncClient`, which sets these."""

    config: ClientConfig
    _reader: Reader
    _consumers: weakref.WeakSet[AsyncConsumer[Any, Any]]
    _group_consumers: weakref.WeakSet[AsyncGroupConsumer[Any, Any]]

    async def fetch(
        self,
        stream: StreamLike,
        start: Position = "earliest",
        *,
        stop: Position | None = None,
        max_messages: int | None = None,
        max_wait: Seconds = 0.0,
        max_bytes: Size = FETCH_BYTES,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        filter: str = "",
        key: Payload | None = None,
        reverse: bool = False,
    ) -> Messages:
        """Fetch committed records from `start` on, before `stop`: at most `max_messages`, about
        `max_bytes`.

        Returns `Messages`. If there is no record yet, waits up to `max_wait` seconds for the first
        one, and then returns empty `Messages`. The first batch is read whole even if it is longer
        than `max_bytes`. last_epoch: the `last_epoch` of the `Messages` read before; the server
        then raises DivergedError if those records are no longer in the log. read_from: the
        "leader", the "nearest" replica in sync or observer (in the client's `rack`, else the
        quickest), or "any" replica in sync; copies other than the leader's have a record a moment
        later. filter, key: only records on subjects that match this NATS pattern, and with this
        key. reverse: newest first; to go on, fetch with `stop=messages.next_offset`; max_wait and
        last_epoch are not allowed then.

        Raises OffsetOutOfRangeError for an offset below the log's start or beyond its end.

            for message in await client.fetch("orders", "earliest", max_messages=100):
                print(message.offset, message.value)
        """
        self._check_open()
        return await self._reader.fetch(
            stream,
            start,
            stop=stop,
            max_messages=max_messages,
            max_wait=to_seconds("max_wait", max_wait),
            max_bytes=to_size("max_bytes", max_bytes),
            last_epoch=last_epoch,
            read_from=read_from,
            wanted=filter_of(filter, key),
            reverse=reverse,
        )

    async def fetch_batches(
        self,
        stream: StreamLike,
        offset: int,
        *,
        max_bytes: Size = FETCH_BYTES,
        last_epoch: int = -1,
        encrypted: bool = False,
    ) -> FetchedBatches:
        """Fetch committed batches as they are stored, from the one that holds `offset` on: for
        backups.

        Does not wait: if nothing is committed at `offset` yet, `data` is empty. max_bytes,
        last_epoch: as in `fetch`. encrypted: batches that are encrypted at rest stay encrypted, and
        only a server with the key can read them; otherwise they come decrypted. Raises
        OffsetOutOfRangeError, DivergedError, and StorageError if the server cannot decrypt them.
        """
        self._check_open()
        return await self._reader.fetch_batches(
            stream,
            offset,
            max_bytes=to_size("max_bytes", max_bytes),
            last_epoch=last_epoch,
            encrypted=encrypted,
        )

    async def get_last(
        self, stream: StreamLike, *, subject: str = "", key: Payload | None = None
    ) -> Message | None:
        """Return the last committed record, on a subject of the pattern and with the key if these
        are given, or None if there is none. It may be a tombstone. A stream with `key="subject"`
        knows the last record of each subject. Otherwise the log is searched from its end, so
        finding an old record takes long: use a `table` for many such queries."""
        self._check_open()
        return await self._reader.last(stream, filter_of(subject, key))

    async def list_offsets(
        self, positions: Iterable[tuple[StreamLike, Position]]
    ) -> list[OffsetAt]:
        """Resolve positions of many streams in one call; the results are in the same order. An
        offset resolves to itself."""
        self._check_open()
        asked = list(positions)
        if not all(isinstance(each, tuple | list) for each in asked):
            raise TypeError("positions must be pairs, as [('orders', 'latest')]; see offset_at")
        return await self._reader.list_offsets(asked)

    async def offset_at(self, stream: StreamLike, position: Position) -> int:
        """Return the offset of a position; for "latest" it is the offset of the next record."""
        self._check_open()
        return (await self._reader.resolve(stream, position, None))[0]

    def consume(
        self,
        stream: StreamLike,
        start: Position = "earliest",
        *,
        stop: Position | None = None,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        patience: Seconds | None = None,
        filter: str = "",
        key: Payload | None = None,
        reverse: bool = False,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        cursor: str | None = None,
        auto_commit: bool = True,
        on_reset: OnReset = "error",
    ) -> AsyncConsumer[V, K]:
        """Read records from `start` on, without end, or up to but not including `stop`.

        `stop="latest"` stops at the end of the committed records when reading begins. last_epoch,
        read_from: as in `fetch`; a reader that moves to another replica goes on where it was.
        patience: seconds to wait for the next record before UnavailableError; None: for ever.
        filter, key: as in `fetch`. reverse: newest first, from `stop` or the end of the committed
        records down to `start`. key_deserializer, value_deserializer: turn the bytes of keys and
        values into `message.key` and `message.value`, for example `json.loads`; not called for
        None.

        cursor: the name under which the cluster keeps the position. The consumer resumes there; a
        new cursor begins at `start`. Records that are done are committed each second and at the
        end. A record is done once the next one is asked for, or the `async with` ends without an
        error. auto_commit: False: only `commit()` commits. on_reset: what to do if the stream no
        longer holds the position, because records were removed or lost, or the stream was created
        anew: raise the "error" (OffsetOutOfRangeError, DivergedError), or log it and go on from
        "earliest" or "latest". docs/consumers.md has more.

            async with client.consume("orders", cursor="billing") as consumer:
                async for message in consumer:
                    print(message.offset, message.value)
        """
        self._check_open()
        if reverse and (last_epoch >= 0 or cursor is not None):
            raise InvalidRequestError("reverse=True takes neither last_epoch nor cursor")
        return self._tracked(
            self._reader.consume(
                stream,
                start,
                stop,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=to_seconds("patience", patience),
                deserializers=Deserializers(key_deserializer, value_deserializer),
                wanted=filter_of(filter, key),
                reverse=reverse,
                cursor=self._consumer_cursor(cursor, stream, on_reset, auto_commit),
            )
        )

    def consume_group(
        self,
        source: str,
        group: str,
        *,
        instance: str = "",
        start: Position = "earliest",
        read_from: ReadFrom = "leader",
        filter: str = "",
        key: Payload | None = None,
        session_timeout: Seconds = SESSION_SECONDS,
        auto_commit: bool = True,
        on_reset: OnReset = "error",
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
    ) -> AsyncGroupConsumer[V, K]:
        """Join a consumer group. Its members share out the streams of `source`, and one member at a
        time reads a stream, in order.

        source: the name of a group of streams, or of a stream. group: the name of the consumer
        group, under which its cursors are kept. instance: a name for this member that outlives its
        process: the next member of that name takes its place at once, and while its process
        restarts, within `session_timeout`, its streams wait for it. start, filter, key,
        auto_commit, on_reset: as in `consume`, for each stream. session_timeout: seconds after
        which a member that sends nothing is removed. on_assigned, on_revoked: called between two
        records with the names of streams that come and go; the streams that go are committed
        afterwards. Coroutine functions may use the client and `commit()`, but not read. They have
        60 seconds.

            async with client.consume_group("orders", "billing") as member:
                async for message in member:
                    print(message.stream, message.offset)
        """
        self._check_open()
        check_text("the source", source)
        seconds = to_seconds("session_timeout", session_timeout)
        deserializers = Deserializers(key_deserializer, value_deserializer)
        wanted = filter_of(filter, key)
        newest = 0

        async def look_for_newest() -> None:
            nonlocal newest
            newest = await self._newest_stream(group, source)

        def make(stream_id: int, membership: Membership) -> AsyncConsumer[V, K]:
            cursor = self._consumer_cursor(
                group,
                stream_id,
                on_reset,
                auto_commit,
                lambda: (membership.id, membership.generation),
            )
            return self._reader.consume(
                stream_id,
                start if stream_id <= newest else "earliest",
                None,
                read_from=read_from,
                deserializers=deserializers,
                wanted=wanted,
                cursor=cursor,
                budget=consumer.budget,
            )

        membership = Membership(Groups(self._control), group, source, instance, seconds)
        before = None if start == "earliest" else look_for_newest
        consumer = AsyncGroupConsumer(membership, make, on_assigned, on_revoked, before)
        self._group_consumers.add(consumer)
        return consumer

    async def _newest_stream(self, group: str, source: str) -> int:
        """The id of the newest stream for which `start` was meant: those that are created later
        begin at their beginning. Ids grow with time. The group knows which it had when it began to
        read the source; a new group has those that there are. **safety** They are listed first: a
        group that is not there after that begins with all of them."""
        newest = max((each.id for each in await self.list_streams()), default=0)
        for each in await self._listed_groups(group):
            if each.source == source and (each.newest_at_first or each.shares):
                return each.newest_at_first or max(share.stream_id for share in each.shares)
        return newest

    def _consumer_cursor(
        self,
        name: str | None,
        stream: StreamLike,
        on_reset: OnReset,
        auto_commit: bool,
        member: Callable[[], tuple[str, int]] = lambda: ("", 0),
    ) -> ConsumerCursor | None:
        if name is None:
            return None
        return ConsumerCursor(
            self._cursors,
            self._streams,
            name,
            stream,
            on_reset,
            auto_commit=auto_commit,
            timeout=self.config.timeout,
            member=member,
        )

    def _tracked(self, consumer: AsyncConsumer[V, K]) -> AsyncConsumer[V, K]:
        """The same `consumer`; it is closed with the client."""
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
        typed: bool = False,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        patience: Seconds | None = None,
    ) -> AsyncScan:
        """Read the records of [start, stop) as Arrow record batches.

        rows: at most so many in a batch. columns: only these; the others are not built. typed: also
        the fields of the stream's schema as columns, and `_error` (docs/typed_streams.md); needs
        `jetstream-log[sql]`. last_epoch,
        read_from: as in `fetch`; last_epoch is that of the record before `start`. patience: as in
        `consume`, but by default the client's timeout, because a scan has an end. Needs
        `jetstream-log[arrow]`.
        """
        self._check_open()
        for position in (start, stop):
            needed(position)  # Raises for what is no position.
        ref = wire.to_ref(stream)
        waits = self.config.timeout if patience is None else to_seconds("patience", patience)

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

        async def decoder(columns: list[str] | None) -> Decoder:
            from jetstream_client.reading.typed import decoder_of

            found = await self.describe_schema(stream)
            return decoder_of(found.text, str(stream), columns)

        return AsyncScan(
            consume, start, stop, check_rows(rows), columns, decoder if typed else None
        )

    async def sql(
        self,
        query: str,
        start: Position = "earliest",
        stop: Position = "latest",
        *,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        read_from: ReadFrom = "leader",
        patience: Seconds | None = None,
    ) -> pyarrow.Table:
        """What DuckDB answers to a query, as a pyarrow table. Each stream that the query names is a
        table, of its records of [start, stop).

        query: one SELECT. The columns are those of `jetstream sql` (docs/sdk.md), and the fields of
        the stream's schema. parameters: for `?`, a sequence, or for `$name`, a mapping. read_from,
        patience: as in `scan`. Raises InvalidRequestError for a query that is wrong,
        StreamNotFoundError if there is no stream of that name. Needs `jetstream-log[sql]`.

            table = await client.sql("select subject, count(*) from orders group by 1")
        """
        from jetstream_client.sql.in_thread import answer
        from jetstream_client.sql.query import Query, Streams

        self._check_open()
        given: object = start  # DuckDB takes parameters there.
        if isinstance(given, list | tuple | dict):
            raise TypeError("start is a position: give parameters as sql(query, parameters=[…])")

        def make(streams: Streams) -> Query:
            return Query(
                streams,
                query,
                start,
                stop,
                parameters=parameters,
                read_from=read_from,
                patience=patience,
            )

        return await answer(self, make)

    def table(
        self,
        stream: StreamLike,
        *,
        wait: bool = True,
        stale_after: Seconds | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
    ) -> AsyncTable[K, V]:
        """A mapping from every key of a stream to its latest value, kept up to date.

        `async with` starts it, and waits until it has everything that is committed then, unless
        `wait` is False. stale_after: if no server has answered for so many seconds, every access
        raises UnavailableError; default: the table returns what it knows (see `is_current`, `lag`).
        key_deserializer, value_deserializer: as in `consume`; look keys up in their deserialised
        form.

            async with client.table("prices", key_deserializer=bytes.decode) as prices:
                print(prices["pears"])
        """
        self._check_open()
        deserializers = Deserializers(key_deserializer, value_deserializer)
        ref = wire.to_ref(stream)
        consumer = self._tracked(
            self._reader.consume(stream, "earliest", None, deserializers=deserializers, ref=ref)
        )

        async def latest() -> int:
            return (await self._reader.resolve(stream, "latest", None, ref=ref))[0]

        async def grace() -> float:
            return (await self._streams.describe(stream)).tombstone_grace

        return AsyncTable(
            consumer,
            latest,
            grace,
            wait=wait,
            patience=self.config.timeout,
            stale_after=to_seconds("stale_after", stale_after),
        )
