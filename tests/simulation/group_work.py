"""A consumer group at work, from a seed: members that read, commit, freeze and die; commits that
come late or twice; coordinators that die with what they had not committed. What decides is shipped
code (`Coordinator`, `groups.py`, `CursorTable`); log, network, members and clock are here.

The checker, after each step:

* no zombie commits: in the log each position follows a state of the group in which whoever commits
  owns the stream, since no later than the generation that it says;
* a position never goes back, and never passes a record that nobody has handled;
* generations never fall;
* two members in good standing never read the same stream;
* a member is never told to stop reading what stays its own;
* in the end, once members live and are heard, everything has been handled and committed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jetstream_protocol.errors import PreconditionFailedError, UnavailableError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.cursors.coordinator import Coordinator, Heartbeat
from jetstream_server.cursors.groups import Group, Member
from jetstream_server.cursors.table import NO_REVISION, CursorTable, Outcome, Write

NAME, SOURCE = "workers", "jobs"
GROUP_KEY = b"group"
STREAMS = 5
MEMBERS_MAX = 4
SESSION_MS = 1000
STEPS = 200
"""Of a run."""


@dataclass
class Place:
    """Where a member is in a stream."""

    position: int
    revision: int


@dataclass
class Worker:
    """A member, as the SDK is one."""

    id: str
    generation: int = 0
    held: dict[int, Place] = field(default_factory=dict)
    asking: asyncio.Task[Group] | None = None
    is_frozen: bool = False


@dataclass(frozen=True)
class Commit:
    """A commit on its way. place: of the reader that has sent it; when its member gets the stream
    anew, that is another reader."""

    member: str
    generation: int
    stream: int
    offset: int
    revision: int
    place: Place = field(repr=False, compare=False)


class World:
    """`run` it. Raises AssertionError."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        self.random = random.Random(seed)
        self.loop = loop
        self.now = 0
        self.log: list[tuple[bytes, Group | Commit]] = []
        self.high_watermark = 0
        self.ends = dict.fromkeys(range(STREAMS), 0)
        self.handled: dict[int, set[int]] = {stream: set() for stream in range(STREAMS)}
        self.workers: list[Worker] = []
        self.network: list[Commit] = []
        self.born = 0
        self.waiting: dict[int, asyncio.Future[Outcome]] = {}  # by end offset
        self.others: list[asyncio.Task[None]] = []
        self.term = 0
        self.wrong = ""
        self.lead()

    # The log and its leader.

    def lead(self) -> None:
        """A new coordinator. What the last one had not committed is lost, or is committed now."""
        self.log = self.log[: self.random.randint(self.high_watermark, len(self.log))]
        self.high_watermark = len(self.log)
        for answer in self.waiting.values():
            answer.set_exception(UnavailableError("the leader changes"))
        self.waiting = {}
        self.term += 1
        self.table = CursorTable()
        self.table.load(
            range(len(self.log)),
            [key for key, _ in self.log],
            [b"%d" % number for number in range(len(self.log))],
        )
        self.coordinator = Coordinator(
            partial(self.save, self.term), lambda _: range(STREAMS), lambda: MonotonicUs(self.now)
        )
        states = [state for _, state in self.log if isinstance(state, Group)]
        self.coordinator.load(states[-1:])
        self.settle()

    async def save(self, term: int, group: Group) -> None:
        if term != self.term:
            raise UnavailableError("it leads no more")
        outcome = await self.append(Write(GROUP_KEY, b"%d" % len(self.log)), group)
        assert outcome.error is None

    def append(self, write: Write, said: Group | Commit) -> asyncio.Future[Outcome]:
        answer: asyncio.Future[Outcome] = self.loop.create_future()
        plan = self.table.plan([[write]], len(self.log))
        if not plan.keys:
            answer.set_result(plan.answers[0][0])
            return answer
        self.table.appended(plan)
        self.log.append((write.key, said))
        if isinstance(said, Commit):
            self.check_position(said)
        else:
            self.check_generation(said)
        self.waiting[plan.end_offset] = answer
        answer.add_done_callback(_retrieve)
        return answer

    def commit_some(self) -> None:
        self.high_watermark = self.random.randint(self.high_watermark, len(self.log))
        for plan in self.table.advance(self.high_watermark):
            self.waiting.pop(plan.end_offset).set_result(plan.answers[0][0])
        self.settle()

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        assert not self.wrong, self.wrong

    # Members.

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.is_frozen]

    def one(self) -> Worker | None:
        alive = self.alive()
        return self.random.choice(alive) if alive else None

    def places(self) -> list[tuple[Worker, int]]:
        return [(worker, stream) for worker in self.alive() for stream in sorted(worker.held)]

    def a_member_is_born(self) -> None:
        if len(self.workers) < MEMBERS_MAX:
            self.workers.append(Worker(self.name()))

    def name(self) -> str:
        self.born += 1
        return f"m{self.born}"

    def a_member_dies(self) -> None:
        if self.workers:
            self.workers.remove(self.random.choice(self.workers))

    def a_member_freezes_or_wakes(self) -> None:
        if self.workers:
            worker = self.random.choice(self.workers)
            worker.is_frozen = not worker.is_frozen

    def a_member_is_heard(self) -> None:
        worker = self.one()
        if worker is not None and worker.asking is None:
            self.ask(worker)

    def ask(self, worker: Worker) -> None:
        heartbeat = Heartbeat(
            NAME,
            SOURCE,
            Member(worker.id, session_ms=SESSION_MS),
            worker.generation,
            frozenset(worker.held),
            0.0,
        )
        worker.asking = self.loop.create_task(self.coordinator.heartbeat(heartbeat))
        worker.asking.add_done_callback(_retrieve)
        self.settle()

    def a_member_hears(self) -> None:
        worker = self.one()
        if worker is not None:
            self.hear(worker)

    def hear(self, worker: Worker) -> None:
        if worker.asking is None or not worker.asking.done():
            return
        asking, worker.asking = worker.asking, None
        error = asking.exception()
        if isinstance(error, PreconditionFailedError):
            self.lost(worker)
        if error is not None:
            return
        group = asking.result()
        member_id = worker.id
        told = group.assigned(member_id)
        for stream in worker.held:
            share = group.shares[stream]
            stays = share.owner == share.target == worker.id
            assert stays <= (stream in told), f"stream {stream} stops, and does not move"
        worker.generation = group.generation
        for stream in sorted(worker.held.keys() - told):
            if worker.id != member_id:
                return  # A refusal has told it that it was given up.
            self.send(worker, stream)
            if self.random.random() < 0.7:  # Otherwise it is given up, and comes late.
                self.deliver(self.network.pop())
            worker.held.pop(stream, None)
        if worker.id != member_id:
            return  # A refusal has told it that it was given up.
        for stream in sorted(told - worker.held.keys()):
            entry = self.table.committed.get(b"%d" % stream)
            if entry is None:
                worker.held[stream] = Place(0, NO_REVISION)
                continue
            committed = self.log[entry.revision][1]
            assert isinstance(committed, Commit)
            worker.held[stream] = Place(committed.offset, entry.revision)

    def lost(self, worker: Worker) -> None:
        worker.id, worker.generation = self.name(), 0
        worker.held.clear()

    def a_record_is_published(self) -> None:
        self.ends[self.random.randrange(STREAMS)] += 1

    def a_record_is_handled(self) -> None:
        places = self.places()
        if places:
            worker, stream = self.random.choice(places)
            place = worker.held[stream]
            if place.position < self.ends[stream]:
                self.handled[stream].add(place.position)
                place.position += 1

    def a_member_commits(self) -> None:
        places = self.places()
        if places:
            self.send(*self.random.choice(places))

    def send(self, worker: Worker, stream: int) -> None:
        place = worker.held[stream]
        self.network.append(
            Commit(worker.id, worker.generation, stream, place.position, place.revision, place)
        )

    def a_commit_arrives(self) -> None:
        if self.network:
            at = self.random.randrange(len(self.network))
            again = self.random.random() < 0.3  # A copy of it comes later.
            self.deliver(self.network[at] if again else self.network.pop(at))

    def deliver(self, commit: Commit) -> None:
        reason = self.coordinator.why_not(NAME, commit.stream, commit.member, commit.generation)
        if reason:
            self.refused(commit)
            return
        value = b"%d" % len(self.log)
        write = Write(b"%d" % commit.stream, value, commit.revision)
        self.others.append(self.loop.create_task(self.answer(commit, self.append(write, commit))))
        self.settle()

    async def answer(self, commit: Commit, coming: asyncio.Future[Outcome]) -> None:
        try:
            outcome = await coming
        except UnavailableError:
            return
        for worker in self.workers:
            place = worker.held.get(commit.stream)
            if place is commit.place and outcome.entry is not None:
                said = self.log[outcome.entry.revision][1]
                assert isinstance(said, Commit)
                if said.place is place:  # Its own, perhaps of which it had heard nothing.
                    place.revision = max(place.revision, outcome.entry.revision)
                elif place.revision == commit.revision:
                    self.lost(worker)  # Another reader's, perhaps this member's of before.

    def refused(self, commit: Commit) -> None:
        for worker in self.workers:
            place = worker.held.get(commit.stream)
            is_present = place is commit.place and worker.generation == commit.generation
            if is_present and place is not None and place.revision == commit.revision:
                self.lost(worker)

    # Time.

    def time_passes(self) -> None:
        self.now += self.random.choice([50_000, 300_000, 1_200_000])
        for live in list(self.coordinator._groups.values()):
            look = self.coordinator._look_at(live, with_its_streams=False)
            self.others.append(self.loop.create_task(look))
        self.settle()

    # The checker.

    def check_position(self, commit: Commit) -> None:
        """At its append."""
        before = self.log[:-1]
        group = next((said for _, said in reversed(before) if isinstance(said, Group)), None)
        assert group is not None, "it is nobody's"
        share = group.shares[commit.stream]
        assert share.owner == commit.member, "a zombie commits"
        assert commit.generation >= share.since, "a commit of an earlier ownership"
        same = [c.offset for _, c in before if isinstance(c, Commit) and c.stream == commit.stream]
        assert not same or same[-1] <= commit.offset, "a position goes back"
        below = set(range(commit.offset))
        assert below <= self.handled[commit.stream], "records are passed over"

    def check_generation(self, group: Group) -> None:
        """At its append, in a task of the coordinator: `settle` tells."""
        before = [said.generation for _, said in self.log[:-1] if isinstance(said, Group)]
        if before and before[-1] > group.generation:
            self.wrong = "a generation comes again"

    def check_readers(self) -> None:
        for group in self.coordinator.groups():
            held = [
                stream for worker in self.workers if group.has(worker.id) for stream in worker.held
            ]
            assert len(held) == len(set(held)), "two members read one stream"

    # The run.

    def run(self, steps: int) -> None:
        rules = [
            (self.a_record_is_published, 3),
            (self.a_record_is_handled, 6),
            (self.a_member_commits, 3),
            (self.a_commit_arrives, 4),
            (self.commit_some, 5),
            (self.a_member_is_heard, 8),
            (self.a_member_hears, 8),
            (self.time_passes, 2),
            (self.a_member_is_born, 2),
            (self.a_member_dies, 0.4),
            (self.a_member_freezes_or_wakes, 0.8),
            (self.lead, 0.4),
        ]
        steps_of = [rule for rule, _ in rules]
        weights = [weight for _, weight in rules]
        for step in self.random.choices(steps_of, weights, k=steps):
            step()
            self.check_readers()
        self.finish()

    def finish(self) -> None:
        """Everybody lives, and nothing is lost any more."""
        self.a_member_is_born()
        for worker in self.workers:
            worker.is_frozen = False
        for _ in range(60):
            self.now += SESSION_MS * 100
            self.time_passes()
            for worker in self.workers:
                if worker.asking is None:
                    self.ask(worker)
                self.high_watermark = len(self.log)
                self.commit_some()
                self.hear(worker)
                self.check_readers()
                for stream, place in list(worker.held.items()):
                    if stream not in worker.held:
                        break  # It has lost them all.
                    self.handled[stream].update(range(place.position, self.ends[stream]))
                    place.position = self.ends[stream]
                    self.send(worker, stream)
                    self.deliver(self.network.pop())
            if self.all_done():
                return
        raise AssertionError("not everything is handled and committed")

    def all_done(self) -> bool:
        last = {said.stream: said.offset for _, said in self.log if isinstance(said, Commit)}
        return all(last.get(stream, 0) == end for stream, end in self.ends.items())


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Nobody may be left who wants to know."""
    if not done.cancelled():
        done.exception()


def run(seed: int, steps: int = STEPS) -> None:
    """Raises AssertionError with what is wrong."""
    with a_loop() as loop:
        World(seed, loop).run(steps)


@contextmanager
def a_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop of its own, in which nothing is left behind."""
    loop = asyncio.new_event_loop()

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield loop
    finally:
        loop.run_until_complete(end())
        loop.close()
