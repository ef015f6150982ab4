"""A fetch with a filter: it leaves out whole batches without a wanted record.

A worker thread reads, decompresses and searches the batches: a bounded amount for each fetch, and
one fetch at a time, so that filters do not slow down other readers. A fetch that has searched that
amount answers how far it has come, even without a record, so that its reader continues from there.
Batches are sent as in every fetch, directly from the files.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from jetstream_protocol.errors import (
    CorruptBatchError,
    JetstreamError,
    OffsetOutOfRangeError,
    StorageError,
    UnavailableError,
)
from jetstream_protocol.record_filter import RecordFilter
from jetstream_server.log.segment import LogSlice
from jetstream_server.log.slice_filter import SliceFilter
from jetstream_server.replication.replica import Replica
from jetstream_server.security.identity import Identity
from jetstream_server.serving.long_poll import FetchPosition, LongPoll
from jetstream_server.serving.reader_position import position_after

STEP_BYTES = 512 * 1024
LOOKED_AT_BYTES_MAX = 8 * 1024 * 1024
"""Uncompressed bytes searched in one fetch: some tens of milliseconds of a worker thread."""
_BATCHES_PER_TURN = 32
"""How long the thread then lets others run: a tenth of a millisecond."""
_PAUSE_SECONDS = 0.005
"""Pause after a vain search of new records: a busy stream must not be searched message by
message."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """slices: to be sent, in order. next_offset: where to continue; nothing before it is wanted.
    last_epoch: of the record before that; -1: unknown."""

    slices: list[LogSlice]
    next_offset: int
    last_epoch: int


class FilteredFetches:
    """The fetches of this node that have filters."""

    def __init__(self, fetches: LongPoll) -> None:
        self._fetches = fetches
        self._looking = asyncio.Lock()

    async def fetch(
        self, replica: Replica, position: FetchPosition, wanted: RecordFilter, caller: Identity
    ) -> Filtered:
        """Like `LongPoll.fetch`, but wait until a new record is wanted."""
        search = _Search(replica, position, wanted)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + position.wait_ms_max / 1000
        while True:
            before = search.result()
            at = search.position(deadline - loop.time())
            try:
                found = await self._fetches.fetch(replica, at, caller)
                if found is None:
                    return before
                async with self._looking:
                    await self._look_at(search, found, replica, at)
                self._fetches.check_again(replica, at)
            except JetstreamError:
                if before.next_offset == position.offset:
                    raise
                return before  # The next request gets the error.
            if search.is_done:
                return search.result()
            if search.next_offset >= replica.high_watermark:
                if search.slices or loop.time() >= deadline:
                    return search.result()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _look_at(
        self, search: _Search, found: LogSlice, replica: Replica, at: FetchPosition
    ) -> None:
        try:
            await asyncio.to_thread(search.look_at, found)
        except (UnavailableError, OffsetOutOfRangeError) as error:
            self._fetches.check_again(replica, at)  # Perhaps they were cut off.
            # Or they have left this log, and are in the lake.
            raise UnavailableError(f"{error.message}; try again") from error


class _Search:
    """The progress of one fetch. `look_at` runs in a worker thread, nothing else meanwhile."""

    def __init__(self, replica: Replica, position: FetchPosition, wanted: RecordFilter) -> None:
        self.slices: list[LogSlice] = []
        self.next_offset = position.offset
        self._last_epoch = position.last_epoch
        self._replica = replica
        self._position = position
        self._wanted = wanted
        self._length = 0
        self._looked_at = 0
        self._is_full = False

    def position(self, seconds: float) -> FetchPosition:
        """The next position to search. Once something was found, the fetch does not wait any
        more."""
        return FetchPosition(
            offset=self.next_offset,
            last_epoch=self._last_epoch,
            bytes_max=STEP_BYTES,
            bytes_min=1,
            wait_ms_max=0 if self.slices else max(0, int(seconds * 1000)),
        )

    def look_at(self, found: LogSlice) -> None:
        """Search a slice. Blocks. Raises the errors of reading, except damage, which the reader
        finds."""
        room = self._position.bytes_max - self._length
        try:
            data = self._replica.log.pread(found)
        except (CorruptBatchError, StorageError):
            # Sent unchanged, or unreadable then too: the code that sends it handles that.
            self._keep([found])
            self._is_full = True
            return
        step = SliceFilter(
            found, data, self._wanted, room, not self.slices, self._replica.log.encryption
        )
        for count, _ in enumerate(step.steps(), start=1):
            if count % _BATCHES_PER_TURN == 0:
                time.sleep(0)
            if self._looked_at + step.looked_at >= LOOKED_AT_BYTES_MAX:
                break
        self._looked_at += step.looked_at
        self._keep(step.kept)
        end = position_after(data, step.next_offset)
        if end is not None:
            _, self.next_offset, self._last_epoch = end
        # A damaged header ends the search: what lies after it is kept, and goes to the reader.
        self._is_full = end is None or end.length < len(data)

    def _keep(self, kept: list[LogSlice]) -> None:
        self.slices += kept
        self._length += sum(slice_.length for slice_ in kept)

    @property
    def is_done(self) -> bool:
        """Whether there is no room, or no time, for more."""
        return self._is_full or self._looked_at >= LOOKED_AT_BYTES_MAX

    def result(self) -> Filtered:
        return Filtered(self.slices.copy(), self.next_offset, self._last_epoch)
