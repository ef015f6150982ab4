"""The part of `Client` that reads and publishes.

Written by scripts/generate from the classes of AsyncClient. Do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.processing.blocking_queue import Queue
from jetstream_client.processing.listeners import in_thread
from jetstream_client.processing.queue import PREFETCH
from jetstream_client.publishing.ack import PublishResult
from jetstream_client.publishing.blocking_publisher import Publisher
from jetstream_client.publishing.sender import (
    BATCH_BYTES,
    BUFFER_BYTES,
    DELIVERY_SECONDS,
    LINGER_SECONDS,
    Compression,
    Serializer,
)
from jetstream_client.reading.batches import FetchedBatches
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.blocking_group_consumer import GroupConsumer
from jetstream_client.reading.consumer import FETCH_BYTES
from jetstream_client.reading.deserializers import Deserializer
from jetstream_client.reading.group_consumer import SESSION_SECONDS, Listener
from jetstream_client.reading.messages import ROWS, Message, Messages
from jetstream_client.reading.scan import Scan
from jetstream_client.reading.table import Table
from jetstream_client.values.durations import Seconds
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.positions import Position
from jetstream_client.values.settings import AlterableSettings, GroupSettings
from jetstream_client.values.sizes import Size
from jetstream_client.values.type_variables import SK, K, S, V
from jetstream_client.values.types import (
    AckLevel,
    OffsetAt,
    OnReset,
    Payload,
    ReadFrom,
    Stream,
    StreamDescription,
    StreamLike,
    Value,
    Via,
)

if TYPE_CHECKING:
    import pyarrow


class Methods:
    """What follows is part of `Client`, which sets these."""

    _thread: LoopThread
    _client: AsyncClient

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
    ) -> PublishResult:
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

            ack = client.publish("orders.eu", b"3 pears", key=b"42")
            print(ack.stream, ack.offset)

        This publishes one message at a time; a `publisher` is many times faster.
        """
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
                via=via,
            )
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
    ) -> Publisher[S, SK]:
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

        It is connected and ready when this returns.
        """
        return self._thread.begun(
            lambda: self._client.publisher(
                subject,
                linger=linger,
                max_bytes=max_bytes,
                compression=compression,
                acks=acks,
                delivery_timeout=delivery_timeout,
                buffer_bytes=buffer_bytes,
                producer_id=producer_id,
                first_sequence=first_sequence,
                value_serializer=value_serializer,
                via=via,
                key_serializer=key_serializer,
            ),
            Publisher,
        )

    def create_group(
        self, name: str, subject: str, *, streams: int, **settings: Unpack[GroupSettings]
    ) -> list[Stream]:
        """Create a keyed group: streams NAME-0, NAME-1 and so on that share the subject. The key of
        a record chooses its stream. Returns all of them, in order.

        streams: how many. Existing streams stay. If a call fails, repeat it: it creates what is
        missing. With a larger number the group grows. Keys are then shared out anew, so that the
        later records of a key may be in another stream than the earlier ones. A group cannot
        shrink. Settings (see GroupSettings) hold for each stream. docs/keyed_groups.md has more.

        Raises StreamExistsError if one of the streams exists with another configuration,
        InvalidRequestError for fewer streams than there are, and if another stream on the subject
        would not hear messages that are published by key.
        """
        return self._thread.run(
            self._client.create_group(name, subject, streams=streams, **settings)
        )

    def describe_keyed_group(self, name: str) -> list[StreamDescription]:
        """Describe the streams of a keyed group, by number, as `describe_streams` does. Each names
        its stream for calls about one, as in `client.pause_stream(each)`. Raises
        StreamNotFoundError if there is no such group."""
        return self._thread.run(self._client.describe_keyed_group(name))

    def alter_keyed_group(self, name: str, **settings: Unpack[AlterableSettings]) -> list[Stream]:
        """Change settings (see AlterableSettings) of each stream of a keyed group; returns the
        changed streams. If it fails, repeat it: a note at the error says which streams have the old
        settings. Raises StreamNotFoundError, and NoStreamError if the group lacks streams."""
        return self._thread.run(self._client.alter_keyed_group(name, **settings))

    def delete_keyed_group(self, name: str) -> None:
        """Delete the streams of a keyed group and their records, for good, from the last to the
        first. If it fails, repeat it: it deletes those that are left. Raises StreamNotFoundError if
        there are none. `delete_group` deletes a consumer group."""
        self._thread.run(self._client.delete_keyed_group(name))

    def queue(
        self,
        stream: StreamLike,
        name: str,
        *,
        start: Position = "earliest",
        filter: str | Sequence[str] = (),
        ack_wait: Seconds | None = None,
        backoff: Sequence[Seconds] = (),
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        max_ack_pending: int | None = None,
        prefetch: int = PREFETCH,
        max_wait: Seconds | None = None,
        via: Via = "nats",
    ) -> Queue:
        """Share the messages of a stream with all readers of the same name. Each message goes to
        one of them, and again to any until one has acknowledged it.

        name: of the consumer, which is created when the first reader comes, and is kept when the
        last one goes. NATS clients may read it, too. start, filter, ack_wait, backoff, max_deliver,
        dead_letter, max_ack_pending: as in `create_consumer`. prefetch: how many messages may be
        here that the program was not handed yet: they are kept from other readers. max_wait: the
        iteration ends once no message has come for so many seconds, 0: once none is left to be
        delivered; None: it waits for ever. via: how dead letters are published, as in `publish`.

        A message that was delivered `max_deliver` times goes to `dead_letter`, with the headers
        that dead letters of `process` have.

            with client.queue("jobs", "mailers", max_deliver=5) as jobs:
                for message in jobs:
                    print(message.value)
                    message.ack()

        The consumer is there when this returns.
        """
        return self._thread.begun(
            lambda: self._client.queue(
                stream,
                name,
                start=start,
                filter=filter,
                ack_wait=ack_wait,
                backoff=backoff,
                max_deliver=max_deliver,
                dead_letter=dead_letter,
                max_ack_pending=max_ack_pending,
                prefetch=prefetch,
                max_wait=max_wait,
                via=via,
            ),
            Queue,
        )

    def fetch(
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

            for message in client.fetch("orders", "earliest", max_messages=100):
                print(message.offset, message.value)
        """
        return self._thread.run(
            self._client.fetch(
                stream,
                start,
                stop=stop,
                max_messages=max_messages,
                max_wait=max_wait,
                max_bytes=max_bytes,
                last_epoch=last_epoch,
                read_from=read_from,
                filter=filter,
                key=key,
                reverse=reverse,
            )
        )

    def fetch_batches(
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
        return self._thread.run(
            self._client.fetch_batches(
                stream, offset, max_bytes=max_bytes, last_epoch=last_epoch, encrypted=encrypted
            )
        )

    def get_last(
        self, stream: StreamLike, *, subject: str = "", key: Payload | None = None
    ) -> Message | None:
        """Return the last committed record, on a subject of the pattern and with the key if these
        are given, or None if there is none. It may be a tombstone. A stream with `key="subject"`
        knows the last record of each subject. Otherwise the log is searched from its end, so
        finding an old record takes long: use a `table` for many such queries."""
        return self._thread.run(self._client.get_last(stream, subject=subject, key=key))

    def list_offsets(self, positions: Iterable[tuple[StreamLike, Position]]) -> list[OffsetAt]:
        """Resolve positions of many streams in one call; the results are in the same order. An
        offset resolves to itself."""
        return self._thread.run(self._client.list_offsets(positions))

    def offset_at(self, stream: StreamLike, position: Position) -> int:
        """Return the offset of a position; for "latest" it is the offset of the next record."""
        return self._thread.run(self._client.offset_at(stream, position))

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
    ) -> Consumer[V, K]:
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
        end. A record is done once the next one is asked for, or the `with` ends without an error.
        auto_commit: False: only `commit()` commits. on_reset: what to do if the stream no longer
        holds the position, because records were removed or lost, or the stream was created anew:
        raise the "error" (OffsetOutOfRangeError, DivergedError), or log it and go on from
        "earliest" or "latest". docs/consumers.md has more.

            with client.consume("orders", cursor="billing") as consumer:
                for message in consumer:
                    print(message.offset, message.value)

        The start is resolved before this returns.
        """
        return self._thread.begun(
            lambda: self._client.consume(
                stream,
                start,
                stop=stop,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=patience,
                filter=filter,
                key=key,
                reverse=reverse,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                cursor=cursor,
                auto_commit=auto_commit,
                on_reset=on_reset,
            ),
            Consumer,
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
    ) -> GroupConsumer[V, K]:
        """Join a consumer group. Its members share out the streams of `source`, and one member at a
        time reads a stream, in order.

        source: the name of a group of streams, or of a stream. group: the name of the consumer
        group, under which its cursors are kept. instance: a name for this member that outlives its
        process: the next member of that name takes its place at once, and while its process
        restarts, within `session_timeout`, its streams wait for it. start, filter, key,
        auto_commit, on_reset: as in `consume`, for each stream. session_timeout: seconds after
        which a member that sends nothing is removed. on_assigned, on_revoked: called between two
        records with the names of streams that come and go; the streams that go are committed
        afterwards. They run in another thread while the one that reads waits, and may use the
        client and `commit()`, but not read. They have 60 seconds.

            with client.consume_group("orders", "billing") as member:
                for message in member:
                    print(message.stream, message.offset)

        The consumer is a member when this returns.
        """
        return self._thread.begun(
            lambda: self._client.consume_group(
                source,
                group,
                instance=instance,
                start=start,
                read_from=read_from,
                filter=filter,
                key=key,
                session_timeout=session_timeout,
                auto_commit=auto_commit,
                on_reset=on_reset,
                on_assigned=in_thread(on_assigned),
                on_revoked=in_thread(on_revoked),
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
            ),
            GroupConsumer,
        )

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
    ) -> Scan:
        """Read the records of [start, stop) as Arrow record batches.

        rows: at most so many in a batch. columns: only these; the others are not built. typed: also
        the fields of the stream's schema as columns, and `_error` (docs/typed_streams.md); needs
        `jetstream-log[sql]`. last_epoch,
        read_from: as in `fetch`; last_epoch is that of the record before `start`. patience: as in
        `consume`, but by default the client's timeout, because a scan has an end. Needs
        `jetstream-log[arrow]`.

        Start and stop are resolved before this returns.
        """
        return self._thread.begun(
            lambda: self._client.scan(
                stream,
                start,
                stop,
                rows=rows,
                columns=columns,
                typed=typed,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=patience,
            ),
            Scan,
        )

    def sql(
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

            table = client.sql("select subject, count(*) from orders group by 1")
        """
        return self._thread.run(
            self._client.sql(
                query, start, stop, parameters=parameters, read_from=read_from, patience=patience
            )
        )

    def table(
        self,
        stream: StreamLike,
        *,
        wait: bool = True,
        stale_after: Seconds | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
    ) -> Table[K, V]:
        """A mapping from every key of a stream to its latest value, kept up to date.

        Returns when it has everything that is committed now, unless `wait` is False. stale_after:
        if no server has answered for so many seconds, every access raises UnavailableError;
        default: the table returns what it knows (see `is_current`, `lag`). key_deserializer,
        value_deserializer: as in `consume`; look keys up in their deserialised form.

            with client.table("prices", key_deserializer=bytes.decode) as prices:
                print(prices["pears"])
        """
        return self._thread.begun(
            lambda: self._client.table(
                stream,
                wait=wait,
                stale_after=stale_after,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
            ),
            Table,
        )
