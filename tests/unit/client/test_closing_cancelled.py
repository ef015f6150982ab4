"""A call that closes or releases something is cancelled, by a time limit or Ctrl-C: nothing goes on
after it, and nothing is left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from jetstream_client import AsyncConsumer, AsyncGroupConsumer, ClientClosedError, Messages
from jetstream_client.reading.byte_budget import ByteBudget
from jetstream_client.reading.membership import Membership
from jetstream_client.reading.scan import AsyncScan
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.batches import messages_of, numbered
from tests.unit.client.test_group_consumer import Coordinator, Cursor, Member, resolve


async def fetch(offset: int, last_epoch: int, stop: int | None, max_wait: float) -> Messages:
    """Ten records; whoever asks for later ones waits for ever."""
    if offset >= 10:
        await asyncio.Event().wait()
    return messages_of(numbered(10), offset)


class Stuck:
    """A member of ten records each of two streams, of which one call never ends. where: which."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.is_there = asyncio.Event()
        self.coordinator = Coordinator()
        self.coordinator.assigned = [1, 2]
        groups: Any = self.coordinator
        self.membership = Membership(groups, "workers", "orders", "", 300.0)
        self.consumer = AsyncGroupConsumer(self.membership, self._make, None, self._revoked)
        if where == "leave":
            self.coordinator.leave = self._leave  # type: ignore[method-assign]

    def _make(self, stream_id: int, membership: Membership) -> AsyncConsumer:
        cursor: Any = Cursor(stream_id)
        if self.where == "commit":
            cursor.commit = self._commit
        return AsyncConsumer(self._fetch, resolve, "earliest", None, cursor=cursor)

    async def _fetch(
        self, offset: int, last_epoch: int, stop: int | None, max_wait: float
    ) -> Messages:
        try:
            return await fetch(offset, last_epoch, stop, max_wait)
        except asyncio.CancelledError:
            if self.where == "fetch" and not self.is_there.is_set():
                self.is_there.set()
                await asyncio.Event().wait()
            raise

    async def _revoked(self, names: Sequence[str]) -> None:
        if self.where == "listener":
            await self.hang()

    async def _commit(self, offset: int, last_epoch: int) -> None:
        await self.hang()

    async def _leave(self, group: str, source: str, member_id: str) -> None:
        await self.hang()

    async def hang(self) -> None:
        self.is_there.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("where", ["listener", "commit", "fetch", "leave"])
@on_virtual_loop
async def test_a_member_whose_closing_is_cancelled_goes_on_with_nothing(where: str) -> None:
    before = asyncio.all_tasks()
    stuck = Stuck(where)
    assert (await anext(stuck.consumer)).offset == 0
    stuck.is_there.clear()
    closing = asyncio.ensure_future(stuck.consumer.aclose())
    await stuck.is_there.wait()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled()
    await eventually(lambda: asyncio.all_tasks() == before)
    assert stuck.coordinator.left == ([] if where == "leave" else [stuck.membership.id])


@on_virtual_loop
async def test_a_consumer_whose_closing_is_cancelled_goes_on_with_nothing() -> None:
    before = asyncio.all_tasks()
    closes, may_commit = asyncio.Event(), asyncio.Event()

    class Slow(Cursor):
        async def commit(self, offset: int, last_epoch: int) -> None:
            if consumer.buffer.has_ended:
                closes.set()
            await may_commit.wait()
            await super().commit(offset, last_epoch)

    cursor: Any = Slow(1)
    budget = ByteBudget(1 << 20)
    consumer = AsyncConsumer(fetch, resolve, "earliest", None, cursor=cursor, budget=budget)
    for _ in range(3):
        await anext(consumer)
    closing = asyncio.ensure_future(consumer.aclose())
    await closes.wait()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await eventually(lambda: asyncio.all_tasks() == before)
    may_commit.set()
    await consumer.aclose()
    assert (cursor.committed, budget.used) == (2, 0)


class Releasing(Member):
    """A member that has handed out three records, and releases its stream; the call in which it
    does so is cancelled while it commits. commits: the offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[int] = []

    async def is_cancelled(self) -> None:
        for _ in range(3):
            await anext(self.consumer)
        releases, may_commit = asyncio.Event(), asyncio.Event()
        part = self.consumer.parts[0]

        async def slow(offset: int, last_epoch: int) -> None:
            if not part.is_held:
                releases.set()
            await may_commit.wait()
            self.commits.append(offset)

        cursor: Any = self.cursors[1]
        cursor.commit = slow
        self.coordinator.assigned = []
        await eventually(lambda: self.membership.must_adjust)
        waiting = asyncio.ensure_future(anext(self.consumer))
        await releases.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        may_commit.set()


@on_virtual_loop
async def test_a_release_that_was_cancelled_is_made_good_by_the_next_call() -> None:
    member = Releasing()
    async with member.consumer as consumer:
        await member.is_cancelled()
        waiting = asyncio.ensure_future(anext(consumer))
        await eventually(lambda: not consumer.streams)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert member.commits[-1] == 3
    assert [what for what, _ in member.events] == ["assigned", "revoked"]


@on_virtual_loop
async def test_a_stream_that_comes_back_before_its_release_has_ended_is_read_on() -> None:
    member = Releasing()
    async with member.consumer as consumer:
        await member.is_cancelled()
        member.coordinator.assigned = [1]
        member.membership.assigned_since = {1: 1}
        member.membership.adjusted()
        async with asyncio.timeout(30.0):
            assert (await anext(consumer)).offset == 0  # This cursor knows nothing at its opening.
        assert 3 in member.commits
    assert [what for what, _ in member.events] == ["assigned", "revoked"] * 2


@on_virtual_loop
async def test_a_scan_whose_client_is_closed_while_it_begins_says_so() -> None:
    async def never(*_: object) -> tuple[int, int]:
        await asyncio.Event().wait()
        raise AssertionError

    consumer: AsyncConsumer = AsyncConsumer(fetch, never, "earliest", "latest")
    scan = AsyncScan(lambda *_: consumer, "earliest", "latest", 10, None)
    beginning = asyncio.ensure_future(scan.begin())
    await asyncio.sleep(0.01)
    await consumer.aclose()
    with pytest.raises(ClientClosedError):
        await beginning
