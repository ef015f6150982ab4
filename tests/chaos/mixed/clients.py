"""Clients of the SDK under fire: a publisher of batches, readers, a table, a consumer group.

All live on one thread with an event loop of its own. What they see goes into the `History`; an
error that a user would not expect goes into `failures`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Literal

from jetstream_client import (
    AsyncClient,
    AsyncPublisher,
    AsyncTable,
    JetstreamError,
    PermissionDeniedError,
    StreamNotFoundError,
    UnauthenticatedError,
    UnknownOutcomeError,
)
from tests.chaos.damage.streams import Stream
from tests.chaos.mixed.history import History
from tests.chaos.mixed.security import SECRET, Security
from tests.chaos.mixed.streams import BATCHED, CONSUMERS, GROUP, KEYED, STREAMS

BATCH_RECORDS = 20
BATCH_PAUSE_SECONDS = 0.2
WAYS: tuple[Literal["nats", "direct"], ...] = ("nats", "direct")
WAY_SECONDS = (2.0, 15.0)
"""How long batches go by one way, on NATS or straight to the leader, until a way is chosen anew."""
WORK_PAUSE_SECONDS = 0.05
LOOK_SECONDS = 0.2
TRESPASS_SECONDS = 0.5
SESSION_SECONDS = (1.0, 10.0)
"""How long a reader reads before it begins anew."""
BACK_OFFSETS_MAX = 500
"""How far before the furthest offset known a new session may begin."""
ENDING_SECONDS = 120.0


class Clients:
    """`start`, then `finish` once everything is whole again, and `close` in any case."""

    def __init__(
        self, servers: str, history: History, dice: Random, security: Security | None = None
    ) -> None:
        self._servers = servers
        self._security = security
        self._history = history
        self._dice = dice
        self._furthest: dict[str, int] = {}
        self._publishing = True
        self._reading = True
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients", daemon=True)
        self._work: list[asyncio.Task[None]] = []
        self._publishers: list[asyncio.Task[None]] = []
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()
        self._call(self._start())

    def stop_publishing(self) -> None:
        """Returns when the outcome of everything that was sent is known, or never will be."""
        self._publishing = False
        self._call(asyncio.wait_for(self._ended(self._publishers), 2 * ENDING_SECONDS))

    def finish(self) -> None:
        """Have readers and the table read to the end, and end them."""
        self._call(self._finish())

    def close(self) -> None:
        self._publishing = self._reading = False
        if self._thread.is_alive():
            with suppress(TimeoutError):
                self._call(self._cancel())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(ENDING_SECONDS)
        self._loop.close()

    def _call(self, work: Coroutine[object, object, object]) -> object:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(3 * ENDING_SECONDS)

    # On the thread.

    async def _start(self) -> None:
        self._client = self._connected(None if self._security is None else self._security.app)
        self._table = await self._opened_table()
        self._publishers = [self._task(self._publish_batches()), self._task(self._publish_work())]
        self._work = [
            *self._publishers,
            *(self._task(self._read(each)) for each in STREAMS for _ in range(2)),
            self._task(self._watch_commits()),
        ]
        if self._security is not None:
            self._work += [
                self._task(self._trespass("", STREAMS[0].name)),
                self._task(self._trespass(self._security.app, SECRET)),
            ]

    def _connected(self, token: str | None, timeout: float = 20.0) -> AsyncClient:
        if self._security is None:
            return AsyncClient(self._servers, timeout=timeout)
        return AsyncClient(
            self._servers,
            timeout=timeout,
            tls=self._security.tls,
            nats_options=self._security.nats_options,
            token=token,
        )

    async def _opened_table(self) -> AsyncTable:
        table = self._client.table(KEYED.name, wait=False)
        await table.__aenter__()
        return table

    def _task(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  told in the verdict, whatever it is
                self.failures.append(f"{type(error).__name__}: {error}")

        return self._loop.create_task(guarded())

    async def _ended(self, tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*tasks)

    async def _cancel(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._client.aclose()

    # Publishers.

    async def _publish_batches(self) -> None:
        books = self._history.books[BATCHED.name]

        def note(number: int) -> Callable[[object], None]:
            def noted(delivery: object) -> None:
                error = delivery.exception()  # type: ignore[attr-defined]
                if error is None:
                    books.note(number, delivery.result().offset)  # type: ignore[attr-defined]
                elif isinstance(error, UnknownOutcomeError):
                    unknown = self._history.unknown
                    unknown[BATCHED.name] = unknown.get(BATCHED.name, 0) + 1
                else:
                    books.refusals += 1
                    books.last_refusal = str(error)

            return noted

        while self._publishing:
            way = self._dice.choice(WAYS)
            publisher = self._client.publisher(BATCHED.name, compression="lz4", via=way)
            if not await self._begun(publisher):
                continue
            until = time.monotonic() + self._dice.uniform(*WAY_SECONDS)
            async with publisher:
                while self._publishing and time.monotonic() < until:
                    for _ in range(BATCH_RECORDS):
                        number, books.sent = books.sent, books.sent + 1
                        delivery = await publisher.send(BATCHED.value(number))
                        delivery.add_done_callback(note(number))
                    await asyncio.sleep(BATCH_PAUSE_SECONDS)
                with suppress(JetstreamError):  # Each delivery has told its own.
                    await publisher.flush()

    async def _begun(self, publisher: AsyncPublisher) -> bool:
        """Begin it. Returns whether it has begun; otherwise the reason is noted."""
        books = self._history.books[BATCHED.name]
        try:
            await publisher.begin()
        except JetstreamError as error:
            if not error.retriable:
                raise
            books.refusals += 1
            books.last_refusal = str(error)
            return False
        return True

    async def _publish_work(self) -> None:
        number = 0
        while self._publishing:
            value, number = str(number), number + 1
            try:
                await self._client.publish(GROUP, value, acks="any", timeout=5.0)
            except UnknownOutcomeError:
                self._history.unknown[GROUP] = self._history.unknown.get(GROUP, 0) + 1
            except JetstreamError as error:
                if not error.retriable:
                    raise
            else:
                self._history.published.add(value)
            await asyncio.sleep(WORK_PAUSE_SECONDS)

    # Readers.

    async def _read(self, stream: Stream) -> None:
        while self._reading:
            furthest = self._furthest.get(stream.name, 0)
            start = max(0, furthest - self._dice.randrange(BACK_OFFSETS_MAX))
            source = self._dice.choice(("leader", "any", "nearest"))
            session = self._history.begin_session(stream.name, source, time.monotonic())
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(self._dice.uniform(*SESSION_SECONDS)),
                    self._client.consume(stream.name, start, read_from=source) as consumer,  # type: ignore[arg-type]
                ):
                    async for message in consumer:
                        session.records.append((message.offset, stream.number(message.value)))
                        if message.offset >= self._furthest.get(stream.name, 0):
                            self._furthest[stream.name] = message.offset + 1

    async def _watch_commits(self) -> None:
        while self._reading:
            try:
                cursors = await self._client.list_cursors(CONSUMERS)
            except JetstreamError as error:
                if not error.retriable:
                    raise
            else:
                for cursor in cursors:
                    self._history.committed(cursor.stream, cursor.offset)
            await asyncio.sleep(LOOK_SECONDS)

    async def _trespass(self, token: str, stream: str) -> None:
        """Try to read a stream that may not be read with that token, again and again."""
        async with self._connected(token, timeout=2.0) as client:
            while self._reading:
                try:
                    found = await client.fetch(stream, "earliest", max_messages=1)
                    self._history.trespasses.append(f"{len(found)} records of {stream}")
                except (UnauthenticatedError, PermissionDeniedError, StreamNotFoundError):
                    self._history.refused_trespasses += 1
                except JetstreamError as error:
                    if not error.retriable:
                        raise
                await asyncio.sleep(TRESPASS_SECONDS)

    async def _read_up_to(self, name: str, end: int) -> None:
        while True:
            if self._furthest.get(name, 0) >= end:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _finish(self) -> None:
        ends = {each.name: await self._client.offset_at(each.name, "latest") for each in STREAMS}
        async with asyncio.timeout(ENDING_SECONDS):
            for name, end in ends.items():
                await self._read_up_to(name, end)
            await self._table.wait_until_current()
        self._reading = False
        snapshot = self._table.snapshot()
        self._history.table = {
            key: KEYED.number(value) for key, value in snapshot.items() if isinstance(key, bytes)
        }
        await self._table.__aexit__(None, None, None)
