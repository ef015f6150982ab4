"""How many messages a consumer with a filter says that follow, in any order of reading, counting,
letting go and purging: never too few, 0 exactly at the end, and exact once they were counted. And
mutants, each of which is found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.types import WallUs
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.records import Piece, Record, Wanted
from jetstream_server.replication.replica import Replica

SEEDS = range(30)
STEPS, STEP = 60, 4


class World:
    """A log, of which some records are wanted, and one feed of it."""

    held_bytes = 0

    def __init__(self, seed: int, kind: type[Feed]) -> None:
        self.random = Random(seed)
        self.counting = asyncio.Semaphore()
        self.wanted: list[bool] = []
        leadership = SimpleNamespace(knows_end=True, seeks_end=False)
        self.replica = SimpleNamespace(high_watermark=0, leadership=leadership)
        self.next = 0
        """Everything below was taken, is not wanted, or was purged."""
        self.is_counted = False
        self.feed = kind(cast(Reader, self), cast(Replica, self.replica), Wanted(("a",)), 0)

    async def read(self, _: Replica, wanted: Wanted, start: int) -> Piece:
        stop = min(start + STEP, len(self.wanted))
        found = [
            Record(at, WallUs(1), b"a", b"%d" % at, b"")
            for at in range(start, stop)
            if self.wanted[at]
        ]
        return Piece(found, stop, 10)

    @property
    def left(self) -> Sequence[int]:
        return [at for at in range(self.next, len(self.wanted)) if self.wanted[at]]

    async def grow(self) -> None:
        self.wanted += [self.random.random() < 0.4 for _ in range(self.random.randint(1, 9))]
        self.replica.high_watermark = len(self.wanted)
        self.is_counted = False

    async def fill(self) -> None:
        if not self.feed.is_at_end:
            await self.feed.fill()

    async def take(self) -> None:
        record = self.feed.next()
        if record is None:
            return
        assert record.offset == self.left[0], "one was passed over, or came twice"
        self.feed.take()
        self.next = record.offset + 1
        assert (self.feed.pending == 0) == (not self.left), "0 is not the end"

    async def forget(self) -> None:
        self.feed.forget()

    async def count(self) -> None:
        await self.feed.count()
        self.is_counted = True

    async def purge(self) -> None:
        offset = self.random.randint(self.next, len(self.wanted))
        # What was not looked at and is gone now can have been counted.
        self.is_counted &= offset <= self.feed.scanned
        self.next = max(self.next, offset)
        self.feed.begins(offset)

    def check(self) -> None:
        assert self.feed.pending >= len(self.left), "there are more"
        if self.is_counted:
            assert self.feed.pending == len(self.left), "it was counted"

    async def run(self) -> None:
        actions = [
            self.grow, self.fill, self.fill, self.take, self.take, self.take, self.forget,
            self.count, self.purge,
        ]  # fmt: skip
        for _ in range(STEPS):
            await self.random.choice(actions)()
            self.check()
        while self.left:
            await self.fill()
            await self.take()


def run(seed: int, kind: type[Feed] = Feed) -> None:
    asyncio.run(World(seed, kind).run())


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_pending_is_never_too_little_and_exact_once_counted(seed: int) -> None:
    run(seed)


class CountsAgainWhatItReads(Feed):
    def _move_on(self, offset: int, records: int) -> None:
        super()._move_on(offset, 0)


class ForgetsWhatItHeld(Feed):
    def forget(self) -> None:
        before = self._counted
        super().forget()
        self._counted = before


class CountsWhatWasPurged(Feed):
    def begins(self, offset: int) -> None:
        kept = self._counted, self._counted_to
        super().begins(offset)
        self._counted, self._counted_to = kept


class CountsOnlyWhatItHolds(Feed):
    @property
    def pending(self) -> int:
        return len(self.held) + len(self.selected)


class GivesTheLastItKnows(Feed):
    def next(self) -> Record | None:
        return self.held[0] if self.held else None


MUTANTS = (
    CountsAgainWhatItReads, ForgetsWhatItHeld, CountsWhatWasPurged, CountsOnlyWhatItHolds,
    GivesTheLastItKnows,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_found(mutant: type[Feed]) -> None:
    for seed in range(200):
        try:
            run(seed, mutant)
        except AssertionError:
            return
    raise AssertionError("no seed finds it")
