"""A member of a consumer group: what it hands out, commits and is told when something fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import (
    AsyncConsumer,
    AsyncGroupConsumer,
    JetstreamError,
    Messages,
    Position,
    UnavailableError,
)
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.membership import Membership
from jetstream_protocol.generated import groups_pb2 as pb
from tests.support.loops import eventually, on_loop
from tests.unit.client.batches import messages_of, numbered

AS_STORED = Deserializers()


class Coordinator:
    """Assigns streams to whoever joins. failures: of the next heartbeats; None: no answer comes.
    answers: once it is set. left: the ids of members that have left."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.heartbeats = 0
        self.left: list[str] = []
        self.assigned = [1]
        self.failures: list[JetstreamError | None] = []

    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        self.heartbeats += 1
        if self.failures:
            await fails_with(self.failures.pop(0))
        await self.answers.wait()
        await asyncio.sleep(request.wait_ms / 1000)
        return pb.GroupHeartbeatResponse(generation=1, assigned=self.assigned)

    async def leave(self, group: str, source: str, member_id: str) -> None:
        self.left.append(member_id)


async def fails_with(failure: JetstreamError | None) -> None:
    if failure is not None:
        raise failure
    await asyncio.Event().wait()


class Cursor:
    """Notes what is committed. failures: of the next times that it is opened. opens: once it is
    set. is_asked: to open."""

    auto_commit = True
    reset_to = None

    def __init__(self, stream_id: int) -> None:
        self.stream = SimpleNamespace(id=stream_id, full_name=f"orders-{stream_id}")
        self.committed: int | None = None
        self.failures: list[JetstreamError | None] = []
        self.opens = asyncio.Event()
        self.opens.set()
        self.is_asked = False

    async def open(self) -> None:
        self.is_asked = True
        await self.opens.wait()
        if self.failures:
            await fails_with(self.failures.pop(0))

    async def commit(self, offset: int, last_epoch: int) -> None:
        self.committed = offset


class Member:
    """Reads the streams 1 to 3, with ten numbered records each. events: what its listeners were
    told; on_assigned: what the next ones of them do then."""

    def __init__(self, deserializers: Deserializers = AS_STORED) -> None:
        self.cursors = {number: Cursor(number) for number in (1, 2, 3)}
        self.events: list[tuple[str, list[str]]] = []
        self.on_assigned: list[JetstreamError | None] = []
        self.coordinator = Coordinator()
        self._deserializers = deserializers
        groups: Any = self.coordinator
        self.membership = Membership(groups, "workers", "orders", "", 10.0)
        self.consumer = AsyncGroupConsumer(
            self.membership, self._make, self._assigned, self._revoked
        )

    async def _assigned(self, names: Sequence[str]) -> None:
        self.events.append(("assigned", list(names)))
        if self.on_assigned:
            await fails_with(self.on_assigned.pop(0))

    def _revoked(self, names: Sequence[str]) -> None:
        self.events.append(("revoked", list(names)))

    def _make(self, stream_id: int, membership: Membership) -> AsyncConsumer:
        cursor: Any = self.cursors[stream_id]
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


async def next_fails(member: Member, failure: JetstreamError | None) -> None:
    """Ask for a record. failure: what that ends with; None: it is waited for with a timeout."""
    with pytest.raises(TimeoutError if failure is None else type(failure)):
        await asyncio.wait_for(anext(member.consumer), 0.05)


FAILURES = pytest.mark.parametrize("failure", [UnavailableError("for a moment"), None])


@FAILURES
@on_loop
async def test_a_member_whose_first_join_fails_joins_at_the_next_call(
    failure: JetstreamError | None,
) -> None:
    member = Member()
    member.coordinator.failures.append(failure)
    await next_fails(member, failure)
    async with member.consumer as consumer:
        assert (await anext(consumer)).offset == 0


@FAILURES
@on_loop
async def test_streams_that_began_before_one_failed_are_told_as_assigned(
    failure: JetstreamError | None,
) -> None:
    member = Member()
    member.coordinator.assigned = [1, 2, 3]
    member.cursors[2].failures.append(failure)
    await next_fails(member, failure)
    async with member.consumer as consumer:
        assert (await anext(consumer)).offset == 0
    names = ["orders-1", "orders-2", "orders-3"]
    assert [(what, sorted(told)) for what, told in member.events] == [
        ("assigned", names),
        ("revoked", names),
    ]


@on_loop
async def test_a_stream_that_was_never_assigned_is_not_revoked() -> None:
    member = Member()
    member.coordinator.assigned = [1, 2]
    member.cursors[2].failures.append(UnavailableError("for a moment"))
    await next_fails(member, UnavailableError(""))
    member.membership.told = frozenset([2])
    async with member.consumer as consumer:
        await anext(consumer)
        assert consumer.streams == ["orders-2"]
    assert member.events == [("assigned", ["orders-2"]), ("revoked", ["orders-2"])]


@FAILURES
@on_loop
async def test_no_record_comes_before_its_stream_is_told_as_assigned(
    failure: JetstreamError | None,
) -> None:
    member = Member()
    member.on_assigned.append(failure)
    await next_fails(member, failure)
    async with member.consumer as consumer:
        assert (await anext(consumer)).offset == 0
        assert member.events == [("assigned", ["orders-1"])] * 2


@on_loop
async def test_a_stream_whose_assignment_the_listener_refused_is_told_as_revoked() -> None:
    member = Member()
    member.on_assigned.append(UnavailableError("no room"))
    with pytest.raises(UnavailableError, match="no room"):
        async with member.consumer as consumer:
            await anext(consumer)
    assert member.events == [("assigned", ["orders-1"]), ("revoked", ["orders-1"])]


@on_loop
async def test_a_member_that_is_closed_while_it_joins_is_a_member_no_more() -> None:
    member = Member()
    member.coordinator.answers.clear()
    joining = asyncio.create_task(anext(member.consumer, None))
    await eventually(lambda: member.coordinator.heartbeats == 1)
    await member.consumer.aclose()
    member.coordinator.answers.set()
    assert await joining is None
    assert member.coordinator.left == [member.membership.id]
    heartbeats = member.coordinator.heartbeats
    assert await anext(member.consumer, None) is None
    assert member.coordinator.heartbeats == heartbeats


@on_loop
async def test_a_stream_that_begins_while_its_member_is_closed_is_not_read() -> None:
    member = Member()
    cursor = member.cursors[1]
    cursor.opens.clear()
    reading = asyncio.create_task(anext(member.consumer, None))
    await eventually(lambda: cursor.is_asked)
    await member.consumer.aclose()
    cursor.opens.set()
    assert await reading is None
    assert member.consumer.streams == []
    assert member.events == []


@on_loop
async def test_no_record_comes_after_it_was_closed() -> None:
    member = Member()
    await anext(member.consumer)
    await member.consumer.aclose()
    assert await anext(member.consumer, None) is None
