"""A publisher that never pauses, and its books: what was acknowledged, and where it must be.

Open loop: it publishes a fixed number of messages a second and does not wait for earlier ones, so
that a failover shows in full. Each message is its number, published once; the SDK reports its
outcome.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise

from jetstream_client import AsyncClient, JetstreamError, UnknownOutcomeError

TICK_SECONDS = 0.01
ACK_TIMEOUT = 5.0


@dataclass
class Books:
    """What the SDK reported of each message, by its number. Times are of time.monotonic."""

    published: int = 0
    acked: dict[int, int] = field(default_factory=dict)
    """Its offset."""
    refused: set[int] = field(default_factory=set)
    """Not stored, the SDK says."""
    unknown: set[int] = field(default_factory=set)
    """Perhaps stored, the SDK says."""
    acked_at: list[float] = field(default_factory=list)

    def longest_pause(self, start: float, end: float) -> float:
        """Seconds of the longest time without an ack between two moments."""
        times = [start, *(at for at in self.acked_at if start < at < end), end]
        return max(b - a for a, b in pairwise(times))


@dataclass(frozen=True)
class Verdict:
    """The log held against the books: counts of messages. `is_good`: every promise was kept."""

    acked: int
    lost: int
    """Acknowledged, and not at the offset that the ack named."""
    doubled: int
    """In the log more than once."""
    refused_yet_stored: int
    unknown: int
    unknown_stored: int

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.doubled and not self.refused_yet_stored


class Publisher:
    """Publishes `rate` messages a second from `start` until `stop`."""

    def __init__(self, client: AsyncClient, subject: str, rate: int) -> None:
        self.books = Books()
        self._client = client
        self._subject = subject
        self._rate = rate
        self._ticking: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> Books:
        """Publish no more, and wait until the SDK has reported the outcome of every message."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await asyncio.gather(*self._under_way)
        return self.books

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            due = int((loop.time() - begun) * self._rate)
            while self.books.published < due:
                task = loop.create_task(self._publish(self.books.published))
                self.books.published += 1
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(TICK_SECONDS)

    async def _publish(self, number: int) -> None:
        books = self.books
        try:
            result = await self._client.publish(self._subject, str(number), timeout=ACK_TIMEOUT)
        except UnknownOutcomeError:
            books.unknown.add(number)
        except JetstreamError:
            books.refused.add(number)
        else:
            books.acked[number] = result.offset
            books.acked_at.append(time.monotonic())


def judge(books: Books, stored: list[int]) -> Verdict:
    """`stored`: the numbers in the log, from offset 0 on."""
    held = set(stored)

    def is_at(number: int, offset: int) -> bool:
        return offset < len(stored) and stored[offset] == number

    return Verdict(
        acked=len(books.acked),
        lost=sum(not is_at(number, offset) for number, offset in books.acked.items()),
        doubled=len(stored) - len(held),
        refused_yet_stored=len(books.refused & held),
        unknown=len(books.unknown),
        unknown_stored=len(books.unknown & held),
    )
