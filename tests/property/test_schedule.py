"""The schedule of `client.process`: any order of starts, failures and ends, streams that go and
come back. Nothing is passed over; the records of a key are handled one at a time, in order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetstream_client.processing.schedule import Schedule, State, Work

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
        gap=st.sampled_from([0, 0, 0, 2]),
        epoch=st.sampled_from([0, 0, 1]),
        key=st.sampled_from(KEYS),
    )
    def publish(self, stream: int, gap: int, epoch: int, key: bytes | None) -> None:
        log = self.logs[stream]
        epoch += log[-1][1] if log else 0
        log.append((self.log_ends[stream] + gap, epoch, key))
        self.log_ends[stream] += gap + 1

    @rule(
        stream=st.sampled_from(STREAMS), size=st.sampled_from([1, 5, 100]), most=st.integers(1, 9)
    )
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

    @rule()
    def finish(self) -> None:
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
TestProcessing.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
