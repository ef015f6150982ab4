"""What a consumer reads ahead, how much of it is held, and what is let go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import WallUs
from jetstream_server.consumers import feed as feed_module
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.records import Piece, Record, Wanted
from jetstream_server.log.segment import LogSlice
from jetstream_server.replication.core.unreadable import InLakeError
from jetstream_server.replication.replica import Replica
from tests.support.virtual_time import on_virtual_loop

STEP = 4


class Log:
    """Stands for a replica, and for what reads it: `count` records, the even ones on subject
    `a`."""

    def __init__(self, count: int) -> None:
        self.high_watermark = count
        self.held_bytes = 0
        self.leadership = SimpleNamespace(knows_end=True, seeks_end=False)
        self.counting = asyncio.Semaphore()
        self.reads: list[int] = []

    async def read(self, _: Replica, wanted: Wanted, start: int) -> Piece:
        self.reads.append(start)
        stop = min(start + STEP, self.high_watermark)
        records = [
            Record(at, WallUs(1), b"b" if at % 2 else b"a", b"%d" % at, b"")
            for at in range(start, stop)
        ]
        if not wanted.is_everything:
            records = [each for each in records if wanted._matches(each.subject)]
        await asyncio.sleep(0)
        return Piece(records, stop, 10)


def made(log: Log, *filters: str, position: int = 0, selected: tuple[int, ...] = ()) -> Feed:
    return Feed(cast(Reader, log), cast(Replica, log), Wanted(filters), position, selected)


async def drained(feed: Feed) -> list[tuple[int, int]]:
    """Each offset with how many follow it."""
    found = []
    while not (feed.is_at_end and not feed.held):
        record = feed.next()
        if record is None:
            await feed.fill()
        else:
            feed.take()
            found.append((record.offset, feed.pending))
    return found


@on_virtual_loop
async def test_pending_is_exact_without_a_filter_and_zero_exactly_at_the_end_with_one() -> None:
    plain = await drained(made(Log(9)))
    assert plain == [(at, 8 - at) for at in range(9)]
    log = Log(10)
    found = await drained(made(log, "a"))
    assert [offset for offset, _ in found] == [0, 2, 4, 6, 8]
    assert [pending for _, pending in found][-1] == 0
    assert all(pending > 0 for _, pending in found[:-1])
    assert log.held_bytes == 0


@on_virtual_loop
async def test_a_count_is_exact_and_holds_nothing() -> None:
    log = Log(21)
    feed = made(log, "a")
    assert await feed.count() == 11
    assert log.held_bytes == 0
    await feed.fill()
    feed.take()
    assert await feed.count() == 10


@on_virtual_loop
async def test_selected_offsets_come_first_also_after_they_were_let_go() -> None:
    log = Log(12)
    feed = made(log, position=10, selected=(1, 2, 7))
    await feed.fill()
    assert feed.next() == feed.held[0]
    feed.take()
    feed.forget()
    assert log.held_bytes == 0
    assert feed.selected_left == (2, 7)
    assert [offset for offset, _ in await drained(feed)] == [2, 7, 10, 11]


@on_virtual_loop
async def test_what_is_held_is_let_go_when_there_is_no_room_and_read_again() -> None:
    log = Log(8)
    feed = made(log)
    await feed.fill()
    feed.pause()
    assert len(feed.held) == STEP
    log.held_bytes += feed_module.HELD_BYTES_MAX
    feed.take()
    feed.pause()
    assert not feed.held
    assert log.held_bytes == feed_module.HELD_BYTES_MAX
    assert [offset for offset, _ in await drained(feed)] == list(range(1, 8))
    assert log.reads == [0, 1, 5]


@on_virtual_loop
async def test_other_records_are_wanted_from_the_first_that_was_not_delivered_on() -> None:
    log = Log(12)
    feed = made(log, "a")
    await feed.fill()
    assert feed.next() is not None
    feed.take()  # Offset 0.
    feed.want(Wanted(["b"]), 1)
    assert (feed.held, log.held_bytes, feed.pending) == (feed.held.__class__(), 0, 11)
    assert await feed.count() == 6
    assert [offset for offset, _ in await drained(feed)] == [1, 3, 5, 7, 9, 11]


@on_virtual_loop
async def test_what_was_read_for_the_records_wanted_before_is_dropped() -> None:
    feed = made(Log(4), "a")
    reading = asyncio.create_task(feed.fill())
    counting = asyncio.create_task(feed.count())
    await asyncio.sleep(0)
    feed.want(Wanted(["b"]), 0)
    await reading
    await counting
    assert [offset for offset, _ in await drained(feed)] == [1, 3]


@on_virtual_loop
async def test_records_before_the_log_start_are_passed_over() -> None:
    log = Log(8)
    feed = made(log, position=6, selected=(0, 3))
    await feed.fill()
    feed.begins(2)
    assert [offset for offset, _ in await drained(feed)] == [3, 6, 7]
    assert log.held_bytes == 0


@on_virtual_loop
async def test_what_a_new_leader_does_not_know_to_be_committed_yet_is_not_taken_for_gone() -> None:
    log = Log(5)
    log.leadership.knows_end = False
    feed = made(log, position=8, selected=(3, 6))
    await feed.fill()
    assert [each.offset for each in feed.held] == [3]
    with pytest.raises(UnavailableError):
        await feed.fill()
    with pytest.raises(UnavailableError):
        await feed.old(7)
    log.high_watermark, log.leadership.knows_end = 9, True
    assert [each.offset for each in await feed.old(7)] == [7, 8]
    assert [offset for offset, _ in await drained(feed)] == [3, 6, 8]


@on_virtual_loop
async def test_what_a_lossy_election_has_cut_off_is_gone() -> None:
    log = Log(5)
    feed = made(log, position=5, selected=(4, 5))
    assert await feed.old(5) == []
    assert [offset for offset, _ in await drained(feed)] == [4]


@on_virtual_loop
async def test_pending_is_exact_with_a_filter_once_it_was_counted() -> None:
    log = Log(21)
    feed = made(log, "a")
    assert await feed.count() == 11
    await feed.fill()
    await feed.fill()
    feed.forget()
    assert feed.pending == 11
    log.high_watermark = 31
    assert feed.pending == 21  # At most so many: these were not looked at.
    assert await feed.count() == 16
    assert await drained(feed) == [(at, 15 - at // 2) for at in range(0, 31, 2)]


@on_virtual_loop
async def test_what_was_counted_and_has_been_removed_counts_no_more() -> None:
    log = Log(21)
    feed = made(log, "a")
    await feed.count()
    feed.begins(13)
    assert await feed.count() == 4
    log.high_watermark = 13  # Cut off by an election.
    assert feed.is_at_end
    assert feed.pending == 0


@on_virtual_loop
async def test_counts_leave_turns_to_those_who_wait_for_messages() -> None:
    """Clients may ask for as many at once as they like: one reads, and others know at most so
    many after a while."""
    log, counts = Log(21), asyncio.Event()
    feeds = [made(log, "a") for _ in range(20)]
    read, reading = log.read, list[int]()

    async def slow(replica: Replica, wanted: Wanted, start: int) -> Piece:
        reading.append(start)
        await counts.wait()
        return await read(replica, wanted, start)

    log.read = slow  # type: ignore[method-assign]
    asked = [asyncio.ensure_future(each.count()) for each in feeds]
    done, (first,) = await asyncio.wait(asked, timeout=10 * feed_module.COUNT_SECONDS)
    assert {each.result() for each in done} == {21}
    assert reading == [0]
    counts.set()
    assert await first == 11
    assert await feeds[1].count() == 11


class InLake:
    """A replica whose records are in the lake alone."""

    high_watermark = 5
    leadership = SimpleNamespace(knows_end=True, seeks_end=False)

    def read(self, start: int, bytes_max: int) -> LogSlice:
        raise InLakeError(f"offset {start} is in the lake")


@on_virtual_loop
async def test_what_a_slow_lake_does_not_bring_in_time_is_neither_gone_nor_passed_over() -> None:
    """Its message would count as done, and come to nobody."""

    async def free(*_: object) -> None: ...

    async def slow(*_: object) -> LogSlice | None:
        return None

    replica = cast(Replica, InLake())
    feed = Feed(Reader(free, slow), replica, Wanted(["a"]), 5, (1, 3))
    with pytest.raises(UnavailableError):
        await feed.old(2)
    with pytest.raises(UnavailableError):
        await feed.fill()
    assert feed.selected_left == (1, 3)
    counted = Feed(Reader(free, slow), replica, Wanted(["a"]), 0)
    with pytest.raises(UnavailableError):
        await counted.count()


@on_virtual_loop
async def test_who_waits_for_a_quota_keeps_no_other_reader_waiting() -> None:
    batch = encode([b"0"], b"a")
    batch.stamp(0, 1, WallUs(1))
    data = bytes(batch.header) + batch.body

    async def exhausted(*_: object) -> None:
        await asyncio.Event().wait()

    found = SimpleNamespace(length=len(data), next_offset=1)
    log = SimpleNamespace(encryption=None, pread=lambda _: data)
    replica = cast(Replica, SimpleNamespace(read=lambda *_: found, log=log))
    reader = Reader(exhausted)
    waiting = [
        asyncio.ensure_future(reader.read(replica, Wanted(), 0))
        for _ in range(feed_module.READING_MAX)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        piece = await reader.read(replica, Wanted(), 0, is_paced=False)
    assert [each.value for each in piece.records] == [b"0"]
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
