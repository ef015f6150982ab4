"""The methods of `AsyncClient` about consumer groups."""

from __future__ import annotations

import weakref

from jetstream_client.clients.async_cursors import AsyncCursorMethods
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.deserializers import Deserializer, Deserializers
from jetstream_client.reading.group_consumer import SESSION_SECONDS, AsyncGroupConsumer, Listener
from jetstream_client.reading.membership import Membership
from jetstream_client.reading.reader import filter_of
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.groups import Groups
from jetstream_client.transport.streams import Streams
from jetstream_client.values.positions import Position
from jetstream_client.values.text import check_text
from jetstream_client.values.types import ConsumerGroup, OnReset, Payload, ReadFrom
from jetstream_protocol.errors import NotFoundError


class AsyncGroupMethods(AsyncCursorMethods):
    """What follows is part of `AsyncClient`, which sets this."""

    _control: ControlPlane
    _streams: Streams
    _group_consumers: weakref.WeakSet[AsyncGroupConsumer]

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
    ) -> AsyncGroupConsumer:
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
        deserializers = Deserializers(key_deserializer, value_deserializer)
        wanted = filter_of(filter, key)
        newest = 0

        async def look_for_newest() -> None:
            nonlocal newest
            newest = await self._newest_stream(group)

        def make(stream_id: int, membership: Membership) -> AsyncConsumer:
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

        membership = Membership(Groups(self._control), group, source, instance, session_timeout)
        before = None if start == "earliest" else look_for_newest
        consumer = AsyncGroupConsumer(membership, make, on_assigned, on_revoked, before)
        self._group_consumers.add(consumer)
        return consumer

    async def _newest_stream(self, group: str) -> int:
        """The id of the newest stream for which `start` was meant: those that are created later
        begin at their beginning. Ids grow with time. The group knows the streams that it had; a new
        group has those that there are."""
        known = await Groups(self._control).list(group)
        ids = [stream_id for each in known for stream_id in each.streams]
        return max(ids or [each.id for each in await self._streams.find()], default=0)

    async def list_groups(self) -> list[ConsumerGroup]:
        """List the consumer groups, also those without members."""
        self._check_open()
        return await Groups(self._control).list()

    async def delete_group(self, group: str) -> None:
        """Delete a consumer group that has no members, and its positions, as Kafka does: the next
        member of that name begins anew. If a call fails, repeat it.

        Raises PreconditionFailedError while it has members, NotFoundError.
        """
        self._check_open()
        found = await Groups(self._control).list(group)
        streams = {stream_id for each in found for stream_id in each.streams}
        for cursor in await self._cursors.list(group, None):
            if cursor.stream_id in streams:  # Others of the name are no members' positions.
                try:
                    await self._cursors.delete(group, cursor.stream)
                except NotFoundError:
                    continue  # It was deleted meanwhile.
        await Groups(self._control).delete(group)

    async def describe_group(self, group: str) -> ConsumerGroup:
        """Describe one consumer group: its members, and which streams each reads. Raises
        NotFoundError."""
        self._check_open()
        found = await Groups(self._control).list(group)
        if not found:
            raise NotFoundError(f"there is no consumer group {group!r}")
        return found[0]
