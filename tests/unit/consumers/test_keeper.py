"""When a state is stored, who is told, and what ends a leader that another one has replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers import keeper
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.keeper import Keeper, State, StateWrite
from jetstream_server.consumers.kept import Kept
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop

KEY = b"consumer/7/c"


class Log:
    """Stands for `__cursors`. It commits when it is let; lost: it commits, and says that it does
    not know."""

    def __init__(self) -> None:
        self.value, self.revision = b"", -1
        self.writes = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.lost = 0

    async def load(self, stream_ids: Sequence[int]) -> list[State]:
        return [State(KEY, self.value, self.revision)]

    async def write(self, writes: Sequence[StateWrite]) -> list[State]:
        await self.goes_on.wait()
        (write,) = writes
        self.writes += 1
        if write.expected_revision != self.revision:
            return [State(KEY, self.value, self.revision, True)]
        self.value, self.revision = write.value or b"", self.writes
        if self.lost:
            self.lost -= 1
            raise UnavailableError("not committed yet, and may be later")
        return [State(KEY, self.value, self.revision)]


class Leader:
    """A leader of a stream with one consumer, five messages of which are delivered."""

    def __init__(self, log: Log, epoch: int) -> None:
        self.deliveries = Deliveries(ConsumerConfig(name="c", is_durable=True), 0)
        for offset in range(5):
            self.deliveries.deliver(offset, MonotonicUs(0))
        self.epoch = epoch
        self.told: list[int] = []
        self.is_fenced = False
        self.keeper = Keeper(log, KEY, log.revision, self.take, self.fence)

    def take(self) -> Kept:
        return Kept.of(self.deliveries, epoch=self.epoch)

    def fence(self) -> None:
        self.is_fenced = True

    def acknowledge(self, offset: int) -> None:
        self.deliveries.acknowledge(offset)
        self.keeper.when_stored(lambda: self.told.append(offset))


def open_in(log: Log) -> list[int]:
    return [offset for offset, _, _ in Kept.decode(log.value).opened]


@on_virtual_loop
async def test_nobody_is_told_before_it_is_stored_and_many_share_a_write() -> None:
    log = Log()
    leader = Leader(log, 1)
    log.goes_on.clear()
    leader.acknowledge(0)
    await asyncio.sleep(0)
    for offset in (1, 2, 3):
        leader.acknowledge(offset)
    await asyncio.sleep(0)
    assert leader.told == []
    log.goes_on.set()
    await eventually(lambda: leader.told == [0, 1, 2, 3])
    assert log.writes <= 2
    assert open_in(log) == [4]
    leader.keeper.close()


@on_virtual_loop
async def test_a_write_whose_answer_was_lost_is_made_again() -> None:
    log = Log()
    leader = Leader(log, 1)
    log.lost = 1
    leader.acknowledge(2)
    await eventually(lambda: leader.told == [2])
    assert open_in(log) == [0, 1, 3, 4]
    assert not leader.is_fenced
    leader.keeper.close()


@on_virtual_loop
async def test_a_fault_of_ours_leaves_no_consumer_without_a_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "_RETRY_SECONDS", 0.001)
    log, faults = Log(), [KeyError("a fault")]
    write = log.write

    async def faulty(writes: Sequence[StateWrite]) -> list[State]:
        if faults:
            raise faults.pop()
        return await write(writes)

    log.write = faulty  # type: ignore[method-assign]
    leader = Leader(log, 1)
    leader.acknowledge(0)
    await eventually(lambda: leader.told == [0])
    leader.keeper.abandon()


@on_virtual_loop
async def test_a_leader_that_was_replaced_stores_nothing_and_tells_nobody() -> None:
    log = Log()
    before, after = Leader(log, 1), Leader(log, 2)
    after.acknowledge(0)
    await eventually(lambda: after.told == [0])
    before.acknowledge(1)
    await eventually(lambda: before.is_fenced)
    assert before.told == []
    assert open_in(log) == [1, 2, 3, 4]
    after.keeper.close()


@on_virtual_loop
async def test_what_changed_is_stored_at_the_end() -> None:
    log = Log()
    leader = Leader(log, 1)
    leader.deliveries.acknowledge(3)
    leader.keeper.changed()
    leader.keeper.close()
    await eventually(lambda: log.writes == 1)
    assert open_in(log) == [0, 1, 2, 4]


@on_virtual_loop
async def test_a_deleted_consumer_is_not_stored_again() -> None:
    log = Log()
    leader = Leader(log, 1)
    leader.deliveries.acknowledge(3)
    leader.keeper.changed()
    leader.keeper.abandon()
    for _ in range(3):
        await asyncio.sleep(0)
    assert leader.keeper._task.done()
    assert log.writes == 0
