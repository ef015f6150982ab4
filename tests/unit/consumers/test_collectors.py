"""What is read for a pull of gRPC, whose rights were checked there, is kept from NATS clients that
may not read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_protocol.types import WallUs
from jetstream_server.clocks import Clocks
from jetstream_server.consumers import consumer as consumer_module
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Collector, Consumer, Delivery, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.pulls import REQUEST_TIMEOUT, Pull, PullRoom, Status
from jetstream_server.consumers.records import Piece, Record, Wanted
from jetstream_server.replication.replica import Replica
from tests.support.clocks import FakeClocks
from tests.support.loops import eventually, on_loop

COUNT = 5
ROOM = 1_000_000


class Ground:
    """A log of five records, which NATS clients may read or not, and their side."""

    has_room = True
    held_bytes = 0

    def __init__(self, *, may_read: bool) -> None:
        self.may_read = may_read
        self.checks = 0
        self.sent: list[int] = []
        self.statuses: list[str] = []

    async def read(self, *_: Any, is_paced: bool = True) -> Piece:
        if is_paced:
            await self.check()
        records = [Record(at, WallUs(0), b"jobs.x", b"%d" % at, b"") for at in range(COUNT)]
        return Piece(records, COUNT, 1)

    async def check(self, *_: Any) -> None:
        self.checks += 1
        if not self.may_read:
            raise PermissionDeniedError("read is not allowed on stream jobs")

    def is_heard(self, *_: bytes) -> bool:
        return True

    def fits(self, record: Record) -> bool:
        return True

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None:
        self.sent += [each.record.offset for each in deliveries]

    def status(self, consumer: Consumer, status: Status) -> None:
        self.statuses.append(status.text)


def started(ground: Ground) -> Consumer:
    config = ConsumerConfig(name="c", is_durable=True)
    replica = SimpleNamespace(
        leadership=object(),
        closed=False,
        high_watermark=COUNT,
        log=SimpleNamespace(log_start_offset=0),
        add_waiter=lambda _: None,
        remove_waiter=lambda _: None,
    )
    consumer = Consumer(
        config,
        Deliveries(config, 0),
        Feed(cast(Reader, ground), cast(Replica, replica), Wanted(), 0),
        cast(Outlet, ground),
        cast(Clocks, FakeClocks()),
        lambda _: None,
        created_us=WallUs(0),
        epoch=1,
        room=PullRoom(),
    )
    consumer.start()
    return consumer


async def ended(consumer: Consumer) -> None:
    consumer.close("")
    await asyncio.sleep(0)


async def collected(consumer: Consumer, count: int, bytes_max: int = ROOM) -> list[int]:
    collector = Collector(bytes_max)
    consumer.collect(collector, Pull(b" 1", count))
    async with asyncio.timeout(60):
        await collector.came.wait()
    consumer.withdraw(b" 1")
    return [each.record.offset for each in collector.deliveries]


@on_loop
async def test_who_may_not_read_gets_nothing_that_was_read_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_module, "_DENIED_SECONDS", 0.001)
    ground = Ground(may_read=False)
    consumer = started(ground)
    assert await collected(consumer, 2) == [0, 1]
    consumer.pull(Pull(b"_INBOX.1", 2))
    await eventually(lambda: ground.checks > 2)
    assert ground.sent == []
    assert await collected(consumer, 1) == [2]
    ground.may_read = True
    await eventually(lambda: ground.sent == [3, 4])
    await ended(consumer)


@on_loop
async def test_both_are_served_in_turn() -> None:
    ground = Ground(may_read=True)
    consumer = started(ground)
    collector = Collector(ROOM)
    consumer.collect(collector, Pull(b" 1", 2))
    consumer.pull(Pull(b"_INBOX.1", 2))
    await eventually(lambda: len(ground.sent) == 2 and len(collector.deliveries) == 2)
    found = [each.record.offset for each in collector.deliveries]
    assert sorted(found + ground.sent) == [0, 1, 2, 3]
    await ended(consumer)


@on_loop
async def test_a_full_link_to_nats_keeps_no_other_reader_waiting() -> None:
    ground = Ground(may_read=True)
    ground.has_room = False
    consumer = started(ground)
    consumer.pull(Pull(b"_INBOX.1", 2))
    assert await collected(consumer, 3) == [0, 1, 2]
    assert ground.sent == []
    await ended(consumer)


@on_loop
async def test_a_collector_takes_no_more_than_it_has_room_for() -> None:
    consumer = started(Ground(may_read=True))
    assert await collected(consumer, COUNT, bytes_max=1) == [0]
    assert len(consumer.pulls) == 0
    await ended(consumer)


@on_loop
async def test_a_pull_that_waits_ends_with_the_leadership() -> None:
    ground = Ground(may_read=True)
    consumer = started(ground)
    await collected(consumer, COUNT)
    collector = Collector(ROOM)
    consumer.collect(collector, Pull(b" 2", 1))
    consumer.stop()
    assert collector.end == REQUEST_TIMEOUT
    await ended(consumer)
