"""The consumers of the streams that this node leads.

A consumer that is not durable lives here only: when another node leads, it is gone, and its client
makes a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from jetstream_protocol.errors import QuotaExceededError
from jetstream_protocol.subjects import covers
from jetstream_protocol.types import StreamId
from jetstream_server.clocks import Clocks
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.pulls import REQUEST_TIMEOUT
from jetstream_server.consumers.records import Wanted
from jetstream_server.metadata.state.changes import Change, StreamChanged, StreamDeleted
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

CONSUMERS_MAX: Final = 10_000
"""On one node. Each costs about 5 KB while it waits."""


class Consumers:
    """For the loop's thread only."""

    def __init__(
        self, replicas: ReplicaManager, reader: Reader, outlet: Outlet, clocks: Clocks
    ) -> None:
        self.deleted = 0
        self._replicas = replicas
        self._reader = reader
        self._outlet = outlet
        self._clocks = clocks
        self._by_stream: dict[StreamId, dict[str, Consumer]] = {}
        self._count = 0
        self.ended: Callable[[Consumer], None] = lambda _: None
        """Called with each consumer that is gone."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Consumer]:
        for consumers in self._by_stream.values():
            yield from consumers.values()

    def of(self, stream_id: StreamId) -> list[Consumer]:
        """The consumers of a stream, by name."""
        found = self._by_stream.get(stream_id, {})
        return [found[name] for name in sorted(found)]

    def find(self, stream_id: StreamId, name: str) -> Consumer | None:
        return self._by_stream.get(stream_id, {}).get(name)

    def create(
        self, replica: Replica, config: ConsumerConfig, position: int, selected: Iterable[int] = ()
    ) -> Consumer:
        """Add a consumer that does not exist, and start it. position: the first offset. selected:
        see Feed. Raises QuotaExceededError."""
        if self._count >= CONSUMERS_MAX:
            raise QuotaExceededError(f"this node serves {CONSUMERS_MAX} consumers already")
        wanted = wanted_of(replica, config)
        consumer = Consumer(
            config,
            Deliveries(config, position),
            Feed(self._reader, replica, wanted, position, selected),
            self._outlet,
            self._clocks,
            self.delete,
            created_us=self._clocks.wall(),
        )
        self._by_stream.setdefault(replica.stream.id, {})[config.name] = consumer
        self._count += 1
        consumer.start()
        return consumer

    def delete(self, consumer: Consumer) -> None:
        """End a consumer for good."""
        self._remove(consumer)
        self.deleted += 1
        consumer.close()

    def _remove(self, consumer: Consumer) -> None:
        stream_id = consumer.replica.stream.id
        consumers = self._by_stream.get(stream_id, {})
        if consumers.get(consumer.config.name) is consumer:
            del consumers[consumer.config.name]
            self._count -= 1
            if not consumers:
                del self._by_stream[stream_id]
            self.ended(consumer)

    # Following the metadata.

    def apply(self, change: Change) -> None:
        """Call it with each change of the metadata, after the replicas have taken it."""
        if isinstance(change, StreamDeleted):
            for consumer in self.of(change.stream.id):
                self.delete(consumer)
        elif isinstance(change, StreamChanged):
            self._leader_changed(change.after.id)

    def _leader_changed(self, stream_id: StreamId) -> None:
        consumers = self.of(stream_id)
        if not consumers:
            return
        replica = self._replicas.get(stream_id)
        for consumer in consumers:
            if replica is not consumer.replica or replica.leadership is None:
                self._remove(consumer)
                consumer.close(REQUEST_TIMEOUT)

    async def close(self) -> None:
        """End every consumer: clients ask again, and another node answers."""
        for consumer in list(self):
            self._remove(consumer)
            consumer.close(REQUEST_TIMEOUT)
        await asyncio.sleep(0)


def wanted_of(replica: Replica, config: ConsumerConfig) -> Wanted:
    """What a consumer wants of its stream."""
    subject = replica.stream.subject
    is_everything = any(covers(each, subject) for each in config.filters)
    return Wanted(() if is_everything else config.filters)
