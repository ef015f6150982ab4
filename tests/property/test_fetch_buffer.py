"""What a consumer hands out: any order of fetches, interrupts, seeks, pauses, records and batches.
Each record is handed out, none is passed over, and only what was handed out counts as done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jetstream_client.reading.fetch_buffer import Course, FetchBuffer, Fetched
from jetstream_client.reading.messages import MessageCollector, Messages
from jetstream_protocol.batch import encode
from jetstream_protocol.types import WallUs
from tests.support.examples import scaled


class HandingOut(RuleBasedStateMachine):
    """One consumer. Between batches of its log there are records that it does not want."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = FetchBuffer()
        self.log: list[tuple[int, bytes]] = []  # offset of each wanted record, and its batch
        self.epochs: list[int] = []  # of all records
        self.fetching: tuple[Course, int, int] | None = None
        self.begin_at(0)

    def begin_at(self, offset: int) -> None:
        self.began = offset
        self.handed: list[int] = []
        self.last: list[int] = []  # handed out together, and perhaps not done
        self.least_done = offset

    # The log.

    @rule(count=st.integers(1, 4), gap=st.sampled_from([0, 0, 0, 3]), grows=st.sampled_from([0, 1]))
    def publish(self, count: int, gap: int, grows: int) -> None:
        epoch = self.epochs[-1] if self.epochs else 0
        self.epochs += [epoch + grows] * gap
        epoch += 2 * grows
        first = len(self.epochs)
        self.epochs += [epoch] * count
        batch = encode([b""] * count, b"s")
        batch.stamp(first, epoch, WallUs(0))
        self.log += [(offset, batch.to_bytes()) for offset in range(first, first + count)]

    # Fetching.

    @precondition(lambda self: self.fetching is None)
    @rule()
    def begin_fetch(self) -> None:
        course = self.buffer.course
        self.fetching = (course, course.next_offset, course.last_epoch)

    @precondition(lambda self: self.fetching is not None)
    @rule(most=st.integers(1, 6), passes=st.booleans())
    def fetch_comes(self, most: int, passes: bool) -> None:
        """passes: it goes on after its last record, where there is none that is wanted."""
        assert self.fetching is not None
        course, offset, epoch = self.fetching
        self.fetching = None
        collector = MessageCollector("s", offset, last_epoch=epoch, count_max=most)
        for data in dict.fromkeys(batch for at, batch in self.log if at >= offset):
            collector.add(data)
        if passes and self.epochs:
            collector.skip_to(len(self.epochs), self.epochs[-1])
        if course is self.buffer.course:
            course.add(collector.messages())

    @rule(count=st.integers(2, 6), gap=st.sampled_from([0, 3]), grows=st.sampled_from([0, 1]))
    def publish_and_fetch(self, count: int, gap: int, grows: int) -> None:
        self.publish(count, gap, grows)
        self.publish(count, gap, grows)
        if self.fetching is None:
            self.begin_fetch()
        self.fetch_comes(1000, passes=False)

    @rule()
    def fetch_is_interrupted(self) -> None:
        self.fetching = None

    # Handing out.

    def asks(self) -> None:
        self.buffer.mark_handed_out_done()
        self.last = []

    @rule(is_interrupted=st.booleans())
    def take_record(self, is_interrupted: bool) -> None:
        front = self.buffer.front
        if front.record() is None:
            self.asks()
            if not self.buffer.course.advance():
                return
            self.buffer.begin_rows()
            front = self.buffer.front
        message = front.record()
        if message is None or is_interrupted:
            return
        front.taken += 1
        self.hands_out([message.offset])

    @rule(most=st.sampled_from([None, 1, 2, 5]), is_interrupted=st.booleans())
    def take_batch(self, most: int | None, is_interrupted: bool) -> None:
        self.asks()
        if not self.buffer.course.advance():
            return
        found = self.buffer.batch(most)
        if found is None or is_interrupted:
            return
        fetched, messages = found
        fetched.takes(len(messages))
        self.hands_out(messages.offsets())

    def hands_out(self, offsets: list[int]) -> None:
        assert not self.buffer.is_paused
        self.handed += offsets
        self.last = offsets
        wanted = [offset for offset, _ in self.log if offset >= self.began]
        assert self.handed == wanted[: len(self.handed)], "a record was passed over, or repeated"
        if offsets:
            assert offsets[-1] < self.buffer.course.position

    @rule()
    def the_block_ends_well(self) -> None:
        self.asks()

    # Elsewhere.

    @rule()
    def pause(self) -> None:
        self.buffer.pause()

    @rule()
    def resume(self) -> None:
        self.buffer.resume()

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.epochs)))
        self.buffer.go_to(offset)
        self.begin_at(offset)

    @precondition(lambda self: self.handed)
    @rule()
    def commit(self) -> None:
        """All that was handed out, by hand."""
        self.buffer.course.mark_done_below(self.buffer.course.position)
        self.last = []

    # What must hold.

    @invariant()
    def only_what_was_handed_out_is_done(self) -> None:
        done, epoch = self.buffer.course.done()
        assert done >= self.least_done, "it goes back"
        self.least_done = done
        handled = self.handed[: len(self.handed) - len(self.last)]
        below = [offset for offset, _ in self.log if self.began <= offset < done]
        assert below == handled, "what is done is not what was handled"
        assert epoch < 0 or self.epochs[done - 1] == epoch

    @invariant()
    def nothing_is_at_hand_while_it_is_paused(self) -> None:
        if self.buffer.is_paused:
            assert self.buffer.front.record() is None
            assert self.buffer.batch(None) is None


TestHandingOut = HandingOut.TestCase
TestHandingOut.settings = settings(
    max_examples=scaled(150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def a_batch_begins_where_the_fetch_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fetched, "rest", lambda self, *, newest_first: self.messages)


def a_batch_begins_after_the_fetch(patch: pytest.MonkeyPatch) -> None:
    """As batches once left out what iteration had left."""
    takes = FetchBuffer.mark_handed_out_done

    def asks(self: FetchBuffer) -> None:
        takes(self)
        if self.course.current.taken:
            self.course.current.was_passed = True

    patch.setattr(FetchBuffer, "mark_handed_out_done", asks)


def what_was_handed_out_last_is_done(patch: pytest.MonkeyPatch) -> None:
    def done(self: Course) -> tuple[int, int]:
        return max(self.floor, self.current.end())

    patch.setattr(Course, "done", done)


def a_seek_keeps_what_was_fetched(patch: pytest.MonkeyPatch) -> None:
    go_to = FetchBuffer.go_to

    def keeping(self: FetchBuffer, offset: int, last_epoch: int = -1) -> None:
        before = self.course
        go_to(self, offset, last_epoch)
        self.course.current = before.current

    patch.setattr(FetchBuffer, "go_to", keeping)


def a_pause_leaves_what_is_at_hand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetchBuffer, "pause", lambda self: setattr(self, "is_paused", True))


def an_epoch_is_said_across_a_gap(patch: pytest.MonkeyPatch) -> None:
    def epoch_before(self: Fetched, offset: int) -> int:
        found = -1
        for chunk in self.messages.chunks:
            if chunk.batch.header.base_offset < offset:
                found = chunk.batch.header.leader_epoch
        return found

    patch.setattr(Fetched, "epoch_before", epoch_before)


MUTANTS = [
    a_batch_begins_where_the_fetch_does,
    a_batch_begins_after_the_fetch,
    what_was_handed_out_last_is_done,
    a_seek_keeps_what_was_fetched,
    a_pause_leaves_what_is_at_hand,
    an_epoch_is_said_across_a_gap,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_dies(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    @seed(0 if mutant is a_pause_leaves_what_is_at_hand else 7)  # By which it soon dies.
    class Mutated(HandingOut):
        pass

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Mutated,
            settings=settings(
                TestHandingOut.settings,
                max_examples=4000,
                database=None,
                phases=[Phase.generate],
            ),
        )


def fetched(*batches: tuple[int, int, int], next_offset: int = 0) -> Messages:
    """batches: number of records, first offset and leader epoch of each."""
    collector = MessageCollector("s", batches[0][1])
    for count, base_offset, epoch in batches:
        batch = encode([b""] * count, b"s")
        batch.stamp(base_offset, epoch, WallUs(0))
        collector.add(batch.to_bytes())
    collector.skip_to(next_offset, 9)
    return collector.messages()


def test_what_a_fetch_passed_over_is_done_with_it() -> None:
    course = Course(0, -1, reverse=False)
    course.add(fetched((2, 0, 1), next_offset=100))
    assert course.advance()
    course.current.takes(2)
    assert course.done() == (0, -1)
    course.mark_handed_out_done()
    assert course.done() == (100, 9)


def test_the_epoch_is_that_of_the_record_before() -> None:
    course = Course(5, 3, reverse=False)
    course.add(fetched((2, 5, 4), (3, 7, 6)))
    course.advance()
    assert [course.epoch_before(offset) for offset in (5, 6, 7, 8, 10)] == [3, 4, 4, 6, 6]
    assert course.epoch_before(11) == -1
