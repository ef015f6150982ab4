"""Readers of a work queue in the simulation of clients (client_work.py): the shipped
`AsyncClient.queue`, and, on the node that leads the stream, the shipped `ConsumersService`,
`Consumers`, `Consumer` and `Keeper`. Leaders die; who leads next takes over what is kept.

Some messages no handler can handle: they become dead letters.

The checker:

* What `ack` has said to be done is never delivered again, whichever node leads.
* A message is ended only once its dead letter is stored.
* A message that waits in a reader is delivered to no other meanwhile.
* `ack` has its outcome in the time of a call.
* Once everything is healed, every message is acknowledged, or is a dead letter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jetstream_client import AsyncClient
from jetstream_client.processing.queue import AsyncQueue, AsyncQueueMessage
from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.keeper import State, StateWrite
from jetstream_server.consumers.leaderships import Leaderships
from jetstream_server.consumers.manager import NO_REVISION, Consumers
from jetstream_server.consumers.no_outlet import NoOutlet
from jetstream_server.consumers.records import Piece, Record
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.metadata.state.streams import NO_LAKE
from jetstream_server.serving.grpc import consumers_service
from jetstream_server.serving.grpc.consumers_service import ConsumersService
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from tests.simulation.client_process import TIMEOUT_SECONDS, ClientProcess, HandlerError
from tests.simulation.loop import SimulatedLoop
from tests.simulation.publish_work import CALL_SHARE, DEAD, POISON, SLACK_SECONDS
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.client_work import Clients

SHARE = 0.3
"""Of the seeds. Drawn apart, so that the others stay as they were."""
READERS_MAX = 3
STREAM_ID, STREAM, NAME = 2001, "jobs-queue", "mailers"
MAX_DELIVER = 3
ON_ITS_WAY_US = 100_000
CALLS = ("CreateConsumer", "PullMessages", "AcknowledgeMessages")
_TERM = pb.AcknowledgeMessagesRequest.Kind.TERM


class Queues:
    """Of one seed. acked: what `ack` has said to be done. said_done: what it was asked for."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.world = clients.world
        self.random = Random(f"workers of {clients.world.seed}")
        self.is_there = self.random.random() < SHARE
        self.ack_wait = self.random.choice([1.0, 3.0])
        self.records: list[bytes] = []
        self.states = States(self)
        self.acked: set[int] = set()
        self.said_done: set[int] = set()
        self.all: list[QueueReader] = []
        self.leader: QueueLeader | None = None
        self.led_since = 0
        self.is_calm = False
        """No call is ever lost or slow."""

    def begins(self) -> None:
        network = self.clients.network
        self.is_calm = not (network.loss or network.slow)
        if self.is_there:
            self._lead()
            self._append()

    def clock(self) -> Any:
        """What the service reads, as a context."""
        now = lambda: MonotonicUs(self.world.now)  # noqa: E731  as short as what it replaces
        return patch.object(consumers_service, "monotonic_clock", now)

    def _append(self) -> None:
        if self.clients.is_healed:
            return
        for _ in range(self.random.randint(1, 3)):
            self.records.append(b"%d" % len(self.records))
        if self.leader is not None:
            self.leader.wake()
        self.world.later(self.random.randint(20_000, 900_000), None, self._append)

    def _lead(self) -> None:
        """A node leads the stream; the one before has died, or its lease has ended."""
        if self.leader is not None:
            self.leader.end()
        self.led_since = self.world.now
        self.leader = QueueLeader(self, 1 if self.leader is None else self.leader.epoch + 1)
        self.world.later(self.random.randint(1_000_000, 12_000_000), None, self._lead_again)

    def _lead_again(self) -> None:
        if not self.clients.is_healed:
            self._lead()

    def end(self) -> None:
        if self.leader is not None:
            self.leader.end()

    def may_be_born(self) -> None:
        alive = [each for each in self.all if each.lives]
        if self.is_there and len(alive) < READERS_MAX and self.random.random() < 0.6:
            self.all.append(QueueReader(self, len(self.all) + 1))

    def called(self, name: str, request: Any, reply: Callable[[Any], None]) -> None:
        leader = self.leader
        if leader is None:
            reply(UnavailableError("nobody leads"))
            return
        if name == "AcknowledgeMessages":
            for each in request.acknowledgements:
                if each.kind == _TERM:
                    self.require(self.is_dead(each.offset), f"message {each.offset} is ended")
        self.world.later(0, leader.loop, leader.loop.enter, leader.called, name, request, reply)

    def is_dead(self, offset: int) -> bool:
        return f"dead {STREAM_ID}.{offset}".encode() in self.clients.publishing.stored

    # What is wrong.

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"{NAME}: {what}")

    def delivered(self, offset: int) -> None:
        self.require(offset not in self.acked, f"message {offset} comes again, and was done")

    def handed_out(self, reader: QueueReader, message: AsyncQueueMessage) -> None:
        offset = message.offset
        self.require(message.value == self.records[offset], "a message has changed")
        led_since = self.led_since + ON_ITS_WAY_US  # What an earlier leader has sent counts not.
        if not self.is_calm or reader.was_frozen or reader.came_at(offset) <= led_since:
            return
        for other in self.all:
            is_heard = other.lives and not (other.was_frozen or other.is_cut_off)
            if other is not reader and is_heard:
                waits = other.waiting.get(offset, 0) > led_since
                self.require(not waits, f"{reader} is handed {offset}, which waits in {other}")

    def missing(self) -> str:
        """What is not done yet, if somebody reads."""
        if not any(each.lives for each in self.all):
            return ""
        for offset in range(len(self.records)):
            if self.leader is None or not self.leader.is_done(offset):
                return f"{NAME}: message {offset} was never done"
            is_ended = offset in self.said_done or self.is_dead(offset)
            self.require(is_ended, f"message {offset} is done, and nobody has said so")
        return ""


class States:
    """The records of durable consumers, whoever leads `__cursors`. Writes are slow, fail, or seem
    to."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._kept: dict[bytes, tuple[bytes, int]] = {}
        self._revision = 0

    async def load(self, stream_ids: Sequence[int]) -> list[State]:
        await asyncio.sleep(self._queues.random.uniform(0.001, 0.3))
        return [State(key, *found) for key, found in self._kept.items()]

    async def write(self, writes: Sequence[StateWrite]) -> list[State]:
        queues, loop = self._queues, asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        draw, world = queues.random, queues.world
        answer: asyncio.Future[list[State]] = loop.create_future()
        delay_us = draw.randint(300, 5_000)
        if not queues.clients.is_healed and draw.random() < 0.1:
            delay_us += draw.randint(100_000, 4_000_000)
        is_lost = not queues.clients.is_healed and draw.random() < 0.05
        does_fail = is_lost and draw.random() < 0.5

        def arrive() -> None:
            found = [] if does_fail else [self._written(each) for each in writes]
            if not is_lost:
                world.later(200, loop, loop.enter, _answers, answer, found)

        world.later(delay_us, None, arrive)
        try:
            async with asyncio.timeout(2.0):
                return await answer
        except TimeoutError:
            raise UnavailableError("not committed yet, and may be later") from None

    def _written(self, write: StateWrite) -> State:
        value, revision = self._kept.get(write.key, (b"", NO_REVISION))
        if write.expected_revision not in (None, revision):
            return State(write.key, value, revision, is_refused=True)
        self._revision += 1
        self._kept[write.key] = write.value or b"", self._revision
        return State(write.key, write.value or b"", self._revision)


def _answers(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)


class QueueLeader:
    """A leadership of the stream. What is no consumer is as little as it can be."""

    def __init__(self, queues: Queues, epoch: int) -> None:
        self.queues = queues
        self.epoch = epoch
        self.loop = SimulatedLoop(queues.world, f"queue leader {epoch}", lambda _: None)
        self._waiters: list[Callable[[], None]] = []
        self.loop.enter(self._begin)

    def _begin(self) -> None:
        queues, world = self.queues, self.queues.world
        stream = SimpleNamespace(
            id=STREAM_ID, leader_epoch=self.epoch, subject=STREAM, is_internal=False,
            full_name=f"{STREAM}@{STREAM}", lake=NO_LAKE,
        )  # fmt: skip
        self.replica: Any = Led(queues.records, stream, self._waiters)
        replicas: Any = SimpleNamespace(
            get=lambda _: self.replica,
            resolve_led=lambda _: self.replica,
            led_replica_of=lambda _: self.replica,
        )
        clocks: Any = SimpleNamespace(
            monotonic=lambda: MonotonicUs(world.now), wall=lambda: WallUs(world.now)
        )
        control = SimpleNamespace(
            bytes_max=lambda _, wanted: wanted,
            while_allowed=lambda *_: nullcontext(),
            pace=_pace,
            quota_holder=lambda _: NAME,
        )
        access: Any = SimpleNamespace(check_commit=lambda *_: None, control=control)
        unused: Any = None
        reader: Any = self
        self.consumers = Consumers(
            replicas, reader, NoOutlet(), clocks, queues.states, _note_change
        )
        self.consumers.began = self._watch
        leaderships = Leaderships(self.consumers, replicas)
        memory = ResponseMemoryLimiter(lambda _: None)
        self.service = ConsumersService(
            None, unused, self.consumers, leaderships, replicas, access, memory
        )

    def _watch(self, consumer: Consumer) -> None:
        deliver = consumer.deliveries.deliver

        def watched(offset: int, now_us: MonotonicUs) -> int:
            try:
                self.queues.delivered(offset)
            except Violation as violation:  # The consumer would go on.
                self.queues.world.broken(str(violation), None)
            return deliver(offset, now_us)

        consumer.deliveries.deliver = watched  # type: ignore[method-assign]

    def is_done(self, offset: int) -> bool:
        consumer = self.consumers.find(self.replica.stream.id, NAME)
        if consumer is None:
            return False
        return offset < consumer.deliveries.position and offset not in consumer.deliveries.open

    def wake(self) -> None:
        waiting = self._waiters[:]
        self._waiters.clear()
        for look in waiting:
            self.loop.enter(look)

    def end(self) -> None:
        self.queues.clients.graveyard.extend(self.loop.end())

    def called(self, name: str, request: Any, reply: Callable[[Any], None]) -> None:
        self.loop.create_task(self._answer(name, request, reply))

    async def _answer(self, name: str, request: Any, reply: Callable[[Any], None]) -> None:
        ended: list[Callable[[], None]] = []
        call = SimpleNamespace(identity=None, peer="a client", when_ended=ended.append, made_at=0)
        try:
            found = await getattr(self.service, name)(request, call)
        except JetstreamError as error:
            found = error
        reply(found)
        for each in ended:
            each()

    # As the reader of the node's logs.

    held_bytes = 0

    async def read(self, replica: Any, wanted: Any, start: int, *_: Any, **__: Any) -> Piece:
        records = self.queues.records
        stop = min(len(records), start + self.queues.random.randint(1, 8))
        found = [
            Record(at, WallUs(0), STREAM.encode(), records[at], b"") for at in range(start, stop)
        ]
        return Piece(found, stop, 1)

    async def check(self, replica: Any) -> None: ...


class Led:
    """The replica, as far as consumers look at it."""

    closed = False

    def __init__(self, records: list[bytes], stream: Any, waiters: list[Callable[[], None]]):
        self.stream = stream
        self.log = self
        self.log_start_offset, self.epochs = 0, LeaderEpochCache()
        self.leadership = SimpleNamespace(knows_end=True, seeks_end=False)
        self._records = records
        self._waiters = waiters

    @property
    def high_watermark(self) -> int:
        return len(self._records)

    log_end_offset = high_watermark

    def check_readable(self) -> None:
        """It always is."""

    def add_waiter(self, look: Callable[[], None]) -> None:
        if look not in self._waiters:
            self._waiters.append(look)

    def remove_waiter(self, look: Callable[[], None]) -> None:
        if look in self._waiters:
            self._waiters.remove(look)


async def _pace(*_: Any) -> None: ...


async def _note_change(*_: Any) -> None: ...


class Arrivals(deque[AsyncQueueMessage]):
    """The buffer of a reader, which tells what comes."""

    def __init__(self, came: Callable[[int], None]) -> None:
        super().__init__()
        self._came = came

    def append(self, message: AsyncQueueMessage) -> None:
        self._came(message.offset)
        super().append(message)

    def copy(self) -> Any:
        return list(self)


class QueueReader(ClientProcess):
    """A run of a program that works on messages, until it dies."""

    def __init__(self, queues: Queues, number: int) -> None:
        super().__init__(queues.clients, f"worker {number}")
        self.queues = queues
        draw = queues.random
        self.fails = draw.choice([0.0, 0.05, 0.2])
        self.slowest_us = draw.choice([0, 20_000, 1_500_000])
        self.prefetch = draw.choice([1, 4, 32])
        self._queue: AsyncQueue | None = None
        self._came: dict[int, int] = {}
        self.begins()

    @property
    def waiting(self) -> dict[int, int]:
        """What it has, and was not handed to the program; and since when."""
        queue = self._queue
        if queue is None or queue._is_closed:
            return {}
        held = [each.offset for each in queue._buffer if not each._is_others]
        return {offset: self._came[offset] for offset in held}

    def came_at(self, offset: int) -> int:
        return self._came[offset]

    def came(self, offset: int) -> None:
        self._came[offset] = self.clients.world.now

    async def _run(self, client: AsyncClient) -> None:
        while True:
            try:
                await self._read(client)
            except HandlerError:
                continue
            except JetstreamError as error:
                self.clients.world.count(f"a worker ended by {type(error).__name__}")
                await asyncio.sleep(0.3)

    async def _read(self, client: AsyncClient) -> None:
        self._queue = client.queue(
            STREAM,
            NAME,
            ack_wait=self.queues.ack_wait,
            max_deliver=MAX_DELIVER,
            dead_letter=DEAD,
            prefetch=self.prefetch,
        )
        self._queue._buffer = Arrivals(self.came)
        async with self._queue as queue:
            async for message in queue:
                self.queues.handed_out(self, message)
                await self._handle(message)

    async def _handle(self, message: AsyncQueueMessage) -> None:
        draw, is_healed = self.queues.random, self.clients.is_healed
        if self.slowest_us and not is_healed:
            await asyncio.sleep(draw.randint(0, self.slowest_us) / 1e6)
        if message.offset % POISON == 5:
            if draw.random() < 0.5:
                await self._says(message.nak())
            return
        if not is_healed and draw.random() < self.fails:
            if draw.random() < 0.5:
                raise HandlerError
            return
        self.queues.said_done.add(message.offset)
        if await self._says(message.ack()):
            self.queues.acked.add(message.offset)
            self.clients.world.count("acknowledged by a worker")

    async def _says(self, saying: Any) -> bool:
        """Whether it was heard; in time."""
        began = self.loop.time()
        try:
            return bool(await saying)
        except JetstreamError:
            return False
        finally:
            took = self.loop.time() - began
            limit = TIMEOUT_SECONDS * CALL_SHARE + SLACK_SECONDS
            self.queues.require(
                took <= 2 * limit or self.was_frozen, f"an answer after {took:.3f} s"
            )
