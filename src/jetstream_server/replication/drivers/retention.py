"""Keeps logs within their streams' limits: seals segments by age, and removes records that exceed
the limits or were purged.

log/retention.py has the rules. The leader decides on retention; its log start reaches followers in
every answer (`LeaderSnapshot`). **safety** A follower drops what the leader has dropped, but only
records that exceed the stream's limits in its own log, or that the metadata says were purged: a
leader that lost records must not make others drop theirs. So without limits and purges a follower
drops nothing. It may keep up to a segment more than its leader, or everything that earlier limits
removed there. Each replica seals its own segments.

Of a stream in the lake each replica drops, by its own clock and size, what the metadata says is
there, whether its leader has dropped it or not.

Only streams with limits, purges or compaction (which needs sealed segments) are visited, at most
VISITS_PER_SECOND of them; a stream that has not changed since its last visit costs a comparison.
Reading and removing files runs in one thread, one log at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from jetstream_protocol.errors import StorageError, StorageFullError
from jetstream_protocol.types import WallUs
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import WallClock
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.retention import Limits, Span, judge
from jetstream_server.log.segment import Segment
from jetstream_server.metadata.state.streams import StreamMetadata, StreamSettings
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica

ROUND_SECONDS = 0.5
VISITS_PER_TURN = 100
TURN_SECONDS = 0.1
RETRY_US = 10_000_000
"""Pause before a log of which a segment could not be read is visited again, whatever is appended:
the segment may be inspected meanwhile."""

logger = structlog.get_logger("jetstream.replication")


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state on which a visit's result depends. due_us: when time alone changes the result."""

    settings: StreamSettings
    leads: bool
    log_end_offset: int
    segment_count: int
    bound_offset: int
    """Nothing at or after it may be removed: only records that are committed, flushed, and
    dropped by the leader may."""
    purged_offset: int
    """Records below it were purged; 0: none were."""
    lake_bound: int = 0
    """The same for what the lake holds, as this node has learnt from the metadata."""
    due_us: WallUs | None = None


@dataclass(frozen=True, slots=True)
class _Finding:
    log_start_offset: int
    seal: bool
    due_us: WallUs | None


class _UnreadableError(StorageError):
    """The times of a segment cannot be read. The cause is the disk's error."""

    def __init__(self, message: str, segment: Segment | None) -> None:
        super().__init__(message)
        self.segment = segment


class Retention(RoleListener):
    """Call `start`, then `close`."""

    def __init__(self, *, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._visited: dict[Replica, _Seen | None] = {}
        self._reasons: dict[Replica, str] = {}  # why limits remove nothing
        self._retry_us: dict[Replica, WallUs] = {}  # when those are visited again
        self._advanced: dict[Replica, None] = {}  # files below their log start must be removed
        self._kept: dict[Replica, None] = {}  # their files were not removed: the disk is full
        self._tasks: list[asyncio.Task[None]] = []
        self._visiting = asyncio.Lock()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "jetstream-retention")
        self.records_removed = 0
        """Records removed by limits and purges since the server started, counted in offsets."""

    def start(self) -> None:
        self._tasks = [
            run_in_background(self._visit_all(), "retention visits"),
            run_in_background(self._remove_files(), "retention removals"),
        ]

    async def close(self) -> None:
        await end_tasks(*self._tasks)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    # A RoleListener.

    def role_changed(self, replica: Replica) -> None:
        settings = replica.stream.config
        is_purged = replica.stream.purged_offset > 0
        has_limits = settings.has_limits or settings.lake
        if replica.closed or not (has_limits or settings.compact or is_purged):
            self._visited.pop(replica, None)
            self._reasons.pop(replica, None)
        else:
            self._visited.setdefault(replica, None)
        self._retry_us.pop(replica, None)  # Perhaps it was repaired.

    def _remove_below_start(self, replica: Replica) -> None:
        self._advanced[replica] = None
        self._wake.set()

    # Visits.

    async def _visit_all(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            while self._kept:
                self._remove_below_start(self._kept.popitem()[0])
            for count, replica in enumerate(tuple(self._visited), 1):
                await self.visit(replica)
                if count % VISITS_PER_TURN == 0:
                    await asyncio.sleep(TURN_SECONDS)

    async def visit(self, replica: Replica) -> None:
        """Visit a replica at once, because somebody waits for the end of a purge: with thousands of
        streams its turn comes seconds later."""
        async with self._visiting:
            if replica in self._visited:
                await self._visit(replica)

    async def _visit(self, replica: Replica) -> None:
        """Check a replica, if anything can have changed, and apply its limits."""
        log, wall_us = replica.log, self._wall_clock()
        is_paused = wall_us < self._retry_us.get(replica, WallUs(0)) <= wall_us + RETRY_US
        if _is_offline(log) or is_paused:
            return
        seen = _look(replica)
        before = self._visited[replica]
        if before is not None and replace(before, due_us=None) == seen:
            is_due = before.due_us is not None and before.due_us <= wall_us
            if not is_due:
                return
        if log.flush_due or seen.purged_offset > max(log.flushed_offset, log.log_start_offset):
            replica.flush()
        try:
            finding = await asyncio.get_running_loop().run_in_executor(
                self._thread, _find, log, seen, wall_us
            )
            if replica in self._visited:
                self._reasons.pop(replica, None)
                self._retry_us.pop(replica, None)
                self._act(replica, seen, finding)
        except _UnreadableError as error:
            if replica in self._visited and not _is_offline(log):
                self._stuck(replica, error)
                self._retry_us[replica] = WallUs(wall_us + RETRY_US)
        except StorageFullError:
            pass  # There is no space for a new segment. The next round tries again.
        except StorageError as error:
            if _is_offline(log):
                replica.fail(error)

    def _stuck(self, replica: Replica, error: _UnreadableError) -> None:
        """Have the segment inspected, and say once why it cannot be read."""
        segment = error.segment
        if segment is None or segment not in replica.log.damage.segments():
            return  # It was removed or swapped while it was read.
        if self._reasons.get(replica) != error.message:
            self._reasons[replica] = error.message
            logger.warning(
                "retention_stuck",
                stream=replica.stream.full_name,
                file=segment.path,
                reason=error.message,
            )
        replica.suspect_file(segment.path, error)

    def _act(self, replica: Replica, seen: _Seen, finding: _Finding) -> None:
        log = replica.log
        if finding.seal:
            log.seal()
            replica.flush()
        # The log may have been truncated meanwhile, or belong to another leadership.
        now = _look(replica)
        bound_offset = max(now.bound_offset, now.lake_bound)
        if log.log_start_offset < finding.log_start_offset <= bound_offset:
            if now.leads == seen.leads and now.settings == seen.settings:
                self._advance(replica, finding.log_start_offset)
        elif log.begins_below_start:
            log.begin_advance(log.log_start_offset)
            self._remove_below_start(replica)
        if finding.seal or log.log_start_offset > finding.log_start_offset:
            return  # The state has changed. The next round checks again.
        if log.begins_below_start:
            return  # A segment was sealed so that it can be removed, and awaits its flush.
        self._note(replica, replace(seen, due_us=finding.due_us))

    def _advance(self, replica: Replica, log_start_offset: int) -> None:
        if log_start_offset == replica.log.log_end_offset:
            # All of it was purged, so the last segment can be removed once it is sealed. If there
            # is no room for another segment, the others must be removed first.
            with suppress(StorageFullError):
                replica.log.seal()
            replica.flush()
        self.records_removed += log_start_offset - replica.log.log_start_offset
        replica.log.begin_advance(log_start_offset)
        logger.info(
            "log_start_advanced",
            stream=replica.stream.full_name,
            log_start_offset=replica.log.log_start_offset,
        )
        self._remove_below_start(replica)
        replica.log_start_rose()

    def _note(self, replica: Replica, seen: _Seen) -> None:
        if replica in self._visited:
            self._visited[replica] = seen

    # Removals.

    async def _remove_files(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._advanced:
                replica = next(iter(self._advanced))
                del self._advanced[replica]
                await self._remove_files_of(replica)

    async def _remove_files_of(self, replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, replica.log.finish_advance)
        except StorageFullError:
            # NoDescriptorError, too. If only the checkpoint was not written, a restart begins
            # earlier.
            if replica.log.compaction.waits_for_removals:
                self._kept[replica] = None
        except StorageError as error:
            if not replica.closed:
                replica.fail(error)


def _is_offline(log: CommitLog) -> bool:
    return bool(log.offline_reason)


def _look(replica: Replica) -> _Seen:
    log = replica.log
    leads = replica.leadership is not None
    bound_offset = min(replica.high_watermark, log.flushed_offset)
    lake_bound = min(bound_offset, replica.stream.lake.end)
    if not leads:
        bound_offset = min(bound_offset, replica.leader_log_start_offset)
    return _Seen(
        replica.stream.config,
        leads,
        log.log_end_offset,
        log.segment_count,
        bound_offset,
        purged_below(replica.stream, log),
        lake_bound,
    )


def purged_below(stream: StreamMetadata, log: CommitLog) -> int:
    """The end of the purged records of this log; 0: none are purged.

    **safety** Records of a later epoch at such offsets, for example after an unclean election, are
    not the purged ones.
    """
    if not stream.purged_offset:
        return 0
    return min(stream.purged_offset, log.epochs.end_of(stream.purged_epoch, log.log_end_offset))


def _find(log: CommitLog, seen: _Seen, wall_us: WallUs) -> _Finding:
    """Find what has to be done, and when time makes more due. Runs in the thread. Raises
    _UnreadableError."""
    seal_due_us = _seal_due_us(log)
    if seal_due_us is not None and seal_due_us <= wall_us:
        return _Finding(log.log_start_offset, True, None)
    due_us = seal_due_us
    start = log.log_start_offset
    if max(seen.bound_offset, seen.lake_bound) > start:
        settings, bound_offset = seen.settings, seen.bound_offset
        limits = Limits(settings.max_age_us, settings.max_bytes, settings.max_messages)
        if settings.lake:
            # **safety** Only what the lake holds leaves the disk. Who copies keeps the lake itself
            # to max_age and max_bytes (uploading.py).
            ages = [each for each in (settings.max_age_us, settings.local_max_age_us) if each]
            sizes = [each for each in (settings.max_bytes, settings.local_max_bytes) if each]
            limits = Limits(min(ages, default=0), min(sizes, default=0))
            bound_offset = seen.lake_bound
        verdict = judge(
            _sealed_spans(log),
            limits,
            size_bytes=log.size_bytes,
            log_start_offset=start,
            log_end_offset=seen.log_end_offset,
            bound_offset=bound_offset,
            wall_us=wall_us,
        )
        start = max(verdict.log_start_offset, min(seen.purged_offset, seen.bound_offset))
        if verdict.due_us is not None:
            due_us = verdict.due_us if due_us is None else min(due_us, verdict.due_us)
    return _Finding(start, False, due_us)


def _seal_due_us(log: CommitLog) -> WallUs | None:
    last = log.damage.segment_of(log.log_end_offset)
    try:
        return log.seal_due_us()
    except StorageError as error:
        raise _UnreadableError(error.message, last) from error.__cause__


def _sealed_spans(log: CommitLog) -> Iterator[Span]:
    segment = next(iter(log.damage.segments()), None)
    try:
        for span in log.sealed_spans():
            yield span
            segment = log.damage.segment_of(span.next_offset)
    except StorageError as error:
        raise _UnreadableError(error.message, segment) from error.__cause__
