"""Slowly reads every segment of every replica on this node, to find bad bytes that no reader meets.

Pages in the page cache are skipped: they say nothing about the disk, and a later round reads them
from the disk. Pages that the scrub has read are released at once, so that it does not displace
others from the cache. A round begins at a random segment, so that frequent restarts leave nothing
out for ever.
"""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.log.damage import view
from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.log.inspection import BadRange, Inspected, inspect
from jetstream_server.log.segment import Segment
from jetstream_server.net.page_cache import is_resident
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

PART_BYTES: Final = 256 * 1024
"""Bytes checked at a time: some milliseconds of a thread when batches are small."""
SEGMENT_BYTES: Final = 64 * 1024
"""Least size that a segment counts for: many small ones take time too."""
RESIDENT_SHARE: Final = 16
"""Testing whether a page is in memory costs this many times less than reading it."""
ROUND_SECONDS: Final = 10.0
"""Least duration of a round, however little data there is."""


class Scrub:
    """Call `start`, then `close`. It only reports: healing.py inspects and marks."""

    def __init__(
        self, replicas: ReplicaManager, disk: Disk, thread: Executor, *, bytes_per_second: int
    ) -> None:
        """thread: its own thread, shut down at the end."""
        self._replicas = replicas
        self._disk = disk
        self._bytes_per_second = bytes_per_second
        self._thread = thread
        self._running: asyncio.Task[None] | None = None
        self.bytes_read = 0

    def start(self) -> None:
        self._running = run_in_background(self._run(), "scrub")

    async def close(self) -> None:
        await end_tasks(self._running)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            ends_at = loop.time() + ROUND_SECONDS
            segments = [
                (replica, segment)
                for replica in self._replicas
                for segment in replica.log.damage.segments()
            ]
            first = random.randrange(len(segments)) if segments else 0
            for replica, segment in segments[first:] + segments[:first]:
                await self._scrub(replica, segment)
            await asyncio.sleep(max(0.0, ends_at - loop.time()))

    async def _scrub(self, replica: Replica, segment: Segment) -> None:
        loop = asyncio.get_running_loop()
        spent, begun = 0, loop.time()
        seen = await loop.run_in_executor(self._thread, view, segment)
        position, offset = 0, seen.base_offset
        while position < seen.size:
            if replica.closed or replica.log.offline_reason or segment.is_gone:
                return
            end, end_offset = seen.boundary_after(position + PART_BYTES)
            try:
                found, read = await loop.run_in_executor(
                    self._thread, _check, self._disk, seen, (position, offset), end
                )
            except OSError:
                break  # No descriptor is left. The next round checks the rest.
            self.bytes_read += read
            if found:
                replica.suspect(found[0].start_offset, whole=True)
            spent += read or (end - position) // RESIDENT_SHARE
            position, offset = end, end_offset
            await self._pause(spent, begun)
        await self._pause(max(spent, SEGMENT_BYTES), begun)

    async def _pause(self, spent: int, begun: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, begun + spent / self._bytes_per_second - loop.time()))


class _Descriptor:
    """A separate descriptor for an inspection, without read-ahead: otherwise pages that the scrub
    itself has read would look like pages that others use."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def exists(self, path: str) -> bool:
        return True

    def pread(self, path: str, position: int, length: int) -> bytes:
        return os.pread(self.fd, length, position)


def _check(
    disk: Disk, seen: Inspected, start: tuple[int, int], end: int
) -> tuple[list[BadRange], int]:
    """The bad ranges, and how many bytes were read to find them."""
    position, length = start[0], end - start[0]
    if not isinstance(disk, OsDisk):
        return inspect(disk, seen, start, end), length
    try:
        file = _Descriptor(seen.path)
    except OSError:
        return inspect(disk, seen, start, end), length
    try:
        if is_resident(file.fd, position, length):
            return [], 0
        found = inspect(file, seen, start, end)
        with suppress(OSError):  # A page that cannot be released only stays in the cache.
            os.posix_fadvise(file.fd, position, length, os.POSIX_FADV_DONTNEED)
        return found, length
    finally:
        os.close(file.fd)
