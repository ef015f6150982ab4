"""What a consumer delivers and keeps, against what it may and must: with failovers, late and
repeated acknowledgements, and states that were not stored. And mutants, each of which is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.config import UNLIMITED, AckPolicy, ConsumerConfig
from jetstream_server.consumers.deliveries import Deliveries, Open
from jetstream_server.consumers.kept import Kept
from jetstream_server.consumers.pulls import Pull, PullRoom, Pulls

SEEDS = range(60)
STEPS = 150


@dataclass
class Client:
    """What the clients of one consumer know."""

    delivered: dict[int, int] = field(default_factory=dict)
    """How often each offset came."""
    answered: set[int] = field(default_factory=set)
    """Acknowledged, and told so."""
    refused: dict[int, MonotonicUs] = field(default_factory=dict)
    """When each refused message must come again, at the latest when somebody pulls."""


class World:
    """One consumer, the leaders that it has had, and what is stored of it. Time is what it says."""

    def __init__(self, seed: int, kind: type[Deliveries], pulls: type[Pulls] = Pulls) -> None:
        self.random = Random(seed)
        policy = self.random.choice([AckPolicy.EXPLICIT, AckPolicy.EXPLICIT, AckPolicy.ALL])
        self.config = ConsumerConfig(
            name="c",
            ack_policy=policy,
            ack_wait_us=1000,
            max_ack_pending=self.random.choice([UNLIMITED, 1, 3, 8]),
            max_deliver=self.random.choice([UNLIMITED, UNLIMITED, 3]),
            backoff_us=self.random.choice([(), (500, 2000)]),
        )
        self.kind = kind
        self.end = 0
        self.now = MonotonicUs(1_000_000)
        self.client = Client()
        self.given_up: set[int] = set()
        self.start = 0
        """Where the stream begins: what is below was purged."""
        self.leader = kind(self.config, 0)
        self.old: Deliveries | None = None
        self.stored = Kept.of(self.leader)
        self.unstored: set[int] = set()
        """Acknowledged at the leader, and not stored yet: not answered either."""

    def step(self) -> None:
        name = self.random.choice(
            ["publish", "deliver", "deliver", "deliver", "ack", "ack", "nak", "wait", "store",
             "fail_over", "late", "progress", "unknown", "purge", "belated"]
        )  # fmt: skip
        getattr(self, name)()
        self.check()

    def check(self) -> None:
        leader, most = self.leader, self.config.max_ack_pending
        assert most == UNLIMITED or len(leader.open) <= most, "more are open than may be"
        assert list(leader.open) == sorted(leader.open)
        _, floor = leader.floor
        assert all(each >= floor for each in leader.open), "the floor passed an open message"
        for offset in range(leader.position):
            assert (
                offset in leader.open
                or offset in self.client.answered
                or offset in self.unstored
                or offset in self.given_up
                or offset < self.start
            ), f"{offset} was forgotten"

    def publish(self) -> None:
        self.end += self.random.randint(1, 4)

    def purge(self) -> None:
        self.start = self.random.randint(self.start, min(self.end, self.start + 6))

    def deliver(self) -> None:
        leader = self.leader
        leader.begins(self.start)
        assert all(each >= self.start for each in leader.open), "what was purged is still open"
        offset = leader.next_due(self.now)
        if offset is not None:
            given_up = leader.give_up(offset)
            if given_up is not None:
                assert given_up.times >= self.config.max_deliver
                self.given_up.add(offset)
                return
        elif leader.has_room and leader.position < self.end:
            offset = leader.position
        else:
            self.check_nothing_due()
            return
        assert self.start <= offset < self.end
        assert offset not in self.client.answered, f"{offset} came again after its answer"
        due = self.client.refused.pop(offset, MonotonicUs(0))
        assert due <= self.now, "a refused message came too early"
        times = leader.deliver(offset, self.now)
        assert times >= 1
        self.client.delivered[offset] = self.client.delivered.get(offset, 0) + 1

    def check_nothing_due(self) -> None:
        for offset, due in self.client.refused.items():
            assert due > self.now or offset not in self.leader.open, "a refusal was forgotten"

    def some(self) -> int | None:
        return self.random.choice(sorted(self.client.delivered)) if self.client.delivered else None

    def ack(self) -> None:
        """An acknowledgement that waits for its answer, which comes when it is stored."""
        offset = self.some()
        if offset is None or not self.leader.was_delivered(offset):
            return
        covered = [offset]
        if self.config.ack_policy is AckPolicy.ALL:
            covered = [each for each in self.leader.open if each <= offset] + covered
        self.leader.acknowledge(offset)
        for each in covered:
            assert each not in self.leader.open, "an acknowledgement was forgotten"
            self.client.refused.pop(each, None)
        self.unstored |= set(covered)

    def unknown(self) -> None:
        """An acknowledgement of what was never delivered has no effect, and no answer."""
        offset = self.leader.position + self.random.randint(0, 3)
        before = set(self.leader.open)
        assert not self.leader.was_delivered(offset)
        self.leader.acknowledge(offset)
        assert set(self.leader.open) == before
        assert self.leader.position <= offset

    def nak(self) -> None:
        offset = self.some()
        if offset is None or offset not in self.leader.open:
            return
        delay = self.random.choice([0, 0, 300, 5000])
        named = self.random.choice([0, self.leader.open[offset].count])
        assert self.leader.refuse(offset, delay, self.now, named)
        self.client.refused[offset] = MonotonicUs(self.now + delay)

    def progress(self) -> None:
        offset = self.some()
        if offset is not None and self.leader.extend(offset, self.now):
            wait = self.config.wait_us(self.leader.open[offset].count)
            assert self.leader.open[offset].due_us == self.now + wait
            self.client.refused.pop(offset, None)

    def belated(self) -> None:
        """What names an earlier delivery takes the message from nobody, and holds it for nobody."""
        offset = self.some()
        found = None if offset is None else self.leader.open.get(offset)
        if offset is None or found is None or found.count == 1:
            return
        due_us, named = found.due_us, self.random.randrange(1, found.count)
        assert not self.leader.refuse(offset, 0, self.now, named), "it was taken away"
        assert not self.leader.extend(offset, self.now, named), "it was held"
        assert found.due_us == due_us

    def wait(self) -> None:
        self.now = MonotonicUs(self.now + self.random.choice([1, 400, 1500]))

    def store(self) -> None:
        """The leader's state is committed: now it answers."""
        self.stored = Kept.of(self.leader)
        self.client.answered |= self.unstored
        self.unstored = set()

    def fail_over(self) -> None:
        """Another node leads: it knows what is stored (test_consumer_failovers.py)."""
        self.old = self.leader
        self.leader = self.kind(self.config, 0)
        self.stored.into(self.leader, self.now)
        opened = self.leader.open
        assert self.leader.next_due(self.now) == min(opened, default=None), "it waits"
        self.unstored = set()
        self.client.refused.clear()
        self.given_up |= {
            each
            for each in range(self.leader.position)
            if each not in self.leader.open and each not in self.client.answered
        } & self.given_up

    def late(self) -> None:
        """An acknowledgement that reaches the leader before."""
        offset = self.some()
        if self.old is not None and offset is not None:
            self.old.acknowledge(offset)


def found_by(scenario: Callable[[int], None]) -> bool:
    """Whether one of the seeds finds a fault."""
    for seed in SEEDS:
        try:
            scenario(seed)
        except AssertionError:
            return True
    return False


def run(seed: int, kind: type[Deliveries] = Deliveries) -> None:
    world = World(seed, kind)
    for _ in range(STEPS):
        world.step()
    # In the end everything comes: nothing was forgotten.
    for _ in range(10_000):
        if world.leader.position >= world.end and not world.leader.open:
            break
        world.wait()
        world.deliver()
        for offset in list(world.leader.open):
            world.leader.acknowledge(offset)
            world.unstored.add(offset)
    assert world.leader.position >= world.end
    lost = set(range(world.start, world.end)) - set(world.client.delivered)
    assert not lost, f"{lost} never came"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_acknowledged_stays_and_nothing_else_is_lost(seed: int) -> None:
    run(seed)


class AcknowledgesWhatWasNotDelivered(Deliveries):
    def acknowledge(self, offset: int) -> bool:
        self.position = max(self.position, offset + 1)
        return super().acknowledge(offset)


class ForgetsARefusal(Deliveries):
    def refuse(self, offset: int, delay_us: int, now_us: MonotonicUs, delivery: int = 0) -> bool:
        return self._at(offset, delivery) is not None


class FloorPassesAnOpenMessage(Deliveries):
    @property
    def floor(self) -> tuple[int, int]:
        return self.sequence, self.last_offset + 1


class DeliversBeyondTheBound(Deliveries):
    @property
    def has_room(self) -> bool:
        return True


class ForgetsWhatIsOpen(Deliveries):
    def restore(self, opened: object, now_us: MonotonicUs) -> None:
        pass


class KeepsWhatIsDone(Deliveries):
    def acknowledge(self, offset: int) -> bool:
        return offset in self.open


class ExtendsNothing(Deliveries):
    def extend(self, offset: int, now_us: MonotonicUs, delivery: int = 0) -> bool:
        return self._at(offset, delivery) is not None


class IgnoresTheDelay(Deliveries):
    def refuse(self, offset: int, delay_us: int, now_us: MonotonicUs, delivery: int = 0) -> bool:
        return super().refuse(offset, 0, now_us, delivery)


class KeepsWhatWasPurged(Deliveries):
    def begins(self, offset: int) -> None:
        self.position = max(self.position, offset)


class PurgesOneMore(Deliveries):
    def begins(self, offset: int) -> None:
        super().begins(offset + (offset > 0))


class WaitsAfterAFailover(Deliveries):
    def restore(self, opened: Iterable[tuple[int, int, int]], now_us: MonotonicUs) -> None:
        super().restore(opened, MonotonicUs(now_us + self.config.ack_wait_us))


class NeverGivesAgain(Deliveries):
    def next_due(self, now_us: MonotonicUs) -> int | None:
        return None


class TakesARefusalOfAnOldDelivery(Deliveries):
    def _at(self, offset: int, delivery: int) -> Open | None:
        return self.open.get(offset)


class AcknowledgesAllBefore(Deliveries):
    def acknowledge(self, offset: int) -> bool:
        for each in [each for each in self.open if each <= offset]:
            self._done(each)
        return True


MUTANTS = (
    AcknowledgesWhatWasNotDelivered, ForgetsARefusal, FloorPassesAnOpenMessage,
    DeliversBeyondTheBound, ForgetsWhatIsOpen, KeepsWhatIsDone, ExtendsNothing, IgnoresTheDelay,
    NeverGivesAgain, AcknowledgesAllBefore, KeepsWhatWasPurged, PurgesOneMore,
    WaitsAfterAFailover, TakesARefusalOfAnOldDelivery,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_found(mutant: type[Deliveries]) -> None:
    assert found_by(lambda seed: run(seed, mutant))


# Pulls.


def pulls_scenario(seed: int, kind: type[Pulls]) -> None:
    random = Random(seed)
    room = PullRoom(5)
    pulls, config = kind(room), ConsumerConfig(name="c", max_waiting=random.choice([5, 100]))
    now = MonotonicUs(1000)
    asked: dict[bytes, int] = {}
    got: dict[bytes, int] = {}
    ended: set[bytes] = set()
    heard: set[bytes] = set()
    for number in range(80):
        now = MonotonicUs(now + random.choice([0, 10, 50]))
        action = random.choice(["pull", "serve", "serve", "serve", "expire", "leave"])
        if action == "pull":
            reply = b"inbox.%d" % number
            expires = random.choice([None, MonotonicUs(now + 40)])
            pull = Pull(reply, random.randint(1, 3), random.choice([0, 0, 25]), expires)
            pull.is_heard = True
            waiting = len(pulls)
            refused = pulls.add(pull, config, now)
            assert (refused is not None) == (waiting >= 5)
            if refused is None:
                asked[reply] = pull.left
                heard.add(reply)
        elif action == "serve":
            pulls.unheard(heard.__contains__)
            for status in pulls.expired(now):
                assert status.to not in ended
                ended.add(status.to)
            for status in pulls.fits(10):
                ended.add(status.to)
            first = pulls.first()
            if first is None:
                continue
            assert first.reply not in ended, "a pull that has ended was served"
            assert first.reply in heard, "a pull of a dead inbox was served"
            assert first.expires_us is None or first.expires_us > now
            got[first.reply] = got.get(first.reply, 0) + 1
            assert got[first.reply] <= asked[first.reply], "a pull got more than it asked for"
            done = pulls.served(10, now)
            if done is not None:
                ended.add(done.to)
        elif action == "expire":
            for status in pulls.expired(now):
                assert status.to not in ended
                ended.add(status.to)
        elif heard:
            heard.discard(random.choice(sorted(heard)))
        assert len({pull.reply for pull in pulls}) == len(pulls)
        assert room.taken == len(pulls)


@pytest.mark.parametrize("seed", range(30))
def test_pulls_get_what_they_asked_for_and_end_once(seed: int) -> None:
    pulls_scenario(seed, Pulls)


class ServesADeadInbox(Pulls):
    def unheard(self, is_heard: object) -> None:
        pass


class ServesAPullTwice(Pulls):
    def served(self, size: int, now_us: MonotonicUs) -> None:
        pull = self._waiting[0]
        super().served(size, now_us)
        pull.left += 1
        if pull not in self._waiting:
            self._waiting.append(pull)


class NeverExpires(Pulls):
    def expired(self, now_us: MonotonicUs) -> list[object]:  # type: ignore[override]
        return []


@pytest.mark.parametrize("mutant", [ServesADeadInbox, ServesAPullTwice, NeverExpires])
def test_each_mutant_of_pulls_is_found(mutant: type[Pulls]) -> None:
    assert found_by(lambda seed: pulls_scenario(seed, mutant))


def test_a_kept_state_survives_its_encoding() -> None:
    config = ConsumerConfig(
        name="c", is_durable=True, filters=("a.*", "b.>"), backoff_us=(5, 10), deliver_subject=b"x",
        metadata=(("k", "v"),), max_ack_pending=20,
    )  # fmt: skip
    before = Deliveries(config, 7)
    now = MonotonicUs(50)
    for offset in (7, 9, 12, 13):
        before.deliver(offset, now)
    before.acknowledge(9)
    before.deliver(7, now)
    kept = Kept.decode(Kept.of(before, selected=(20, 30), rest=40, epoch=4, created_us=99).encode())
    assert kept.config == config
    assert (kept.epoch, kept.created_us, kept.selected, kept.rest) == (4, 99, (20, 30), 40)
    after = Deliveries(config, 0)
    kept.into(after, now)
    assert list(after.open) == [7, 12, 13]
    assert after.open[7].count == 2
    assert (after.position, after.sequence, after.floor) == (14, 5, before.floor)
    assert after.redelivered == 1
    assert isinstance(after.open[12], Open)
