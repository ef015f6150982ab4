"""The schedule of `client.process`: any order of starts, failures and ends, streams that go and
come back. Nothing is passed over; the records of a key are handled one at a time, in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jetstream_client.processing.schedule import Reading, Schedule, State, Work

CONCURRENCY = 3
RECORDS_MAX = 8
BYTES_MAX = 40
STREAMS = (1, 2)
KEYS = (None, b"", b"a", b"b")


class Processing(RuleBasedStateMachine):
    """One worker. `committed` is what another one would begin with if this one died now."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule(CONCURRENCY, RECORDS_MAX, BYTES_MAX)
        self.logs: dict[int, list[tuple[int, int, bytes | None]]] = {each: [] for each in STREAMS}
        self.log_ends = dict.fromkeys(STREAMS, 0)
        self.read_to = dict.fromkeys(STREAMS, 0)
        self.committed = dict.fromkeys(STREAMS, 0)
        self.handled: dict[int, set[int]] = {each: set() for each in STREAMS}
        self.running: list[Work] = []
        self.resting: list[Work] = []
        self.last_started: dict[tuple[int, bytes], Work] = {}

    @rule(
        stream=st.sampled_from(STREAMS),
        records=st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 2]), st.sampled_from([0, 0, 1]), st.sampled_from(KEYS)
            ),
            min_size=1,
            max_size=6,
        ),
        size=st.sampled_from([1, 5, 100]),
    )
    def publish_and_read(
        self, stream: int, records: list[tuple[int, int, bytes | None]], size: int
    ) -> None:
        """Records of (gap before it, by how much the epoch grows, key)."""
        log = self.logs[stream]
        for gap, grows, key in records:
            epoch = grows + (log[-1][1] if log else 0)
            log.append((self.log_ends[stream] + gap, epoch, key))
            self.log_ends[stream] += gap + 1
        self.read(stream, size, len(records))

    @rule(stream=st.sampled_from(STREAMS), size=st.sampled_from([1, 5]), most=st.integers(1, 9))
    def read(self, stream: int, size: int, most: int) -> None:
        if not self.schedule.has(stream):
            self.schedule.begin(stream, self.committed[stream])
            self.read_to[stream] = self.committed[stream]
        for offset, epoch, key in self.logs[stream]:
            if offset < self.read_to[stream]:
                continue
            if most == 0 or not self.schedule.has_room:
                return
            self.schedule.add(stream, offset, epoch, key, size, (offset, key))
            self.read_to[stream] = offset + 1
            most -= 1
        self.schedule.passed(stream, self.log_ends[stream], -1)

    @rule(most=st.integers(1, 4))
    def start(self, most: int) -> None:
        for _ in range(most):
            work = self.schedule.start()
            if work is None:
                return
            stream, key = work.reading.stream, work.key
            assert not work.is_dropped
            assert not work.reading.is_held
            if key is not None:
                others = [(each.reading.stream, each.key) for each in self.running]
                assert (stream, key) not in others, "two of one key at a time"
                last = self.last_started.get((stream, key))
                if last is not None and last.reading is work.reading and last is not work:
                    assert last.state is State.ENDED, "the one before has not ended"
                    assert last.offset < work.offset
                self.last_started[stream, key] = work
            self.running.append(work)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.running))
        self.running.remove(work)
        if not work.is_dropped:
            self.handled[work.reading.stream].add(work.offset)
        self.schedule.end(work)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.running))
        self.running.remove(work)
        self.schedule.rest(work)
        self.resting.append(work)

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.resting))
        self.resting.remove(work)
        self.schedule.again(work)

    @rule(stream=st.sampled_from(STREAMS))
    def commit(self, stream: int) -> None:
        if self.schedule.has(stream):
            self.committed[stream] = self.schedule.checkpoint(stream)[0]

    @rule(stream=st.sampled_from(STREAMS), committing=st.booleans())
    def lose(self, stream: int, committing: bool) -> None:
        """To another reader, which brings it back where it was committed."""
        if self.schedule.has(stream):
            self.schedule.hold(stream)
            if committing:
                self.commit(stream)
            self.schedule.drop(stream)

    def teardown(self) -> None:
        """Whatever has happened, everything that was read can be handled to the end."""
        for work in self.resting:
            self.schedule.again(work)
        self.resting.clear()
        while self.running or self.start_one():
            work = self.running.pop()
            if not work.is_dropped:
                self.handled[work.reading.stream].add(work.offset)
            self.schedule.end(work)
        assert (self.schedule.records, self.schedule.bytes, self.schedule.running) == (0, 0, 0)

    def start_one(self) -> bool:
        self.start(1)
        return bool(self.running)

    @invariant()
    def nothing_is_passed_over(self) -> None:
        for stream in STREAMS:
            offset, epoch = self.committed[stream], -1
            if self.schedule.has(stream):
                offset, epoch = self.schedule.checkpoint(stream)
                assert offset >= self.committed[stream], "it goes back"
            below = {each for each, _, _ in self.logs[stream] if each < offset}
            assert below <= self.handled[stream]
            before = [found for each, found, _ in self.logs[stream] if each == offset - 1]
            assert epoch < 0 or before == [epoch]

    @invariant()
    def it_keeps_within_bounds(self) -> None:
        schedule = self.schedule
        assert schedule.records <= RECORDS_MAX
        assert schedule.bytes < BYTES_MAX + 100
        assert schedule.running == len(self.running) <= CONCURRENCY
        for stream in schedule.streams():
            busy = [each for each in self.running if each.reading.stream == stream]
            assert schedule.is_busy([stream]) == any(not each.is_dropped for each in busy)


TestProcessing = Processing.TestCase
TestProcessing.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def started(schedule: Schedule) -> Work:
    work = schedule.start()
    assert work is not None
    return work


def test_a_record_that_is_to_be_tried_again_keeps_its_key() -> None:
    schedule = Schedule(CONCURRENCY, RECORDS_MAX, BYTES_MAX)
    schedule.begin(1, 0)
    for offset in range(2):
        schedule.add(1, offset, 0, b"a", 1, None)
    first = started(schedule)
    schedule.rest(first)
    assert schedule.start() is None
    schedule.again(first)
    assert started(schedule) is first
    schedule.end(first)
    assert started(schedule).offset == 1


def test_a_stream_that_comes_back_waits_for_the_key_that_is_still_being_handled() -> None:
    schedule = Schedule(CONCURRENCY, RECORDS_MAX, BYTES_MAX)
    schedule.begin(1, 0)
    schedule.add(1, 0, 0, b"a", 1, None)
    before = started(schedule)
    schedule.hold(1)
    schedule.drop(1)
    assert before.is_dropped
    schedule.begin(1, 0)
    schedule.add(1, 0, 0, b"a", 1, None)
    assert schedule.start() is None
    schedule.end(before)
    assert schedule.checkpoint(1)[0] == 0
    after = started(schedule)
    assert (after.offset, after.is_dropped) == (0, False)


def a_checkpoint_passes_what_rests(patch: pytest.MonkeyPatch) -> None:
    def advance(self: Schedule, reading: Reading) -> None:
        while reading.works and reading.works[0].state in (State.ENDED, State.RESTING):
            self._forget(reading.works.popleft())

    patch.setattr(Schedule, "_advance", advance)


def what_is_held_starts_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Schedule, "hold", lambda self, stream: None)
    drop = Schedule.drop

    def forget(self: Schedule, stream: int) -> None:
        reading = self._readings[stream]
        drop(self, stream)
        reading.is_held = False

    patch.setattr(Schedule, "drop", forget)


def there_is_always_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Schedule, "has_room", True)


def an_epoch_is_said_across_a_gap(patch: pytest.MonkeyPatch) -> None:
    def checkpoint(self: Schedule, stream: int) -> tuple[int, int]:
        reading = self._readings[stream]
        first = reading.works[0].offset if reading.works else reading.next[0]
        return first, reading.works[0].epoch if reading.works else reading.next[1]

    patch.setattr(Schedule, "checkpoint", checkpoint)


MUTANTS = [
    a_checkpoint_passes_what_rests,
    what_is_held_starts_all_the_same,
    there_is_always_room,
    an_epoch_is_said_across_a_gap,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_dies(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Processing,
            settings=settings(
                max_examples=500,
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
