"""Which states of durable consumers a leader takes over, and which ones it deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import QuotaExceededError, StorageError, UnavailableError
from jetstream_protocol.types import MonotonicUs, StreamId, WallUs
from jetstream_server.clocks import Clocks
from jetstream_server.consumers import manager
from jetstream_server.consumers.config import ConsumerConfig, DeliverPolicy
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Reader
from jetstream_server.consumers.keeper import Keeper, State, StateWrite
from jetstream_server.consumers.kept import Kept
from jetstream_server.consumers.manager import Consumers
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.consumers.test_keeper import Log


async def noted(_what: str, _made_at: int) -> None: ...


def made(
    log: Log, replicas: object = None, note_change: Any = noted, per_principal: int = 0
) -> Consumers:
    return Consumers(
        cast(ReplicaManager, replicas or {}),
        cast(Reader, None),
        cast(Outlet, None),
        cast(Clocks, None),
        log,
        note_change,
        per_principal,
    )


def kept(epoch: int, created_us: int) -> bytes:
    deliveries = Deliveries(ConsumerConfig(name="c", is_durable=True), 0)
    return Kept.of(deliveries, epoch=epoch, created_us=WallUs(created_us)).encode()


class Served:
    """Stands for a durable consumer, as the manager knows it: of epoch 5, created at 100."""

    def __init__(self, revision: int, replica: object = None) -> None:
        self.config = ConsumerConfig(name="c", is_durable=True)
        self.replica = replica or SimpleNamespace(stream=SimpleNamespace(id=7, leader_epoch=5))
        self.epoch, self.created_us = 5, 100
        self.keeper = SimpleNamespace(revision=revision, abandon=lambda: None)

    def close(self, text: str = "") -> None:
        pass


async def left_by_inactivity(log: Log, revision: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The record, after a consumer that knows this revision of it was used by nobody."""
    monkeypatch.setattr(manager, "_FORGET_PAUSES", (0.0, 0.0, 0.0, 0.0))
    consumers = made(log)
    consumers._inactive(cast(Consumer, Served(revision)))
    await asyncio.gather(*consumers._forgetting)
    return log.value


@on_virtual_loop
async def test_the_record_of_a_consumer_that_nobody_uses_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    log.value, log.revision = kept(5, 100), 3
    assert await left_by_inactivity(log, 3, monkeypatch) == b""
    log.value, log.revision = kept(5, 100), 4  # Written, and the answer was lost.
    assert await left_by_inactivity(log, 3, monkeypatch) == b""


@pytest.mark.parametrize(
    ("epoch", "created_us"), [(6, 100), (5, 101)], ids=["claimed", "made anew"]
)
@on_virtual_loop
async def test_not_what_a_later_leader_or_a_later_consumer_has_written(
    epoch: int, created_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    log.value, log.revision = kept(epoch, created_us), 4
    assert await left_by_inactivity(log, 3, monkeypatch) == kept(epoch, created_us)


@on_virtual_loop
async def test_nor_what_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of a later version has written it. A background task that fails ends the node."""
    log = Log()
    log.value, log.revision = b"\xff\xff\xff", 4
    assert await left_by_inactivity(log, 3, monkeypatch) == b"\xff\xff\xff"


@on_virtual_loop
async def test_a_delete_whose_answer_was_lost_does_not_delete_what_was_made_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    log.value, log.revision, log.lost = kept(5, 100), 3, 1
    monkeypatch.setattr(manager, "_FORGET_PAUSES", (0.0, 0.05))
    consumers = made(log)
    consumers._inactive(cast(Consumer, Served(3)))
    await eventually(lambda: log.value == b"")
    log.value, log.revision = kept(5, 101), 9
    await asyncio.gather(*consumers._forgetting)
    assert log.value == kept(5, 101)


@on_virtual_loop
async def test_a_consumer_is_deleted_although_its_own_writes_are_under_way() -> None:
    log = Log()
    log.value, log.revision = kept(5, 100), 4
    consumers = made(log)
    await consumers.delete(cast(Consumer, Served(3)))
    assert log.value == b""


@pytest.mark.parametrize("epoch", [6, 5], ids=["claimed", "made anew"])
@on_virtual_loop
async def test_a_delete_that_comes_late_deletes_no_other_consumer(epoch: int) -> None:
    """The leader was replaced while it waited for `__cursors`; meanwhile the consumer was deleted
    through the next one and another of its name was made."""
    log = Log()
    log.value, log.revision = kept(epoch, 101), 9
    await made(log).delete(cast(Consumer, Served(3)))
    assert log.value == kept(epoch, 101)


@on_virtual_loop
async def test_a_leader_that_was_replaced_deletes_nothing() -> None:
    log = Log()
    log.value, log.revision = kept(6, 100), 9
    with pytest.raises(UnavailableError, match="another node leads"):
        await made(log).delete(cast(Consumer, Served(3)))
    assert log.value == kept(6, 100)


@on_virtual_loop
async def test_a_record_that_cannot_be_read_keeps_no_leader_from_taking_over() -> None:
    for value in (b"\xff\xff\xff", b"", kept(5, 100)[:-3]):
        log = Log()
        log.value = value
        replica: Any = SimpleNamespace(stream=SimpleNamespace(id=7), leadership=object())
        await made(log, {7: replica}).load([replica])
        assert log.writes == 0


@on_virtual_loop
async def test_what_all_consumers_are_to_take_first_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch of a bucket begins with an offset of each key."""
    monkeypatch.setattr(manager, "SELECTED_MAX", 15)
    consumers = made(Log())
    watch: Any = SimpleNamespace(feed=SimpleNamespace(selected=range(10)))
    consumers._by_stream[StreamId(7)] = {"watch": watch}
    with pytest.raises(QuotaExceededError):
        await consumers.create(cast(Replica, None), ConsumerConfig(name="c"), 0, range(6))


@on_virtual_loop
async def test_durable_consumers_of_an_earlier_leadership_are_claimed_again() -> None:
    stream = SimpleNamespace(id=7, leader_epoch=5)
    replica = SimpleNamespace(stream=stream, leadership=object())
    consumers = made(Log(), {7: replica})
    consumer = cast(Consumer, Served(3, replica))
    consumers._by_stream[StreamId(7)] = {"c": consumer}
    consumers._count = 1
    gone: list[Consumer] = []
    consumers.left = lambda _, each: gone.extend(each)
    consumers._leader_changed(StreamId(7))
    assert (gone, len(consumers)) == ([], 1)
    stream.leader_epoch = 6
    consumers._leader_changed(StreamId(7))
    assert (gone, len(consumers)) == ([consumer], 0)


@on_virtual_loop
async def test_a_leader_that_was_replaced_does_not_claim_what_a_later_one_has_claimed() -> None:
    log = Log()
    deliveries = Deliveries(ConsumerConfig(name="c", is_durable=True), 0)
    log.value, log.revision = Kept.of(deliveries, epoch=6).encode(), 3
    stale: Any = SimpleNamespace(stream=SimpleNamespace(id=7, leader_epoch=5), leadership=object())
    await made(log, {7: stale}).load([stale])
    assert Kept.decode(log.value).epoch == 6
    assert log.writes == 0


@on_virtual_loop
async def test_who_leads_no_more_once_it_has_read_the_states_claims_none() -> None:
    """It is a follower by then, whose log may end before what the leader has delivered: that would
    be delivered again to whoever has acknowledged it, if that leader fails next."""
    log = Log()
    deliveries = Deliveries(ConsumerConfig(name="c", is_durable=True), 0)
    for offset in range(80):
        deliveries.deliver(offset, MonotonicUs(0))
        deliveries.acknowledge(offset)
    log.value, log.revision, log.writes = Kept.of(deliveries, epoch=6).encode(), 3, 3
    replica: Any = SimpleNamespace(
        stream=SimpleNamespace(id=7, leader_epoch=6, full_name="s@s"),
        check_readable=lambda: None,
        log=SimpleNamespace(epochs=LeaderEpochCache([(4, 0), (6, 50)]), log_end_offset=60),
        leadership=None,
    )
    await made(log, {7: replica}).load([replica])
    assert Kept.decode(log.value).position == 80


@pytest.mark.parametrize("is_readable", [True, False])
@on_virtual_loop
async def test_records_that_an_election_has_lost_were_never_delivered(is_readable: bool) -> None:
    """Others have their offsets by now: they would be passed over, or count as acknowledged."""
    log = Log()
    deliveries = Deliveries(ConsumerConfig(name="c", is_durable=True), 0)
    for offset in range(80):
        deliveries.deliver(offset, MonotonicUs(0))
        if offset not in (40, 60):
            deliveries.acknowledge(offset)
    log.value, log.revision, log.writes = Kept.of(deliveries, epoch=5).encode(), 3, 3

    def check_readable() -> None:
        if not is_readable:
            raise StorageError("its disk has failed")

    replica: Any = SimpleNamespace(
        stream=SimpleNamespace(id=7, leader_epoch=6, full_name="s@s"),
        check_readable=check_readable,
        log=SimpleNamespace(epochs=LeaderEpochCache([(4, 0), (6, 50)]), log_end_offset=90),
        leadership=object(),
    )

    class Lost(Log):
        async def write(self, writes: Sequence[StateWrite]) -> list[State]:
            replica.leadership = None  # By then another node leads.
            return await log.write(writes)

        load = log.load

    await made(Lost(), {7: replica}).load([replica])
    claimed = Kept.decode(log.value)
    moved = (claimed.epoch, claimed.position, [each[0] for each in claimed.opened])
    assert moved == ((6, 50, [40]) if is_readable else (6, 80, [40, 60]))


def test_what_waits_for_records_that_are_to_come_goes_on_waiting() -> None:
    config = ConsumerConfig(
        name="c", deliver_policy=DeliverPolicy.BY_START_SEQUENCE, start_sequence=101
    )
    waits = Kept(config, 100, 0, 99, ())
    assert waits.before(50) is waits
    newest = Kept(ConsumerConfig(name="c"), 70, 0, 69, (), selected=(20, 60), rest=80)
    assert newest.before(80) is newest
    cut = replace(newest, position=50, last_offset=49, selected=(20,), rest=50)
    assert newest.before(50) == cut


@on_virtual_loop
async def test_a_change_is_answered_once_every_later_leader_knows_it() -> None:
    """Also that of a later copy of the request."""
    log, stream = Log(), SimpleNamespace(id=StreamId(7), leader_epoch=5)
    consumers = made(log)
    consumer: Any = SimpleNamespace(
        config=ConsumerConfig(name="c", is_durable=True), replica=SimpleNamespace(stream=stream)
    )
    consumers._by_stream[StreamId(7)] = {"c": consumer}

    def take() -> Kept:
        return Kept.of(Deliveries(consumer.config, 0), epoch=5)

    consumer.keeper = keeper = Keeper(log, b"consumer/7/c", -1, take, lambda: None)

    def alter(config: ConsumerConfig) -> None:
        consumer.config = config
        keeper.changed()

    consumer.alter = alter
    paused = replace(consumer.config, pause_until_us=5)
    log.goes_on.clear()
    asked = [asyncio.ensure_future(consumers.alter(consumer, paused)) for _ in range(2)]
    done, _ = await asyncio.wait(asked, timeout=0.2)
    assert not done
    log.goes_on.set()
    await asyncio.gather(*asked)
    assert Kept.decode(log.value).config == paused
    await consumers.alter(consumer, paused)  # There is nothing to wait for.
    del consumers._by_stream[StreamId(7)]
    log.goes_on.clear()
    with pytest.raises(UnavailableError):
        await consumers.alter(consumer, replace(paused, pause_until_us=6))
    keeper.abandon()


@on_virtual_loop
async def test_consumers_that_are_being_created_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal asks for many at once, while the first is being stored."""
    monkeypatch.setattr(manager, "SELECTED_MAX", 15)
    stream = SimpleNamespace(id=7, leader_epoch=5)
    replica: Any = SimpleNamespace(stream=stream, leadership=None)
    log = Log()
    log.goes_on.clear()
    consumers = made(log, {7: replica}, per_principal=1)
    consumers._clocks = cast(Clocks, SimpleNamespace(wall=lambda: 1))

    async def create(name: str, creator: str, selected: range) -> None:
        config = ConsumerConfig(name=name, is_durable=True, creator=creator)
        await consumers.create(replica, config, 0, selected)

    first = asyncio.create_task(create("a", "user:a", range(10)))
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceededError, match="user:a has 1 consumers"):
        await create("b", "user:a", range(1))
    with pytest.raises(QuotaExceededError, match="15 last messages"):
        await create("c", "user:c", range(6))
    log.goes_on.set()
    with pytest.raises(UnavailableError):  # It leads no more; its place is free again.
        await first
    await create("d", "user:a", range(10))
