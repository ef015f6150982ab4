"""Reads records from the lake, and keeps what was read in files, from which readers are sent it.

Threads of its own wait for the lake, one flight for each group of batches, whoever waits for it.
The event loop only looks at what is there. Every group was checked before it is served: both
checksums of each batch, and its offsets (object_finder.py).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from jetstream_protocol.errors import CorruptBatchError, JetstreamError, UnavailableError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.lake.access import Group, Lake
from jetstream_server.lake.stores import is_alike
from jetstream_server.log.segment import LogSlice

THREADS = 2
FULL_DISK_BYTES = 32 * 1024 * 1024
"""What may be kept in any case: a group has 8 MiB, or one batch."""
EPOCHS_MAX = 10_000
"""Of records before groups, which are kept: readers that go on ask for them."""
REMOVED_MAX = 10_000
"""Of groups that had to make room, which are remembered: to tell which are read again."""
SAY_AGAIN_US = 60_000_000
IN_USE_US = 60_000_000
"""A file stays so long after its last use: an answer with a slice of it may wait to be sent."""

logger = structlog.get_logger("jetstream.lake")

Found = TypeVar("Found")
Done = Callable[[JetstreamError | None], None]
_Key = tuple[int, int]
"""Stream id, and the first offset of a group."""
_Flight = tuple[int, str, int, bool]
"""Stream id, location of the table's metadata, offset, and whether only its epoch is wanted."""


@dataclass(slots=True)
class _Kept:
    """The batches of [base, end) in a file, by their base offsets. epochs: each batch's."""

    path: str
    base: int
    end: int
    offsets: list[int]
    positions: list[int]
    epochs: list[int]
    length: int
    used_us: MonotonicUs


class LakeReader:
    """Belongs to the event loop. Call `close`."""

    def __init__(
        self,
        lake: Lake,
        folder: str,
        cache_bytes: int,
        monotonic_clock: MonotonicClock,
        spare_bytes: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """folder: for files that this reader makes; what is in it is removed. spare_bytes: free on
        the disk beyond its reserve; may be negative."""
        self._lake = lake
        self._folder = folder
        self._cache_bytes = cache_bytes
        self._spare_bytes = spare_bytes
        self._clock = monotonic_clock
        self._kept: dict[_Key, _Kept] = {}
        self._bases: dict[int, list[int]] = {}
        self._epochs: dict[tuple[int, int], int] = {}
        """By stream id and offset."""
        self._flights: dict[_Flight, list[Done]] = {}
        self._reading: dict[_Key, asyncio.Future[None]] = {}
        self._tasks: dict[asyncio.Task[JetstreamError | None], None] = {}
        self._pool = ThreadPoolExecutor(THREADS, "jetstream-lake")
        self.kept_bytes = 0
        self._removed: dict[_Key, None] = {}
        self._reported: dict[int, tuple[str, MonotonicUs]] = {}
        """By stream id: why a read failed, as the log has it, and when that was written."""
        self.reads = 0
        self.rereads = 0
        """Of these, what had been kept, and had to make room."""
        self.failures = 0
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, mode=0o700)

    def begin(self) -> None:
        """Get ready for readers."""
        self._lake.begin()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._lake.stop)
        await loop.run_in_executor(None, self._pool.shutdown)

    def url_of(self, location: str) -> str:
        """Under which engines find it."""
        return f"{self._lake.url}/{location}"

    async def metadata(self, location: str) -> bytes:
        """The metadata of a table, as the store has it. Raises OSError, and UnavailableError if it
        is damaged: engines would be sent what they cannot read."""
        return await self._in_thread(self._lake.metadata, location)

    async def offset_at(self, location: str, timestamp_us: int) -> int | None:
        """The first offset of what was appended at that time or after it; None: the table has only
        older records. Raises UnavailableError."""
        return await self._searched(self._lake.offset_at, location, timestamp_us)

    async def appended_at(self, location: str, offset: int) -> int:
        """When the batch that holds `offset` was appended. Raises UnavailableError."""
        return await self._searched(self._lake.appended_at, location, offset)

    async def _searched(self, search: Callable[..., Found], *given: Any) -> Found:
        try:
            return await self._in_thread(search, *given)
        except CorruptBatchError as error:
            raise UnavailableError(f"the lake cannot be searched: {error}") from error
        except OSError as error:
            raise UnavailableError(f"the lake cannot be read: {error}; try again") from error

    async def _in_thread(self, function: Callable[..., Found], *given: Any) -> Found:
        """Raises OSError, JetstreamError."""
        self._lake.begin()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *given)
        except ValueError as error:
            raise UnavailableError(f"the lake is damaged: {error}") from error

    def find(self, stream_id: int, offset: int, bytes_max: int) -> LogSlice | None:
        """Whole batches from the one that holds `offset` on; None: they are not here yet: `load`
        them."""
        kept = self._kept_at(stream_id, offset)
        if kept is None:
            return None
        if not _is_whole(kept):  # Somebody has emptied the folder, for example.
            self._remove((stream_id, kept.base))
            return None
        kept.used_us = self._clock()
        first = bisect_right(kept.offsets, offset) - 1
        last = bisect_right(kept.positions, kept.positions[first] + bytes_max) - 1
        last = max(last, first + 1)
        position = kept.positions[first]
        return LogSlice(
            kept.path, position, kept.positions[last] - position, kept.offsets[first],
            self._end(kept, last), last_epoch=kept.epochs[last - 1],
        )  # fmt: skip

    def _end(self, kept: _Kept, count: int) -> int:
        """Where the first `count` batches end."""
        return kept.offsets[count] if count < len(kept.offsets) else kept.end

    def epoch_before(self, stream_id: int, offset: int) -> int | None:
        """The leader epoch of the record before `offset`; None: that is not known here:
        `load_epoch`."""
        epoch = self._epochs.get((stream_id, offset - 1))
        if epoch is not None:
            return epoch
        kept = self._kept_at(stream_id, offset - 1)
        if kept is None:
            return None
        return kept.epochs[bisect_right(kept.offsets, offset - 1) - 1]

    def _kept_at(self, stream_id: int, offset: int) -> _Kept | None:
        """What holds `offset`."""
        bases = self._bases.get(stream_id, [])
        at = bisect_right(bases, offset) - 1
        kept = self._kept[stream_id, bases[at]] if at >= 0 else None
        return kept if kept is not None and offset < kept.end else None

    def forget(self, stream_id: int, offset: int) -> None:
        """Have the group that holds `offset` read anew, if it is kept: a reader could not use what
        it was sent."""
        kept = self._kept_at(stream_id, offset)
        if kept is not None:
            self._remove((stream_id, kept.base))

    def drop(self, stream_id: int, before: int = sys.maxsize) -> None:
        """Remove what is kept of the records before an offset, as far as whole groups go: they were
        purged, and nobody is to find them here. Who was just to be sent them gets an error."""
        for base in tuple(self._bases.get(stream_id, ())):
            if self._kept[stream_id, base].end <= before:
                self._remove((stream_id, base))

    def load(self, stream_id: int, location: str, offset: int, done: Done) -> None:
        """Read the group that holds `offset`. location: of the table's metadata."""
        self._begin((stream_id, location, offset, False), done)

    def load_epoch(self, stream_id: int, location: str, offset: int, done: Done) -> None:
        """The same for its leader epoch alone. Whatever is read or removed meanwhile, it is known
        when `done` is called: a cache with room for one group could keep both never."""
        self._begin((stream_id, location, offset, True), done)

    def _begin(self, flight: _Flight, done: Done) -> None:
        waiting = self._flights.get(flight)
        if waiting is not None:
            waiting.append(done)
            return
        self._flights[flight] = [done]
        task = run_in_background(self._fly(flight), "a read of the lake")
        self._tasks[task] = None
        task.add_done_callback(partial(self._landed, flight))

    async def _fly(self, flight: _Flight) -> JetstreamError | None:
        try:
            await self._load(*flight)
        except JetstreamError as error:
            return error
        except OSError as error:
            return UnavailableError(f"the lake cannot be read: {error}; try again")
        return None

    def _landed(self, flight: _Flight, task: asyncio.Task[JetstreamError | None]) -> None:
        """Tell all that wait. Also of a task that was cancelled before it began."""
        del self._tasks[task]
        error: JetstreamError | None = UnavailableError("this node stops reading the lake")
        if not task.cancelled() and task.exception() is None:
            error = task.result()
        if error is not None:
            self.failures += 1
            self._say(flight[0], error.message)
        for done in self._flights.pop(flight):
            done(error)

    def _say(self, stream_id: int, reason: str) -> None:
        """Once a minute: readers try again several times a second."""
        before, reported_us = self._reported.get(stream_id, (None, MonotonicUs(0)))
        now_us = self._clock()
        if not is_alike(before, reason) or now_us - reported_us >= SAY_AGAIN_US:
            self._reported[stream_id] = reason, now_us
            logger.warning("lake_unreadable", stream_id=stream_id, reason=reason)

    async def _load(self, stream_id: int, location: str, offset: int, is_epoch: bool) -> None:
        group = await self._in_thread(self._find, location, offset)
        if is_epoch:
            epoch = group.epochs[bisect_right(group.offsets, offset) - 1]
            self._epochs[stream_id, offset] = epoch
            if len(self._epochs) > EPOCHS_MAX:
                del self._epochs[next(iter(self._epochs))]
            return
        key = stream_id, group.base
        if key in self._kept:
            return
        if key in self._reading:
            await asyncio.wait([self._reading[key]])
            if key in self._kept:
                return
            raise UnavailableError("the lake could not be read; try again")
        self._make_room(group.length)
        # Others that are read meanwhile find their room without it.
        self.kept_bytes += group.length
        loop = asyncio.get_running_loop()
        ended = self._reading[key] = loop.create_future()
        try:
            kept = await self._in_thread(self._read, stream_id, group)
        except BaseException:
            self.kept_bytes -= group.length
            raise
        finally:
            del self._reading[key]
            loop.call_soon(ended.set_result, None)
        self.reads += 1
        if key in self._removed:
            del self._removed[key]
            self.rereads += 1
        self._kept[key] = kept
        bases = self._bases.setdefault(stream_id, [])
        bases.insert(bisect_right(bases, kept.base), kept.base)

    def give_back(self) -> None:
        """Remove what nobody uses and the disk has no room for. Called while the disk is full."""
        with suppress(UnavailableError):
            self._make_room(0)

    def _make_room(self, length: int) -> None:
        """Remove what was not used for longest. Raises UnavailableError if all of it is in use.

        **safety** Readers of old records do not fill the disk: appends would be refused.
        """
        now_us, room = self._clock(), self.kept_bytes + self._spare_bytes() // 2
        bytes_max = min(self._cache_bytes, max(room, FULL_DISK_BYTES))
        for key, kept in sorted(self._kept.items(), key=lambda item: item[1].used_us):
            if self.kept_bytes + length <= bytes_max or now_us - kept.used_us < IN_USE_US:
                break
            self._remove(key)
            self._removed[key] = None
            if len(self._removed) > REMOVED_MAX:
                del self._removed[next(iter(self._removed))]
        if self.kept_bytes and self.kept_bytes + length > bytes_max:
            used = "lake.cache_bytes is" if bytes_max == self._cache_bytes else "the disk's room is"
            raise UnavailableError(f"{used} used up by other readers; try again")

    def _remove(self, key: _Key) -> None:
        kept = self._kept.pop(key)
        self._bases[key[0]].remove(key[1])
        if not self._bases[key[0]]:
            del self._bases[key[0]]
        self.kept_bytes -= kept.length
        Path(kept.path).unlink(missing_ok=True)

    # In the threads.

    def _find(self, location: str, offset: int) -> Group:
        try:
            return self._lake.group(location, offset)
        except CorruptBatchError as error:
            raise UnavailableError(f"the lake is damaged at offset {offset}: {error}") from error

    def _read(self, stream_id: int, group: Group) -> _Kept:
        path = os.path.join(self._folder, f"{stream_id}-{group.base}.batches")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)  # Somebody may have removed it.
        try:
            length = self._lake.read_into(group.name, group.at, path)
        except CorruptBatchError as error:
            Path(path).unlink(missing_ok=True)
            raise UnavailableError(
                f"the lake's object {group.name} is damaged at offset {group.base}: {error}"
            ) from error
        except (OSError, JetstreamError):
            Path(path).unlink(missing_ok=True)
            raise
        return _Kept(
            path, group.base, group.end, group.offsets, group.positions, group.epochs, length,
            self._clock(),
        )  # fmt: skip


def _is_whole(kept: _Kept) -> bool:
    try:
        return os.stat(kept.path).st_size == kept.length
    except OSError:
        return False
