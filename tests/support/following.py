"""What consumers at the head ask, and what they get."""

from __future__ import annotations

import asyncio

import pytest

from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.transport.data_connection import DataConnection, Fetched
from jetstream_client.transport.follow import Follow
from jetstream_protocol.generated import dataplane_pb2 as pb

SECONDS = 60.0


class Questions:
    """Counts what consumers ask, and keeps their follows, with the addresses of who was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetches = 0
        self.follows: list[pb.FollowRequest] = []
        self.followed: list[str] = []
        self.taken = 0
        fetch, begin, take = DataConnection.fetch, DataConnection.begin_follow, Follow._take

        async def fetching(
            connection: DataConnection, request: pb.DataFetchRequest, timeout: float
        ) -> Fetched:
            self.fetches += 1
            return await fetch(connection, request, timeout)

        def beginning(connection: DataConnection, request: pb.FollowRequest, sink: Follow) -> int:
            self.follows.append(request)
            self.followed.append(connection.address)
            return begin(connection, request, sink)

        def taking(follow: Follow) -> Fetched:
            self.taken += 1
            return take(follow)

        monkeypatch.setattr(DataConnection, "fetch", fetching)
        monkeypatch.setattr(DataConnection, "begin_follow", beginning)
        monkeypatch.setattr(Follow, "_take", taking)


async def some(consumer: AsyncConsumer, count: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of the next records."""
    found = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            message = await anext(consumer)
            found.append((message.offset, message.value))
    return found


def waits(consumer: AsyncConsumer) -> asyncio.Task[list[tuple[int, bytes | None]]]:
    """The next record, for which the consumer waits."""
    return asyncio.create_task(some(consumer, 1))
