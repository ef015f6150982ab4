"""A consumer group at work, from a seed: members that read, begin slowly, commit, do not release,
freeze, die and share an instance name; heartbeats and commits that come late or twice; writes that
fail, or seem to; streams that appear and go; coordinators that die with what they had not
committed. What decides is shipped code (`Coordinator`, `groups.py`, `leases.py`, `CursorTable`);
log, network, members and clock are here.

The checker, after each step:

* no zombie commits: in the log each position follows a state of the group in which whoever commits
  owns the stream, since no later than the generation that it says;
* a position never goes back, and never passes a record that nobody has handled;
* generations never fall, unless the group was deleted;
* two members whose sessions hold, each by its own clock, never read the same stream;
* a member whose heartbeats arrive is never removed, unless it keeps a stream for a minute that it
  was told to release;
* a member is never told to stop reading what stays its own;
* of the processes of one instance name one goes on, and one that had died when another had the
  name already does not take it (but from older clients, who join at once);
* in the end, once members live and are heard, everything has been handled and committed, even if
  one of them never releases what it has.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jetstream_protocol.errors import (
    FencedInstanceError,
    JetstreamError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.types import MonotonicUs
from jetstream_server.cursors.coordinator import Coordinator, Heartbeat
from jetstream_server.cursors.groups import Group, Member, last_of
from jetstream_server.cursors.leases import RELEASE_SECONDS
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
    """A member, as the SDK is one. beginning: the stream that it opens, in which generation it
    began that, and what it has found. replaces: what it was told before it joined; None: it is an
    older client. heard: when the last heartbeat that was answered was sent.
    arrived: when the last one was sent. is_stuck: it handles one record for ever. keeps_since:
    since when it keeps what it was told to release. was_silent: for a session."""

    id: str
    instance: str = ""
    replaces: str | None = None
    generation: int = 0
    told: frozenset[int] = frozenset()
    held: dict[int, Place] = field(default_factory=dict)
    beginning: tuple[int, int, Place] | None = None
    asking: asyncio.Task[Group] | None = None
    asked: int = 0
    heard: int = 0
    arrived: int = 0
    is_frozen: bool = False
    is_stuck: bool = False
    keeps_since: int | None = None
    was_silent: bool = False


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
        self.streams = list(range(STREAMS))
        self.heartbeats: list[Heartbeat] = []
        self.led_since = 0
        self.workers: list[Worker] = []
        self.network: list[Commit] = []
        self.born = 0
        self.waiting: deque[asyncio.Future[Outcome]] = deque()  # One for each plan that waits.
        self.others: list[asyncio.Task[None]] = []
        self.term = 0
        self.wrong = ""
        self.calm = False
        self.moment = 0
        self.died_at: dict[str, int] = {}
        """At which moment the processes of members died that are not older clients."""
        self.has_it_since: dict[str, int] = {}
        """At which moment a member got its instance name."""
        self.taken: set[str] = set()
        """Instance names of processes that have died, perhaps just as they had taken it."""
        self.lead()

    # The log and its leader.

    def lead(self) -> None:
        """A new coordinator. What the last one had not committed is lost, or is committed now."""
        self.log = self.log[: self.random.randint(self.high_watermark, len(self.log))]
        self.high_watermark = len(self.log)
        for answer in self.waiting:
            if not answer.done():
                answer.set_exception(UnavailableError("the leader changes"))
        self.waiting.clear()
        self.note_silence()
        self.led_since = self.now
        self.term += 1
        self.table = CursorTable()
        self.table.load(
            range(len(self.log)),
            [key for key, _ in self.log],
            [b"%d" % number for number in range(len(self.log))],
        )
        self.coordinator = Coordinator(
            partial(self.save, self.term), lambda _: self.streams, lambda: MonotonicUs(self.now)
        )
        states = [state for _, state in self.log if isinstance(state, Group)]
        self.coordinator.load(state for state in states[-1:] if not state.is_deleted)
        self.settle()

    async def save(self, term: int, group: Group) -> None:
        if term != self.term:
            raise UnavailableError("it leads no more")
        if not self.calm and self.random.random() < 0.1:
            raise UnavailableError("too few replicas")
        value = None if group.is_deleted else b"%d" % len(self.log)
        outcome = await self.append(Write(GROUP_KEY, value), group)
        assert outcome.error is None

    def append(self, write: Write, said: Group | Commit) -> asyncio.Future[Outcome]:
        answer: asyncio.Future[Outcome] = self.loop.create_future()
        plan = self.table.plan([[write]], len(self.log))
        self.table.appended(plan)
        self.waiting.append(answer)
        if plan.keys:
            self.log.append((write.key, said))
            if isinstance(said, Commit):
                self.check_position(said)
            else:
                self.check_generation(said)
        answer.add_done_callback(_retrieve)
        return answer

    def commit_some(self) -> None:
        self.high_watermark = self.random.randint(self.high_watermark, len(self.log))
        for plan in self.table.advance(self.high_watermark):
            answer = self.waiting.popleft()
            if not answer.done():
                answer.set_result(plan.answers[0][0])
        self.settle()

    def a_write_is_not_waited_for(self) -> None:
        """It took too long: it may be committed all the same."""
        for answer in self.waiting:
            if not answer.done():
                answer.set_exception(UnavailableError("not committed yet, and may be later"))
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
            instance = self.random.choice(["", "", "", "a", "b"])
            replaces = "" if self.born % 3 else None
            self.workers.append(
                Worker(self.name(), instance, replaces, heard=self.now, arrived=self.now)
            )

    def name(self) -> str:
        self.born += 1
        return f"m{self.born}"

    def a_member_dies(self) -> None:
        if self.workers:
            gone = self.random.choice(self.workers)
            self.workers.remove(gone)
            self.taken.add(gone.instance)
            if gone.replaces is not None:
                self.died_at[gone.id] = self.moment

    def a_member_freezes_or_wakes(self) -> None:
        if self.workers:
            worker = self.random.choice(self.workers)
            worker.is_frozen = not worker.is_frozen
            self.lapse()

    def a_member_is_stuck_or_not(self) -> None:
        if self.workers:
            worker = self.random.choice(self.workers)
            worker.is_stuck = not worker.is_stuck
            self.adjust(worker)

    def lapse(self) -> None:
        """Members that run and were not answered for a session hold nothing any more."""
        for worker in self.alive():
            if worker.told and self.now - worker.heard >= SESSION_MS * 1000:
                self.lost(worker)

    def a_stream_appears(self) -> None:
        number = max(self.ends) + 1
        self.ends[number], self.handled[number] = 0, set()
        self.streams = [*self.streams, number]

    def a_stream_is_deleted(self) -> None:
        if len(self.streams) > 2:
            gone = self.random.choice(self.streams)
            self.streams = [number for number in self.streams if number != gone]

    def the_group_is_deleted(self) -> None:
        if self.coordinator.groups():
            self.others.append(self.loop.create_task(self.delete()))
            self.settle()

    async def delete(self) -> None:
        try:
            await self.coordinator.delete(NAME)
        except JetstreamError:
            return

    def a_member_is_heard(self) -> None:
        worker = self.one()
        if worker is not None and worker.asking is None:
            self.ask(worker)

    def ask(self, worker: Worker) -> None:
        heartbeat = Heartbeat(
            NAME,
            SOURCE,
            Member(worker.id, worker.instance, SESSION_MS),
            worker.generation,
            frozenset(worker.held),
            0.0,
            replaces=worker.replaces if not worker.generation else None,
        )
        if worker.is_stuck and not worker.generation:
            return  # It joins again between two records.
        self.note_silence()
        worker.asked = worker.arrived = self.now
        self.heartbeats = [*self.heartbeats[-9:], heartbeat]
        worker.asking = self.loop.create_task(self.coordinator.heartbeat(heartbeat))
        worker.asking.add_done_callback(_retrieve)
        self.settle()

    def note_silence(self) -> None:
        """Who is not heard for a session may be removed, and will hear of it."""
        for worker in self.workers:
            since = max(worker.arrived, self.led_since)
            worker.was_silent |= self.now - since >= SESSION_MS * 1000

    def a_heartbeat_comes_again(self) -> None:
        """A copy of one that was sent before; nobody hears the answer. Not of one by which somebody
        has joined at once who has died, and was never a member: it would be one now."""
        if self.heartbeats:
            late = self.random.choice(self.heartbeats)
            was_member = late.generation or late.member.id in self.ids_so_far()
            asks_first = late.replaces is not None and late.member.instance
            if (
                asks_first
                or was_member
                or any(worker.id == late.member.id for worker in self.workers)
            ):
                copy = self.loop.create_task(self.coordinator.heartbeat(late))
                copy.add_done_callback(_retrieve)
                self.settle()

    def ids_so_far(self) -> set[str]:
        """Of the members since the group was deleted."""
        ids: set[str] = set()
        for _, said in self.log:
            if isinstance(said, Group):
                ids = set() if said.is_deleted else ids | {member.id for member in said.members}
        return ids

    def a_member_hears(self) -> None:
        worker = self.one()
        if worker is not None:
            self.hear(worker)

    def hear(self, worker: Worker) -> None:
        if worker.asking is None or not worker.asking.done():
            return
        asking, worker.asking = worker.asking, None
        error = asking.exception()
        if isinstance(error, FencedInstanceError):
            self.workers.remove(worker)
        elif isinstance(error, PreconditionFailedError):
            self.lost(worker)
        if error is not None:
            return
        group = asking.result()
        if not group.has(worker.id):  # It is to ask again, or is no member any more.
            worker.replaces = last_of(group, worker.instance)
            return
        told = group.assigned(worker.id)
        for stream in worker.held:
            share = group.shares.get(stream)
            stays = share is not None and share.owner == share.target == worker.id
            assert stays <= (stream in told), f"stream {stream} stops, and does not move"
        worker.generation, worker.told, worker.heard = group.generation, told, worker.asked
        self.adjust(worker)

    def adjust(self, worker: Worker) -> None:
        """Release what it was not told to read."""
        member_id = worker.id
        if worker.is_stuck:
            if not worker.held.keys() - worker.told:
                worker.keeps_since = None
            elif worker.keeps_since is None:
                worker.keeps_since = self.now
            return
        worker.keeps_since = None
        for stream in sorted(worker.held.keys() - worker.told):
            if worker.id != member_id:
                return  # A refusal has told it that it was given up.
            self.send(worker, stream)
            if self.random.random() < 0.7:  # Otherwise it is given up, and comes late.
                self.deliver(self.network.pop())
            worker.held.pop(stream, None)

    def a_member_begins(self) -> None:
        worker = self.one()
        if worker is not None and not worker.is_stuck:
            self.begin(worker)

    def begin(self, worker: Worker) -> None:
        """Open the next stream, or read what was opened."""
        if worker.beginning is None:
            missing = worker.told - worker.held.keys()
            if missing:
                stream = min(missing)
                worker.beginning = stream, worker.generation, self.committed(stream)
            return
        if not self.calm and self.random.random() < 0.8:
            return  # Its node is slow.
        (stream, generation, place), worker.beginning = worker.beginning, None
        if stream in worker.told and generation == worker.generation:
            worker.held[stream] = place

    def committed(self, stream: int) -> Place:
        entry = self.table.committed_entries.get(b"%d" % stream)
        if entry is None:
            return Place(0, NO_REVISION)
        committed = self.log[entry.revision][1]
        assert isinstance(committed, Commit)
        return Place(committed.offset, entry.revision)

    def lost(self, worker: Worker) -> None:
        worker.id, worker.generation, worker.told = self.name(), 0, frozenset()
        worker.replaces = None if worker.replaces is None else ""
        worker.was_silent = False
        worker.held.clear()
        worker.beginning = None

    def a_record_is_published(self) -> None:
        self.ends[self.random.choice(self.streams)] += 1

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
        self.pass_time(self.random.choice([50_000, 300_000, 600_000, 1_200_000]))

    def pass_time(self, microseconds: int) -> None:
        self.now += microseconds
        self.note_silence()
        self.lapse()
        for live in list(self.coordinator._groups.values()):
            look = self.coordinator._look_at(live, with_its_streams=self.random.random() < 0.3)
            self.others.append(self.loop.create_task(look))
        self.settle()
        self.check_removals()

    # The checker.

    def check_position(self, commit: Commit) -> None:
        """At its append."""
        before = self.log[:-1]
        group = next((said for _, said in reversed(before) if isinstance(said, Group)), None)
        assert group is not None, "it is nobody's"
        share = group.shares.get(commit.stream)
        assert share is not None, "a zombie commits to a stream that has gone"
        assert share.owner == commit.member, "a zombie commits"
        assert commit.generation >= share.since, "a commit of an earlier ownership"
        same = [c.offset for _, c in before if isinstance(c, Commit) and c.stream == commit.stream]
        assert not same or same[-1] <= commit.offset, "a position goes back"
        below = set(range(commit.offset))
        assert below <= self.handled[commit.stream], "records are passed over"

    def check_generation(self, group: Group) -> None:
        """At its append, in a task of the coordinator: `settle` tells."""
        before = [said for _, said in self.log[:-1] if isinstance(said, Group)]
        if before and not before[-1].is_deleted and before[-1].generation > group.generation:
            self.wrong = "a generation comes again"
        self.check_names(group)

    def check_names(self, group: Group) -> None:
        had_name: dict[str, str] = {}
        for _, said in self.log[:-1]:
            if isinstance(said, Group):
                had_name = {} if said.is_deleted else had_name
                had_name.update((each.instance, each.id) for each in said.members)
        for member in group.members:
            self.has_it_since.setdefault(member.id, self.moment)
            before = had_name.get(member.instance, member.id)
            since = self.has_it_since.get(before, 0)
            is_taken = member.instance and before != member.id
            if is_taken and self.died_at.get(member.id, since) < since:
                self.wrong = "the dead take a name from who came after them"

    def check_readers(self) -> None:
        """The processes of one instance name are one member: that they are not is a mistake, of
        which the earlier one hears with its next heartbeat. Who keeps a stream for a minute is in
        the middle of a record of it, and is handed out no other."""
        held = [
            (stream, worker.instance or worker.id)
            for worker in self.workers
            if self.now - worker.heard < SESSION_MS * 1000 and worker.keeps_since is None
            for stream in worker.held
        ]
        readers = set(held)
        assert len(readers) == len({stream for stream, _ in readers}), "two members read one stream"

    def check_removals(self) -> None:
        """A member that is heard stays, unless it keeps a stream for long."""
        for group in self.coordinator.groups():
            for worker in self.workers:
                is_heard = self.now - max(worker.arrived, self.led_since) < SESSION_MS * 1000
                is_replaced = worker.instance and any(
                    member.instance == worker.instance for member in group.members
                )
                if worker.generation and is_heard and not (worker.was_silent or is_replaced):
                    self.check_stays(group, worker)

    def check_stays(self, group: Group, worker: Worker) -> None:
        live = self.coordinator._groups[NAME]
        if group.has(worker.id) or (live.coming is not None and live.coming.has(worker.id)):
            return
        if self.was_replaced(worker):
            return
        kept = 0 if worker.keeps_since is None else self.now - worker.keeps_since
        assert kept >= RELEASE_SECONDS * 1_000_000 - 2_000_000, f"{worker.id} was removed"

    def was_replaced(self, worker: Worker) -> bool:
        """Another process has taken its name since it joined, and may have gone meanwhile."""
        was_member = False
        for _, said in self.log:
            if isinstance(said, Group):
                was_member |= said.has(worker.id)
                names = [member.instance for member in said.members]
                if was_member and not said.has(worker.id) and worker.instance:
                    return worker.instance in names
        return False

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
            (self.a_member_begins, 14),
            (self.a_heartbeat_comes_again, self.random.choice([1, 2, 12])),
            (self.a_member_is_stuck_or_not, 0.5),
            (self.a_write_is_not_waited_for, 0.5),
            (self.a_stream_appears, 0.3),
            (self.a_stream_is_deleted, 0.2),
            (self.the_group_is_deleted, 0.3),
            (self.time_passes, 2),
            (self.a_member_is_born, 2),
            (self.a_member_dies, 0.4),
            (self.a_member_freezes_or_wakes, 0.8),
            (self.lead, 0.4),
        ]
        steps_of = [rule for rule, _ in rules]
        weights = [weight for _, weight in rules]
        for step in self.random.choices(steps_of, weights, k=steps):
            self.moment += 1
            step()
            self.check_readers()
        self.a_member_is_born()
        self.finish(self.random.choice([None, *self.workers[1:]]))

    def finish(self, stuck: Worker | None) -> None:
        """Everybody lives, and nothing is lost any more. stuck: a member that stays so."""
        for worker in self.workers:
            worker.is_frozen, worker.is_stuck = False, worker is stuck
        self.lapse()
        instances = {worker.instance for worker in self.workers if worker.instance}
        self.calm = True
        end = self.now + 2 * RELEASE_SECONDS * 1_000_000
        while self.now < end and not self.all_done(stuck):
            self.pass_time(300_000)
            for worker in list(self.workers):
                self.work(worker)
        assert self.all_done(stuck), "not everything is handled and committed"
        for _ in range(5):
            self.pass_time(300_000)
            for worker in list(self.workers):
                self.work(worker)
        left = [worker.instance for worker in self.workers]
        moving = [worker.instance for worker in self.workers if worker is not stuck]
        for instance in sorted(instances):
            assert instance in left or instance in self.taken, "no process of the name goes on"
            assert moving.count(instance) <= 1, "two processes of one name go on"

    def work(self, worker: Worker) -> None:
        """Its heartbeat is answered, and it reads all that it may."""
        if worker.asking is None:
            self.ask(worker)
        self.high_watermark = len(self.log)
        self.commit_some()
        self.hear(worker)
        self.check_readers()
        if worker not in self.workers or worker.is_stuck:
            return
        self.adjust(worker)
        for _ in range(2 * len(worker.told)):
            self.begin(worker)
        for stream, place in list(worker.held.items()):
            if stream not in worker.held:
                break  # It has lost them all.
            self.handled[stream].update(range(place.position, self.ends[stream]))
            place.position = self.ends[stream]
            self.send(worker, stream)
            self.deliver(self.network.pop())

    def all_done(self, stuck: Worker | None) -> bool:
        """But for what the one that is stuck may read."""
        if all(worker is stuck for worker in self.workers):
            return True  # The others were fenced: processes that have died had their names.
        streams = [each for each in self.streams if stuck is None or each not in stuck.told]
        last = {said.stream: said.offset for _, said in self.log if isinstance(said, Commit)}
        return all(last.get(stream, 0) == self.ends[stream] for stream in streams)


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
