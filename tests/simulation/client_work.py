"""Clients at work, from a seed: the shipped `AsyncClient`, `Sender` and everything under them, each
in a process with a loop of its own; and a cluster that is simulated (client_ground.py), but for its
coordinator and its table of cursors, which are shipped, too.

Publishers send numbered records to the streams of a group. Members of a consumer group read them,
record by record or in batches, with handlers that take their time, fail, or are interrupted, and
commit. In some seeds they begin at "latest", and some of them are processings (`process`).
Meanwhile processes freeze and die, members come and go, also two of one instance name, messages are
lost, late and repeated, writes are slow, coordinators die or do not know yet that they are deposed,
and streams are created, deleted and purged.

The checker:

* Two members whose sessions hold, each by its own clock, never read one stream; and no member hands
  out a record once its session is over.
* A reader hands out each record of its stream, unchanged and in order, from where it began.
* A member says that it holds a stream only if it reads it, or begins to.
* A member takes an instance name only from one that had it while its own process still lived.
* A position is committed by the owner of its stream, never goes back, and passes no record that was
  not handled, unless it was purged, or is before where a group that began at "latest" began. For
  streams that came later, that is their beginning.
* Once everything is healed, every record that is there is handled and committed within `REST_US`.
* Every record that is published has its outcome by its deadline, and a true one.
* A client without a server is closed in the time of one call.
* What cursor_work.py says, of readers with a cursor and without a group, publish_work.py, of plain
  publishes, outputs and dead letters, and queue_work.py, of the readers of a work queue. In some
  seeds readers follow (following.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from jetstream_client import AsyncClient, Message, Output
from jetstream_client.processing.options import ProcessOptions
from jetstream_client.processing.sources import GroupSource
from jetstream_client.reading.group_consumer import AsyncGroupConsumer, Part
from jetstream_client.values.positions import Position
from jetstream_protocol.errors import FencedInstanceError, JetstreamError
from jetstream_protocol.generated.cursors_pb2 import CommitCursorsRequest
from jetstream_server.cursors.groups import Group
from jetstream_server.cursors.records import GROUP_PREFIX, cursor_key
from tests.property.test_sender import FATES, Nats, Program
from tests.simulation.client_ground import Ground, SimulatedStream
from tests.simulation.client_process import ClientProcess, HandlerError, Network
from tests.simulation.cursor_work import CursorReaders, is_of_cursor
from tests.simulation.following import Followed
from tests.simulation.loop import SimulatedLoop, bury
from tests.simulation.publish_work import DEAD, POISON, Publishing, outputs_of
from tests.simulation.queue_work import STREAM_ID as QUEUE_ID
from tests.simulation.queue_work import Queues
from tests.simulation.world import Violation, World

GROUP, SOURCE = "workers", "jobs"
STREAMS = 3
MEMBERS_MAX = 4
TROUBLE_US = 30_000_000
REST_US = 40_000_000
"""Within so long after the last fault all is read: a rejoining member may wait for ten seconds."""
OUTCOME_US = 13_000_000
LATEST_SHARE = 0.2
PROCESSED_SHARE = 0.3
CLOSING_SHARE = 0.3
"""Of the seeds: those in which members begin at "latest", those in which some are processings, and
those in which some close their clients. Drawn apart, so that the others stay as they were."""


class Process(ClientProcess):
    """A run of a program that is a member, until it dies."""

    def __init__(self, clients: Clients, number: int, instance: str | None = None) -> None:
        """instance: its name; None: drawn."""
        super().__init__(clients, f"member {number}")
        world = clients.world
        drawn = world.random.choice(["", "", "", "a"])
        self.instance = drawn if instance is None else instance
        self.session_seconds = world.random.choice([1.0, 2.0, 3.0])
        self.in_batches = world.chance(0.4)
        self.commits = world.random.choice(["each second", "by hand", "both"])
        self.fails = world.random.choice([0.0, 0.0, 0.02, 0.1])
        self.gives_up = world.chance(0.3)
        """It asks with a time limit, again and again."""
        self.slowest_us = world.random.choice([0, 20_000, 400_000])
        self.processes = clients.chances.random() < clients.processing_share
        self.consumer: AsyncGroupConsumer | None = None
        self.is_fenced = False
        self.begins()

    def die(self) -> None:
        self._run_ends()
        super().die()

    def _run_ends(self) -> None:
        if self.consumer is not None:
            run = self.consumer._membership._process
            self.clients.checker.ended_at.setdefault(run, self.clients.world.now)

    async def _run(self, client: AsyncClient) -> None:
        while not self.is_fenced:
            try:
                await self._read(client)
            except HandlerError:
                continue
            except FencedInstanceError:
                self.is_fenced = True
                self.clients.has_lost_its_name(self)
            except JetstreamError as error:
                self.clients.world.count(f"ended by {type(error).__name__}")
                await asyncio.sleep(0.3)

    async def _read(self, client: AsyncClient) -> None:
        await (self._process(client) if self.processes else self._consume(client))

    async def _process(self, client: AsyncClient) -> None:
        """As `AsyncClient.process`, whose member is to be seen."""
        options = ProcessOptions.of(
            None,
            GROUP,
            {
                "instance": self.instance,
                "session_timeout": self.session_seconds,
                "start": self.clients.start,
                "on_reset": "earliest",
                "retries": 2,
                "concurrency": self.clients.chances.choice([1, 3, 8]),
                "dead_letter": DEAD if self.clients.publishing.is_there else None,
            },
        )
        processor = await client.processor(SOURCE, self._attempt, options)
        source = processor._source
        assert isinstance(source, GroupSource)
        self.consumer = source._member
        try:
            await processor.run()
        finally:
            self._run_ends()

    async def _attempt(self, message: Message) -> list[Output]:
        stream = self.clients.ground.by_name(message.stream)
        self.clients.checker.processed(stream.id, message.offset, message.value)
        if self.slowest_us and not self.clients.is_healed:
            await asyncio.sleep(self.clients.world.between(0, self.slowest_us) / 1e6)
        if not self.clients.is_healed and self.clients.world.chance(self.fails):
            raise HandlerError
        if not self.clients.publishing.is_there:
            self.clients.checker.handled(stream.id, [message.offset])
            return []
        if message.offset % POISON == 5:
            raise HandlerError
        return outputs_of(stream.id, message.offset)

    async def _consume(self, client: AsyncClient) -> None:
        self.consumer = client.consume_group(
            SOURCE,
            GROUP,
            instance=self.instance,
            session_timeout=self.session_seconds,
            start=self.clients.start,
            auto_commit=self.commits != "by hand",
            on_reset="earliest",
        )
        try:
            async with self.consumer as consumer:
                batches = consumer.batches(self.clients.world.random.choice([None, 1, 3]))
                while True:
                    handed_out = await self._next(consumer, batches)
                    if handed_out is not None:
                        await self._handle(consumer, *handed_out)
        finally:
            self._run_ends()

    async def _next(
        self, consumer: AsyncGroupConsumer, batches: Any
    ) -> tuple[Part, list[int], list[bytes | None]] | None:
        """None: it has waited too long."""
        ask: Awaitable[Any] = anext(batches) if self.in_batches else anext(consumer)
        try:
            limit = self.clients.world.random.choice([0.0, 0.01, 0.5]) if self.gives_up else None
            async with asyncio.timeout(limit):
                found = await ask
        except TimeoutError:
            return None
        part = consumer._current
        assert part is not None
        offsets = list(found.offsets()) if self.in_batches else [found.offset]
        values = list(found.values()) if self.in_batches else [found.value]
        self.clients.checker.handed_out(self, part, offsets, values)
        return part, offsets, values

    async def _handle(
        self, consumer: AsyncGroupConsumer, part: Part, offsets: list[int], values: list[Any]
    ) -> None:
        world = self.clients.world
        if self.slowest_us and not self.clients.is_healed:
            await asyncio.sleep(world.between(0, self.slowest_us) / 1e6)
        if not self.clients.is_healed and world.chance(self.fails):
            raise HandlerError
        self.clients.checker.handled(part.stream_id, offsets)
        if self.commits != "each second" and world.chance(1.0 if self.clients.is_healed else 0.3):
            await consumer.commit()


class Checker:
    """See the module."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.done: dict[int, set[int]] = {}
        self.readers: dict[int, dict[int, int]] = {}
        """Where each reader of a stream goes on, by its number."""
        self.positions: dict[bytes, int] = {}
        self.floors: dict[bytes, int] = {}
        """Where the group began in each stream, if it has committed there."""
        self.group: Group | None = None
        self.newest_at_first = 0
        """The newest stream when the group began: "latest" is for no later one."""
        self.ended_at: dict[str, int] = {}
        """When a run of a member has ended, by the first id of the run."""
        self.had_name: dict[str, str] = {}
        """Which run had each name last."""
        self.has_it_since: dict[tuple[str, str], int] = {}
        """When a run got its name first."""
        self.count = 0

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)

    def stream(self, stream_id: int) -> SimulatedStream:
        return self.clients.ground.streams[stream_id]

    def processed(self, stream_id: int, offset: int, value: bytes | None) -> None:
        self.count += 1
        self.require(self.stream(stream_id).records[offset] == value, "a record has changed")

    def handed_out(
        self, process: Process, part: Part, offsets: list[int], values: list[bytes | None]
    ) -> None:
        consumer, stream = part.consumer, self.stream(part.stream_id)
        self.count += len(offsets)
        if self.clients.world.trace is not None:
            self.clients.world.note(f"{process} reads {offsets} of {stream.id}")
        for offset, value in zip(offsets, values, strict=True):
            self.require(stream.records[offset] == value, "a record has changed")
        before = getattr(consumer, "next_of_the_checker", None)
        if before is None:
            consumer.first_of_the_checker = offsets[0]  # type: ignore[attr-defined]
        may_skip = before is None or consumer.reset_count or before < stream.log_start_offset
        self.require(may_skip or offsets[0] == before, f"{process} goes on at {offsets[0]}")
        self.require(offsets == list(range(offsets[0], offsets[-1] + 1)), "not in order")
        consumer.next_of_the_checker = offsets[-1] + 1  # type: ignore[attr-defined]
        assert process.consumer is not None
        self.require(self._has_session(process.consumer), f"{process} reads without a session")
        if self._is_replaced(process):
            return
        for other in self.clients.members:
            reads = other is not process and self._reads(other, stream.id)
            self.require(not reads, f"{process} and {other} read stream {stream.id}")

    def _is_replaced(self, process: Process) -> bool:
        """Another process has its instance name, by a mistake of whoever started them: it goes on
        until it hears of that, whoever has its streams by then."""
        assert process.consumer is not None
        members = () if self.group is None else self.group.members
        names = {member.instance: member.id for member in members if member.instance}
        known = names.get(process.instance)
        return known not in (None, process.consumer._membership.id)

    def _reads(self, process: Process, stream_id: int) -> bool:
        consumer = process.consumer
        if consumer is None or not process.loop.alive or consumer._closed:
            return False
        if self._is_replaced(process):
            return False
        part = consumer._parts.get(stream_id)
        is_reading = part is not None and part.is_held and not consumer.is_lost
        return is_reading and self._has_session(consumer)

    def _has_session(self, consumer: AsyncGroupConsumer) -> bool:
        """By its own clock, which is right."""
        membership = consumer._membership
        return self.clients.world.now < (membership._heard + membership._session) * 1e6

    def heartbeat(self, process: Process, request: Any) -> None:
        assert process.consumer is not None
        has = process.consumer._parts.keys() | process.consumer._beginning.keys()
        claimed = set(request.held) - has
        self.require(not claimed, f"{process} says that it holds {sorted(claimed)}")

    def is_done(self, stream_id: int, offset: int) -> bool:
        is_handled = offset in self.done.get(stream_id, ())
        return is_handled or self.clients.publishing.has_followed(stream_id, offset)

    def handled(self, stream_id: int, offsets: list[int]) -> None:
        self.done.setdefault(stream_id, set()).update(offsets)

    # The log of `__cursors`.

    def begins_anew(self, log: list[Any]) -> None:
        """What was not committed is gone."""
        self.positions, self.group, self.had_name, self.newest_at_first = {}, None, {}, 0
        for entry in log:
            self._note(*entry)
        for key in self.floors.keys() - self.positions.keys():
            del self.floors[key]
        self.clients.readers.begins_anew(log)

    def appended(self, log: list[Any]) -> None:
        key, value, said = log[-1]
        if isinstance(said, Group):
            self._check_names(said)
        elif is_of_cursor(said):
            self.clients.readers.check(key, said)
        else:
            self._check_commit(key, said)
        self._note(key, value, said)

    def _check_names(self, group: Group) -> None:
        for run, name in _named(group):
            self.has_it_since.setdefault((name, run), self.clients.world.now)
            before = self.had_name.get(name, run)
            since = self.has_it_since.get((name, before), 0)
            lived = before == run or self.ended_at.get(run, since) >= since
            self.require(lived, f"a run that has ended takes the name {name!r} from a later one")

    def _note(self, key: bytes, value: bytes | None, said: Any) -> None:
        if key.startswith(GROUP_PREFIX):
            assert isinstance(said, Group)
            if self.group is not None:
                grows = said.generation >= self.group.generation or said.is_deleted
                self.require(grows, "a generation comes again")
            if self.group is None or not self.group.shares:
                self.newest_at_first = max(said.shares, default=0)
            self.group = None if said.is_deleted else said
            self.had_name = {} if said.is_deleted else self.had_name
            self.had_name.update((name, run) for run, name in _named(said))
        else:
            self.positions[key] = said.offset

    def _check_commit(self, key: bytes, commit: CommitCursorsRequest.Commit) -> None:
        stream = self.clients.ground.named(commit.stream)
        group = self.group
        self.require(group is not None, "it is nobody's")
        assert group is not None
        owns = group.may_commit(commit.member_id, commit.generation, stream.id)
        self.require(owns, "a zombie commits")
        self.require(self.positions.get(key, 0) <= commit.offset, "a position goes back")
        floor = self.floors.setdefault(key, self._began(commit, stream))
        # Below its last position all was looked at, and what is handled stays so.
        begin = max(stream.log_start_offset, floor, self.positions.get(key, 0))
        passed = [each for each in range(begin, commit.offset) if not self.is_done(stream.id, each)]
        self.require(not passed, f"records {passed} of stream {stream.id} are passed over")

    def _began(self, commit: CommitCursorsRequest.Commit, stream: SimulatedStream) -> int:
        """Where the reader who makes the first commit began."""
        if self.clients.start == "earliest" or stream.id > self.newest_at_first:
            return 0
        for process in self.clients.members:
            consumer = process.consumer
            if consumer is not None and consumer._membership.id == commit.member_id:
                part = consumer._parts.get(stream.id)
                if part is not None:
                    return getattr(part.consumer, "first_of_the_checker", commit.offset)
        return commit.offset

    # At rest.

    def missing(self) -> str:
        for stream_id in self.clients.ground.live_ids():
            stream = self.stream(stream_id)
            key = cursor_key(GROUP, f"{stream.name}@{stream.name}")
            is_old = stream_id <= self.newest_at_first
            if self.clients.start == "latest" and is_old and key not in self.floors:
                continue  # Nobody has begun there in time for its last record.
            begin = max(stream.log_start_offset, self.floors.get(key, 0))
            for offset in range(begin, stream.end_offset):
                if not self.is_done(stream_id, offset):
                    return f"record {offset} of stream {stream_id} was never handled"
            committed = [
                said.offset
                for key, _, said in self.clients.ground.log
                if isinstance(said, CommitCursorsRequest.Commit)
                and not is_of_cursor(said)
                and key.endswith(f"{stream.name}@{stream.name}".encode())
            ]
            if stream.log_start_offset < stream.end_offset and (
                not committed or committed[-1] < stream.end_offset
            ):
                return f"stream {stream_id} is committed to {committed[-1:]} only"
        others = (self.clients.readers, self.clients.publishing, self.clients.queues)
        return next((missing for each in others if (missing := each.missing())), "")


def _named(group: Group) -> list[tuple[str, str]]:
    """The runs of the members that have a name, by their first ids."""
    return [(each.id.partition(".")[0], each.instance) for each in group.members if each.instance]


class Clients:
    """One seed."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        self.chances = Random(f"ways of {seed}")
        self.start: Position = "latest" if self.chances.random() < LATEST_SHARE else "earliest"
        is_processed = self.chances.random() < PROCESSED_SHARE
        self.processing_share = self.chances.choice([0.3, 1.0]) if is_processed else 0.0
        self.graveyard: list[asyncio.Task[Any]] = []
        self.network = Network(self)
        self.checker = Checker(self)
        self.ground = Ground(self)
        self.members: list[Process] = []
        self.readers = CursorReaders(self)
        self.following = Followed(self)
        self.publishing = Publishing(self)
        self.queues = Queues(self)
        self.endings = Random(f"endings of {seed}")
        self.some_close = self.endings.random() < CLOSING_SHARE
        self.programs: list[Program] = []
        self.publishers: dict[int, SimulatedLoop] = {}
        self.is_healed = False
        self._born = 0

    def run(self) -> None:
        """Raises Violation."""
        world = self.world
        drawn = Random(world.seed)
        before = random.getstate()
        with ExitStack() as stack:
            stack.callback(random.setstate, before)
            random.seed(world.seed)
            for name in ("token_hex", "randbits"):
                stack.enter_context(patch(f"secrets.{name}", _drawn(drawn, name)))
            stack.enter_context(self.publishing.clock())
            stack.enter_context(self.queues.clock())
            stack.callback(self._bury)
            self._run()

    def _bury(self) -> None:
        for process in self._processes():
            process.die()
        for loop in self.publishers.values():
            self.graveyard.extend(loop.end())
        if self.ground.leader is not None:
            self.ground.leader.end()
        self.queues.end()
        bury(self.graveyard)

    def _run(self) -> None:
        world, draw = self.world, self.world.random
        self.network.loss = draw.choice([0.0, 0.02, 0.1])
        self.network.copies = draw.choice([0.0, 0.05, 0.3])
        self.network.slow = draw.choice([0.0, 0.02, 0.15])
        self.ground.slow_writes = draw.choice([0.0, 0.02, 0.15])
        self.ground.slow_opens_us = draw.choice([0, 0, 900_000])
        self.ground.lead(dies=True)
        for _ in range(STREAMS):
            self.creates()
        for _ in range(world.between(1, 3)):
            self.is_born()
        self.publishing.begins()
        self.queues.begins()
        if self.some_close:
            world.later(self.endings.randint(0, 4_000_000), None, self._one_closes)
        self._faults = [
            (self.is_born, 3.0),
            (self.dies, 1.5),
            (self.freezes, 3.0),
            (self.coordinator_freezes, 1.0),
            (self.coordinator_dies, 1.0),
            (self.coordinator_is_deposed, 1.5),
            (self.creates, 0.5),
            (self.is_deleted, 0.3),
            (self.is_purged, 0.5),
            (self.has_another_leader, 0.7),
        ]
        self._weights = [
            weight * draw.choice([0.0, 0.5, 1.0, 3.0]) + 1e-9 for _, weight in self._faults
        ]
        self._pause_us = draw.choice([500_000, 2_000_000, 5_000_000])
        world.later(world.between(0, self._pause_us), None, self._strike)
        world.later(0, None, self._publish)
        world.run_until(TROUBLE_US)
        self._heal()
        while world.now < TROUBLE_US + REST_US and (
            world.now < TROUBLE_US + OUTCOME_US or self.checker.missing()
        ):
            world.run_until(world.now + 500_000)
        missing = self.checker.missing()
        self.checker.require(not missing, missing)
        self.publishing.check()
        for program in self.programs:
            try:
                program.check()
            except AssertionError as error:
                raise Violation(f"a publisher: {error}") from error
        world.counts["handed out"] = self.checker.count

    def records_of(self, stream_id: int) -> Sequence[bytes | None]:
        """The values of all that were ever in a stream."""
        if stream_id == QUEUE_ID:
            return self.queues.records
        return self.ground.streams[stream_id].records

    def _processes(self) -> list[ClientProcess]:
        others = [*self.readers.all, *self.queues.all, *self.publishing.programs]
        return [*self.members, *others]

    def _alive(self) -> list[ClientProcess]:
        """Those that may be struck."""
        processes = [*self.members, *self.readers.all, *self.queues.all]
        return [each for each in processes if each.loop.alive]

    # Publishers.

    def _publish(self) -> None:
        """Some records to some stream, and again."""
        world = self.world
        if self.is_healed:
            return
        stream_id = world.random.choice(sorted(self.publishers))
        if not self.ground.streams[stream_id].is_deleted:
            loop, program = self.publishers[stream_id], self.programs[stream_id - 1]
            loop.enter(program.put, world.random.choice([1, 2, 3, 12]))
        world.later(world.between(10_000, 400_000), None, self._publish)

    def creates(self) -> None:
        stream = self.ground.create()
        world = self.world
        loop = SimulatedLoop(world, f"publisher {stream.id}", lambda _: None)
        self.publishers[stream.id] = loop
        draw = Random(world.random.getrandbits(32))
        fates = draw.sample(FATES, draw.randint(1, 6))

        def begin() -> None:
            nats = Nats(draw, fates)
            nats.stream = stream
            self.programs.append(Program(nats, draw.choice([0.0, 0.005, 1.0])))
            if draw.random() < 0.3:
                self._coming_and_going = loop.create_task(nats.come_and_go(False))

        loop.enter(begin)

    # What goes wrong.

    def _strike(self) -> None:
        world = self.world
        if self.is_healed:
            return
        (fault, _), *_ = world.random.choices(self._faults, self._weights)
        world.count(fault.__name__)
        if world.trace is not None:
            world.note(fault.__name__)
        fault()
        world.later(world.between(0, 2 * self._pause_us), None, self._strike)

    def is_born(self) -> None:
        alive = [each for each in self.members if each.lives and not each.is_fenced]
        if len(alive) < MEMBERS_MAX:
            self._born += 1
            self.members.append(Process(self, self._born))
        self.readers.may_be_born()
        self.queues.may_be_born()

    def has_lost_its_name(self, process: Process) -> None:
        """It has ended. Whatever supervises it starts it again unless a process of that name goes
        on: the one that took the name may have died since."""
        same = [each for each in self.members if each.instance == process.instance]
        self.checker.require(bool(process.instance), f"{process} has no name to lose")
        if not any(each.lives and not each.is_fenced for each in same):
            self.world.count("name taken by the dead")
            self._born += 1
            self.members.append(Process(self, self._born, process.instance))

    def _one(self) -> ClientProcess | None:
        alive = self._alive()
        return self.world.random.choice(alive) if alive else None

    def dies(self) -> None:
        process = self._one()
        if process is not None:
            process.die()

    def freezes(self) -> None:
        process, world = self._one(), self.world
        if process is not None:
            until = world.now + world.between(100_000, world.random.choice([500_000, 6_000_000]))
            process.freezes(world.between(0, 30), until)

    def _one_closes(self) -> None:
        """Perhaps while no server answers it any more."""
        draw, world = self.endings, self.world
        if self.is_healed:
            return
        alive = self._alive()
        if alive:
            process = draw.choice(alive)
            process.is_cut_off = draw.random() < 0.7
            world.later(draw.choice([0, draw.randint(0, 3_000_000)]), None, process.closes)
        world.later(draw.randint(0, 6_000_000), None, self._one_closes)

    def coordinator_freezes(self) -> None:
        leader, world = self.ground.leader, self.world
        assert leader is not None
        leader.loop.paused_until = world.now + world.between(100_000, 4_000_000)

    def coordinator_dies(self) -> None:
        self.ground.lead(dies=True)

    def coordinator_is_deposed(self) -> None:
        self.ground.lead(dies=False)

    def is_deleted(self) -> None:
        live = self.ground.live_ids()
        if len(live) > 1:
            stream = self.ground.streams[self.world.random.choice(live)]
            stream.is_deleted = True
            stream.tell()

    def is_purged(self) -> None:
        stream = self.ground.streams[self.world.random.choice(self.ground.live_ids())]
        stream.log_start_offset = self.world.between(stream.log_start_offset, stream.end_offset)

    def has_another_leader(self) -> None:
        stream = self.ground.streams[self.world.random.choice(self.ground.live_ids())]
        stream.epoch += self.world.between(1, 2)

    def _heal(self) -> None:
        world = self.world
        self.is_healed = True
        self.network.loss = self.network.copies = self.network.slow = 0.0
        self.ground.slow_writes, self.ground.slow_opens_us = 0.0, 0
        for process in self._processes():
            if process.is_cut_off:
                process.die()
        self.is_born()
        for process in self._processes():
            process.loop.wake()
        world.later(1_000_000, None, self._publish_the_last)
        if world.trace is not None:
            world.note("all is healed")

    def _publish_the_last(self) -> None:
        """Whatever was read and not committed before, there is something to read."""
        for stream_id in self.ground.live_ids():
            program = self.programs[stream_id - 1]
            program.nats.fates = ["stored"]
            self.publishers[stream_id].enter(program.put, 2)


def _drawn(drawn: Random, name: str) -> Callable[[int], Any]:
    if name == "randbits":
        return drawn.getrandbits
    return lambda count: f"{drawn.getrandbits(8 * count):0{2 * count}x}"


def run(seed: int, *, tracing: bool = False) -> Clients:
    """Raises Violation."""
    clients = Clients(seed, tracing=tracing)
    clients.run()
    return clients
