"""Work on many streams: at the same time, with one time limit, within one budget of bytes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import AsyncGroupConsumer, Messages, UnavailableError
from jetstream_client.processing.options import ProcessOptions
from jetstream_client.processing.processor import Processor
from jetstream_client.processing.sources import GroupSource
from jetstream_client.reading.byte_budget import ByteBudget
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.transport.cursors import COMMITS_MAX, Commit, Cursors
from jetstream_protocol.generated import cursors_pb2 as pb
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client import test_group_consumer as fakes
from tests.unit.client.batches import batch_bytes, messages_of

STREAMS = 10
SECONDS = 0.2
"""What a commit takes: a round trip, or with no server the client's timeout."""


class Cursor(fakes.Cursor):
    seconds = 0.0
    fails = False

    async def commit(self, offset: int, last_epoch: int, metadata: str = "") -> None:
        await asyncio.sleep(self.seconds)
        if self.fails:
            raise UnavailableError("nobody answers")
        self.committed = offset


class Many(fakes.Member):
    """A member that reads ten streams."""

    def __init__(self, *, auto_commit: bool) -> None:
        super().__init__()
        self.cursors: dict[int, Any] = {each: Cursor(each) for each in range(1, STREAMS + 1)}
        for cursor in self.cursors.values():
            cursor.auto_commit = auto_commit
        self.coordinator.assigned = list(self.cursors)
        self.consumer = AsyncGroupConsumer(self.membership, self._make, None, None)

    def slows(self, *, fails: bool) -> None:
        for cursor in self.cursors.values():
            cursor.committed, cursor.seconds, cursor.fails = 0, SECONDS, fails


@on_virtual_loop
async def test_a_member_without_a_server_is_closed_in_the_time_of_one_commit() -> None:
    many = Many(auto_commit=True)
    for _ in range(STREAMS * 10):
        await anext(many.consumer)
    many.slows(fails=True)
    began = asyncio.get_running_loop().time()
    await many.consumer.aclose()
    assert asyncio.get_running_loop().time() - began < 3 * SECONDS


@on_virtual_loop
async def test_a_member_commits_by_hand_in_the_time_of_one_commit() -> None:
    many = Many(auto_commit=False)
    for _ in range(STREAMS * 10):
        await anext(many.consumer)
    many.slows(fails=False)
    began = asyncio.get_running_loop().time()
    await many.consumer.commit()
    assert asyncio.get_running_loop().time() - began < 3 * SECONDS
    assert [cursor.committed for cursor in many.cursors.values()] == [10] * STREAMS
    await many.consumer.aclose()


@on_virtual_loop
async def test_a_processing_commits_each_second_also_many_streams() -> None:
    many = Many(auto_commit=False)

    async def attempt(message: Any) -> list[Any]:
        return []

    async def nothing(*_: Any, **__: Any) -> None: ...

    source, options = GroupSource(many.consumer), ProcessOptions.of(None, "g", {"retries": 0})
    processor = Processor(source, attempt, nothing, nothing, 10.0, options)
    many.slows(fails=False)
    running = asyncio.ensure_future(processor.run())
    await eventually(lambda: processor._records == STREAMS * 10)
    await asyncio.sleep(1.0 + 2 * SECONDS)
    assert [cursor.committed for cursor in many.cursors.values()] == [10] * STREAMS
    many.slows(fails=True)
    processor.stop()
    began = asyncio.get_running_loop().time()
    await running
    assert asyncio.get_running_loop().time() - began < 3 * SECONDS


@on_virtual_loop
async def test_commits_that_waited_for_a_call_without_answer_wait_for_no_other() -> None:
    calls: list[int] = []

    async def call(request: pb.CommitCursorsRequest, *_: Any, **__: Any) -> None:
        calls.append(len(request.commits))
        await asyncio.sleep(SECONDS)
        raise UnavailableError("nobody answers")

    control: Any = SimpleNamespace(call=call)
    cursors = Cursors(control)
    commits = (cursors.commit(Commit(name=f"c{each}")) for each in range(4 * COMMITS_MAX))
    failures = await asyncio.gather(*commits, return_exceptions=True)
    assert {type(failure) for failure in failures} == {UnavailableError}
    assert calls == [COMMITS_MAX]


KIB = 1024


def test_each_consumer_asks_for_its_share_of_the_budget() -> None:
    budget = ByteBudget(1000 * KIB)
    assert budget.fetch_bytes(8000 * KIB) == 500 * KIB
    for consumer in range(5):
        budget.set_used(consumer, 0)
    assert budget.fetch_bytes(8000 * KIB) == 100 * KIB
    assert budget.fetch_bytes(10) == 10
    budget.remove(0)
    assert budget.fetch_bytes(8000 * KIB) == 125 * KIB


@pytest.mark.parametrize("is_closed", [False, True])
@on_virtual_loop
async def test_nothing_is_fetched_while_the_budget_is_used_up(is_closed: bool) -> None:
    """By a stream whose records are not handed out; the others have some at hand."""
    budget, asked = ByteBudget(100 * KIB), [0, 0]

    def consumer(number: int) -> AsyncConsumer:
        async def fetch(offset: int, *_: Any) -> Messages:
            asked[number] += 1
            return messages_of(batch_bytes([b"x" * 60 * KIB], offset))

        async def resolve(*_: Any) -> tuple[int, None]:
            return 0, None

        return AsyncConsumer(fetch, resolve, "earliest", None, budget=budget)  # type: ignore[arg-type]

    first, second = consumer(0), consumer(1)
    for _ in range(3):
        await anext(first)
    await asyncio.sleep(0.01)
    reading = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0.01)
    assert asked == [4, 0], "what is handed out, and one ahead"
    assert budget.used >= 120 * KIB
    await (first.aclose() if is_closed else first.seek(0))
    assert (await asyncio.wait_for(reading, 5.0)).offset == 0
    await first.aclose()
    await second.aclose()
    assert budget.used == 0


@on_virtual_loop
async def test_long_polls_of_idle_streams_keep_no_other_from_fetching() -> None:
    budget = ByteBudget(1000 * KIB)

    def consumer(is_idle: bool) -> AsyncConsumer:
        async def fetch(offset: int, *_: Any) -> Messages:
            if is_idle:
                await asyncio.Event().wait()
            return messages_of(batch_bytes([b"x"], offset))

        async def resolve(*_: Any) -> tuple[int, None]:
            return 0, None

        return AsyncConsumer(fetch, resolve, "earliest", None, budget=budget)  # type: ignore[arg-type]

    idle = [consumer(is_idle=True) for _ in range(40)]
    polls = []
    for each in idle:
        polls.append(asyncio.ensure_future(anext(each)))
        await asyncio.sleep(0)
    busy = consumer(is_idle=False)
    for offset in range(5):
        assert (await asyncio.wait_for(anext(busy), 5.0)).offset == offset
    for each in (*idle, busy):
        await each.aclose()
    await asyncio.gather(*polls, return_exceptions=True)
