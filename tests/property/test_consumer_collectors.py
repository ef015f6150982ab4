"""Pulls of readers and of NATS clients at one consumer, in any order: who gets what. And mutants,
each of which is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_protocol.types import WallUs
from jetstream_server.clocks import Clocks
from jetstream_server.consumers import consumer as consumer_module
from jetstream_server.consumers.collector import Collector, Delivery
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.pulls import Pull, PullRoom, Status
from jetstream_server.consumers.records import Piece, Record, Wanted
from jetstream_server.metadata.state.streams import NO_LAKE
from jetstream_server.replication.replica import Replica
from tests.support.clocks import FakeClocks

COUNT, OPEN_MAX, STEPS = 40, 6, 60
SEEDS = range(12)
INBOX = b"_INBOX.1"


class World:
    """A log, what its NATS clients may do, and what everybody has got. Acknowledgements are waited
    for so long that a message comes again only if it was refused."""

    has_room = True
    is_cut_off = False
    held_bytes = 0

    def __init__(self, seed: int, kind: type[Consumer]) -> None:
        self.random = Random(seed)
        self.may_read = self.may_commit = True
        self.pulls: list[tuple[bytes, int, int, Collector, int]] = []
        self.given: dict[Collector, int] = {}
        """The room that each collector was given."""
        self.out: set[int] = set()
        """Delivered, and neither done nor refused."""
        self.done: set[int] = set()
        self.unchecked: set[int] = set()
        """What was read for others since it was asked whether NATS clients may read."""
        self.ended: list[tuple[Collector, int]] = []
        """Pulls that have ended, with what they had."""
        self.faults: list[str] = []
        self.numbers = 0
        self.asked_by_nats = 0
        """Messages that its pulls may still be sent."""
        config = ConsumerConfig(
            name="c", is_durable=True, ack_wait_us=10**12, max_ack_pending=OPEN_MAX
        )
        replica = SimpleNamespace(
            stream=SimpleNamespace(lake=NO_LAKE), leadership=SimpleNamespace(seeks_end=False),
            closed=False,
            high_watermark=COUNT,
            log=SimpleNamespace(log_start_offset=0), add_waiter=lambda _: None,
            remove_waiter=lambda _: None,
        )  # fmt: skip
        self.consumer = kind(
            config,
            Deliveries(config, 0),
            Feed(cast(Reader, self), cast(Replica, replica), Wanted(), 0),
            cast(Outlet, self),
            cast(Clocks, FakeClocks()),
            lambda _: None,
            created_us=WallUs(0),
            epoch=1,
            room=PullRoom(),
        )

    # The log and the side of NATS.

    async def read(
        self, replica: object, wanted: object, start: int, *_: Any, is_paced: bool = True
    ) -> Piece:
        stop = min(COUNT, start + 7)
        if is_paced:
            await self.check()
        else:
            self.unchecked |= {*range(start, stop)}
        found = [Record(at, WallUs(0), b"j", b"%08d" % at, b"") for at in range(start, stop)]
        return Piece(found, stop, 1)

    async def check(self, *_: object) -> None:
        if not self.may_read:
            raise PermissionDeniedError("read is not allowed")
        self.unchecked.clear()

    def is_heard(self, *_: bytes) -> bool:
        return True

    def fits(self, record: Record) -> bool:
        return True

    def may_use(self, consumer: Consumer) -> bool:
        return self.may_commit

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None:
        # The consumer would go on after an error that is raised here.
        if to != INBOX:
            self.faults.append("NATS was sent what was collected")
        if not self.may_commit:
            self.faults.append("NATS was sent what its clients may not use")
        self.asked_by_nats -= len(deliveries)
        if self.asked_by_nats < 0:
            self.faults.append("NATS was sent more than it asked for")
        for each in deliveries:
            if each.record.offset in self.unchecked:
                self.faults.append("NATS got what nobody knows that it may read")
            self.came(each)

    def status(self, consumer: Consumer, status: Status) -> None:
        if status.to != INBOX:
            self.faults.append("NATS was sent the end of a pull that is not its own")

    refuse = status

    # What happens.

    def came(self, delivery: Delivery) -> None:
        offset = delivery.record.offset
        if offset in self.done:
            self.faults.append(f"{offset} came again after it was acknowledged")
        if offset in self.out:
            self.faults.append(f"{offset} was delivered twice at a time")
        self.out.add(offset)

    def look(self) -> None:
        """Take notice of what was collected."""
        for at, (reply, most, room, collector, seen) in enumerate(self.pulls):
            new = collector.deliveries[seen:]
            for each in new:
                self.came(each)
            sizes = [each.record.size for each in collector.deliveries]
            assert len(sizes) <= most, "more was collected than asked for"
            assert sum(sizes) < self.given.get(collector, 1), "there is no room for what came"
            self.pulls[at] = reply, most, room, collector, seen + len(new)
        assert len(self.consumer.deliveries.open) <= OPEN_MAX
        assert self.faults == []

    def pull(self) -> None:
        self.numbers += 1
        reply, most = b" %d" % self.numbers, self.random.randint(1, 4)
        room = self.random.choice([1, 20, 1000])
        collector = Collector()
        self.pulls.append((reply, most, room, collector, 0))
        self.consumer.collect(collector, Pull(reply, most))

    def give_room(self) -> None:
        for _, _, room, collector, _ in self.pulls:
            if collector.needs and not collector.deliveries:
                self.given[collector] = max(room, collector.needs)
                collector.open(self.given[collector])
                self.consumer.wake()

    def end_pull(self, *, is_answered: bool) -> None:
        if not self.pulls:
            return
        self.look()
        reply, _, _, collector, _ = self.pulls.pop(self.random.randrange(len(self.pulls)))
        self.consumer.withdraw(reply)
        if not is_answered:
            for each in collector.deliveries:
                self.give_back(each.record.offset)
        self.ended.append((collector, len(collector.deliveries)))

    def give_back(self, offset: int) -> None:
        self.out.discard(offset)
        self.consumer.refuse(offset, 0, 0, None)

    def one_out(self) -> int | None:
        held = {each.record.offset for pull in self.pulls for each in pull[3].deliveries}
        free = sorted(self.out - held)
        return self.random.choice(free) if free else None

    def acknowledge(self) -> None:
        offset = self.one_out()
        if offset is not None:
            self.out.discard(offset)
            self.done.add(offset)
            self.consumer.acknowledge(offset, None)

    def refuse_one(self) -> None:
        offset = self.one_out()
        if offset is not None:
            self.give_back(offset)

    def nats(self) -> None:
        pull = Pull(INBOX, self.random.choice([1, 3, 9]))
        self.asked_by_nats += pull.left
        self.consumer.pull(pull)

    def rights(self) -> None:
        self.may_read = self.random.random() < 0.6
        self.may_commit = self.random.random() < 0.6

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
        self.look()
        for collector, length in self.ended:
            assert len(collector.deliveries) == length, "a pull that has ended got a message"

    async def run(self) -> None:
        self.consumer.start()
        actions: list[Callable[[], None]] = [
            self.pull, self.pull, self.acknowledge, self.acknowledge, self.acknowledge,
            self.refuse_one, self.nats, self.rights, self.give_room, self.give_room,
            lambda: self.end_pull(is_answered=True), lambda: self.end_pull(is_answered=False),
        ]  # fmt: skip
        try:
            for _ in range(STEPS):
                self.random.choice(actions)()
                await self.turns(self.random.choice([0, 1, 3, 12]))
            await self.finish()
        finally:
            self.consumer.close("")
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """In the end everything comes: nothing was forgotten."""
        while self.pulls:
            self.end_pull(is_answered=True)
        for _ in range(3 * COUNT):
            while self.out:
                self.acknowledge()
            if len(self.done) == COUNT:
                return
            self.pull()
            await self.turns(12)
            self.give_room()
            await self.turns(12)
            self.end_pull(is_answered=True)
        raise AssertionError(f"{sorted(set(range(COUNT)) - self.done)} never came")


def run(seed: int, kind: type[Consumer] = Consumer) -> None:
    asyncio.run(World(seed, kind).run())


@pytest.fixture(autouse=True)
def _rights_are_asked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_DENIED_SECONDS", 0)
    monkeypatch.setattr(consumer_module, "_RETRY_SECONDS", 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_goes_to_one_who_may_have_it_until_it_is_done(seed: int) -> None:
    run(seed)


class WithdrawsNothing(Consumer):
    def withdraw(self, reply: bytes) -> None:
        pass


class KeepsThePull(Consumer):
    def withdraw(self, reply: bytes) -> None:
        self._collectors.pop(reply, None)
        self.wake()


class ForgetsARefusal(Consumer):
    def refuse(self, offset: int, *_: Any) -> bool:
        return True


class AcknowledgesARefusal(Consumer):
    def refuse(self, offset: int, *_: Any) -> bool:
        self.acknowledge(offset, None)
        return True


class FillsFullCollectors(Consumer):
    def _has_room_for(self, record: Record) -> bool:
        return True


class AsksNoRightToUse(Consumer):
    def _check_use(self) -> None:
        pass


class DoesNotCheckForNats(Consumer):
    @property
    def _is_unchecked(self) -> bool:  # type: ignore[override]
        return False

    @_is_unchecked.setter
    def _is_unchecked(self, value: bool) -> None:
        pass


class ServesNatsInTheSameTurn(Consumer):
    def _may_go_on(self) -> bool:
        return True


class RunsPastCollectors(Consumer):
    def _deliver_run(self, now_us: Any) -> bool:
        kept, self._collectors = self._collectors, {}
        try:
            return super()._deliver_run(now_us)
        finally:
            self._collectors = kept


class DeliversRunsBeyondTheBound(Consumer):
    def _deliver_run(self, now_us: Any) -> bool:
        kept = self.deliveries.config
        self.deliveries.config = replace(kept, max_ack_pending=1000)
        try:
            return super()._deliver_run(now_us)
        finally:
            self.deliveries.config = kept


class ServesARunTwice(Consumer):
    def _deliver_run(self, now_us: Any) -> bool:
        self.pulls.only_inbox_served = lambda *_: None  # type: ignore[method-assign]
        return super()._deliver_run(now_us)


class DeliversADoneOne(Consumer):
    def acknowledge(self, offset: int, then: Callable[[], None] | None) -> None:
        self.refuse(offset, 0, 0, then)


MUTANTS = (
    WithdrawsNothing, KeepsThePull, ForgetsARefusal, AcknowledgesARefusal, FillsFullCollectors,
    AsksNoRightToUse, DoesNotCheckForNats, ServesNatsInTheSameTurn, RunsPastCollectors,
    DeliversADoneOne, DeliversRunsBeyondTheBound, ServesARunTwice,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_found(mutant: type[Consumer]) -> None:
    for seed in SEEDS:
        try:
            run(seed, mutant)
        except AssertionError:
            return
    raise AssertionError("no seed finds it")
