"""Waits for committed records: the long poll of every port that serves reads.

A fetch that waits is a small object without a task (`Poll`). When more is committed, its replica
wakes it, and in the next turn of the loop it looks at the log again and is answered. Fetches woken
together that want the same are answered with the same slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError
from jetstream_protocol.types import NO_NODE, MonotonicUs
from jetstream_server.clocks import MonotonicClock, monotonic_clock
from jetstream_server.lake.reader import LakeReader
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.lake_bounds import (
    check_epoch,
    is_epoch_in_lake,
    is_served_from_lake,
)
from jetstream_server.replication.core.unreadable import (
    InLakeError,
    check_epoch_known,
    in_lake_error,
)
from jetstream_server.replication.replica import Replica
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import Identity
from jetstream_server.security.waits import Watch

BYTES_MAX_DEFAULT = 1024 * 1024
BYTES_MAX_LIMIT = 64 * 1024 * 1024  # Upper bound on one answer, and on any batch.
WAIT_MS_LIMIT = (
    300_000  # A reader that wants to wait longer asks again. A vanished one is forgotten.
)
OUT_OF_SYNC_SECONDS = 1.0
NEW_LEADER_SECONDS = 5.0
"""How long a new leader may take to find out what earlier ones have committed, before it says that
there is nothing. Its followers tell it as soon as they have heard of it; one that says nothing has
left the ISR by then."""
LAKE_SECONDS = 30.0
"""How long a fetch waits for the lake."""
WAITING_MAX = 16_384
"""Upper bound on concurrent long polls of this node, over both ports. Each costs 3 to 8 KB;
without a limit, connections with 64 of them each would use all memory."""

TURN_SECONDS = 0.005
"""Woken fetches are answered for so long before others get a turn."""

REST_SHARE = 4
"""A rest between two waves of follows is so many times as long as the wave was."""
REST_SECONDS_MAX = 0.02

Answer = Callable[[LogSlice | None], None]
Refuse = Callable[[Exception], None]
Made = TypeVar("Made")


class Woken(Protocol):
    """What waits for records."""

    def look_again(self) -> None:
        """Look, unless it has ended since it was woken."""


class FetchPosition(NamedTuple):
    """A checked request of a reader. Times in milliseconds, sizes in bytes."""

    offset: int
    last_epoch: int
    bytes_max: int
    bytes_min: int
    wait_ms_max: int

    @classmethod
    def checked(
        cls,
        *,
        offset: int,
        last_epoch: int | None,
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: int,
    ) -> FetchPosition:
        """Check a request; zero means the default. Raises InvalidRequestError for impossible
        values."""
        if offset < 0:
            raise InvalidRequestError(f"offset {offset} is negative; offsets begin at 0")
        if last_epoch is not None and last_epoch < -1:
            raise InvalidRequestError(f"last_epoch {last_epoch} is below -1")
        if wait_ms_max > WAIT_MS_LIMIT:
            raise InvalidRequestError(f"wait_ms_max is at most {WAIT_MS_LIMIT}")
        bytes_max = min(bytes_max or BYTES_MAX_DEFAULT, BYTES_MAX_LIMIT)
        return cls(
            offset=offset,
            last_epoch=-1 if last_epoch is None else last_epoch,
            bytes_max=bytes_max,
            bytes_min=min(bytes_min or 1, bytes_max),
            wait_ms_max=wait_ms_max,
        )


@dataclass(slots=True)
class FetchTimes:
    """The time spent in all fetches, in µs, since the server started.

    wait_us, local_us: waiting for records, and finding them in the log; over both ports. The rest
    is only the data plane's. queue_us: before a request was handled, and while its answer waited
    for others of its connection. send_us: sending. fetches, sent_bytes: answers, with records or
    without, and the bytes of their records.
    """

    fetches: int = 0
    sent_bytes: int = 0
    queue_us: int = 0
    wait_us: int = 0
    local_us: int = 0
    send_us: int = 0

    def sent(self, sent_bytes: int, queue_us: int, send_us: int) -> None:
        """Count an answer of the data plane."""
        self.fetches += 1
        self.sent_bytes += sent_bytes
        self.queue_us += queue_us
        self.send_us += send_us


class LongPoll:
    """All reads of this node that may wait. waiting: how many wait. lease_held: returns whether
    this node's session lease holds; without it the node cannot know the leader."""

    def __init__(
        self,
        lease_held: Callable[[], bool],
        access: AccessControl,
        waiting_max: int = WAITING_MAX,
        monotonic_clock: MonotonicClock = monotonic_clock,
    ) -> None:
        self.waiting = 0
        self.times = FetchTimes()
        self.access = access
        self.waiting_max = waiting_max
        self.clock = monotonic_clock
        self.lake: LakeReader | None = None
        """Reads the records that are in the lake alone; None: this node cannot."""
        self._lease_held = lease_held
        self._woken: deque[Woken] = deque()
        self._turn_comes = False
        self._wave: deque[Woken] = deque()
        self._next_wave: deque[Woken] = deque()
        self._wave_comes: asyncio.Handle | None = None
        self._wave_seconds = 0.0
        self._rests_until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._found: dict[tuple[Replica, int, int, int], LogSlice] | None = None
        """What the fetches of this turn have found."""
        self._made: dict[int, Any] = {}
        """What was made of it in this turn, by the slice's id."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all fetches."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def share(self, found: LogSlice, make: Callable[[], Made]) -> Made:
        """What `make` makes of a slice: once for all fetches that were woken together and found it.
        Later fetches get their own, because the records may have been removed meanwhile."""
        if self._found is None:
            return make()
        made = self._made.get(id(found))
        if made is None:
            made = self._made[id(found)] = make()
        return cast(Made, made)

    def is_out_of_sync(self, replica: Replica) -> bool:
        """Whether committed records may exist that this replica does not get at present."""
        is_current = replica.is_in_sync or replica.observes_closely(self.clock())
        return not (is_current and self._lease_held())

    async def fetch(
        self, replica: Replica, position: FetchPosition, caller: Identity
    ) -> LogSlice | None:
        """Committed batches at `position`; waits as long as it allows; None: there are none.

        A replica that is out of sync answers soon, because its reader may know a better one. Raises
        the errors of `look`, at once or when the state changes during the wait, those of
        AccessControl.check if the caller loses its right during the wait, and UnavailableError when
        too many fetches wait already.
        """
        answered: asyncio.Future[LogSlice | None] = self.loop.create_future()

        def answer(found: LogSlice | None) -> None:
            if not answered.done():
                answered.set_result(found)

        def refuse(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        poll = self.begin(replica, position, caller, answer, refuse)
        try:
            return await answered
        finally:
            poll.abandon()
            if answered.done() and not answered.cancelled():
                answered.exception()  # It is known, even if this task was cancelled meanwhile.

    def begin(
        self,
        replica: Replica,
        position: FetchPosition,
        caller: Identity,
        answer: Answer,
        refuse: Refuse,
    ) -> Poll:
        """`fetch` without a task: one of `answer` and `refuse` is called, once, perhaps before this
        returns, unless the fetch is abandoned before. What `answer` raises goes to `refuse`."""
        poll = Poll(self, replica, position, caller, answer, refuse)
        poll.look()
        return poll

    def look(self, replica: Replica, position: FetchPosition) -> LogSlice | None:
        """What is at `position` now. Raises the errors of `Replica.read`, and UnavailableError
        where this replica cannot know that there is nothing."""
        stream, log, offset = replica.stream, replica.log, position.offset
        if self.lake is not None and is_served_from_lake(
            stream, log, replica.high_watermark, offset
        ):
            return self._look_in_lake(self.lake, replica, position)
        if is_epoch_in_lake(stream, log, offset, position.last_epoch):
            self._check_in_lake(stream, position)
        key = replica, position.offset, position.last_epoch, position.bytes_max
        if self._found is not None and key in self._found:
            return self._found[key]
        is_leader = replica.leadership is not None and self._lease_held()
        begun_us = self.clock()
        found = replica.read(
            position.offset, position.bytes_max, position.last_epoch, is_leader=is_leader
        )
        self.times.local_us += self.clock() - begun_us
        if found is None:
            _check_knows(replica)
        if self._found is not None and found is not None:
            self._found[key] = found
        return found

    def _look_in_lake(
        self, lake: LakeReader, replica: Replica, position: FetchPosition
    ) -> LogSlice:
        """What was read from the lake already. Raises InLakeError if that is nothing yet, and the
        errors of `Replica.read`."""
        replica.check_readable()
        stream, offset = replica.stream, position.offset
        check_epoch_known(stream, position.last_epoch)
        if position.last_epoch >= 0 and offset > stream.lake.start:
            self._check_in_lake(stream, position)
        found = lake.find(stream.id, offset, position.bytes_max)
        if found is None:
            raise in_lake_error(stream, offset)
        return found

    def _check_in_lake(self, stream: StreamMetadata, position: FetchPosition) -> None:
        """Compare the record before `position`, which a reader saw, with the lake's. Raises
        InLakeError if that was not read yet, and DivergedError."""
        epoch = None
        if self.lake is not None:
            epoch = self.lake.epoch_before(stream.id, position.offset)
        if epoch is None:
            raise in_lake_error(stream, position.offset - 1, is_epoch=True)
        check_epoch(stream, position.offset, position.last_epoch, epoch)

    def check_room(self) -> None:
        """Raise UnavailableError if nothing more may wait."""
        if self.waiting >= self.waiting_max:
            raise UnavailableError(f"{self.waiting} fetches wait for records already")

    def check_again(self, replica: Replica, position: FetchPosition) -> None:
        """Raise the errors of `look`, and UnavailableError if nothing is there any more: since the
        records at `position` were found, others may have taken their place. Call it right after
        they were read."""
        try:
            found = self.look(replica, position)
        except InLakeError:
            return  # Records in the lake never change.
        if found is None:
            raise UnavailableError("the records were removed while they were read; try again")

    def woken(self, poll: Woken) -> None:
        """Have a waiting fetch look again soon. Its replica has changed, and may be about to change
        again."""
        self._woken.append(poll)
        self._answer_soon()

    def _answer_soon(self) -> None:
        if self._woken and not self._turn_comes:
            self._turn_comes = True
            self.loop.call_soon(self._answer_woken)

    def _answer_woken(self) -> None:
        self._turn_comes = False
        self._answer_turn(self._woken)
        self._answer_soon()

    def _answer_turn(self, woken: deque[Woken]) -> float:
        """A turn. What is found is shared only within it: the logs do not change meanwhile. Returns
        how long it took."""
        self._found = {}
        began_us = self.clock()  # The loop's own time stands still meanwhile.
        took_us = 0
        try:
            while woken:
                woken.popleft().look_again()
                took_us = self.clock() - began_us
                if took_us >= TURN_SECONDS * 1e6:
                    break
        finally:
            self._found = None
            self._made.clear()
        return took_us / 1e6

    # Waves.

    def woken_to_follow(self, follow: Woken) -> None:
        """The same for a follow. They are answered in waves, and between two waves there is a rest,
        which grows with the work of a wave: the more readers there are, the more records each is
        sent at a time. Fetches need no such rest, for their clients make it."""
        self._next_wave.append(follow)
        if self._wave_comes is None:
            self._wave_comes = self.loop.call_at(self._rests_until, self._answer_wave)

    def _answer_wave(self) -> None:
        if not self._wave:
            self._wave, self._next_wave = self._next_wave, self._wave
            self._wave_seconds = 0.0
        self._wave_seconds += self._answer_turn(self._wave)
        if self._wave:
            self._wave_comes = self.loop.call_soon(self._answer_wave)
            return
        rest = min(REST_SHARE * self._wave_seconds, REST_SECONDS_MAX)
        self._rests_until = self.loop.time() + rest
        self._wave_comes = None
        if self._next_wave:
            self._wave_comes = self.loop.call_at(self._rests_until, self._answer_wave)


class Poll:
    """One fetch, between `LongPoll.begin` and its answer."""

    __slots__ = (
        "_answer", "_begun_us", "_caller", "_deadline", "_found", "_is_woken", "_made_at", "_polls",
        "_position", "_refuse", "_replica", "_timer", "_watch",
    )  # fmt: skip

    def __init__(
        self,
        polls: LongPoll,
        replica: Replica,
        position: FetchPosition,
        caller: Identity,
        answer: Answer,
        refuse: Refuse,
    ) -> None:
        self._polls = polls
        self._replica = replica
        self._position = position
        self._caller = caller
        self._answer = answer
        self._refuse = refuse
        self._made_at = polls.loop.time()
        self._deadline = self._made_at + position.wait_ms_max / 1000
        self._found: LogSlice | None = None  # by the last look
        self._timer: asyncio.TimerHandle | None = None  # set exactly while it waits
        self._watch: Watch | None = None
        self._is_woken = False
        self._begun_us = MonotonicUs(0)

    def look(self) -> None:
        """Answer, refuse, or wait."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001  its caller gets it
            self._refuse(error)

    def look_again(self) -> None:
        """The same for a fetch that was woken, unless it has ended since."""
        if self._timer is not None:
            self._stop_waiting()
            self.look()

    def abandon(self) -> None:
        """End without an answer, if there was none yet."""
        if self._timer is not None:
            self._stop_waiting()

    def _look(self) -> None:
        polls, replica, position = self._polls, self._replica, self._position
        try:
            found = polls.look(replica, position)
        except InLakeError as error:
            if polls.lake is None:
                raise
            polls.check_room()
            self._wait(LAKE_SECONDS, for_more=False)
            stream = replica.stream
            load = polls.lake.load_epoch if error.is_epoch else polls.lake.load
            load(stream.id, stream.lake.location, error.offset, self._loaded)
            return
        if found is not None and _is_enough(found, position, replica):
            self._answer(found)
            return
        now = polls.loop.time()
        if polls.is_out_of_sync(replica):
            self._deadline = min(self._deadline, now + OUT_OF_SYNC_SECONDS)
        deadline = self._deadline
        if found is None and _may_be_committed(replica, position.offset):
            deadline = max(deadline, self._made_at + NEW_LEADER_SECONDS)
        if deadline <= now or (found is not None and polls.waiting >= polls.waiting_max):
            self._answer(found)
        else:
            polls.check_room()
            self._found = found
            self._wait(deadline - now)

    def _wait(self, seconds: float, *, for_more: bool = True) -> None:
        """Wait until the high watermark rises, the replica ends, or the time is over; for_more:
        False: only until the time is over. Raises the errors of AccessControl.check."""
        polls = self._polls
        self._watch = polls.access.watch_reading(
            self._caller, self._replica.stream, self._lost_right
        )
        self._timer = polls.loop.call_later(seconds, self._time_is_over)
        self._begun_us = polls.clock()
        polls.waiting += 1
        if for_more:
            self._replica.add_waiter(self._wake)

    def _stop_waiting(self) -> None:
        assert self._timer is not None
        polls = self._polls
        self._timer.cancel()
        self._timer = None
        polls.waiting -= 1
        polls.times.wait_us += polls.clock() - self._begun_us
        if self._watch is not None:
            self._watch.end()
        if not self._is_woken:
            self._replica.remove_waiter(self._wake)
        self._is_woken = False

    def _wake(self) -> None:
        self._is_woken = True
        self._polls.woken(self)

    def _time_is_over(self) -> None:
        if self._is_woken:
            return
        self._stop_waiting()
        if self._found is not None:
            self.look()  # The log may have been cut since.
            return
        try:
            self._answer(None)
        except Exception as error:  # noqa: BLE001  its caller gets it
            self._refuse(error)

    def _loaded(self, error: JetstreamError | None) -> None:
        """The lake was read, or cannot be."""
        if self._timer is None or self._is_woken:
            return
        self._stop_waiting()
        if error is None:
            self.look()
        else:
            self._refuse(error)

    def _lost_right(self, error: JetstreamError) -> None:
        self._stop_waiting()
        self._refuse(error)


def _check_knows(replica: Replica) -> None:
    """Raise UnavailableError if "no more records" would be a guess: there is no leader, and this
    replica was not in sync with the last leader. Its log may be empty where the stream is not."""
    stream, node_id = replica.stream, replica.node_id
    if stream.leader != NO_NODE or node_id in (*stream.isr, *stream.elr):
        return
    if node_id in stream.observers and replica.high_watermark:
        return
    raise UnavailableError(
        f"{stream.full_name} has no leader, and its replica on node {node_id} was not in sync with "
        "the last one: it may lack records (jetstream stream describe)"
    )


def _may_be_committed(replica: Replica, offset: int) -> bool:
    """Whether this leader is about to find out if an earlier one has committed that record, which
    is acknowledged then."""
    leadership = replica.leadership
    return leadership is not None and leadership.seeks_end and offset < replica.log.log_end_offset


def _is_enough(found: LogSlice, position: FetchPosition, replica: Replica) -> bool:
    """Whether it is as much as requested, or limited by something that waiting does not change."""
    return found.length >= position.bytes_min or found.next_offset < replica.high_watermark
