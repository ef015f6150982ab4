"""Readers with a cursor and without a group, in the simulation of clients (client_work.py): the
shipped `AsyncClient.consume`. Several may have the same cursor on one stream, which no program
should; the one that opened it first ends, and does not come back.

The checker:

* A reader hands out each record, unchanged and in order, from where it began.
* A position that is committed passes no record that was not handled, unless it was purged.
* Who was replaced commits nothing more, but for a cursor that was new to both.
* Once everything is healed, all is handled and committed of each stream that still has a reader.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from jetstream_client import AsyncClient, Message
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_protocol.errors import JetstreamError, PreconditionFailedError
from jetstream_protocol.generated.cursors_pb2 import CommitCursorsRequest
from jetstream_server.cursors.records import cursor_key
from tests.simulation.client_ground import SimulatedStream
from tests.simulation.client_process import ClientProcess, HandlerError
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.client_work import Clients

CURSOR = "alone"
SHARE = 0.25
"""Of the seeds that have such readers. Drawn apart, so that the others stay as they were."""
READERS_MAX = 3


class CursorReaders:
    """Of one seed."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.random = Random(f"cursors of {clients.world.seed}")
        self.are_there = self.random.random() < SHARE
        self.all: list[CursorReader] = []
        self.done: dict[int, set[int]] = {}
        self.readers_of: dict[int, set[str]] = {}
        """The owners of commits that have opened the cursor of a stream, and read."""
        self.committed: dict[bytes, set[str]] = {}
        """The owners of its commits."""
        self.replaced: dict[bytes, set[str]] = {}
        """Those that had read when another committed."""

    @property
    def alive(self) -> list[CursorReader]:
        return [each for each in self.all if each.lives and not each.is_replaced]

    def may_be_born(self) -> None:
        if self.are_there and len(self.alive) < READERS_MAX and self.random.random() < 0.6:
            live = self.clients.ground.live_ids()
            stream = self.clients.ground.streams[self.random.choice(live)]
            self.all.append(CursorReader(self, len(self.all) + 1, stream))

    # What they do, and what of it is wrong.

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)

    def begins_anew(self, log: list[Any]) -> None:
        """What was not committed is gone."""
        self.committed, self.replaced = {}, {}
        for key, _, said in log:
            if is_of_cursor(said):
                self.committed.setdefault(key, set()).add(said.owner)

    def check(self, key: bytes, commit: CommitCursorsRequest.Commit) -> None:
        stream, owner = self.clients.ground.named(commit.stream), commit.owner
        done = self.done.get(stream.id, set())
        passed = [
            each for each in range(stream.log_start_offset, commit.offset) if each not in done
        ]
        self.require(not passed, f"{CURSOR}: records {passed} of {stream.name} are passed over")
        replaced = self.replaced.setdefault(key, set())
        self.require(owner not in replaced, f"{CURSOR}: who was replaced commits {stream.name}")
        committed = self.committed.setdefault(key, set())
        replaced |= committed & self.readers_of.get(stream.id, set()) - {owner}
        committed.add(owner)

    def missing(self) -> str:
        """What is not done yet, of streams that have a reader."""
        ground = self.clients.ground
        for stream in {each.stream.id: each.stream for each in self.alive}.values():
            if stream.is_deleted:
                continue
            done = self.done.get(stream.id, set())
            for offset in range(stream.log_start_offset, stream.end_offset):
                if offset not in done:
                    return f"{CURSOR}: record {offset} of {stream.name} was never handled"
            key = cursor_key(CURSOR, f"{stream.name}@{stream.name}")
            commits = [said.offset for at, _, said in ground.log if at == key]
            is_empty = stream.log_start_offset == stream.end_offset
            if not is_empty and commits[-1:] != [stream.end_offset]:
                return f"{CURSOR}: {stream.name} is committed to {commits[-1:]} only"
        return ""


class CursorReader(ClientProcess):
    """A run of a program that reads one stream, until it dies or is replaced."""

    def __init__(self, readers: CursorReaders, number: int, stream: SimulatedStream) -> None:
        super().__init__(readers.clients, f"reader {number}")
        self.readers = readers
        self.stream = stream
        draw = readers.random
        self.by_hand = draw.random() < 0.3
        self.fails = draw.choice([0.0, 0.02, 0.1])
        self.slowest_us = draw.choice([0, 20_000, 400_000])
        self.is_replaced = False
        self.begins()

    async def _run(self, client: AsyncClient) -> None:
        while not self.is_replaced and not self.stream.is_deleted:
            try:
                await self._read(client)
            except HandlerError:
                continue
            except PreconditionFailedError:
                self.is_replaced = True
                self.clients.world.count("a reader was replaced")
            except JetstreamError as error:
                self.clients.world.count(f"a reader ended by {type(error).__name__}")
                await asyncio.sleep(0.3)

    async def _read(self, client: AsyncClient) -> None:
        expected: int | None = None
        async with client.consume(
            self.stream.name, cursor=CURSOR, auto_commit=not self.by_hand, on_reset="earliest"
        ) as consumer:
            async for message in consumer:
                self._handed_out(consumer, message, expected)
                expected = message.offset + 1
                await self._handle(consumer, message)

    def _handed_out(self, consumer: AsyncConsumer, message: Message, expected: int | None) -> None:
        require, offset = self.readers.require, message.offset
        require(self.stream.records[offset] == message.value, f"{CURSOR}: a record has changed")
        cursor = consumer._cursor
        assert cursor is not None
        if not cursor._takes_over:
            self.readers.readers_of.setdefault(self.stream.id, set()).add(cursor.owner)
        is_moved = consumer.reset_count or (expected or 0) < self.stream.log_start_offset
        is_next = expected is None or is_moved or offset == expected
        require(is_next, f"{self} goes on at {offset}, not at {expected}")

    async def _handle(self, consumer: AsyncConsumer, message: Message) -> None:
        draw, clients = self.readers.random, self.clients
        if self.slowest_us and not clients.is_healed:
            await asyncio.sleep(draw.randint(0, self.slowest_us) / 1e6)
        if not clients.is_healed and draw.random() < self.fails:
            raise HandlerError
        self.readers.done.setdefault(self.stream.id, set()).add(message.offset)
        clients.world.count("read with a cursor")
        if self.by_hand and (clients.is_healed or draw.random() < 0.3):
            await consumer.commit()


def is_of_cursor(said: Any) -> bool:
    return isinstance(said, CommitCursorsRequest.Commit) and said.name == CURSOR
