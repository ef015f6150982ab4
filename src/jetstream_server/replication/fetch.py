"""Waiting for committed records: the long poll behind every port that serves reads (design 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.replica import Replica

BYTES_MAX_DEFAULT = 1024 * 1024
BYTES_MAX_LIMIT = 64 * 1024 * 1024  # One answer; also the largest batch there can be.
WAIT_MS_LIMIT = 300_000  # A reader that waits longer asks again; a vanished one is forgotten.
OUT_OF_SYNC_SECONDS = 1.0
WAITING_MAX = 16_384
"""Long polls of this node at a time, over both ports. Each costs about 8 KB; without a bound, one
connection with 64 of them after another would take all memory there is."""


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """What a reader asks for, checked. Times in milliseconds, sizes in bytes."""

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
        """Zero means the default. Raises InvalidRequestError for what cannot be meant."""
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


class Fetches:
    """All reads of this node that may wait. `waiting`: how many do, now. speaks: whether this
    node's session lease holds: without it nobody knows who leads by now."""

    def __init__(self, speaks: Callable[[], bool], waiting_max: int = WAITING_MAX) -> None:
        self.waiting = 0
        self._speaks = speaks
        self._waiting_max = waiting_max

    def is_out_of_sync(self, replica: Replica) -> bool:
        """Whether there may be committed records that this replica does not get, for now."""
        return not (replica.is_in_sync and self._speaks())

    async def fetch(self, replica: Replica, position: FetchPosition) -> LogSlice | None:
        """Committed batches at `position`, waiting as long as it allows; None: nothing came.

        A replica that is out of sync does not wait long: its reader may know a better one. Raises
        what `Replica.read` raises, at once or when the state changes during the wait;
        UnavailableError when too many wait already.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + position.wait_ms_max / 1000
        while True:
            is_leader = replica.leadership is not None and self._speaks()
            found = replica.read(
                position.offset, position.bytes_max, position.last_epoch, is_leader=is_leader
            )
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
            if not await self._more_committed(replica, remaining):
                return found

    async def _more_committed(self, replica: Replica, seconds: float) -> bool:
        """Wait for a rise of the high watermark or the end of the replica; False: neither."""
        self.waiting += 1
        try:
            return await _woken(replica, seconds)
        finally:
            self.waiting -= 1


def _is_enough(found: LogSlice, position: FetchPosition, replica: Replica) -> bool:
    """Either as much as was asked for, or cut short by something that waiting does not change."""
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
