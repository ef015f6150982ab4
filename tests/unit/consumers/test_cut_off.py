"""A consumer whose NATS clients cannot reach its node, because the leaf link is lost."""

from __future__ import annotations

import asyncio

from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.consumers.collector import Collector
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.pulls import Pull
from tests.support.virtual_time import on_virtual_loop
from tests.unit.consumers.test_collectors import COUNT, Ground, ended, started

SECOND = 1_000_000


class LoopClocks:
    def monotonic(self) -> MonotonicUs:
        return MonotonicUs(round(asyncio.get_running_loop().time() * SECOND))

    def wall(self) -> WallUs:
        return WallUs(self.monotonic())


def counted(inactive_us: int) -> tuple[Ground, Consumer, list[Consumer]]:
    ground, gone = Ground(may_read=True), list[Consumer]()
    consumer = started(ground, LoopClocks(), inactive_us=inactive_us)

    def inactive(consumer: Consumer) -> None:
        gone.append(consumer)
        consumer.close()

    consumer._inactive = inactive
    return ground, consumer, gone


@on_virtual_loop
async def test_it_is_not_deleted_for_inactivity() -> None:
    ground, consumer, gone = counted(5 * SECOND)
    ground.is_cut_off = True
    await asyncio.sleep(60)
    assert not gone
    ground.is_cut_off = False
    consumer.reached()
    await asyncio.sleep(4)
    assert not gone
    await asyncio.sleep(2)
    assert gone == [consumer]
    await ended(consumer)


@on_virtual_loop
async def test_it_is_not_deleted_as_soon_as_it_can_be_reached_again() -> None:
    ground, consumer, gone = counted(5 * SECOND)
    await asyncio.sleep(3)
    ground.is_cut_off = True
    await asyncio.sleep(1)
    ground.is_cut_off = False
    consumer.reached()
    await asyncio.sleep(4)
    assert not gone
    await ended(consumer)


@on_virtual_loop
async def test_its_pulls_wait_no_more_but_those_of_others() -> None:
    ground = Ground(may_read=True)
    consumer = started(ground, max_ack_pending=2)
    consumer.pull(Pull(b"_INBOX.1", COUNT))
    await asyncio.sleep(1)
    assert ground.sent == [0, 1]
    consumer.collect(Collector(), Pull(b" 1", 1))
    lost = consumer.cut_off()
    assert [(pull.reply, pull.left, pull.delivered) for pull in lost] == [
        (b"_INBOX.1", COUNT - 2, 2)
    ]
    assert [pull.reply for pull in consumer.pulls] == [b" 1"]
    await ended(consumer)
