"""Compacts the logs of streams with `compact`, one at a time, the dirtiest first.

Each node compacts the logs of its own replicas, leader and follower alike, and only below the high
watermark and the flushed offset. The pass runs in its own process (log/compaction/worker.py);
this module plans it, swaps in its files, and records its progress.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import structlog

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import JetstreamError, StorageError, StorageFullError
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock, WallClock
from jetstream_server.log.compaction.rewrite_pass import (
    Done,
    Mapped,
    Rewritten,
    Source,
    Step,
    Task,
)
from jetstream_server.log.compaction.state import CompactionState
from jetstream_server.replication.drivers import worker_process
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica

ROUND_SECONDS = 1.0
DIRTY_RATIO = 0.5
"""A pass also reads the clean part: at this ratio it reads twice what was written since."""
LAG_US_MAX = 3_600_000_000
"""Dirty records are compacted after an hour, however few they are."""
RETRY_US = 10_000_000
"""Pause after a failed pass: disk problems last longer than a second."""
RELOOK_US = 5_000_000
"""Interval of checks of an unchanged log: only time can make a pass due."""

WORKER = "jetstream_server.log.compaction.worker"

_Result = TypeVar("_Result")

logger = structlog.get_logger("jetstream.replication")


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The state of a replica's log. dirty_bytes, clean_bytes: of sealed, committed segments."""

    state: CompactionState
    clean_bytes: int
    dirty_bytes: int

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


def status_of(replica: Replica) -> CompactionStatus:
    """The compaction status of a replica. Raises StorageError."""
    state = replica.log.compaction.state
    return _status(state, _sources(replica))


def _sources(replica: Replica) -> tuple[Source, ...]:
    log = replica.log
    return log.compaction.sources(min(replica.high_watermark, log.flushed_offset))


def _status(state: CompactionState, sources: tuple[Source, ...]) -> CompactionStatus:
    total = sum(source.size for source in sources)
    clean = sum(source.size for source in sources if source.next_offset <= state.cleaned_to)
    return CompactionStatus(state, clean, total - clean)


def removable_below(replica: Replica, wall_us: WallUs) -> int:
    """The offset below which a pass may remove tombstones: they have had their grace time, and no
    follower is about to copy them. Raises StorageError.

    Where no tombstone is left the offset stays as it is: below a later one, a follower would be
    told that tombstones are gone, though none was removed."""
    state = replica.log.compaction.state
    if not state.tombstones:
        return state.swept_below
    below = state.tombstones_below(wall_us, replica.stream.config.tombstone_grace_us)
    leadership = replica.leadership
    if leadership is None or leadership.copied_below >= below:
        return below
    # Not up to where the copy stands: each of its steps would make another pass due.
    return min(below, state.swept_below)


def urgency(status: CompactionStatus, wall_us: WallUs, tombstones_below: int) -> float:
    """How urgent a pass is; 0: it is not due. tombstones_below: those that it may remove."""
    state = status.state
    ratio = status.dirty_ratio
    is_old = status.dirty_bytes and wall_us - state.ended_at_us >= LAG_US_MAX
    over = state.tombstones and tombstones_below > state.swept_below
    if ratio >= DIRTY_RATIO or is_old or over:
        return max(ratio, 0.001)
    return 0.0


@dataclass(slots=True)
class CompactionCounters:
    """Counts since the server started; all but `failures` are of successful passes. duration_us:
    the total."""

    passes: int = 0
    failures: int = 0
    duration_us: int = 0
    bytes_read: int = 0
    bytes_removed: int = 0
    records_removed: int = 0

    def passed(self, state: CompactionState) -> None:
        """Count the last pass of `state`."""
        self.passes += 1
        self.duration_us += state.duration_us
        self.bytes_read += state.bytes_before
        self.bytes_removed += max(state.bytes_before - state.bytes_after, 0)
        self.records_removed += state.records_removed


class Compaction(RoleListener):
    """Call `start`, then `close`."""

    def __init__(
        self,
        *,
        wall_clock: WallClock,
        monotonic_clock: MonotonicClock,
        bytes_per_second: int,
        spawn: Callable[[], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        """wall_clock: for times in the log's files. spawn: starts the process of a pass."""
        self._spawn = spawn or partial(worker_process.spawn, WORKER)
        self._wall_clock = wall_clock
        self._monotonic_clock = monotonic_clock
        self._bytes_per_second = bytes_per_second
        self.counters = CompactionCounters()
        self._tracked: dict[Replica, None] = {}
        self._retry_at_us: dict[Replica, MonotonicUs] = {}
        # The state at the last look, and until when that look is valid.
        self._looked: dict[Replica, tuple[tuple[int, int, int], MonotonicUs]] = {}
        self._current: Replica | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "jetstream-compaction")

    def start(self) -> None:
        self._running = run_in_background(self._run(), "compaction")

    async def close(self) -> None:
        await end_tasks(self._running)
        await self._reap()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    # A RoleListener.

    def role_changed(self, replica: Replica) -> None:
        if replica.closed or not replica.stream.config.compact:
            self._tracked.pop(replica, None)
            self._retry_at_us.pop(replica, None)
            self._looked.pop(replica, None)
            if replica is self._current and self._process is not None:
                self._process.kill()  # Other logs are waiting.
        else:
            self._tracked[replica] = None

    # Rounds.

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            chosen = await self._choose()
            if chosen is not None:
                await self._compact(chosen)

    async def _choose(self) -> Replica | None:
        """The replica whose pass is most urgent."""
        wall_us, now_us = self._wall_clock(), self._monotonic_clock()
        best: Replica | None = None
        best_urgency = 0.0
        for count, replica in enumerate(tuple(self._tracked), 1):
            if count % 100 == 0:
                await asyncio.sleep(0)
            if replica.closed or replica.log.offline_reason or replica.log.damage.is_damaged:
                continue
            if now_us < self._retry_at_us.get(replica, now_us):
                continue
            seen = _seen(replica)
            looked = self._looked.get(replica)
            if looked is not None and looked[0] == seen and now_us < looked[1]:
                continue
            try:
                below = removable_below(replica, wall_us)
                wanted = urgency(status_of(replica), wall_us, below)
            except StorageError:
                continue  # The file cannot be read at the moment. Waiting loses nothing.
            if not wanted:
                self._looked[replica] = (seen, MonotonicUs(now_us + RELOOK_US))
            elif wanted > best_urgency:
                best, best_urgency = replica, wanted
        return best

    async def _compact(self, replica: Replica) -> None:
        """Run one pass. A failure leaves the log unchanged."""
        log = replica.log
        sources = _sources(replica)
        if not sources:
            return
        task = log.compaction.plan(
            sources,
            token=secrets.token_hex(8),
            tombstones_below=removable_below(replica, self._wall_clock()),
            kept_base_offsets=log.producers.kept_base_offsets(),
        )
        begun_us = self._monotonic_clock()
        try:
            await self._pass(replica, task, begun_us)
        except StorageFullError as error:
            self._failed(replica, error.message)
        except StorageError as error:
            if log.offline_reason and not replica.closed:
                replica.fail(error)
            else:
                self._failed(replica, error.message)
        except (OSError, EOFError, JetstreamError) as error:
            self._failed(replica, str(error))
        else:
            return
        await self._discard(replica, task)

    def _failed(self, replica: Replica, reason: str) -> None:
        if replica.closed:
            return
        self.counters.failures += 1
        self._retry_at_us[replica] = MonotonicUs(self._monotonic_clock() + RETRY_US)
        logger.warning("compaction_failed", stream=replica.stream.full_name, reason=reason)

    async def _discard(self, replica: Replica, task: Task) -> None:
        if replica.closed:
            return
        try:
            await self._in_thread(replica.log.compaction.discard, task)
        except StorageError as error:
            logger.info("compaction_leftover", reason=error.message)

    async def _pass(self, replica: Replica, task: Task, begun_us: MonotonicUs) -> None:
        encryption = replica.log.encryption
        request = {
            "task": task.to_dict(),
            "parent": os.getpid(),
            "bytes_per_second": self._bytes_per_second,
            "keys": [] if encryption is None else encryption.keys.for_process,
        }
        process = self._spawn()
        self._current, self._process = replica, process
        try:
            await self._in_thread(replica.log.compaction.begin, task)
            await self._in_thread(
                worker_process.send_request, process, json.dumps(request).encode() + b"\n"
            )
            done, end_offset = await self._follow(replica, task, process)
            await self._finish(replica, task, done, end_offset, begun_us)
        finally:
            await self._reap()

    async def _reap(self) -> None:
        """Kill the process, if there is one, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            await self._in_thread(worker_process.clean_up, self._process)
            self._current = self._process = None

    async def _in_thread(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def _follow(
        self, replica: Replica, task: Task, process: subprocess.Popen[bytes]
    ) -> tuple[Done, int]:
        """Swap in the files of the process until it has ended."""
        assert process.stdout is not None
        end_offset = task.cleaned_to
        while True:
            line = await self._in_thread(process.stdout.readline)
            if not line:
                code = await self._in_thread(process.wait)
                raise EOFError(f"the compaction process ended with {code}")
            if replica.closed:
                raise EOFError("the stream is deleted, or the server stops")
            match _decode(line):
                case _Refused(reason, file):
                    replica.suspect_file(file, None)
                    raise EOFError(reason)
                case Mapped() as mapped:
                    end_offset = mapped.end_offset
                case Rewritten() as rewritten:
                    replica.log.compaction.swap(task, rewritten)
                case Done() as done:
                    return done, end_offset

    async def _finish(
        self, replica: Replica, task: Task, done: Done, end_offset: int, begun_us: MonotonicUs
    ) -> None:
        log, duration_us = replica.log, self._monotonic_clock() - begun_us
        before = log.compaction.state
        grace_us = replica.stream.config.tombstone_grace_us
        state = replace(
            before.after_pass(
                end_offset, self._wall_clock(), grace_us, swept_below=task.tombstones_below
            ),
            tombstones=done.tombstones,
            duration_us=duration_us,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            records_removed=done.records_removed,
            undecrypted=done.undecrypted,
        )
        await self._in_thread(log.compaction.finish, task, state)
        self.counters.passed(state)
        logger.info(
            "log_compacted",
            stream=replica.stream.full_name,
            cleaned_to=end_offset,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            records_removed=done.records_removed,
            seconds=round(duration_us / 1e6, 3),
        )


def _seen(replica: Replica) -> tuple[int, int, int]:
    """The state that makes a pass due, besides time."""
    log = replica.log
    return log.log_end_offset, log.segment_count, min(replica.high_watermark, log.flushed_offset)


@dataclass(frozen=True, slots=True)
class _Refused:
    """The process could not do the pass. file: the segment that could not be read, or ""."""

    error: str
    file: str


_STEPS: dict[str, type[Step]] = {step.__name__: step for step in (Mapped, Rewritten, Done)}


def _decode(line: bytes) -> Step | _Refused:
    """What the process says. Raises EOFError if that is not understood: after an update of the
    software, and before the restart, it is newer than this server."""
    try:
        message: dict[str, Any] = bounded_json.loads(line)
        if "error" in message:
            return _Refused(**message)
        return _STEPS[message.pop("step")](**message)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EOFError(f"the compaction process is of another version: {error!r}") from error
