"""Whose turn it is to copy: everybody's, one after the other, as fast as the limit allows."""

from __future__ import annotations

import asyncio

from jetstream_protocol.types import MonotonicUs
from jetstream_server.replication.drivers import copy_turns
from jetstream_server.replication.drivers.copy_turns import Copier, CopyTurns
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop

RATE = 10_000_000
SIZE = 100_000
"""Bytes of an answer: a hundredth of a second."""


def clock() -> MonotonicUs:
    return MonotonicUs(round(asyncio.get_running_loop().time() * 1e6))


class Follower(Copier):
    """A connection with some answers to send. is_blocked: its follower reads nothing."""

    def __init__(self, turns: CopyTurns, name: str, answers: int, sent: list[str]) -> None:
        self.turns, self.name, self.left, self.sent = turns, name, answers, sent
        self.is_blocked = False
        turns.wait(self)

    def copy_next(self) -> None:
        if self.is_blocked or not self.left:
            return
        self.left -= 1
        self.sent.append(self.name)
        self.turns.sent(SIZE)
        if self.left:
            self.turns.wait(self)


@on_virtual_loop
async def test_each_has_its_turn_whoever_asks_most_often() -> None:
    sent: list[str] = []
    turns = CopyTurns(lambda: RATE, clock)
    followers = [Follower(turns, name, 6, sent) for name in "abc"]
    for _ in range(100):
        turns.wait(followers[0])  # Its streams are published to all the time.
    await eventually(lambda: len(sent) == 18)
    assert sent == [*"abc"] * 6


@on_virtual_loop
async def test_who_reads_nothing_or_has_left_keeps_nobody_waiting() -> None:
    sent: list[str] = []
    turns = CopyTurns(lambda: RATE, clock)
    blocked, gone, other = (Follower(turns, name, 5, sent) for name in "abc")
    blocked.is_blocked = True
    turns.leave(gone)
    await eventually(lambda: len(sent) == 5)
    assert sent == [other.name] * 5
    blocked.is_blocked = False
    turns.wait(blocked)
    await eventually(lambda: len(sent) == 10)


@on_virtual_loop
async def test_who_waits_long_notices_that_the_limit_is_gone() -> None:
    rate = 1_000
    turns = CopyTurns(lambda: rate, clock)
    sent: list[str] = []
    follower = Follower(turns, "a", 20, sent)
    begun = asyncio.get_running_loop().time()
    await eventually(lambda: len(sent) == 1)
    rate = 0
    assert not turns.are_limited
    await eventually(lambda: not follower.left)
    # A hundred seconds for each, with the limit of before.
    assert asyncio.get_running_loop().time() - begun < 10 * copy_turns.LOOK_SECONDS
