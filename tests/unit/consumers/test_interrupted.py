"""A consumer of a leader that has crashed, of which only its reader knows where it was: it delivers
one message behind a gap of consumer sequences, and ends. Whoever gets more would take it for a
message that follows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.pulls import REQUEST_TIMEOUT, Pull, Status
from jetstream_server.jetstream_api.reported_consumers import SEQUENCE_BEHIND_A_GAP
from tests.property.test_consumer_collectors import INBOX, World


class Interrupted(World):
    """Notes what its reader is sent."""

    def __init__(self, seed: int, kind: type[Consumer]) -> None:
        super().__init__(seed, kind)
        self.sent: list[int] = []
        self.texts: list[str] = []
        self.consumer.is_interrupted = True
        self.consumer.deliveries.sequence = SEQUENCE_BEHIND_A_GAP

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None:
        self.sent += [each.sequence for each in deliveries]

    def status(self, consumer: Consumer, status: Status) -> None:
        self.texts.append(status.text)

    async def reads(self, pulls: int) -> None:
        self.consumer.start()
        for _ in range(pulls):
            self.consumer.pull(Pull(INBOX, 5))
            for _ in range(6):
                await asyncio.sleep(0)
        self.consumer.close("")
        await asyncio.sleep(0)


def check(kind: type[Consumer]) -> None:
    for pulls in (1, 3):
        world = Interrupted(1, kind)
        asyncio.run(world.reads(pulls))
        assert world.sent == [SEQUENCE_BEHIND_A_GAP + 1]
        assert world.texts[:1] == [REQUEST_TIMEOUT]


def test_it_delivers_one_message_behind_a_gap_and_ends() -> None:
    check(Consumer)


class DeliversARun(Consumer):
    def _deliver_run(self, now_us: MonotonicUs) -> bool:
        self.is_interrupted = False
        try:
            return super()._deliver_run(now_us)
        finally:
            self.is_interrupted = True


class GoesOn(Consumer):
    def close(self, text: str = "") -> None:
        if not text:
            super().close(text)


class DeliversATurn(Consumer):
    def _deliver(self, now_us: MonotonicUs) -> Any:
        is_first = self.deliveries.sequence == SEQUENCE_BEHIND_A_GAP
        self.is_interrupted = not is_first
        return super()._deliver(now_us)


@pytest.mark.parametrize("mutant", [DeliversARun, GoesOn, DeliversATurn])
def test_each_mutant_is_found(mutant: type[Consumer]) -> None:
    with pytest.raises(AssertionError):
        check(mutant)
