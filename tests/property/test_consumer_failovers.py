"""A durable consumer whose stream changes its leader: what a client was told to be acknowledged
never comes again, and nothing else is forgotten. `__cursors` commits late, loses answers, and
commits what was taken for lost; leaders that were replaced go on storing. And mutants, each of
which is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.types import MonotonicUs, StreamId
from jetstream_server.clocks import Clocks
from jetstream_server.consumers import keeper as keeper_module
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Reader
from jetstream_server.consumers.keeper import Keeper, State, StateWrite
from jetstream_server.consumers.kept import Kept, consumer_key
from jetstream_server.consumers.manager import Consumers
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from tests.unit.consumers.test_manager import noted

STREAM: Final = StreamId(7)
KEY: Final = consumer_key(STREAM, "c")
NOW: Final = MonotonicUs(1)
COUNT, STEPS = 14, 120
SEEDS = range(25)

_Answer = asyncio.Future[list[State]]


class Cursors:
    """Stands for `__cursors` with one record. Writes are committed when the run says so."""

    def __init__(self, value: bytes) -> None:
        self.value, self.revision = value, 0
        self.waiting: list[tuple[StateWrite, _Answer]] = []
        self.unknown: list[StateWrite] = []
        """Whose writer was told that nobody knows: they may be committed later."""

    async def load(self, stream_ids: Sequence[int]) -> list[State]:
        await asyncio.sleep(0)
        return [State(KEY, self.value, self.revision)]

    async def write(self, writes: Sequence[StateWrite]) -> list[State]:
        (write,) = writes
        answer: _Answer = asyncio.get_running_loop().create_future()
        self.waiting.append((write, answer))
        return await answer

    def _commit(self, write: StateWrite) -> State:
        if write.expected_revision != self.revision:
            return State(KEY, self.value, self.revision, True)
        self.value, self.revision = write.value or b"", self.revision + 1
        return State(KEY, self.value, self.revision)

    def settle(self, what: str) -> None:
        """committed, or answered by an error: `unheard` is committed before, `lost` never, and
        `unknown` perhaps later."""
        if not self.waiting:
            return
        write, answer = self.waiting.pop(0)
        state = self._commit(write) if what in ("committed", "unheard") else None
        if what == "unknown":
            self.unknown.append(write)
        if answer.done():
            return  # Its writer has gone.
        if state is not None and what == "committed":
            answer.set_result([state])
        else:
            answer.set_exception(UnavailableError("not committed yet, and may be later"))

    def commit_unknown(self) -> None:
        if self.unknown:
            self._commit(self.unknown.pop(0))


class Leader(Consumers):
    """A node that leads the stream in one epoch, and the consumer once it has taken it over."""

    keeper_kind: type[Keeper] = Keeper

    def __init__(self, states: Cursors, epoch: int) -> None:
        stream = SimpleNamespace(id=STREAM, leader_epoch=epoch)
        log = SimpleNamespace(epochs=LeaderEpochCache(), log_end_offset=1 << 30)
        led = SimpleNamespace(
            stream=stream, leadership=object(), check_readable=lambda: None, log=log
        )
        self.replica = cast(Replica, led)
        self.deliveries: Deliveries | None = None
        self.keeper: Keeper | None = None
        self.is_fenced = False
        super().__init__(
            cast(ReplicaManager, {STREAM: self.replica}),
            cast(Reader, None),
            cast(Outlet, None),
            cast(Clocks, None),
            states,
            noted,
        )

    def _add(
        self, replica: Replica, kept: Kept, revision: int, *, is_interrupted: bool = False
    ) -> Consumer:
        deliveries = Deliveries(kept.config, 0)
        kept.into(deliveries, NOW)
        self.deliveries = deliveries
        self.keeper = self.keeper_kind(
            self._states, KEY, revision, lambda: Kept.of(deliveries, epoch=kept.epoch), self.fence
        )
        return cast(Consumer, self)

    def fence(self) -> None:
        self.is_fenced = True

    async def take_over(self) -> None:
        while self.deliveries is None and not self._taken:
            try:
                await self.load([self.replica])
            except JetstreamError:
                await asyncio.sleep(0)


class World:
    """Nothing is delivered by a leader that was replaced: leases see to that. Acknowledgements
    still reach it."""

    def __init__(self, seed: int, kind: type[Leader]) -> None:
        self.random = Random(seed)
        self.kind = kind
        config = ConsumerConfig(name="c", is_durable=True, max_ack_pending=5)
        self.cursors = Cursors(Kept.of(Deliveries(config, 0)).encode())
        self.acknowledged: set[int] = set()
        self.told: set[int] = set()
        self.leaders: list[Leader] = []
        self.tasks: list[asyncio.Task[None]] = []

    def fail_over(self) -> None:
        leader = self.kind(self.cursors, len(self.leaders) + 1)
        self.leaders.append(leader)
        self.tasks.append(asyncio.ensure_future(leader.take_over()))

    def deliver(self) -> None:
        deliveries = self.leaders[-1].deliveries
        if deliveries is None:
            return
        offset = deliveries.next_due(NOW)
        if offset is None:
            if not deliveries.has_room or deliveries.position >= COUNT:
                return
            offset = deliveries.position
        assert offset not in self.told, f"{offset} came again after its answer"
        deliveries.deliver(offset, NOW)

    def acknowledge(self, *, waits: bool, is_late: bool = False) -> None:
        leader = self.random.choice(self.leaders) if is_late else self.leaders[-1]
        deliveries, keeper = leader.deliveries, leader.keeper
        if deliveries is None or keeper is None or not deliveries.position or leader.is_fenced:
            return
        offset = self.random.randrange(deliveries.position)
        self.acknowledged.add(offset)
        deliveries.acknowledge(offset)
        if waits:
            keeper.when_stored(partial(self.told.add, offset))
        else:
            keeper.changed()

    def settle(self) -> None:
        self.cursors.settle(self.random.choice(["committed"] * 5 + ["unheard", "lost", "unknown"]))

    def check(self) -> None:
        deliveries = self.leaders[-1].deliveries
        for offset in range(0 if deliveries is None else deliveries.position):
            assert deliveries is not None
            assert offset in deliveries.open or offset in self.acknowledged, "it was forgotten"

    async def run(self) -> None:
        deliver, settle, fail_over = self.deliver, self.settle, self.fail_over
        ask, tell = partial(self.acknowledge, waits=True), partial(self.acknowledge, waits=False)
        late = partial(self.acknowledge, waits=True, is_late=True)
        actions: list[Callable[[], None]] = [
            deliver, deliver, ask, ask, tell, late, settle, settle, settle,
            self.cursors.commit_unknown,
        ]  # fmt: skip
        self.fail_over()
        try:
            for _ in range(STEPS):
                (fail_over if self.random.random() < 0.06 else self.random.choice(actions))()
                await _turns(self.random.choice([0, 1, 2, 8]))
                self.check()
            await self.finish()
        finally:
            for leader in self.leaders:
                if leader.keeper is not None:
                    leader.keeper.abandon()
            for task in self.tasks:
                task.cancel()
            await _turns(3)

    async def finish(self) -> None:
        """In the end everything is acknowledged, and everybody is told."""
        for _ in range(40 * COUNT):
            self.cursors.settle("committed")
            await _turns(4)
            self.deliver()
            self.acknowledge(waits=True)
            if len(self.told) == COUNT:
                return
        raise AssertionError(f"{set(range(COUNT)) - self.told} were never told")


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(seed: int, kind: type[Leader] = Leader) -> None:
    asyncio.run(World(seed, kind).run())


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "COALESCE_SECONDS", 0)
    monkeypatch.setattr(keeper_module, "_RETRY_SECONDS", 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_told_never_comes_again_whoever_leads(seed: int) -> None:
    run(seed)


class AnOldLeadersWriteCounts(Keeper):
    async def _store(self, kept: Kept) -> bool | None:
        is_stored = await super()._store(kept)
        return True if is_stored is None else is_stored


class OverwritesALaterLeader(Keeper):
    async def _store(self, kept: Kept) -> bool | None:
        is_stored = await super()._store(kept)
        if is_stored is not None:
            return is_stored
        (state,) = await self._states.load([STREAM])
        self._revision = state.revision
        return False


class TellsBeforeItIsStored(Keeper):
    def when_stored(self, then: Callable[[], None]) -> None:
        then()
        self.changed()


class CountsAnUnknownWrite(Keeper):
    async def _store(self, kept: Kept) -> bool | None:
        return True if await super()._store(kept) is not None else None


class StoresTheStateBefore(Keeper):
    def __init__(
        self, states: Any, key: bytes, revision: int, take: Callable[[], Kept], fenced: Any
    ) -> None:
        before = [take()]

        def take_before() -> Kept:
            before.append(take())
            return before.pop(0)

        super().__init__(states, key, revision, take_before, fenced)


class ClaimsNothing(Leader):
    async def load(self, replicas: Sequence[Replica]) -> None:
        (state,) = await self._states.load([STREAM])
        epoch = replicas[0].stream.leader_epoch
        self._add(replicas[0], replace(Kept.decode(state.value), epoch=epoch), state.revision)


class UsesTheStateBeforeItsClaim(Leader):
    async def load(self, replicas: Sequence[Replica]) -> None:
        (state,) = await self._states.load([STREAM])
        await super().load(replicas)
        if self.deliveries is not None:
            Kept.decode(state.value).into(self.deliveries, NOW)


KEEPERS = (
    AnOldLeadersWriteCounts, OverwritesALaterLeader, TellsBeforeItIsStored, CountsAnUnknownWrite,
    StoresTheStateBefore,
)  # fmt: skip
MUTANTS = (
    *(type(each.__name__, (Leader,), {"keeper_kind": each}) for each in KEEPERS),
    ClaimsNothing,
    UsesTheStateBeforeItsClaim,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_each_mutant_is_found(mutant: type[Leader]) -> None:
    for seed in range(200):
        try:
            run(seed, mutant)
        except AssertionError:
            return
    raise AssertionError("no seed finds it")
