"""Waits for committed records: the long poll of every port that serves reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from jetstream_server.clocks import MonotonicClock, monotonic_clock
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.core.closeness import observes_closely
from jetstream_server.replication.core.replica import Replica
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import Identity

BYTES_MAX_DEFAULT = 1024 * 1024
BYTES_MAX_LIMIT = 64 * 1024 * 1024  # Upper bound on one answer, and on any batch.
WAIT_MS_LIMIT = (
    300_000  # A reader that wants to wait longer asks again. A vanished one is forgotten.
)
OUT_OF_SYNC_SECONDS = 1.0
WAITING_MAX = 16_384
"""Upper bound on concurrent long polls of this node, over both ports. Each costs about 8 KB;
without a limit, connections with 64 of them each would use all memory."""


@dataclass(frozen=True, slots=True)
class FetchPosition:
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
        self._clock = monotonic_clock
        self._lease_held = lease_held
        self._access = access
        self._waiting_max = waiting_max

    def is_out_of_sync(self, replica: Replica) -> bool:
        """Whether committed records may exist that this replica does not get at present."""
        is_current = replica.is_in_sync or observes_closely(replica, self._clock())
        return not (is_current and self._lease_held())

    async def fetch(
        self, replica: Replica, position: FetchPosition, caller: Identity
    ) -> LogSlice | None:
        """Committed batches at `position`; waits as long as it allows; None: there are none.

        A replica that is out of sync answers soon, because its reader may know a better one. Raises
        the errors of `Replica.read`, at once or when the state changes during the wait, those of
        AccessControl.check if the caller loses its right during the wait, and UnavailableError when
        too many fetches wait already.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + position.wait_ms_max / 1000
        while True:
            is_leader = replica.leadership is not None and self._lease_held()
            begun_us = self._clock()
            found = replica.read(
                position.offset, position.bytes_max, position.last_epoch, is_leader=is_leader
            )
            self.times.local_us += self._clock() - begun_us
            if found is not None and _is_enough(found, position, replica):
                return found
            if self.is_out_of_sync(replica):
                deadline = min(deadline, loop.time() + OUT_OF_SYNC_SECONDS)
            remaining = deadline - loop.time()
            if remaining <= 0:
                return found
            if self.waiting >= self._waiting_max:
                if found is not None:
                    return found
                raise UnavailableError(f"{self.waiting} fetches wait for records already")
            if not await self._more_committed(replica, remaining, caller):
                return found

    async def _more_committed(self, replica: Replica, seconds: float, caller: Identity) -> bool:
        """Wait until the high watermark rises or the replica ends. Returns False if neither
        happens."""
        self.waiting += 1
        begun_us = self._clock()
        try:
            with self._access.while_allowed_to_read(caller, replica.stream):
                return await _woken(replica, seconds)
        finally:
            self.waiting -= 1
            self.times.wait_us += self._clock() - begun_us


def _is_enough(found: LogSlice, position: FetchPosition, replica: Replica) -> bool:
    """Whether it is as much as requested, or limited by something that waiting does not change."""
    return found.length >= position.bytes_min or found.next_offset < replica.high_watermark


async def _woken(replica: Replica, seconds: float) -> bool:
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    replica.add_waiter(wake)
    try:
        async with asyncio.timeout(seconds):
            await woken
    except TimeoutError:
        return False
    finally:
        replica.remove_waiter(wake)
    return True
