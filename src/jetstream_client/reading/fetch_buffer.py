"""What a consumer has fetched and not handed out, and what of its records is done.

Pure: the caller fetches, waits and commits. Only this knows which record comes next: iteration,
batches, `pause` and `seek` all take from it, so none of them passes over what another has left.

* A record is handed out by noting it in `Fetched.taken`, just before it is returned. A call that is
  cancelled or interrupted while it waits has noted nothing, and the next one returns the same.
* What was handed out last may fail. It is done once the consumer is asked for more (`asks`); all
  before it is done. So "done" follows from what was taken, and nothing is kept per record.
* A seek begins a new `Course`. Whoever is in the middle of the one before, perhaps in another
  thread, changes only that one.

The thread that reads may be another than the one that fetches. It changes only `front`, and `taken`
and `size` of what it reads. There is no lock: a signal handler may come between any two steps.
"""

from __future__ import annotations

from jetstream_client.reading.messages import Message, Messages


class Fetched:
    """One fetch. start: the offset at which it began, and the leader epoch of the record before.

    taken: how many of its records were handed out; it only grows. size: how many of them the last
    time. was_passed: what is after its last record was handed out, too.
    """

    __slots__ = ("_rows", "messages", "size", "start", "taken", "was_passed")

    def __init__(
        self, messages: Messages, start: tuple[int, int], *, was_passed: bool = False
    ) -> None:
        self.messages = messages
        self.start = start
        self.taken = 0
        self.size = 0
        self.was_passed = was_passed
        self._rows: tuple[int, list[Message]] = (0, [])  # of one chunk, from that row on

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left. One without records is left until it is passed."""
        return self.was_passed or 0 < len(self.messages) <= self.taken

    def record(self) -> Message | None:
        """The next record. It is handed out once `taken` has grown by one. None: none is left."""
        first, rows = self._rows
        at = self.taken - first
        if at >= len(rows):
            if self.taken >= len(self.messages):
                return None
            first, rows = self._rows = self.messages.rows_of_chunk(self.taken)
            at = self.taken - first
        return rows[at]

    def rest(self, *, newest_first: bool) -> Messages:
        """What is left."""
        if not self.taken:
            return self.messages
        _, rest = self.messages.split(self.taken, newest_first=newest_first)
        assert rest is not None, "something is left"
        return rest

    def takes(self, count: int) -> None:
        """The next `count` records are handed out together; with the last of them, what is after
        it."""
        self.size = count
        self.taken += count
        self.was_passed = self.taken >= len(self.messages)

    def end(self) -> tuple[int, int]:
        """The offset after what was handed out, and the leader epoch of the record before it."""
        if self.is_over:
            return self.messages.next_offset, self.messages.last_epoch
        if not self.taken:
            return self.start
        chunk, at = self.messages.place_of(self.taken - 1)
        return chunk.offset_of(at) + 1, chunk.batch.header.leader_epoch

    def offset_of(self, row: int) -> int:
        chunk, at = self.messages.place_of(row)
        return chunk.offset_of(at)

    def epoch_before(self, offset: int) -> int:
        """Leader epoch of the record before `offset`; -1: this fetch does not tell."""
        for known, epoch in (self.start, (self.messages.next_offset, self.messages.last_epoch)):
            if known == offset:
                return epoch
        for chunk in self.messages.chunks:
            header = chunk.batch.header
            if header.base_offset < offset <= header.next_offset:
                return header.leader_epoch
        return -1


def _nothing_at(offset: int, last_epoch: int) -> Fetched:
    """Nothing was fetched yet there. last_epoch: of the record before."""
    messages = Messages("", (), next_offset=offset, last_epoch=last_epoch)
    return Fetched(messages, (offset, last_epoch), was_passed=True)


class Course:
    """The way from one offset on, until a seek. next_offset, last_epoch: of the next fetch."""

    __slots__ = ("_waiting", "current", "floor", "last_epoch", "next_offset", "reverse", "went_to")

    def __init__(self, offset: int, last_epoch: int, *, reverse: bool) -> None:
        self.reverse = reverse
        self.next_offset = offset
        self.last_epoch = last_epoch
        self.floor = (offset, last_epoch)
        """All below is done; and the leader epoch of the record before it."""
        self.went_to = offset
        """Where the fetches before `current` ended for the caller."""
        self.current = _nothing_at(offset, last_epoch)
        self._waiting: list[Fetched] = []

    def add(self, messages: Messages) -> None:
        """Add the answer to the fetch at `next_offset`."""
        self._waiting.append(Fetched(messages, (self.next_offset, self.last_epoch)))
        self.next_offset, self.last_epoch = messages.next_offset, messages.last_epoch

    def advance(self) -> bool:
        """Go on to the next fetch if nothing is left of `current`. False: nothing is left of any.
        Call it only if all that was handed out is done."""
        if not self.current.is_over:
            return True
        self.went_to = self.position
        if self._waiting:
            self.current = self._waiting.pop(0)
        elif len(self.current.messages):
            self.current = _nothing_at(*self.current.end())  # Its records are not needed any more.
        return not self.current.is_over

    @property
    def length_bytes(self) -> int:
        """What its fetches take in memory."""
        return sum(each.messages.length_bytes for each in (self.current, *self._waiting))

    @property
    def position(self) -> int:
        """The offset after the last record that was handed out; in reverse, its own."""
        current = self.current
        taken = current.taken
        if not taken:
            return self.went_to
        if current.was_passed:
            return current.messages.next_offset
        return current.offset_of(taken - 1) + (0 if self.reverse else 1)

    def mark_handed_out_done(self) -> None:
        """All that was handed out is done. Call it when the program asks for more."""
        if not self.reverse:
            self.floor = max(self.floor, self.current.end())

    def mark_done_below(self, offset: int) -> None:
        """All records below `offset` are done, as the program says."""
        self.floor = max(self.floor, (offset, self.epoch_before(offset)))

    def done(self) -> tuple[int, int]:
        """Everything below is done; and the leader epoch of the record before it, -1: not known.

        The record that is being handled is the first that is not: what lies before it holds no
        record that is wanted.
        """
        current, floor = self.current, self.floor
        taken, size = current.taken, current.size
        if not 0 < size <= taken:
            return floor
        offset = current.offset_of(taken - size)
        return max(floor, (offset, current.epoch_before(offset)))

    def epoch_before(self, offset: int) -> int:
        """Leader epoch of the record before `offset`; -1: not known."""
        known, epoch = self.floor
        return epoch if offset == known else self.current.epoch_before(offset)


NOTHING = _nothing_at(0, -1)


class FetchBuffer:
    """Of one consumer. reverse: newest first.

    front: where the thread that reads record by record takes the next one, without asking anybody.
    It is empty while the consumer is paused, and once that has ended.
    """

    __slots__ = ("course", "front", "has_ended", "is_paused", "reverse")

    def __init__(self, *, reverse: bool = False) -> None:
        self.reverse = reverse
        self.course = Course(0, -1, reverse=reverse)
        self.front = NOTHING
        self.is_paused = False
        self.has_ended = False

    def go_to(self, offset: int, last_epoch: int = -1) -> None:
        """At the start, and when it is sent elsewhere: what was fetched and not handed out is
        forgotten. last_epoch: of the record before; -1: not known."""
        self.course = Course(offset, last_epoch, reverse=self.reverse)
        self.front = NOTHING

    def pause(self) -> None:
        """Hand out nothing until `resume`; keep what was fetched."""
        self.is_paused = True
        self.front = NOTHING

    def resume(self) -> None:
        self.is_paused = False

    def end(self) -> None:
        """Hand out nothing any more: the consumer is closed or has failed."""
        self.has_ended = True
        self.front = NOTHING

    def mark_handed_out_done(self) -> None:
        """As that of `Course`. The next to be handed out may be records or a batch."""
        self.front = NOTHING
        self.course.mark_handed_out_done()

    def begin_rows(self) -> None:
        """Hand out record by record from now on, beginning with what is left of the fetch. A fetch
        without records is passed."""
        course = self.course
        current = course.current
        if not len(current.messages):
            current.was_passed = True
        elif not current.is_over:
            current.size = 1
            self.front = current
        # Another thread may have changed this in between; it has not seen the new `front`.
        if course is not self.course or self.is_paused or self.has_ended:
            self.front = NOTHING

    def batch(self, max_records: int | None) -> tuple[Fetched, Messages] | None:
        """The next records together, at most so many, and the fetch that is to note them: see
        `Fetched.takes`. None: nothing is at hand."""
        current = self.course.current
        if current.is_over or self.is_paused or self.has_ended:
            return None
        messages = current.rest(newest_first=self.reverse)
        if max_records is not None:
            messages, _ = messages.split(max_records, newest_first=self.reverse)
        return current, messages
