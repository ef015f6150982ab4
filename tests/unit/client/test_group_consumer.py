"""A member of a consumer group: what it hands out, commits and is told when something fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import AsyncConsumer, AsyncGroupConsumer, Messages, Position
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.membership import Membership
from jetstream_protocol.generated import groups_pb2 as pb
from tests.support.loops import on_loop
from tests.unit.client.batches import messages_of, numbered


class Coordinator:
    """Assigns stream 1 to whoever joins."""

    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        await asyncio.sleep(request.wait_ms / 1000)
        return pb.GroupHeartbeatResponse(generation=1, assigned=[1])

    async def leave(self, group: str, source: str, member_id: str) -> None: ...


class Cursor:
    """Notes what is committed."""

    auto_commit = True
    reset_to = None

    def __init__(self, stream_id: int) -> None:
        self.stream = SimpleNamespace(id=stream_id, full_name=f"orders-{stream_id}@orders.*")
        self.committed: int | None = None

    async def open(self) -> None: ...

    async def commit(self, offset: int, last_epoch: int) -> None:
        self.committed = offset


class Member:
    """Reads streams with ten numbered records each. cursors: by the stream's id."""

    def __init__(self, deserializers: Deserializers) -> None:
        self.cursors: dict[int, Cursor] = {}
        self._deserializers = deserializers
        coordinator: Any = Coordinator()
        membership = Membership(coordinator, "workers", "orders", "", 10.0)
        self.consumer = AsyncGroupConsumer(membership, self._make, None, None)

    def _make(self, stream_id: int, membership: Membership) -> AsyncConsumer:
        cursor: Any = self.cursors.setdefault(stream_id, Cursor(stream_id))
        return AsyncConsumer(
            fetch, resolve, "earliest", None, deserializers=self._deserializers, cursor=cursor
        )


async def fetch(offset: int, last_epoch: int, stop: int | None, max_wait: float) -> Messages:
    if offset >= 10:
        await asyncio.sleep(max_wait)
    return messages_of(numbered(10), offset)


async def resolve(start: Position, stop: Position | None) -> tuple[int, None]:
    return 0, None


@on_loop
async def test_a_record_that_cannot_be_deserialised_is_neither_passed_over_nor_committed() -> None:
    def below_two(value: bytes) -> int:
        if int(value) >= 2:
            raise ValueError("too large")
        return int(value)

    member = Member(Deserializers(value=below_two))
    async with member.consumer as consumer:
        assert [(await anext(consumer)).value for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="too large") as raised:
                await anext(consumer)
            assert raised.value.__notes__ == [
                "deserialising the value of record 2 of stream 'orders'"
            ]
    assert member.cursors[1].committed == 2
