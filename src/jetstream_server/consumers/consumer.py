"""One consumer on the node that leads its stream: reads, delivers, waits.

What is delivered to whom is decided by `Deliveries`, `Pulls` and `Flow`; this reads the records and
sends them. It has one task, which sleeps until something can be done.

Invariants.
* Nothing is delivered once this node does not lead the stream, or the consumer is closed.
* Records in memory are bounded for all consumers of a node: HELD_BYTES_MAX, and what a step brings.
"""

from __future__ import annotations

import asyncio
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import partial
from itertools import accumulate, repeat
from typing import Final, Protocol

import structlog

from jetstream_protocol.errors import JetstreamError, PermissionDeniedError, UnauthenticatedError
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.background import run_in_background
from jetstream_server.clocks import Clocks
from jetstream_server.consumers.collector import Collector, Delivery
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.deliveries import Deliveries, GivenUp
from jetstream_server.consumers.feed import Feed, wanted_of
from jetstream_server.consumers.flow import Flow
from jetstream_server.consumers.keeper import Keeper
from jetstream_server.consumers.kept import Kept
from jetstream_server.consumers.pulls import (
    CONSUMER_DELETED,
    HEARTBEAT,
    REQUEST_TIMEOUT,
    Pull,
    PullRoom,
    Pulls,
    Status,
)
from jetstream_server.consumers.records import Record, payload_lengths, sizes
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.core.unreadable import is_readable
from jetstream_server.replication.replica import Replica

logger = structlog.get_logger("jetstream.consumers")

TURN_MESSAGES: Final = 128
"""Deliveries in one turn of the loop: about a millisecond."""
RUN_MESSAGES: Final = 512
"""Of a run, which is delivered in one turn of the loop, too."""
RUN_BYTES: Final = 128 * 1024
"""In one turn of the loop; what exceeds it is the last message."""
ROOM_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.5
_DENIED_SECONDS: Final = 5.0
_MICROSECONDS: Final = 1_000_000
_RETRY_US: Final = int(_RETRY_SECONDS * _MICROSECONDS)


_delivery = partial(tuple.__new__, Delivery)


class Outlet(Protocol):
    """The way to NATS clients."""

    @property
    def has_room(self) -> bool:
        """Whether more may be sent now."""

    @property
    def is_cut_off(self) -> bool:
        """Whether NATS clients cannot reach this node."""

    async def room(self) -> None:
        """Wait until that is so. Raises JetstreamError."""

    def may_use(self, consumer: Consumer) -> bool:
        """Whether NATS clients have the right to use it. Their right to read is checked with the
        records."""

    def fits(self, record: Record) -> bool:
        """Whether a record can be sent at all."""

    def reply_length(self, consumer: Consumer, delivery: Delivery) -> int:
        """Of the subject on which a message is acknowledged."""

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None: ...

    def status(self, consumer: Consumer, status: Status) -> None: ...

    def refuse(self, status: Status) -> None:
        """Refuse a pull; dropped while much waits to be sent."""

    def ask(self, consumer: Consumer, question: int) -> None:
        """Ask the subscriber of a consumer that pushes whether it has handled what was sent."""

    def stalled(self, consumer: Consumer, question: int) -> dict[str, object]:
        """What a heartbeat says while the answer to that question is missing."""

    def is_heard(self, to: bytes, group: bytes = b"") -> bool:
        """Whether anybody subscribes to it."""

    def unheard(self, pulls: list[Pull]) -> None:
        """These wait no more, as nobody hears their inboxes. Most clients are gone."""

    def gave_up(self, consumer: Consumer, message: GivenUp) -> None: ...


class _Taker(Enum):
    """Who takes the next message."""

    NONE = auto()
    COLLECTOR = auto()
    NATS = auto()


class _Need(Enum):
    NOTHING = auto()
    TURN = auto()
    NEW = auto()
    OLD = auto()
    END = auto()


class Consumer:
    """For the loop's thread only. `start` once, `close` once."""

    def __init__(
        self,
        config: ConsumerConfig,
        deliveries: Deliveries,
        feed: Feed,
        outlet: Outlet,
        clocks: Clocks,
        inactive: Callable[[Consumer], None],
        *,
        created_us: WallUs,
        epoch: int,
        room: PullRoom,
        is_interrupted: bool = False,
    ) -> None:
        """inactive: called when nobody has used it for `config.inactive_us`. epoch: the leader
        epoch in which this node has begun to serve it. room: for pulls, of all consumers.
        is_interrupted: an earlier leader alone knew where it was. It delivers one message, by
        whose sequence its reader notices that, and ends."""
        self.config = config
        self.deliveries = deliveries
        self.feed = feed
        self.pulls = Pulls(room)
        self.flow = Flow() if config.flow_control else None
        self.created_us = created_us
        self.epoch = epoch
        self.first_offset = deliveries.position
        self.is_interrupted = is_interrupted
        self.delivered_us: WallUs | None = None
        self.acknowledged_us: WallUs | None = None
        self.skipped = 0
        self.redeliveries = 0
        """Since this node serves it."""
        self.given_up = 0
        self._collectors: dict[bytes, Collector] = {}
        """By what stands for an inbox."""
        self._is_unchecked = False
        """Whether records were read for collectors, whose rights others have checked."""
        self._is_denied = False
        """Whether NATS clients may not read now."""
        self.keeper: Keeper | None = None
        """Of a durable consumer: keeps its state. Set before `start`."""
        self._changes = 0
        self.is_closed = False
        self._outlet = outlet
        self._clocks = clocks
        self._inactive = inactive
        self._old: dict[int, Record] = {}
        self._changed = asyncio.Event()
        self._is_waiting = False
        """Whether the task sleeps until `_changed`."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._was_bound = False
        now_us = clocks.monotonic()
        self._used_us = now_us
        self._sent_us = now_us
        self._task: asyncio.Task[None] | None = None

    @property
    def replica(self) -> Replica:
        return self.feed.replica

    @property
    def is_bound(self) -> bool:
        """Whether it pushes, and somebody listens."""
        config = self.config
        return config.is_push and self._outlet.is_heard(
            config.deliver_subject, config.deliver_group
        )

    @property
    def paused_us(self) -> int:
        """For how long it is still paused."""
        return max(0, self.config.pause_until_us - self._clocks.wall())

    @property
    def pending(self) -> int | None:
        """As of its feed; None: unknown, because a log that cannot be read looks empty, or a new
        leader finds out what was acknowledged."""
        leadership = self.replica.leadership
        if leadership is not None and leadership.seeks_end:
            return None
        return self.feed.pending if is_readable(self.replica.check_readable) else None

    @property
    def oldest_open_us(self) -> int:
        """How long ago the first message that is open was delivered; 0: none is open."""
        oldest_us = self.deliveries.oldest_us
        return 0 if oldest_us is None else self._clocks.monotonic() - oldest_us

    def start(self) -> None:
        self._task = run_in_background(self._run(), "consumer")

    def stop(self) -> None:
        """Deliver nothing more. The pulls of NATS clients wait until `close`."""
        for collector in self._collectors.values():
            collector.ended(REQUEST_TIMEOUT)
        if self._timer is not None:
            self._timer.cancel()
        self.replica.remove_waiter(self.wake)
        self.feed.forget()
        if self.keeper is not None:
            self.keeper.close()
        if self._task is not None:
            self._task.cancel()

    def close(self, text: str = CONSUMER_DELETED) -> None:
        """Deliver nothing more. text: the status that ends the pulls that wait; "": none."""
        if self.is_closed:
            return
        self.is_closed = True
        if text:
            self._send_all(self.pulls.end_some(lambda _: text))
        self._collectors.clear()
        self.stop()

    def wake(self) -> None:
        """Have it look whether something can be done."""
        self._changed.set()

    def cut_off(self) -> list[Pull]:
        """NATS clients do not reach this node any more: their pulls, which wait no longer. What was
        sent to them may be lost."""
        self.wake()
        return self.pulls.take(lambda pull: pull.reply not in self._collectors)

    def reached(self) -> None:
        """NATS clients can reach this node again."""
        self._used_us = self._clocks.monotonic()
        self.wake()

    def pull(self, pull: Pull) -> None:
        """Take a request for messages."""
        now_us = self._clocks.monotonic()
        self._used_us = now_us
        pull.is_heard = self._outlet.is_heard(pull.reply)
        refused = self.pulls.add(pull, self.config, now_us)
        if refused is not None:
            self._outlet.refuse(refused)
        elif self._may_deliver_now:
            self._deliver(now_us)
            self._note_changes()
            if not len(self.pulls):
                return
        elif not self._is_waiting:
            self._tend_by(pull.next_us)
        self.wake()

    @property
    def _may_deliver_now(self) -> bool:
        """Whether what is at hand may be delivered without a turn of the task, which would find
        nothing else to do: a pull of one message costs half as much then."""
        return (
            self._is_waiting
            and not self._changed.is_set()
            and not (self._collectors or self._is_denied or self._is_unchecked)
            and not self.is_interrupted
            and self.replica.leadership is not None
            and not self.replica.closed
            and self._outlet.has_room
            and (self._timer is not None or not self.config.inactive_us)
            and self.feed.next() is not None
        )

    def collect(self, collector: Collector, pull: Pull) -> None:
        """Take a request for messages that are to be collected. The caller has checked the rights,
        and ends it by `withdraw`."""
        self._used_us = self._clocks.monotonic()
        self._collectors[pull.reply] = collector
        refused = self.pulls.add(pull, self.config, self._used_us)
        if refused is not None:
            collector.ended(refused.text)
        elif not self._is_waiting:
            self._tend_by(pull.next_us)
        self.wake()

    def withdraw(self, reply: bytes) -> None:
        """Let nothing more be collected there."""
        if self._collectors.pop(reply, None) is not None:
            self.pulls.withdraw(reply)
            self.wake()

    def acknowledge(self, offset: int, then: Callable[[], None] | None) -> None:
        """Take an acknowledgement of a message that was delivered. then: called once no leader will
        deliver it again."""
        if self.deliveries.acknowledge(offset):
            self.acknowledged_us = self._clocks.wall()
        self._taken(then)

    def acknowledge_some(self, offsets: Iterable[int]) -> None:
        """Take acknowledgements that nobody waits for."""
        if self.deliveries.acknowledge_some(offsets):
            self.acknowledged_us = self._clocks.wall()
        self._taken(None)

    def refuse(
        self, offset: int, delivery: int, delay_us: int, then: Callable[[], None] | None
    ) -> bool:
        """Have a message delivered again, after a delay. delivery: which one is refused; 0: the
        last one. Returns whether it counts."""
        now_us = self._clocks.monotonic()
        counts = self.deliveries.refuse(offset, delay_us, now_us, delivery)
        self._taken(then, is_kept=False)
        return counts

    def extend(self, offset: int, delivery: int, then: Callable[[], None] | None) -> bool:
        """Take notice that somebody still works on a message, as `refuse` does."""
        counts = self.deliveries.extend(offset, self._clocks.monotonic(), delivery)
        self._taken(then, is_kept=False)
        return counts

    def _taken(self, then: Callable[[], None] | None, *, is_kept: bool = True) -> None:
        self._used_us = self._clocks.monotonic()
        if is_kept:
            self._note_changes()
        if not is_kept or self.config.is_push or len(self.pulls):
            self.wake()
        if then is None:
            return
        if self.keeper is not None and is_kept:
            self.keeper.when_stored(then)
        else:
            then()

    def keep(self) -> Kept:
        """What is kept of it, as it is now."""
        feed = self.feed
        selected = feed.selected_left
        return Kept.of(self.deliveries, selected, feed.rest, self.epoch, self.created_us)

    def alter(self, config: ConsumerConfig) -> None:
        if config.filters != self.config.filters:
            self.feed.want(wanted_of(self.replica, config), self.deliveries.position)
        self.config = self.deliveries.config = config
        if self.keeper is not None:
            self.keeper.changed()
        self.wake()

    # The task.

    async def _run(self) -> None:
        while not self.is_closed:
            self._changed.clear()
            try:
                is_done = await self._work()
            except (PermissionDeniedError, UnauthenticatedError):
                if not self.config.is_durable:
                    self._inactive(self)
                    return
                self._is_denied = True
                asyncio.get_running_loop().call_later(_DENIED_SECONDS, self._ask_again)
                continue
            except (JetstreamError, TimeoutError):
                await asyncio.sleep(_RETRY_SECONDS)  # It is being repaired, or led elsewhere.
                continue
            except Exception:  # noqa: BLE001  logged; the other consumers go on
                trace = traceback.format_exc()
                logger.error("consumer_failed", consumer=self.config.name, trace=trace)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if is_done:
                self._is_waiting = True
                await self._changed.wait()
                self._is_waiting = False

    async def _work(self) -> bool:
        """Do what can be done. Returns whether it must wait then. Raises JetstreamError."""
        now_us = self._clocks.monotonic()
        self._tend(now_us)
        leadership = self.replica.leadership
        if self.is_closed or leadership is None or self.replica.closed:
            return True
        taker = self._taker()
        is_own = taker is _Taker.COLLECTOR
        if taker is _Taker.NONE and (len(self.pulls) or self._is_denied):
            # A collector is given room, or the right may be given again.
            if not self._outlet.has_room:
                self._tend_by(now_us + _RETRY_US)
            self._tend_meanwhile()
            return True
        if self._is_wanted() and not is_own:
            self._check_use()
            if not self._outlet.has_room:
                self._tend_meanwhile()
                async with asyncio.timeout(ROOM_SECONDS):
                    await self._outlet.room()
                return False
            if self._is_unchecked:
                await self.feed.check()
                self._is_unchecked = False
                return False
        need = self._deliver(now_us)
        if need is _Need.END:
            return True
        self._note_changes()
        if need is _Need.TURN:
            await asyncio.sleep(0)
            return False
        if need is _Need.OLD:
            self._is_unchecked |= is_own
            self._tend_meanwhile()
            await self._read_old(now_us, is_paced=not is_own)
            return False
        if need is _Need.NEW:
            self._is_unchecked |= is_own
            self._tend_meanwhile()
            await self.feed.fill(is_paced=not is_own)
            return False
        self.feed.pause()
        self._old.clear()
        seeks_end = leadership.seeks_end  # **safety** More may have been acknowledged.
        if self._is_wanted() and not seeks_end:
            # Nothing comes now: it is at the end, paused, or full.
            self._send_all(self.pulls.nothing_left())
        for collector in self._collectors.values():
            collector.nothing_left()
        self._wait(now_us)
        if seeks_end:
            self._tend_by(now_us + _RETRY_US)
        return True

    def _note_changes(self) -> None:
        if self.keeper is not None and self.deliveries.changes != self._changes:
            self._changes = self.deliveries.changes
            self.keeper.changed()

    def _is_wanted(self) -> bool:
        """Whether anybody takes messages now."""
        if self.config.is_push:
            return self._was_bound and not (self.flow is not None and self.flow.is_full)
        return len(self.pulls) > 0

    def _taker(self) -> _Taker:
        """Who takes the next message; brings a pull forward that does."""
        if not self._collectors:
            return _Taker.NONE if self._is_denied else _Taker.NATS
        if not self.pulls.bring_forward(self._takes):
            return _Taker.NONE
        first = self.pulls.first()
        assert first is not None, "it was brought forward"
        return _Taker.COLLECTOR if first.reply in self._collectors else _Taker.NATS

    def _takes(self, pull: Pull) -> bool:
        collector = self._collectors.get(pull.reply)
        if collector is not None:
            return not collector.needs
        return self._outlet.has_room and not self._is_denied

    def _has_room_for(self, record: Record) -> bool:
        """Whether the one whose turn it is takes that message, if it is a collector."""
        first = self.pulls.first()
        collector = None if first is None else self._collectors.get(first.reply)
        return collector is None or collector.takes(record)

    def _check_use(self) -> None:
        """Raise PermissionDeniedError if NATS clients may not use it any more. **safety** Before
        anything is sent to them."""
        if not self._outlet.may_use(self):
            raise PermissionDeniedError("the right to use the consumer was taken away")

    def _ask_again(self) -> None:
        """The right may have been given again."""
        self._is_denied = False
        self.wake()

    def _status(self, status: Status) -> None:
        collector = self._collectors.get(status.to)
        if collector is None:
            self._outlet.status(self, status)
        else:
            collector.ended(status.text)

    def _tend(self, now_us: MonotonicUs) -> None:
        """What has to be done by now, whether or not there are messages."""
        if unheard := self.pulls.unheard(self._outlet.is_heard):
            self._outlet.unheard(unheard)
        self._send_all(self.pulls.expired(now_us))
        for to in self.pulls.heartbeats(now_us):
            self._status(Status(to, HEARTBEAT, self._heartbeat()))
        config = self.config
        is_bound = self.is_bound
        if is_bound != self._was_bound:
            self._was_bound, self._sent_us = is_bound, now_us
            if self.flow is not None:
                self.flow.restart()
        if is_bound and config.heartbeat_us and self._sent_us + config.heartbeat_us <= now_us:
            self._sent_us = now_us
            headers = self._heartbeat()
            if self.flow is not None and self.flow.asked:
                headers |= self._outlet.stalled(self, self.flow.asked)
            self._outlet.status(self, Status(config.deliver_subject, HEARTBEAT, headers))
        if is_bound or len(self.pulls) or self._outlet.is_cut_off:
            self._used_us = now_us
        elif config.inactive_us and self._used_us + config.inactive_us <= now_us:
            self._inactive(self)

    def _heartbeat(self) -> dict[str, object]:
        deliveries = self.deliveries
        return {
            "Nats-Last-Consumer": deliveries.sequence,
            "Nats-Last-Stream": deliveries.last_offset + 1,
        }

    def _deliver(self, now_us: MonotonicUs) -> _Need:
        """Deliver what is at hand. Returns what is needed to go on."""
        if self.paused_us:
            return _Need.NOTHING
        deliveries, feed = self.deliveries, self.feed
        start = start_offset(self.replica.stream, self.replica.log)
        if deliveries.position < start:
            deliveries.begins(start)
            feed.begins(start)
        if self._deliver_run(now_us):
            return _Need.TURN
        before = deliveries.sequence
        batch: dict[bytes, list[Delivery]] = {}
        need, size = _Need.TURN, 0
        for _ in range(1 if self.is_interrupted else TURN_MESSAGES):
            if not self._is_wanted():
                need = _Need.NOTHING
                break
            if size > RUN_BYTES:
                break  # **safety** Beyond what it holds, the outlet would drop them.
            if self._collectors and not self._may_go_on():
                break
            offset = deliveries.next_due(now_us)
            if offset is not None:
                given_up = deliveries.give_up(offset)
                if given_up is not None:
                    self.given_up += 1
                    self._outlet.gave_up(self, given_up)
                    continue
                record = self._old.get(offset)
                need_then = _Need.OLD
            else:
                record = feed.next() if deliveries.has_room else None
                need_then = (
                    _Need.NEW if deliveries.has_room and not feed.is_at_end else _Need.NOTHING
                )
            if record is None:
                need = need_then
                break
            if self._collectors and not self._has_room_for(record):
                continue
            if offset is None:
                feed.take()
            size += record.size
            try:
                self._send(record, batch, now_us)
            except Exception:
                self._put_back(record)
                raise
        if deliveries.sequence != before:
            self._sent_us, self.delivered_us = now_us, self._clocks.wall()
        for to, found in batch.items():
            self._outlet.deliver(self, to, found)
        if self.is_interrupted and deliveries.sequence != before:
            self.close(REQUEST_TIMEOUT)
            self._inactive(self)
            return _Need.END
        return need

    def _deliver_run(self, now_us: MonotonicUs) -> bool:
        """Deliver new messages at once that all go to one inbox. Returns whether there were some;
        else each is looked at by itself. The result is the same."""
        deliveries, feed, config = self.deliveries, self.feed, self.config
        if self._collectors or self.is_interrupted or not self._is_wanted():
            return False
        to, most = config.deliver_subject, RUN_MESSAGES
        if not to:
            to, most = self.pulls.only_inbox
        most = min(most, RUN_MESSAGES, deliveries.room)
        if not to or most < 2 or deliveries.next_due(now_us) is not None:
            return False
        records = feed.next_ones(most)
        if len(records) < 2:
            return False
        payloads = payload_lengths(records)
        if not self._outlet.fits(records[payloads.index(max(payloads))]):
            return False
        lengths = sizes(records, payloads)
        size = sum(lengths)
        if size > RUN_BYTES:
            ends = list(accumulate(lengths))
            records = records[: bisect_left(ends, RUN_BYTES) + 1]
            size = ends[len(records) - 1]
        count, sequence, pending = len(records), deliveries.sequence, feed.pending
        numbers = range(sequence + 1, sequence + 1 + count)
        left = range(pending - 1, pending - 1 - count, -1)
        found = list(map(_delivery, zip(records, repeat(1), numbers, left, strict=False)))
        deliveries.deliver_new([each.offset for each in records], now_us)
        feed.take_some(count, size)
        self._sent_us, self.delivered_us = now_us, self._clocks.wall()
        self._outlet.deliver(self, to, found)
        if not config.is_push:
            self.pulls.only_inbox_served(count, now_us)
        elif self.flow is not None and self.flow.sent(size):
            self._outlet.ask(self, self.flow.asked)
        return True

    def _send(
        self, record: Record, batch: dict[bytes, list[Delivery]], now_us: MonotonicUs
    ) -> None:
        """Deliver one record to whose turn it is."""
        first = self.pulls.first()
        collector = None if first is None else self._collectors.get(first.reply)
        if collector is None and not self._outlet.fits(record):
            self.skipped += 1
            self.deliveries.skip(record.offset)
            return
        size, config = record.size, self.config
        if first is not None and first.bytes_max and collector is None:
            sent = Delivery(record, 1, self.deliveries.sequence + 1, self.feed.pending)
            size += self._outlet.reply_length(self, sent)
        to = config.deliver_subject
        if not to:
            assert first is not None, "somebody takes messages now"
            ended = self.pulls.fits(size)
            if ended:  # Whose turn it is now may have other rights, or no room.
                self._finish(ended, batch)
                self._put_back(record)
                return
            to = first.reply
        count = self.deliveries.deliver(record.offset, now_us)
        self.redeliveries += count > 1
        self._old.pop(record.offset, None)
        found = Delivery(record, count, self.deliveries.sequence, self.feed.pending)
        if collector is None:
            batch.setdefault(to, []).append(found)
        else:
            collector.deliver(found)
        if not config.is_push:
            status = self.pulls.served(size, now_us)
            self._finish([status] if status is not None else [], batch)
        elif self.flow is not None and self.flow.sent(size):
            self._outlet.deliver(self, to, batch.pop(to))
            self._outlet.ask(self, self.flow.asked)

    def _put_back(self, record: Record) -> None:
        """It was taken, and not delivered. One that is open is read again."""
        if record.offset >= self.deliveries.position:
            self.feed.put_back(record)

    def _finish(self, statuses: list[Status], batch: dict[bytes, list[Delivery]]) -> None:
        """Send statuses, each behind the messages of its pull."""
        for status in statuses:
            before = batch.pop(status.to, None)
            if before:
                self._outlet.deliver(self, status.to, before)
            self._status(status)

    def _may_go_on(self) -> bool:
        """Whether the next pull may be served in this turn, too."""
        taker = self._taker()
        if taker is not _Taker.NATS:
            return taker is _Taker.COLLECTOR
        return not self._is_unchecked and self._outlet.may_use(self)

    async def _read_old(self, now_us: MonotonicUs, *, is_paced: bool) -> None:
        """Read the next message that is due, and others that are open."""
        offset = self.deliveries.next_due(now_us)
        if offset is None:
            return
        found = {each.offset: each for each in await self.feed.old(offset, is_paced=is_paced)}
        if offset not in found:
            self.deliveries.gone(offset)
        opened = self.deliveries.open
        self._old = {at: record for at, record in found.items() if at in opened}

    def _send_all(self, statuses: list[Status]) -> None:
        for each in statuses:
            self._status(each)

    def _wait(self, now_us: MonotonicUs) -> None:
        """Have it woken by what it waits for."""
        if self._is_wanted() and self.deliveries.has_room:
            self.replica.add_waiter(self.wake)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        paused_us = self.paused_us
        if paused_us:
            self._tend_by(now_us + paused_us)
        elif self._is_wanted():
            self._tend_by(self.deliveries.next_due_us())
        self._tend_meanwhile()

    def _tend_meanwhile(self) -> None:
        """Pulls have their ends and heartbeats, however long the task reads or waits."""
        self._tend_by(self._next_tend_us())

    def _tend_by(self, at_us: int | None) -> None:
        """Have the timer come by then."""
        if at_us is None or (self._timer is not None and self._timer_us <= at_us):
            return
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0, at_us - self._clocks.monotonic()) / _MICROSECONDS
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_has_come)
        self._timer_us = at_us

    def _time_has_come(self) -> None:
        self._timer = None
        if self._is_waiting:
            self.wake()
            return
        self._tend(self._clocks.monotonic())
        if not self.is_closed:
            self._tend_meanwhile()

    def _next_tend_us(self) -> int | None:
        """When `_tend` has something to do, if nothing happens before."""
        config = self.config
        times: list[int] = []
        if (pull_us := self.pulls.next_us()) is not None:
            times.append(pull_us)
        if self._was_bound and config.heartbeat_us:
            times.append(self._sent_us + config.heartbeat_us)
        if config.inactive_us and not self._was_bound and not len(self.pulls):
            times.append(self._used_us + config.inactive_us)
        return min(times, default=None)
