"""Readers at the head: each is sent what is committed, without asking each time.

A follow is a fetch that goes on. Each answer begins where the one before ended, and passes the
same checks as that of a fetch. Most are sent without a task: the replica wakes the follow, and it
looks at the log in the next turn of the loop, together with all that were woken.

It never catches up. It ends with the first answer that does not bring its reader to the end of what
is committed, or that uses up its credit: whatever is missing then is fetched. So a slow reader
costs what it was sent, which is at most its credit, and no cold file is read for it. It also ends
when the replica is out of sync, or when the reader has not been heard for SILENT_TICKS.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    UnavailableError,
)
from jetstream_protocol.frames import KEEP_ALIVE_SECONDS, Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.replication.core.lake_bounds import is_epoch_in_lake, is_served_from_lake
from jetstream_server.replication.replica import Replica
from jetstream_server.security.identity import Identity
from jetstream_server.security.waits import Watch
from jetstream_server.serving.dataplane.fetches import CheckedFetch, Fetches, Found
from jetstream_server.serving.dataplane.requests import Fetch
from jetstream_server.serving.long_poll import FetchPosition
from jetstream_server.serving.reader_position import position_after

FRAME_BYTES_MAX = 256 * 1024
"""Of one answer, unless its only batch is longer. A reader that lacks more lags."""
CREDIT_MAX = 64 * 1024 * 1024
FOLLOWS_MAX = 32
"""Upper bound for one connection: its other requests need room, too."""
SILENT_TICKS = 15
"""KEEP_ALIVE_SECONDS without a word of the reader, after which its follow ends."""
_ANY_OFFSET = 1 << 63


class Port(Protocol):
    """What a follow needs of its connection."""

    @property
    def identity(self) -> Identity: ...

    def answer(self, fetch: Fetch, found: Found) -> None:
        """Send an answer, now or in its turn. Then `Follow.goes_on` is called."""

    def find(self, fetch: Fetch) -> None:
        """Find an answer in a task, and send it."""

    def refuse(self, fetch: Fetch, error: Exception) -> None:
        """End it with an error."""


class Follow(Fetch):
    """`look` begins it, and again and again sends what is new, or waits for it."""

    __slots__ = (
        "_checked", "_end_before", "_fetches", "_frame_bytes_max", "_is_due", "_is_entered",
        "_is_last", "_is_woken", "_last_epoch", "_offset", "_port", "_sent", "_waits_at",
        "_was_answered", "_watch", "credit", "silent_ticks",
    )  # fmt: skip

    KIND: ClassVar[Kind] = Kind.FOLLOWED

    def __init__(
        self, correlation: int, asked: pb.FollowRequest, port: Port, fetches: Fetches
    ) -> None:
        """Raises InvalidRequestError."""
        request = getattr(asked, "from")
        if not 0 < asked.credit <= CREDIT_MAX:
            raise InvalidRequestError(f"a follow with a credit of {asked.credit} bytes")
        super().__init__(correlation, fetches.long_poll.clock(), request=request)
        request.refused = False
        request.bytes_min = 0
        self.credit = asked.credit
        self.silent_ticks = 0
        self._port = port
        self._fetches = fetches
        self._frame_bytes_max = min(request.bytes_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        self._offset = request.offset
        self._last_epoch = request.last_epoch if request.HasField("last_epoch") else -1
        self._checked: CheckedFetch | None = None
        self._watch: Watch | None = None
        self._waits_at: Replica | None = None  # set while it is to be woken
        self._is_woken = False
        self._is_entered = False
        self._is_due = True  # An answer is to be sent, even if nothing is new.
        self._end_before = 0  # what was committed before the answer was looked for
        self._sent: _Sent | None = None  # the answer that is being sent
        self._was_answered = False  # since the last tick
        self._is_last = False

    # What the connection calls.

    def look(self) -> None:
        """Send what is new, or wait for it."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001  ends it
            self._port.refuse(self, error)

    def look_again(self) -> None:
        """The same once it was woken, unless it has ended since."""
        if self._is_woken:
            self._is_woken = False
            self.look()

    def now(self) -> pb.DataFetchRequest:
        request = self.request
        request.offset = self._offset
        if self._last_epoch >= 0:
            request.last_epoch = self._last_epoch
        request.bytes_max = self._bytes_max
        request.wait_ms_max = 0 if self._is_due else int(KEEP_ALIVE_SECONDS * 1000)
        return request

    def head_of(self, found: Found, tail: bytes | None = None) -> pb.DataFetchResponse:
        length = found.length if tail is None else len(tail)
        end = self._end_of(found, tail)
        high_watermark = found.head.high_watermark
        self._sent = _Sent(end or (self._offset, self._last_epoch), length, high_watermark)
        self._is_last = (
            end is None
            or end[0] < self._end_before
            or length >= self.credit
            or found.head.out_of_sync
        )
        if not self._is_last:
            return found.head
        last = pb.DataFetchResponse()
        last.CopyFrom(found.head)  # Others may share it.
        last.has_ended = True
        return last

    def goes_on(self) -> bool:
        sent, self._sent = self._sent, None
        if self.is_over or sent is None or self._is_last:
            return False
        self._offset, self._last_epoch = sent.end
        self._end_before = sent.high_watermark
        self.credit -= sent.length
        self._is_due = False
        self._was_answered = True
        self.rest = None
        if self._checked is not None and self._is_entered:
            replica = self._checked.replica
            if replica.high_watermark <= self._offset and not replica.closed:
                self._wait(replica)
                return True
        self.look()
        return True

    def leave(self) -> None:
        self._stop_waiting()
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if self._is_entered:
            self._is_entered = False
            self._fetches.long_poll.waiting -= 1

    def tick(self) -> None:
        """KEEP_ALIVE_SECONDS have passed."""
        self.silent_ticks += 1
        if self.silent_ticks > SILENT_TICKS:
            self._end(UnavailableError("nothing was received from the reader for some time"))
        elif self._is_waiting:
            is_out = self._fetches.long_poll.is_out_of_sync
            replica = self._waits_at
            if not self._was_answered or (replica is not None and is_out(replica)):
                self._is_due = True
                self._stop_waiting()
                self.look()
        self._was_answered = False

    def credited(self, credit: pb.Credit) -> bool:
        """A message of the reader has arrived. Returns whether the follow is over, and waits for
        nothing. Raises InvalidRequestError."""
        self.silent_ticks = 0
        self.credit += credit.bytes
        if self.credit > CREDIT_MAX:
            raise InvalidRequestError("more than 64 MiB of credit for one follow")
        if not credit.ends:
            return False
        self.is_over = True
        return self._is_waiting

    # How it goes on.

    @property
    def _bytes_max(self) -> int:
        return min(self._frame_bytes_max, self.credit)

    @property
    def _is_waiting(self) -> bool:
        """Whether it waits for records, or has been woken. Otherwise an answer is on its way."""
        return self._waits_at is not None or self._is_woken

    def _look(self) -> None:
        checked = self._checked
        if checked is None or not self._fetches.is_current(checked):
            checked = self._fetches.checked_follow(self.now(), self._port.identity)
            self._checked = checked
        if checked is None:
            self._port.find(self)
            return
        replica = checked.replica
        stream, log, offset = replica.stream, replica.log, self._offset
        if is_served_from_lake(stream, log, replica.high_watermark, offset) or is_epoch_in_lake(
            stream, log, offset, self._last_epoch
        ):
            self._port.find(self)  # It is waited for.
            return
        self._end_before = replica.high_watermark
        position = FetchPosition(self._offset, self._last_epoch, self._bytes_max, 1, 0)
        found = self._fetches.look(checked, position)
        if found is None and self._is_due:
            found = Found(self._fetches.head(replica), [], replica)
        if found is not None:
            self._port.answer(self, found)
            return
        self._enter(replica)
        self._wait(replica)

    def _end_of(self, found: Found, tail: bytes | None) -> tuple[int, int] | None:
        """The reader's position after the answer; None: that is not known."""
        if found.is_filtered:
            if found.head.HasField("next_offset"):
                return found.head.next_offset, found.head.last_epoch
        elif tail is not None:
            end = position_after(tail, _ANY_OFFSET)
            if end is not None and end.length == len(tail):
                return end.next_offset, end.last_epoch
        elif found.slices:
            last = found.slices[-1]
            assert found.replica is not None
            if last.last_epoch is not None:
                return last.next_offset, last.last_epoch
            last_epoch = found.replica.log.epochs.epoch_at(last.next_offset - 1)
            # In this order: if it is still there, its epoch is the one that was found.
            return None if last.is_gone else (last.next_offset, last_epoch)
        return None if found.slices else (self._offset, self._last_epoch)

    def _enter(self, replica: Replica) -> None:
        """From now on it waits between its answers. Raises the errors of AccessControl.check, and
        UnavailableError."""
        if self._is_entered:
            return
        polls = self._fetches.long_poll
        polls.check_room()
        identity = self._port.identity
        self._watch = polls.access.watch_reading(identity, replica.stream, self._lost_right)
        polls.waiting += 1
        self._is_entered = True

    def _wait(self, replica: Replica) -> None:
        self._waits_at = replica
        replica.add_waiter(self._wake)

    def _stop_waiting(self) -> None:
        self._is_woken = False
        if self._waits_at is not None:
            self._waits_at.remove_waiter(self._wake)
            self._waits_at = None

    def _wake(self) -> None:
        self._waits_at = None
        self._is_woken = True
        self._fetches.long_poll.woken_to_follow(self)

    def _lost_right(self, error: JetstreamError) -> None:
        self._watch = None
        if self._is_waiting:  # Otherwise the next look says why.
            self._end(error)

    def _end(self, error: JetstreamError) -> None:
        if self._is_waiting:
            self._stop_waiting()
            self._port.refuse(self, error)
        self.is_over = True


class _Sent(NamedTuple):
    """end: the offset after it, and the leader epoch of the record before that offset."""

    end: tuple[int, int]
    length: int
    high_watermark: int
