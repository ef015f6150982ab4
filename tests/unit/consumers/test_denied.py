"""What becomes of a consumer whose principal may not read its stream any more."""

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
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.pulls import Pull, PullRoom
from jetstream_server.consumers.records import Wanted
from jetstream_server.metadata.state.streams import NO_LAKE
from jetstream_server.replication.replica import Replica
from tests.support.clocks import FakeClocks
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop


class Denied:
    """A reader of a stream that may not be read, and the clients' side, which hears everything."""

    held_bytes = 0
    has_room = True
    is_cut_off = False
    reads = 0

    async def read(self, *_: Any) -> Any:
        self.reads += 1
        raise PermissionDeniedError("read is not allowed on stream jobs")

    def is_heard(self, *_: bytes) -> bool:
        return True

    def may_use(self, consumer: Consumer) -> bool:
        return True


def started(is_durable: bool, denied: Denied, ended: list[Consumer]) -> Consumer:
    config = ConsumerConfig(name="c", is_durable=is_durable)
    log = SimpleNamespace(log_start_offset=0)
    replica = SimpleNamespace(
        stream=SimpleNamespace(lake=NO_LAKE), leadership=SimpleNamespace(seeks_end=False),
        closed=False, high_watermark=5,
        log=log, remove_waiter=lambda _: None,
    )  # fmt: skip
    feed = Feed(cast(Reader, denied), cast(Replica, replica), Wanted(), 0)
    consumer = Consumer(
        config,
        Deliveries(config, 0),
        feed,
        cast(Outlet, denied),
        cast(Clocks, FakeClocks()),
        ended.append,
        created_us=WallUs(0),
        epoch=1,
        room=PullRoom(),
    )
    consumer.start()
    consumer.pull(Pull(b"_INBOX.1", 1))
    return consumer


@on_virtual_loop
async def test_a_durable_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_DENIED_SECONDS", 0.001)
    denied, ended = Denied(), list[Consumer]()
    consumer = started(True, denied, ended)
    await eventually(lambda: denied.reads > 2)
    assert ended == []
    consumer.close("")
    await asyncio.sleep(0)


@on_virtual_loop
async def test_another_one_ends() -> None:
    denied, ended = Denied(), list[Consumer]()
    consumer = started(False, denied, ended)
    await eventually(lambda: ended == [consumer])
    assert denied.reads == 1
    consumer.close("")
