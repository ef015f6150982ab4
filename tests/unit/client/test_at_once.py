"""Several tasks, threads and signal handlers use one consumer, member or table at a time."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest

from jetstream_client import (
    InternalError,
    InvalidRequestError,
    Message,
    Messages,
    Position,
    PreconditionFailedError,
)
from jetstream_client._loop_thread import LoopThread
from jetstream_client.processing.blocking_queue import Queue
from jetstream_client.processing.queue import AsyncQueue
from jetstream_client.publishing.batched_publisher import AsyncPublisher
from jetstream_client.publishing.sender import PublisherOptions
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.table import AsyncTable, Table
from jetstream_client.transport.home import Home
from tests.support.loops import on_loop
from tests.unit.client.test_consume import Log
from tests.unit.client.test_group_consumer import Member
from tests.unit.client.test_handing_out import Cursor, Interrupts
from tests.unit.client.test_queue import Server, queue_of
from tests.unit.client.test_table import Endless, table_of

PATIENCE_SECONDS: Final = 60.0
ALARM_SECONDS: Final = 0.05
RECORDS: Final = 40


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


def offsets_of(found: Message | Messages) -> list[int]:
    return found.offsets() if isinstance(found, Messages) else [found.offset]


async def turns() -> None:
    """More of them than whatever is under way in the loop needs to end."""
    for _ in range(100):
        await asyncio.sleep(0)


def running(name: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if name in repr(task)]


@on_loop
async def test_a_member_that_two_tasks_begin_at_once_leaves_no_heartbeat_behind() -> None:
    member = Member()
    member.coordinator.answers.clear()
    beginning = [asyncio.ensure_future(member.consumer.begin()) for _ in range(2)]
    await asyncio.sleep(0)
    member.coordinator.answers.set()
    await asyncio.gather(*beginning)
    await member.consumer.aclose()
    assert not running("Membership._")


@on_loop
async def test_a_table_that_two_tasks_begin_at_once_follows_once() -> None:
    table = table_of(Endless())
    await asyncio.gather(table.begin(), table.begin())
    assert len(running("AsyncTable._follow")) == 1
    await table.aclose()


@on_loop
async def test_who_closes_it_while_it_is_being_closed_waits_for_the_last_commit() -> None:
    cursor: Any = Cursor()
    consumer = Log().consume(cursor=cursor)
    for _ in range(4):
        await anext(consumer)
    commit, may_commit = cursor.commit, asyncio.Event()

    async def late(offset: int, last_epoch: int) -> None:
        await may_commit.wait()
        await commit(offset, last_epoch)

    cursor.commit = late
    closing = [asyncio.ensure_future(consumer.aclose()) for _ in range(2)]
    done, _ = await asyncio.wait(closing, timeout=0.01)
    assert not done
    may_commit.set()
    await asyncio.gather(*closing)
    assert cursor.committed == 3


@on_loop
async def test_so_does_who_closes_a_member_but_not_its_listener() -> None:
    member = Member()
    consumer, revoked = member.consumer, member._revoked

    async def closes(names: Sequence[str]) -> None:
        revoked(names)
        await consumer.aclose()

    consumer._on_revoked = closes
    for _ in range(4):
        await anext(consumer)
    commit, may_commit = member.cursors[1].commit, asyncio.Event()

    async def late(offset: int, last_epoch: int) -> None:
        await may_commit.wait()
        await commit(offset, last_epoch)

    member.cursors[1].commit = late  # type: ignore[method-assign]
    closing = [asyncio.ensure_future(consumer.aclose()) for _ in range(2)]
    done, _ = await asyncio.wait(closing, timeout=0.01)
    assert not done
    may_commit.set()
    await asyncio.wait_for(asyncio.gather(*closing), PATIENCE_SECONDS)
    assert member.cursors[1].committed == 3
    assert member.events[-1] == ("revoked", ["orders-1"])


@on_loop
async def test_so_does_who_closes_a_publisher() -> None:
    made: Any = SimpleNamespace(home=Home(), timeout=60.0)
    publisher: AsyncPublisher[bytes] = AsyncPublisher(made, made, "x", PublisherOptions(), set())
    flushed = asyncio.Event()
    publisher.flush = flushed.wait  # type: ignore[method-assign,assignment]
    closing = [asyncio.ensure_future(publisher.aclose()) for _ in range(2)]
    done, _ = await asyncio.wait(closing, timeout=0.01)
    assert not done
    flushed.set()
    await asyncio.wait_for(asyncio.gather(*closing), PATIENCE_SECONDS)


@on_loop
async def test_pausing_what_is_closed_makes_nobody_wait() -> None:
    consumer = Log().consume()
    await anext(consumer)
    await consumer.aclose()
    consumer.pause()
    assert await asyncio.wait_for(anext(consumer, None), PATIENCE_SECONDS) is None


@on_loop
async def test_who_waits_for_a_paused_consumer_hears_that_its_cursor_is_anothers() -> None:
    cursor: Any = Cursor()
    consumer = Log().consume(cursor=cursor)
    await anext(consumer)
    consumer.pause()
    reading = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(0)
    await consumer.fail(PreconditionFailedError("another has it"))
    with pytest.raises(PreconditionFailedError):
        await asyncio.wait_for(reading, PATIENCE_SECONDS)


@on_loop
async def test_a_bug_in_a_commit_or_a_reading_ends_them_with_an_error() -> None:
    cursor: Any = Cursor()
    cursor.commit = AsyncMock(side_effect=ValueError("a bug"))
    consumer = Log().consume(cursor=cursor)
    await consumer.begin()
    await turns()
    with pytest.raises(InternalError, match="a bug"):
        await anext(consumer)
    source: Any = Endless()
    source.next_messages = cursor.commit
    table = table_of(source)
    await table.begin()
    await turns()
    with pytest.raises(InternalError, match="a bug"):
        table.snapshot()
    await table.aclose()


@on_loop
async def test_what_was_closed_before_it_began_moves_no_cursor() -> None:
    cursor: Any = Cursor()
    consumer = Log().consume(cursor=cursor)
    await consumer.aclose()
    for call in (consumer.seek(3), consumer.commit()):
        with pytest.raises(InvalidRequestError, match="closed"):
            await call
    assert cursor.committed is None


@on_loop
async def test_a_seek_reaches_a_task_that_has_once_swallowed_a_cancellation() -> None:
    async with Log().consume("latest", None) as consumer:

        async def read() -> int:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return (await anext(consumer)).offset
            raise AssertionError("it was cancelled")

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        reading.cancel()
        await turns()
        await consumer.seek(3)
        assert await reading == 3


def test_a_table_that_nobody_can_read_any_more_is_followed_no_more(thread: LoopThread) -> None:
    """As when a signal handler raises just as it is returned."""
    consumer = Endless()

    async def made() -> AsyncTable[Any, Any]:
        table = table_of(consumer)
        await table.begin()
        return table

    table = Table(thread, thread.run(made()))
    assert not consumer.is_closed
    del table
    thread.run(turns())
    assert consumer.is_closed


def test_a_queue_that_nobody_can_read_any_more_gives_back_what_it_has(thread: LoopThread) -> None:
    """As long as one of its messages can be acknowledged, it lives."""
    server = Server()
    server.most = 10

    async def made() -> AsyncQueue:
        return queue_of(server)

    message = next(Queue(thread, thread.run(made())))
    assert message.ack()
    assert not server.given_back
    del message
    thread.run(turns())
    assert sorted(server.given_back) == list(range(1, 10))


# Interrupts.


@contextmanager
def interrupts(number: int, call: str) -> Iterator[None]:
    """Raise at the `number`th place in the block where a signal handler may, or at its end."""

    def alarm(*_: object) -> None:
        sys.setprofile(None)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
    sys.setprofile(Interrupts(number, call))
    try:
        yield
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def begun(thread: LoopThread, make: Callable[[], AsyncConsumer]) -> Consumer:
    async def begin() -> AsyncConsumer:
        consumer = make()
        await consumer.begin()
        return consumer

    return Consumer(thread, thread.run(begin()))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("number", range(8, 20))
def test_a_seek_that_is_interrupted_moves_nothing_later(number: int, thread: LoopThread) -> None:
    """Its answer comes after the next seek."""
    consumer = begun(thread, lambda: Log().consume("earliest", None))
    inner: Any = consumer._consumer
    resolve, answers = inner._resolve, asyncio.Event()

    async def late(start: Position, stop: Position | None) -> tuple[int, int | None]:
        if start == 7:
            await answers.wait()
        found: tuple[int, int | None] = await resolve(start, stop)
        return found

    async def answered() -> None:
        answers.set()
        await asyncio.sleep(0.001)

    inner._resolve = late
    with pytest.raises(KeyboardInterrupt), interrupts(number, "seek"):
        consumer.seek(7)
    consumer.seek(0)
    thread.run(answered())
    assert next(consumer).offset == 0
    consumer.close()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_interrupted_no_record_is_left_out(seed: int, thread: LoopThread) -> None:
    chance = random.Random(seed)
    cursor: Any = Cursor()
    log = Log(high_watermark=RECORDS)
    consumer = begun(thread, lambda: log.consume("earliest", "latest", cursor))
    batches = consumer.batches(max_records=2)
    may_come = {0}  # An interrupted seek was made, or was not.
    for _ in range(60):
        number = chance.randint(1, 40) if chance.random() < 0.5 else 10_000
        to = chance.randrange(RECORDS)
        calls: dict[str, Callable[[], Any]] = {
            "__next__": lambda: next(chance.choice((consumer, batches)), None),
            "seek": lambda to=to: consumer.seek(to),  # type: ignore[misc]
            "commit": consumer.commit,
            "pause": consumer.pause,
        }
        call = chance.choice([*calls, "__next__", "__next__"])
        try:
            sys.setprofile(Interrupts(number, call))
            found = calls[call]()
        except KeyboardInterrupt:
            may_come |= {to} if call == "seek" else set()
            continue
        finally:
            sys.setprofile(None)
            consumer.resume()
        if call == "seek":
            may_come = {to}
        elif call == "__next__":
            offsets = (
                found.offsets() if isinstance(found, Messages) else [found.offset] if found else []
            )
            first = offsets[0] if offsets else RECORDS
            assert first in may_come
            assert offsets == list(range(first, first + len(offsets)))
            may_come = {first + len(offsets)}
        elif call == "commit":
            assert cursor.committed in may_come
    done, _ = consumer._consumer.buffer.course.done()
    consumer.close()
    assert cursor.committed == done
