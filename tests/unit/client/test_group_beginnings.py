"""A member of a consumer group begins its streams: one that cannot begin holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from jetstream_client import AsyncClient, AsyncGroupConsumer, UnavailableError
from jetstream_client.reading import beginnings
from jetstream_protocol.generated import groups_pb2 as pb
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.test_group_consumer import Member


def group_of(source: str, streams: list[int], newest_at_first: int) -> pb.ConsumerGroup:
    shares = [pb.ConsumerGroup.Share(stream_id=number) for number in streams]
    return pb.ConsumerGroup(source=source, shares=shares, newest_at_first=newest_at_first)


class Unready(Member):
    """A member that is to read the streams 1 to 3; the first cannot be begun. opened: how often its
    cursor was asked for, and when."""

    def __init__(self, open_: Callable[[], Any]) -> None:
        super().__init__()
        self.coordinator.assigned = [1, 2, 3]
        self.opened: list[float] = []

        async def opens() -> None:
            self.opened.append(asyncio.get_running_loop().time())
            await open_()

        cursor: Any = self.cursors[1]
        cursor.open = opens

    async def reads(self, streams: set[str]) -> None:
        """Records of each of these, whatever calls fail with meanwhile."""
        found: set[str] = set()
        while not streams <= found:
            try:
                async with asyncio.timeout(0.5):
                    await anext(self.consumer)
            except (TimeoutError, UnavailableError):
                continue
            assert self.consumer._current is not None
            found.add(self.consumer._current.name)


async def fails() -> None:
    raise UnavailableError("no node answers")


async def hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("open_", [fails, hangs])
@on_virtual_loop
async def test_a_stream_that_cannot_begin_keeps_no_other_from_being_read(
    open_: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginnings, "LONG_SECONDS", 0.2)
    member = Unready(open_)
    async with asyncio.timeout(60.0):
        await member.reads({"orders-2", "orders-3"})
        await member.consumer.aclose()


@on_virtual_loop
async def test_a_stream_that_begins_in_the_end_is_read_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And once: a call that is cancelled does not begin it anew."""
    monkeypatch.setattr(beginnings, "LONG_SECONDS", 1.0)
    begins = asyncio.Event()
    member = Unready(begins.wait)
    async with asyncio.timeout(60.0):
        await member.reads({"orders-2", "orders-3"})
        begins.set()
        await member.reads({"orders-1"})
        assert len(member.opened) == 1
        await member.consumer.aclose()
    assert member.events[0] == ("assigned", ["orders-2", "orders-3"])
    assert member.events[1] == ("assigned", ["orders-1"])


@on_virtual_loop
async def test_what_takes_longer_than_every_call_begins_all_the_same() -> None:
    begins = asyncio.Event()
    member = Unready(begins.wait)
    member.coordinator.assigned = [1]
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(member.consumer), 0.02)
    begins.set()
    async with asyncio.timeout(60.0):
        assert (await anext(member.consumer)).offset == 0
        await member.consumer.aclose()
    assert len(member.opened) == 1


async def hears(member: Member, assigned: list[int]) -> None:
    """The group has changed."""
    member.coordinator.generation += 1
    member.coordinator.assigned = assigned
    await member.membership._beat(0.0)


@on_virtual_loop
async def test_what_takes_longer_than_a_generation_begins_all_the_same() -> None:
    """Others join and go meanwhile. With each new generation it was begun anew, and so never."""

    async def others_come_and_go() -> None:
        assert len(member.opened) == 1
        await hears(member, [1])

    member = Unready(others_come_and_go)
    member.coordinator.assigned = [1]
    async with asyncio.timeout(60.0):
        assert (await anext(member.consumer)).offset == 0
        await member.consumer.aclose()


@on_virtual_loop
async def test_what_was_another_member_s_meanwhile_is_begun_anew() -> None:
    """Its position has moved on."""

    async def was_another_s() -> None:
        if len(member.opened) == 1:
            await hears(member, [])
            await hears(member, [1])

    member = Unready(was_another_s)
    member.coordinator.assigned = [1]
    async with asyncio.timeout(60.0):
        assert (await anext(member.consumer)).offset == 0
        await member.consumer.aclose()
    assert len(member.opened) == 2


@on_virtual_loop
async def test_heartbeats_wait_although_a_stream_cannot_begin() -> None:
    """The coordinator answers at once, because the member does not hold what it was told to."""
    member = Unready(fails)
    answered_at: list[float] = []
    heartbeat = member.coordinator.heartbeat

    async def noted(request: Any) -> Any:
        request.wait_ms = 0
        answered_at.append(asyncio.get_running_loop().time())
        return await heartbeat(request)

    member.coordinator.heartbeat = noted  # type: ignore[method-assign]
    member.membership._session = 1.0
    async with asyncio.timeout(60.0):
        while len(member.opened) < 4:
            try:
                await asyncio.wait_for(anext(member.consumer), 0.1)
            except (TimeoutError, UnavailableError):
                continue
        took = answered_at[-1] - answered_at[0]
        # A few for each of these calls; answered at once over and over, it were thousands.
        assert len(answered_at) < 50 * (1 + took)
        await member.consumer.aclose()


@on_virtual_loop
async def test_a_stream_that_was_taken_away_is_not_begun_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beginnings, "LONG_SECONDS", 0.05)
    is_ended = asyncio.Event()

    async def until_it_is_ended() -> None:
        try:
            await hangs()
        finally:
            is_ended.set()

    member = Unready(until_it_is_ended)
    async with asyncio.timeout(60.0):
        await member.reads({"orders-2", "orders-3"})
        reading = asyncio.ensure_future(_read_on(member.consumer))
        await hears(member, [2, 3])
        await is_ended.wait()
        await eventually(lambda: sorted(member.consumer.streams) == ["orders-2", "orders-3"])
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert len(member.opened) == 1
        await member.consumer.aclose()


@on_virtual_loop
async def test_closing_ends_what_is_being_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "LONG_SECONDS", 0.05)
    before = asyncio.all_tasks()
    member = Unready(hangs)
    async with asyncio.timeout(60.0):
        await member.reads({"orders-2"})
        await member.consumer.aclose()
        await eventually(lambda: asyncio.all_tasks() == before)


async def _read_on(consumer: AsyncGroupConsumer) -> None:
    async for _ in consumer:
        pass


@on_virtual_loop
async def test_what_has_begun_and_failed_before_it_was_taken_is_noticed() -> None:
    """Its first checkpoint may be refused while the reader is busy with a record."""
    member = Member()
    consumer = AsyncGroupConsumer(member.membership, member._make, None, None)
    await consumer.begin()
    part = await consumer._begin_part(1)
    await part.consumer.fail(UnavailableError("its first commit has failed"))
    assert consumer._take(part, member.membership.generation)
    assert consumer.must_adjust
    with pytest.raises(UnavailableError, match="its first commit"):
        await anext(consumer)
    await consumer.aclose()


@pytest.mark.parametrize(
    ("found", "newest"),
    [
        ([], 9),
        ([group_of("jobs", [1, 2, 5], 2)], 2),
        ([group_of("jobs", [1, 2, 5], 0)], 5),  # Of a server of an earlier release.
        ([group_of("others", [3, 4], 4)], 9),  # It read something else: these are new to it.
    ],
)
@on_virtual_loop
async def test_start_is_for_the_streams_with_which_the_group_began(
    found: list[pb.ConsumerGroup], newest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = AsyncClient("127.0.0.1:1")
    monkeypatch.setattr(client, "_listed_groups", AsyncMock(return_value=found))
    streams = [SimpleNamespace(id=number) for number in (1, 2, 9)]
    monkeypatch.setattr(client, "list_streams", AsyncMock(return_value=streams))
    assert await client._newest_stream("workers", "jobs") == newest


@on_virtual_loop
async def test_a_stream_that_comes_while_the_group_begins_is_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = AsyncClient("127.0.0.1:1")
    streams = [SimpleNamespace(id=1)]

    async def groups(_: str) -> list[pb.ConsumerGroup]:
        streams.append(SimpleNamespace(id=2))  # Just after another member has begun the group.
        return []

    monkeypatch.setattr(client, "_listed_groups", groups)
    monkeypatch.setattr(client, "list_streams", AsyncMock(return_value=streams))
    assert await client._newest_stream("workers", "jobs") == 1


@pytest.mark.parametrize("steps", range(6))
@on_virtual_loop
async def test_a_call_that_is_cancelled_as_it_ends_a_beginning_leaves_nothing_behind(
    steps: int,
) -> None:
    """The stream was taken away, and its beginning has succeeded all the same."""
    member = Member()
    member.coordinator.assigned = [1, 2]
    cursor: Any = member.cursors[2]
    is_asked = asyncio.Event()

    async def open_() -> None:
        is_asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    cursor.open = open_
    before = asyncio.all_tasks()
    reading = asyncio.ensure_future(anext(member.consumer))
    await is_asked.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    member.membership.assigned_since = {1: 1}
    member.membership._compare()
    reading = asyncio.ensure_future(anext(member.consumer))
    for _ in range(steps):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await member.consumer.aclose()
    assert asyncio.all_tasks() == before
