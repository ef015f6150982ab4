"""Records and batches of one consumer, in any mixture: none is left out, whatever interrupts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any, TypeAlias

import pytest

from jetstream_client import AsyncConsumer, AsyncGroupConsumer, Message, Messages, UnavailableError
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.blocking_group_consumer import GroupConsumer
from jetstream_client.reading.membership import Membership
from tests.support.loops import eventually, on_loop
from tests.unit.client.batches import messages_of, numbered
from tests.unit.client.test_consume import Log
from tests.unit.client.test_group_consumer import Member

Taken: TypeAlias = Message | Messages


class Cursor:
    """Notes what is committed."""

    auto_commit = True
    reset_to = None

    def __init__(self) -> None:
        self.stream = SimpleNamespace(id=1, full_name="orders@orders")
        self.committed: int | None = None

    async def open(self) -> tuple[int, int] | None:
        return None

    async def commit(self, offset: int, last_epoch: int, metadata: str = "") -> None:
        self.committed = offset


class InThread:
    """A blocking consumer of ten records, fetched three at a time."""

    def __init__(self) -> None:
        self.thread = LoopThread()
        self.cursor: Any = Cursor()
        self.consumer = Consumer(self.thread, self.thread.run(self._begun()))

    async def _begun(self) -> AsyncConsumer:
        consumer = Log().consume(cursor=self.cursor)
        await consumer.begin()
        return consumer


@pytest.fixture
def blocking() -> Iterator[InThread]:
    made = InThread()
    yield made
    made.thread.close()


@on_loop
async def test_batches_after_a_single_record_leave_nothing_out() -> None:
    log, cursor = Log(), Cursor()
    async with log.consume(cursor=cursor) as consumer:  # type: ignore[arg-type]
        found = [(await anext(consumer)).offset]
        async for batch in consumer.batches():
            found += batch.offsets()
    assert (found, cursor.committed) == (list(range(10)), 10)


@on_loop
async def test_records_after_a_part_of_a_batch_leave_nothing_out() -> None:
    async with Log().consume() as consumer:
        found = (await anext(consumer.batches(max_records=2))).offsets()
        found += [message.offset async for message in consumer]
    assert found == list(range(10))


def test_batches_after_a_single_record_leave_nothing_out_for_a_blocking_consumer(
    blocking: InThread,
) -> None:
    with blocking.consumer as consumer:
        found = [next(consumer).offset]
        for batch in consumer.batches():
            found += batch.offsets()
    assert (found, blocking.cursor.committed) == (list(range(10)), 10)


@on_loop
async def test_batches_after_single_records_of_a_group_leave_nothing_out() -> None:
    member = Member()
    async with member.consumer as consumer:
        found = [(await anext(consumer)).offset]
        batches = consumer.batches()
        while len(found) < 10:
            found += (await asyncio.wait_for(anext(batches), 60.0)).offsets()
        with pytest.raises(TimeoutError):  # It asks for more, and there is none.
            await asyncio.wait_for(anext(batches), 0.05)
    assert (found, member.cursors[1].committed) == (list(range(10)), 10)


def test_batches_after_a_record_of_one_stream_move_no_position_of_another() -> None:
    thread = LoopThread()

    async def begun() -> tuple[Member, AsyncGroupConsumer]:
        member = Member()
        member.coordinator.assigned = [1, 2, 3]
        await member.consumer.begin()
        return member, member.consumer

    member, inner = thread.run(begun())
    found: dict[int, list[int]] = {1: [], 2: [], 3: []}
    with GroupConsumer(thread, inner) as consumer:
        for turn in range(6):
            if turn % 2:
                message = next(consumer)
                offsets = [message.offset]
            else:
                offsets = next(iter(consumer.batches(max_records=2))).offsets()
            part = inner.current
            assert part is not None
            found[part.stream_id] += offsets
            for each in inner.parts:
                assert each.consumer.position == len(found[each.stream_id])
    thread.close()
    assert sum(map(len, found.values())) == 9
    for stream_id, offsets in found.items():
        assert offsets == list(range(len(offsets)))
        assert member.cursors[stream_id].committed == len(offsets)


@on_loop
async def test_a_time_limit_does_not_end_an_iterator_over_batches() -> None:
    """docs/consumers.md: a call that is cancelled loses no record, and the next one goes on."""
    log = Log()
    fetch, comes = log.fetch, asyncio.Event()

    async def late(offset: int, last_epoch: int, stop: int | None, max_wait: float) -> Messages:
        await comes.wait()
        return await fetch(offset, last_epoch, stop, max_wait)

    log.fetch = late  # type: ignore[method-assign]
    async with log.consume() as consumer:
        batches = consumer.batches()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(batches), 0.05)
        comes.set()
        assert [o async for batch in batches for o in batch.offsets()] == list(range(10))


@on_loop
async def test_a_time_limit_does_not_end_an_iterator_over_the_batches_of_a_member() -> None:
    member = Member()
    member.cursors[1].opens.clear()
    async with member.consumer as consumer:
        batches = consumer.batches()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(batches), 0.05)
        member.cursors[1].opens.set()
        assert (await anext(batches)).offsets() == list(range(10))


@on_loop
async def test_a_fetch_of_one_stream_outlives_the_failure_of_another() -> None:
    member = Member()
    member.coordinator.assigned = [1, 2]
    make, asked = member._make, {1: 0, 2: 0}

    def made(stream_id: int, membership: Membership) -> AsyncConsumer:
        consumer = make(stream_id, membership)

        async def fetch(offset: int, *_: Any) -> Messages:
            asked[stream_id] += 1
            if stream_id == 1 and asked[1] == 1:
                raise UnavailableError("for a moment")
            if offset >= 10:
                await asyncio.Event().wait()
            return messages_of(numbered(10), offset)

        consumer._fetch = fetch  # type: ignore[assignment]
        return consumer

    consumer = AsyncGroupConsumer(member.membership, made, None, None)
    found: dict[int, list[int]] = {1: [], 2: []}
    async with consumer:
        with pytest.raises(UnavailableError):
            await anext(consumer)
        while sum(map(len, found.values())) < 20:
            message = await asyncio.wait_for(anext(consumer), 60.0)
            assert consumer.current is not None
            found[consumer.current.stream_id].append(message.offset)
    assert found == {1: list(range(10)), 2: list(range(10))}
    assert asked[2] == 2, "the first fetch of stream 2 was thrown away"


@on_loop
async def test_what_a_member_has_fetched_outlives_a_failed_commit_of_another_stream() -> None:
    """A refusal says that the stream is another member's: then this one joins anew. Any other error
    is told, and the other streams go on where they were."""
    member = Member()
    member.coordinator.assigned = [1, 2]
    async with member.consumer as consumer:
        first = await anext(consumer)
        assert consumer.current is not None
        other = next(each for each in consumer.parts if each is not consumer.current)
        await eventually(lambda: other.fetching is not None)
        consumer._part_has_failed()
        assert first.offset == 0
        found = [(await anext(consumer)).offset for _ in range(19)]
    assert sorted(found) == sorted([*range(1, 10), *range(10)])


def test_a_call_that_is_interrupted_as_its_fetch_comes_loses_no_record(
    blocking: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = blocking.thread._on_loop
    interrupts = [True]

    def submitted(submit: Any) -> Any:
        call = on_loop(submit)
        if interrupts:
            interrupts.clear()
            real = call.result

            def result(check: Any) -> Any:
                real(check)  # It is there; the signal's handler runs before it is returned.
                raise KeyboardInterrupt

            call.result = result
        return call

    monkeypatch.setattr(blocking.thread, "_on_loop", submitted)
    with blocking.consumer as consumer:
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        found = [message.offset for message in consumer]
    assert (found, blocking.cursor.committed) == (list(range(10)), 10)


class Interrupts:
    """Raises at the `number`th call, or return from one, that this thread makes in the client:
    where Python runs the handlers of signals. outer: the call into the client itself."""

    def __init__(self, number: int, outer: str = "__next__") -> None:
        self.left = number
        self.outer = outer

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        is_ours = "jetstream_client" in frame.f_code.co_filename
        # It returns to the program, who has the record then.
        is_outer = event == "return" and frame.f_code.co_name == self.outer
        if not is_ours or is_outer or event.startswith("c_ex"):
            return
        self.left -= 1
        if not self.left:
            sys.setprofile(None)
            raise KeyboardInterrupt


def interrupted(take: Callable[[], Taken], number: int) -> list[int]:
    """The offsets of what was taken."""
    sys.setprofile(Interrupts(number))
    try:
        taken = take()
    except KeyboardInterrupt:
        return []
    finally:
        sys.setprofile(None)
    return taken.offsets() if isinstance(taken, Messages) else [taken.offset]


def in_turn(consumer: Consumer, way: str) -> Iterator[Callable[[], Taken]]:
    batches = consumer.batches(max_records=2)
    while True:
        if way != "batches":
            yield partial(next, consumer)
        if way != "records":
            yield partial(next, batches)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("way", ["records", "batches", "both"])
@pytest.mark.parametrize("first", range(1, 60, 3))
def test_an_interrupt_anywhere_in_a_call_loses_no_record(
    way: str, first: int, blocking: InThread
) -> None:
    found: list[int] = []
    ways = in_turn(blocking.consumer, way)
    for number in range(first, first + 12):
        found += interrupted(next(ways), number)
    while len(found) < 10:
        found += interrupted(next(ways), 10_000)
    assert found == list(range(10))
    blocking.consumer._ended_well()
    blocking.consumer.close()
    assert blocking.cursor.committed == 10
