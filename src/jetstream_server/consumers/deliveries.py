"""What one consumer has delivered, what of it is open, and what is delivered next. Pure.

    first deliveries, in order of offsets ──> open ──(acknowledged, terminated)──> done
                                               │ ▲
                                (due: not acknowledged in time, or refused)

A message is *open* from its delivery on until it is done. Whether it is delivered again follows
from the state alone: an open message is due once `due_us` has come.

Invariants.
* **safety** What is done is never delivered again. A message is done only if it was acknowledged
  while it was open, or was delivered `max_deliver` times, or needs no acknowledgement, or has left
  the stream.
* Offsets below `position` that are not open are done. So `position` and `open` are all that has to
  be kept of a consumer.
* At most `config.open_max` messages are open.
* The consumer sequence grows by one with every delivery.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.config import UNLIMITED, AckPolicy, ConsumerConfig

_NOW: Final = MonotonicUs(0)
_STALE_MAX: Final = 1000
_ANY: Final = 2**62


class Open:
    """An open message. sequence: the consumer sequence of its first delivery. count: deliveries.
    due_us: when it is delivered again. since_us: of its first delivery by this leader."""

    __slots__ = ("count", "due_us", "sequence", "since_us")

    def __init__(self, sequence: int, count: int, due_us: MonotonicUs) -> None:
        self.sequence = sequence
        self.count = count
        self.due_us = due_us
        self.since_us = due_us


class GivenUp(NamedTuple):
    """A message that was delivered as often as allowed."""

    offset: int
    sequence: int
    times: int


class Deliveries:
    """See the module."""

    def __init__(self, config: ConsumerConfig, position: int) -> None:
        """position: the first offset to deliver."""
        self.config = config
        self.position = position
        self.sequence = 0
        """The last consumer sequence."""
        self.last_offset = position - 1
        """Of the latest first delivery."""
        self.open: dict[int, Open] = {}
        """By offset, ascending: first deliveries are, and a repeated one keeps its place."""
        self.redelivered = 0
        """How many open messages were delivered more than once."""
        self.changes = 0
        """Grows with every change that must not be forgotten: see `Stored`."""
        self._due: list[tuple[MonotonicUs, int]] = []
        """A heap of (due_us, offset): an index of `open`, with stale entries."""
        self._come: list[int] = []
        """A heap of the offsets that are due: `due_us` is _NOW then. With stale entries, too."""

    # What is next.

    @property
    def has_room(self) -> bool:
        """Whether a new message may be delivered."""
        return not self.config.acknowledges or len(self.open) < self.config.open_max

    @property
    def room(self) -> int:
        """How many new messages may be delivered."""
        return self.config.open_max - len(self.open) if self.config.acknowledges else _ANY

    def next_due(self, now_us: MonotonicUs) -> int | None:
        """The lowest offset that is to be delivered again now; None: there is none."""
        while self._due and self._due[0][0] <= now_us:
            due_us, offset = heapq.heappop(self._due)
            if self._is_current(due_us, offset):
                self.open[offset].due_us = _NOW
                heapq.heappush(self._come, offset)
        while self._come and not self._is_current(_NOW, self._come[0]):
            heapq.heappop(self._come)
        return self._come[0] if self._come else None

    def next_due_us(self) -> MonotonicUs | None:
        """When the next open message is to be delivered again; None: none is open."""
        while self._come and not self._is_current(_NOW, self._come[0]):
            heapq.heappop(self._come)
        if self._come:
            return _NOW
        while self._due and not self._is_current(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _is_current(self, due_us: MonotonicUs, offset: int) -> bool:
        found = self.open.get(offset)
        return found is not None and found.due_us == due_us

    def _put(self, offset: int, due_us: MonotonicUs) -> None:
        self.open[offset].due_us = due_us
        heapq.heappush(self._due, (due_us, offset))
        self._drop_stale()

    def _drop_stale(self) -> None:
        if len(self._due) + len(self._come) > 2 * len(self.open) + _STALE_MAX:
            self._due = [(each.due_us, at) for at, each in self.open.items()]
            heapq.heapify(self._due)
            self._come = []

    def give_up(self, offset: int) -> GivenUp | None:
        """Give a due message up, if it was delivered as often as it may be."""
        found, most = self.open[offset], self.config.max_deliver
        if most == UNLIMITED or found.count < most:
            return None
        self._done(offset)
        return GivenUp(offset, found.sequence, found.count)

    # Deliveries.

    def deliver(self, offset: int, now_us: MonotonicUs) -> int:
        """Note a delivery: the next one of an open message, or the first one. Returns which one of
        this message it is, from 1 on."""
        self.sequence += 1
        found = self.open.get(offset)
        if found is not None:
            found.count += 1
            self.redelivered += found.count == 2
            self.changes += 1
            self._put(offset, MonotonicUs(now_us + self.config.wait_us(found.count)))
            return found.count
        assert offset >= self.position, "first deliveries ascend"
        self.position = offset + 1
        self.last_offset = offset
        if self.config.acknowledges:
            self.open[offset] = Open(self.sequence, 1, now_us)
            self._put(offset, MonotonicUs(now_us + self.config.wait_us(1)))
        else:
            self.changes += 1
        return 1

    def deliver_new(self, offsets: Sequence[int], now_us: MonotonicUs) -> None:
        """Note first deliveries, ascending, as `deliver` does one by one. There is room for
        them."""
        assert offsets[0] >= self.position, "first deliveries ascend"
        if self.config.acknowledges:
            due_us = MonotonicUs(now_us + self.config.wait_us(1))
            opened, due = self.open, self._due
            for sequence, offset in enumerate(offsets, self.sequence + 1):
                opened[offset] = found = Open(sequence, 1, now_us)
                found.due_us = due_us
                heapq.heappush(due, (due_us, offset))
            self._drop_stale()
        else:
            self.changes += len(offsets)
        self.sequence += len(offsets)
        self.last_offset = offsets[-1]
        self.position = self.last_offset + 1

    def skip(self, offset: int) -> None:
        """Note that a message is not delivered at all."""
        self.position = max(self.position, offset + 1)
        self.gone(offset)

    def gone(self, offset: int) -> None:
        """Note that the stream no longer has an open message."""
        if offset in self.open:
            self._done(offset)

    def begins(self, offset: int) -> None:
        """Note that the stream begins there now."""
        for each in list(takewhile(lambda each: each < offset, self.open)):
            self._done(each)
        self.position = max(self.position, offset)

    # Acknowledgements.

    def was_delivered(self, offset: int) -> bool:
        """Whether an acknowledgement of it may be answered: it is delivered, by this leader or
        before what this leader began with."""
        return offset < self.position

    def acknowledge(self, offset: int) -> bool:
        """Note that a message is done. Returns whether anything changed."""
        if self.config.ack_policy is AckPolicy.ALL and offset < self.position:
            done: Iterable[int] = list(takewhile(lambda each: each <= offset, self.open))
        else:
            done = [offset] if offset in self.open else []
        for each in done:
            self._done(each)
        return bool(done)

    def acknowledge_some(self, offsets: Iterable[int]) -> bool:
        """Note that messages are done, as `acknowledge` does one by one, if they were delivered.
        Returns whether anything changed."""
        before = self.changes
        if self.config.ack_policy is AckPolicy.ALL:
            for offset in offsets:
                self.acknowledge(offset)
            return self.changes != before
        opened = self.open
        for offset in offsets:
            found = opened.pop(offset, None)
            if found is not None:
                self.redelivered -= found.count > 1
                self.changes += 1
        return self.changes != before

    def refuse(self, offset: int, delay_us: int, now_us: MonotonicUs, delivery: int = 0) -> bool:
        """Note that a message is to be delivered again after `delay_us`. delivery: see `_at`.
        Returns whether it counts."""
        if self._at(offset, delivery) is None:
            return False
        self._put(offset, MonotonicUs(now_us + delay_us))
        return True

    def extend(self, offset: int, now_us: MonotonicUs, delivery: int = 0) -> bool:
        """Note that somebody still works on a message. delivery: see `_at`. Returns whether it
        counts."""
        found = self._at(offset, delivery)
        if found is None:
            return False
        self._put(offset, MonotonicUs(now_us + self.config.wait_us(found.count)))
        return True

    def _at(self, offset: int, delivery: int) -> Open | None:
        """The message, if it is open and was not delivered again after that delivery, the first
        being 1: whoever got it then has it. 0: whichever was the last one."""
        found = self.open.get(offset)
        return None if found is None or 0 < delivery < found.count else found

    def _done(self, offset: int) -> None:
        self.redelivered -= self.open.pop(offset).count > 1
        self.changes += 1

    # What is told of it.

    @property
    def floor(self) -> tuple[int, int]:
        """The consumer sequence and the stream sequence up to which everything is done."""
        if not self.open:
            return self.sequence, self.last_offset + 1
        offset = next(iter(self.open))
        return self.open[offset].sequence - 1, offset

    @property
    def oldest_us(self) -> MonotonicUs | None:
        """When the first message that is open was delivered; None: none is open."""
        return next((each.since_us for each in self.open.values()), None)

    # What is kept of it.

    def restore(self, opened: Iterable[tuple[int, int, int]], now_us: MonotonicUs) -> None:
        """Take over messages that were open at an earlier leader, ascending: offset, sequence,
        count. They are due at once: nobody knows when they would have been."""
        for offset, sequence, count in opened:
            self.open[offset] = Open(sequence, count, now_us)
            self.redelivered += count > 1
            self._put(offset, now_us)
