"""The methods of `Client` about cursors and consumer groups."""

from __future__ import annotations

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.processing.listeners import in_thread
from jetstream_client.reading.blocking_group_consumer import GroupConsumer
from jetstream_client.reading.deserializers import Deserializer
from jetstream_client.reading.group_consumer import SESSION_SECONDS, AsyncGroupConsumer, Listener
from jetstream_client.values.positions import Position
from jetstream_client.values.types import (
    ConsumerGroup,
    Cursor,
    CursorDescription,
    OnReset,
    Payload,
    ReadFrom,
    StreamLike,
)


class CursorMethods:
    """What follows is part of `Client`, which sets these."""

    _client: AsyncClient
    _thread: LoopThread

    def list_cursors(self, name: str = "", *, stream: StreamLike | None = None) -> list[Cursor]:
        """List the cursors, by name and stream: all, those of one name, or those in one stream."""
        return self._thread.run(self._client.list_cursors(name, stream=stream))

    def describe_cursors(
        self, name: str = "", *, stream: StreamLike | None = None
    ) -> list[CursorDescription]:
        """Describe the cursors that `list_cursors` lists, with how far behind their streams they
        are."""
        return self._thread.run(self._client.describe_cursors(name, stream=stream))

    def describe_cursor(self, name: str, stream: StreamLike) -> CursorDescription:
        """Describe one cursor: its position in a stream, and how far behind it is. Raises
        NotFoundError."""
        return self._thread.run(self._client.describe_cursor(name, stream))

    def commit_cursor(
        self,
        name: str,
        stream: StreamLike,
        offset: int,
        *,
        last_epoch: int = -1,
        metadata: str = "",
    ) -> Cursor:
        """Commit a position, no matter which was committed before. Returns once it is committed.

        offset: the next record to read. last_epoch: the `last_epoch` of the `Messages` read before;
        -1: not known. metadata: a text that is stored with it. A consumer that uses the cursor
        meanwhile ends with PreconditionFailedError.
        """
        return self._thread.run(
            self._client.commit_cursor(
                name, stream, offset, last_epoch=last_epoch, metadata=metadata
            )
        )

    def seek_cursor(self, name: str, stream: StreamLike, position: Position) -> Cursor:
        """Commit a position, given as for `consume`, from which the next consumer of the cursor
        begins. The stream must hold it; otherwise raises OffsetOutOfRangeError. Returns the cursor.

        A consumer that uses the cursor now ends with PreconditionFailedError.
        """
        return self._thread.run(self._client.seek_cursor(name, stream, position))

    def delete_cursor(self, name: str, stream: StreamLike) -> None:
        """Delete a cursor of a stream. If the stream was deleted, name it in full (`name@subject`).
        Raises NotFoundError."""
        self._thread.run(self._client.delete_cursor(name, stream))

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
        session_timeout: float = SESSION_SECONDS,
        auto_commit: bool = True,
        on_reset: OnReset = "error",
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> GroupConsumer:
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

        async def begin() -> AsyncGroupConsumer:
            consumer = self._client.consume_group(
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
            )
            await consumer.begin()
            return consumer

        return GroupConsumer(self._thread, self._thread.run(begin()))

    def list_groups(self) -> list[ConsumerGroup]:
        """List the consumer groups, also those without members."""
        return self._thread.run(self._client.list_groups())

    def delete_group(self, group: str) -> None:
        """Delete a consumer group that has no members, and its positions, as Kafka does: the next
        member of that name begins anew. If a call fails, repeat it.

        Raises PreconditionFailedError while it has members, NotFoundError.
        """
        self._thread.run(self._client.delete_group(group))

    def describe_group(self, group: str) -> ConsumerGroup:
        """Describe one consumer group: its members, and which streams each reads. Raises
        NotFoundError."""
        return self._thread.run(self._client.describe_group(group))
