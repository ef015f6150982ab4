"""Pulls of gRPC: their messages wait for room, and what is read for them, whose rights were checked
there, is kept from NATS clients that may not read."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import PermissionDeniedError, UnavailableError
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.clocks import Clocks
from jetstream_server.consumers import consumer as consumer_module
from jetstream_server.consumers.collector import Collector, Delivery
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.pulls import (
    EXCEEDS_MAX_BYTES,
    HEARTBEAT,
    NO_MESSAGES,
    REQUEST_TIMEOUT,
    Pull,
    PullRoom,
    Status,
)
from jetstream_server.consumers.records import Piece, Record, Wanted
from jetstream_server.metadata.state.streams import NO_LAKE
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.grpc import consumers_service, response_memory
from jetstream_server.serving.grpc.consumers_service import ConsumersService
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.clocks import MONOTONIC_US, FakeClocks
from tests.support.loops import eventually
from tests.support.virtual_time import loop_clock, on_virtual_loop

COUNT = 5
ROOM = 1_000_000
MESSAGE_BYTES = len(b"jobs.x") + len(b"0") + 1


class Ground:
    """A log of five records, which NATS clients may read or not, and their side."""

    has_room = True
    is_cut_off = False
    held_bytes = 0

    def __init__(self, *, may_read: bool) -> None:
        self.may_read = may_read
        self.may_commit = True
        self.refused = self.checks = 0
        self.sent: list[int] = []
        self.statuses: list[str] = []
        self.faults: list[Any] = []

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

    def may_use(self, consumer: Consumer) -> bool:
        self.refused += not self.may_commit
        return self.may_commit

    def reply_length(self, consumer: Consumer, delivery: Delivery) -> int:
        return self.faults.pop()() if self.faults else 20

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None:
        self.sent += [each.record.offset for each in deliveries]

    def status(self, consumer: Consumer, status: Status) -> None:
        self.statuses.append(status.text)


def started(ground: Ground, clocks: object = None, **wanted: Any) -> Consumer:
    config = ConsumerConfig(name="c", is_durable=True, **wanted)
    replica = SimpleNamespace(
        stream=SimpleNamespace(lake=NO_LAKE),
        leadership=SimpleNamespace(seeks_end=False),
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
        cast(Clocks, clocks or FakeClocks()),
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
    collector = Collector()
    consumer.collect(collector, Pull(b" 1", count))
    await asked_for_room(collector)
    collector.open(bytes_max)
    consumer.wake()
    await eventually(lambda: bool(collector.deliveries))
    consumer.withdraw(b" 1")
    return [each.record.offset for each in collector.deliveries]


async def asked_for_room(collector: Collector) -> None:
    await eventually(lambda: collector.needs > 0)
    assert not collector.deliveries


@on_virtual_loop
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


@pytest.mark.parametrize("to", [b"", b"pushed.to"], ids=["pulled from", "pushes"])
def test_without_the_right_to_use_it_nats_clients_get_nothing_more(
    to: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_DENIED_SECONDS", 0.001)

    @on_virtual_loop
    async def scenario() -> None:
        ground = Ground(may_read=True)
        consumer = started(ground, deliver_subject=to, max_ack_pending=2)
        if not to:
            consumer.pull(Pull(b"_INBOX.1", COUNT))
        await eventually(lambda: ground.sent == [0, 1])
        ground.may_commit = False
        consumer.acknowledge_some([0, 1])
        await eventually(lambda: ground.refused > 2)
        assert ground.sent == [0, 1]
        ground.may_commit = True
        await eventually(lambda: ground.sent == [0, 1, 2, 3])
        await ended(consumer)

    scenario()


@on_virtual_loop
async def test_both_are_served_in_turn() -> None:
    ground = Ground(may_read=True)
    consumer = started(ground)
    collector = Collector()
    collector.open(ROOM)
    consumer.collect(collector, Pull(b" 1", 2))
    consumer.pull(Pull(b"_INBOX.1", 2))
    await eventually(lambda: len(ground.sent) == 2 and len(collector.deliveries) == 2)
    found = [each.record.offset for each in collector.deliveries]
    assert sorted(found + ground.sent) == [0, 1, 2, 3]
    await ended(consumer)


@on_virtual_loop
async def test_a_full_link_to_nats_keeps_no_other_reader_waiting() -> None:
    ground = Ground(may_read=True)
    ground.has_room = False
    consumer = started(ground)
    consumer.pull(Pull(b"_INBOX.1", 2))
    assert await collected(consumer, 3) == [0, 1, 2]
    assert ground.sent == []
    await ended(consumer)


@on_virtual_loop
async def test_a_collector_takes_no_more_than_it_has_room_for() -> None:
    consumer = started(Ground(may_read=True))
    assert await collected(consumer, COUNT, bytes_max=2 * MESSAGE_BYTES) == [0, 1]
    assert len(consumer.pulls) == 0
    await ended(consumer)


@on_virtual_loop
async def test_who_waits_for_room_keeps_no_other_reader_waiting() -> None:
    ground = Ground(may_read=True)
    consumer = started(ground)
    waiting = Collector()
    consumer.collect(waiting, Pull(b" 2", 2))
    await asked_for_room(waiting)
    assert waiting.needs == MESSAGE_BYTES
    consumer.pull(Pull(b"_INBOX.1", 2))
    assert await collected(consumer, 1) in ([0], [1], [2])
    await eventually(lambda: len(ground.sent) == 2)
    assert not waiting.deliveries
    await ended(consumer)


@on_virtual_loop
async def test_the_next_in_turn_is_asked_for_room_where_a_message_is_too_large_for_one() -> None:
    ground = Ground(may_read=True)
    consumer = started(ground)
    consumer.pull(Pull(b"_INBOX.1", 1, bytes_left=1))
    collector = Collector()
    consumer.collect(collector, Pull(b" 2", 1))
    await asked_for_room(collector)
    assert ground.statuses == [EXCEEDS_MAX_BYTES]
    collector.open(ROOM)
    consumer.wake()
    await eventually(lambda: [each.record.offset for each in collector.deliveries] == [0])
    await ended(consumer)


@on_virtual_loop
async def test_nats_clients_are_not_sent_what_was_read_for_others_there_either() -> None:
    ground = Ground(may_read=False)
    consumer = started(ground)
    collector = Collector()
    consumer.collect(collector, Pull(b" 2", 1, bytes_left=1))
    collector.open(ROOM)
    consumer.pull(Pull(b"_INBOX.1", 1))
    await eventually(lambda: collector.end == EXCEEDS_MAX_BYTES)
    await eventually(lambda: ground.checks > 0)
    assert ground.sent == []
    await ended(consumer)


@pytest.mark.parametrize(
    "config", [{"max_ack_pending": 1}, {"pause_until_us": 2**60}], ids=["full", "paused"]
)
def test_who_does_not_wait_is_told_that_nothing_comes_now(config: dict[str, int]) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        ground = Ground(may_read=True)
        consumer = started(ground, **config)
        if "max_ack_pending" in config:
            consumer.pull(Pull(b"_INBOX.1", 1))
            await eventually(lambda: ground.sent == [0])
        consumer.pull(Pull(b"_INBOX.2", 1, no_wait=True))
        await eventually(lambda: ground.statuses == [NO_MESSAGES])
        await ended(consumer)

    scenario()


@on_virtual_loop
async def test_a_fault_of_ours_passes_over_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_RETRY_SECONDS", 0.001)
    ground = Ground(may_read=True)
    ground.faults = [dict[str, int]().popitem]
    consumer = started(ground)
    consumer.pull(Pull(b"_INBOX.1", 2, bytes_left=ROOM))
    await eventually(lambda: ground.sent == [0, 1])
    assert not ground.faults
    await ended(consumer)


class Slow(Ground):
    """Its log is read for ever: by a slow lake, or for somebody whose quota is used up."""

    async def read(self, *_: Any, is_paced: bool = True) -> Piece:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("comes_first", [True, False], ids=["first", "meanwhile"])
def test_pulls_end_in_time_however_long_it_reads(comes_first: bool) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        ground = Slow(may_read=True)
        consumer = started(ground, clocks=Clocks(monotonic=loop_clock))
        until_us = MonotonicUs(loop_clock() + 20_000)
        pull = Pull(b"_INBOX.1", 1, expires_us=until_us, heartbeat_us=8_000)
        if not comes_first:
            consumer.pull(Pull(b"_INBOX.2", 1))
            await asyncio.sleep(0)
        consumer.pull(pull)
        await eventually(lambda: ground.statuses[-1:] == [REQUEST_TIMEOUT])
        assert ground.statuses == [HEARTBEAT, HEARTBEAT, REQUEST_TIMEOUT]
        await ended(consumer)

    scenario()


@pytest.mark.parametrize("is_denied", [True, False], ids=["denied", "no room"])
def test_pulls_end_in_time_while_nobody_takes_a_message(
    is_denied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_RETRY_SECONDS", 60.0)

    @on_virtual_loop
    async def scenario() -> None:
        ground = Ground(may_read=not is_denied)
        consumer = started(ground, clocks=Clocks(monotonic=loop_clock))
        waiting = Collector()
        consumer.collect(waiting, Pull(b" 2", 2))
        await asked_for_room(waiting)
        ground.has_room = is_denied
        until_us = MonotonicUs(loop_clock() + 20_000)
        consumer.pull(Pull(b"_INBOX.1", 1, expires_us=until_us))
        await eventually(lambda: ground.statuses == [REQUEST_TIMEOUT])
        await ended(consumer)

    scenario()


@on_virtual_loop
async def test_a_link_to_nats_that_has_room_again_is_used_while_others_wait_for_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_module, "_RETRY_SECONDS", 0.001)
    ground = Ground(may_read=True)
    consumer = started(ground)
    waiting = Collector()
    consumer.collect(waiting, Pull(b" 2", 2))
    await asked_for_room(waiting)
    ground.has_room = False
    consumer.pull(Pull(b"_INBOX.1", 2))
    await asyncio.sleep(0.01)
    ground.has_room = True
    await eventually(lambda: ground.sent == [0, 1])
    await ended(consumer)


@on_virtual_loop
async def test_room_for_which_nothing_is_left_goes_back() -> None:
    consumer = started(Ground(may_read=True))
    slow = Collector()
    consumer.collect(slow, Pull(b" 2", 1))
    await asked_for_room(slow)
    assert await collected(consumer, COUNT) == list(range(COUNT))
    slow.changed.clear()
    slow.open(ROOM)
    consumer.wake()
    async with asyncio.timeout(60):
        await slow.changed.wait()
    assert not slow.deliveries
    consumer.refuse(3, 1, 0, None)  # It is delivered again, to who has room.
    await asked_for_room(slow)
    slow.open(ROOM)
    consumer.wake()
    await eventually(lambda: [each.record.offset for each in slow.deliveries] == [3])
    await ended(consumer)


@on_virtual_loop
async def test_a_pull_that_waits_ends_with_the_leadership() -> None:
    consumer = started(Ground(may_read=True))
    await collected(consumer, COUNT)
    collector = Collector()
    consumer.collect(collector, Pull(b" 2", 1))
    consumer.stop()
    assert collector.end == REQUEST_TIMEOUT
    await ended(consumer)


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers_service, "monotonic_clock", lambda: MONOTONIC_US)


class Service(ConsumersService):
    """The service of one consumer, for callers that may do everything. pulled: how many bytes each
    pull was paced for."""

    def __init__(self, consumer: Consumer, outstanding: ResponseMemoryLimiter) -> None:
        async def pace(identity: object, stream: object, length: int) -> None:
            self.pulled.append(length)

        control = SimpleNamespace(
            bytes_max=lambda _, wanted: wanted,
            quota_holder=lambda _: "user:a",
            while_allowed=lambda *_: nullcontext(),
            pace=pace,
        )
        access = SimpleNamespace(control=control, check_commit=lambda *_: None)
        missing = cast(Any, None)
        super().__init__(
            None, missing, missing, missing, missing, cast(StreamAccess, access), outstanding
        )
        self.pulled: list[int] = []
        self._consumer = consumer

    async def _led(self, ref: object) -> Replica:
        return self._consumer.replica

    def _find(self, *_: object) -> Consumer:
        return self._consumer

    async def pull(self, count: int = COUNT) -> tuple[list[int], Call]:
        """Offsets, and the call, whose answer nobody has read yet."""
        call = Call(cast(Any, OneCall()))
        found = await self.PullMessages(
            pb.PullMessagesRequest(name="c", messages_max=count, wait_ms=30_000), call
        )
        return [each.offset for each in found.messages], call


class OneCall:
    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> None: ...


@on_virtual_loop
async def test_messages_that_nobody_has_read_are_counted_among_unread_answers() -> None:
    outstanding = ResponseMemoryLimiter(lambda _: None)
    consumer = started(Ground(may_read=True))
    service = Service(consumer, outstanding)
    offsets, call = await service.pull()
    assert offsets == list(range(COUNT))
    assert outstanding.bytes == sum(service.pulled) > 0
    call.end()
    assert outstanding.bytes == 0
    await ended(consumer)


@on_virtual_loop
async def test_without_room_for_them_no_message_is_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_memory.ResponseMemoryLimiter.reserve, "__defaults__", (0.05,))
    outstanding = ResponseMemoryLimiter(lambda _: None, ROOM)
    full = await outstanding.reserve("ipv4:127.0.0.1:2", ROOM)
    consumer = started(Ground(may_read=True))
    service = Service(consumer, outstanding)
    with pytest.raises(UnavailableError):
        await service.pull()
    assert (consumer.deliveries.open, len(consumer.pulls)) == ({}, 0)
    outstanding.release(full)
    assert (await service.pull())[0] == list(range(COUNT))
    assert {each.count for each in consumer.deliveries.open.values()} == {1}
    await ended(consumer)


@on_virtual_loop
async def test_a_pull_that_waits_for_messages_holds_no_room() -> None:
    outstanding = ResponseMemoryLimiter(lambda _: None)
    consumer = started(Ground(may_read=True))
    service = Service(consumer, outstanding)
    (await service.pull())[1].end()
    waiting = asyncio.create_task(service.pull())
    await eventually(lambda: len(consumer.pulls) == 1)
    assert outstanding.bytes == 0
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (outstanding.bytes, len(consumer.pulls)) == (0, 0)
    await ended(consumer)
