"""Copies the records of the streams that this node leads to the lake, one range at a time.

A range is a part of a sealed segment: committed, flushed, and right after what the lake holds. A
process of its own copies it (lake/worker.py), and stays while there is more. The metadata group
decides whether that counts (CommitLake). Until then nothing has changed, here or for readers: a
failure, or a leadership that ended meanwhile, costs the copy. A store that is away costs space on
the disks, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import structlog

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import (
    CorruptBatchError,
    JetstreamError,
    RecordsDamagedError,
    UnavailableError,
)
from jetstream_protocol.types import LeaderEpoch, MonotonicUs
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock, WallClock
from jetstream_server.lake.stores import StoreOptions, is_alike
from jetstream_server.lake.tasks import (
    AdoptTask,
    MarkTask,
    Task,
    TrimTask,
    folder_of,
    owner_properties,
)
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import CommitLake
from jetstream_server.metadata.state.streams import LakeMark, StreamMetadata
from jetstream_server.replication.drivers import worker_process
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica

ROUND_SECONDS = 0.5
OBJECT_BYTES = 256 * 1024 * 1024
SHARE_MAX = 16
"""Objects are made so many times smaller at most for a link that is too slow for whole ones."""
IDLE_US = 60_000_000
"""The process that copies ends after so long without work: to start it takes a second of processor
time, and to keep it 100 MB."""
RETRY_US = 5_000_000
"""Pause after a failed copy: a store that is away stays so for longer than a second."""

TRIM_US_MIN = 10_000_000
"""Between two looks for what is older than max_age: of short ones, an eighth."""
TRIM_US_MAX = 3_600_000_000

Work = Callable[[Task | TrimTask | MarkTask], Awaitable[dict[str, Any]]]
"""Copies a range, or takes objects out of a table, and returns what to commit; or notes a commit.
Raises OSError, EOFError, JetstreamError."""
WORKER = "jetstream_server.lake.worker"

_Result = TypeVar("_Result")

logger = structlog.get_logger("jetstream.replication")


class Proposer(Protocol):
    """The part of the metadata log that is needed."""

    async def propose(self, command: Command) -> dict[str, Any]: ...


@dataclass(slots=True)
class UploadCounters:
    """Counts since the server started."""

    objects: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """Where the lake is, how many bytes a second are copied there, how long one object may take,
    how much of what is read from it is kept, how long what no table needs stays, and how
    much of the disk is not for it."""

    store: StoreOptions
    bytes_per_second: int
    timeout_seconds: float
    cache_bytes: int
    grace_seconds: float = 86_400
    disk_reserve_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """What is before `start` has left the table, which was looked at for old objects at `at_us`.
    sized: the lake's end then, and the limit of its size."""

    start: int
    at_us: MonotonicUs
    sized: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The sealed records below `end` wait to be copied, the last ones since `since_us`."""

    end: int
    since_us: MonotonicUs


def records_due(replica: Replica, due: tuple[int, int], share: int = 1) -> LogSlice | None:
    """The first of `offsets_due`, as many as an object takes; share: only that part of one.

    Reads indexes: for a thread. Raises StorageError, CorruptBatchError.
    """
    bytes_max = replica.stream.config.lake_object_bytes or OBJECT_BYTES
    return replica.log.read(due[0], bytes_max // share, due[1])


def offsets_due(replica: Replica) -> tuple[int, int] | None:
    """The rest of a segment that is to be copied next; None: there is none. Raises
    RecordsDamagedError if the records that are to be next are lost.

    **safety** Only what is committed and flushed, of a segment that never changes again.
    """
    log, lake = replica.log, replica.stream.lake
    if not replica.stream.config.lake:
        return None
    begin = max(lake.end, log.log_start_offset)
    if lake.holds_records and begin != lake.end:
        raise RecordsDamagedError(
            f"the disk has lost the records {lake.end} to {begin - 1}, and the lake cannot go on "
            f"after a hole: purge the stream up to offset {begin}",
            lake.end,
            begin,
        )
    sealed = log.sealed_beyond(begin)
    if sealed is None or sealed[1] > _bound(replica):
        return None
    return max(begin, sealed[0]), sealed[1]


def _bound(replica: Replica) -> int:
    """Nothing at or after it is copied."""
    return min(replica.high_watermark, replica.log.flushed_offset)


class Uploading(RoleListener):
    """Call `start`, then `close`."""

    def __init__(
        self,
        metadata: Proposer,
        options: LakeOptions,
        *,
        cluster_id: str,
        monotonic_clock: MonotonicClock,
        wall_clock: WallClock,
        work: Work | None = None,
    ) -> None:
        self._metadata = metadata
        self._options = options
        self._cluster_id = cluster_id
        self._clock = monotonic_clock
        self._wall_clock = wall_clock
        self._trimmed: dict[Replica, _Trimmed] = {}
        self._led: dict[Replica, None] = {}
        self._awaited: dict[Replica, int] = {}
        """Versions of marks that were committed, and that this node may not have applied yet."""
        self._retry_at_us: dict[Replica, MonotonicUs] = {}
        self._reasons: dict[Replica, str] = {}
        self._waiting: dict[Replica, _Waiting] = {}
        self._shares: dict[Replica, int] = {}
        """By how much objects are smaller, so that the link carries them in time."""
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "jetstream-uploading")
        self._copier = Copier(self._in_thread)
        self._work = work or self._copier.work
        self.counters = UploadCounters()

    def start(self) -> None:
        self._running = run_in_background(self._run(), "copies to the lake")

    async def close(self) -> None:
        await end_tasks(self._running)
        await self._copier.end()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def reason(self, replica: Replica) -> str:
        """Why the last copy failed; "": it did not."""
        return self._reasons.get(replica, "")

    def led(self) -> tuple[Replica, ...]:
        """The streams that are copied by this node."""
        return tuple(self._led)

    @property
    def streams_failing(self) -> int:
        """How many streams cannot be copied."""
        return len(self._reasons)

    @property
    def lag_seconds(self) -> float:
        """How long records of a sealed segment have waited to be copied; the longest of all."""
        now_us = self._clock()
        return max(((now_us - each.since_us) / 1e6 for each in self._waiting.values()), default=0.0)

    # A RoleListener.

    def role_changed(self, replica: Replica) -> None:
        stream = replica.stream
        # What was purged leaves the table and the store, even if `lake` was switched off since.
        is_there = stream.config.lake or stream.lake.location
        if replica.closed or replica.leadership is None or not is_there:
            self._led.pop(replica, None)
            self._awaited.pop(replica, None)
            self._trimmed.pop(replica, None)
            self._retry_at_us.pop(replica, None)
            self._reasons.pop(replica, None)
            self._waiting.pop(replica, None)
            self._shares.pop(replica, None)
        else:
            self._led[replica] = None

    # Rounds.

    async def _run(self) -> None:
        worked_us = self._clock()
        while True:
            before = self.counters.objects
            for replica in tuple(self._led):
                self._note_waiting(replica)
                now_us = self._clock()
                if now_us >= self._retry_at_us.get(replica, now_us):
                    await self._visit(replica)
            if self.counters.objects > before:
                worked_us = self._clock()
                continue
            if self._clock() - worked_us >= IDLE_US:
                await self._copier.end()
            await asyncio.sleep(ROUND_SECONDS)

    def _note_waiting(self, replica: Replica) -> None:
        """What was sealed is looked at again once all of it is in the lake, so that copies which
        go on, and are too slow, are seen to lag."""
        end = replica.stream.lake.end
        waiting = self._waiting.get(replica)
        if waiting is not None and end < waiting.end and replica.stream.config.lake:
            return
        self._waiting.pop(replica, None)
        if replica.stream.config.lake and end < replica.log.sealed_end and replica in self._led:
            self._waiting[replica] = _Waiting(replica.log.sealed_end, self._clock())

    async def _visit(self, replica: Replica) -> None:
        leader_epoch = replica.stream.leader_epoch
        if replica.leadership is None or replica.log.offline_reason:
            return
        if replica.stream.lake.version < self._awaited.get(replica, 0):
            return
        try:
            if await self._trim(replica, leader_epoch):
                return
            due = offsets_due(replica)
            if due is None:
                self._reasons.pop(replica, None)  # What failed has been done, or was purged.
                return
            share = self._shares.get(replica, 1)
            found = await self._in_thread(records_due, replica, due, share)
            if found is not None and replica.leadership is not None:
                await self._copy(replica, found, leader_epoch)
        except TimeoutError:
            if replica in self._led:
                self._shares[replica] = min(2 * self._shares.get(replica, 1), SHARE_MAX)
            self._failed(replica, f"it took longer than {self._limit}: smaller objects are next")
        except (OSError, EOFError, JetstreamError) as error:
            self._failed(replica, str(error))

    @property
    def _limit(self) -> str:
        return f"lake.timeout, {self._options.timeout_seconds:g} s"

    def _failed(self, replica: Replica, reason: str) -> None:
        if replica not in self._led:
            return
        self.counters.failures += 1
        self._retry_at_us[replica] = MonotonicUs(self._clock() + RETRY_US)
        before, self._reasons[replica] = self._reasons.get(replica), reason
        if not is_alike(before, reason):
            logger.warning("lake_copy_failed", stream=replica.stream.full_name, reason=reason)

    async def _trim(self, replica: Replica, leader_epoch: LeaderEpoch) -> bool:
        """Have the table lose what was purged, what is older than max_age, and what is beyond
        max_bytes. Returns whether it did. The objects stay for the grace time (sweeping.py)."""
        if not self._may_trim(replica):
            return False
        stream, now_us = replica.stream, self._clock()
        lake, max_age_us = stream.lake, stream.config.max_age_us
        oldest_us = self._wall_clock() - max_age_us if max_age_us else 0
        task = TrimTask(
            self._options.store, self._folder(stream), lake.location, lake.start,
            max(oldest_us, 0), os.getpid(), stream.config.max_bytes,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                answer = await self._work(task)
        except TimeoutError:
            reason = f"to take old objects out of the table takes longer than {self._limit}"
            raise UnavailableError(reason) from None
        if replica.stream.leader_epoch != leader_epoch or replica.leadership is None:
            return False
        if answer["location"] != lake.location:
            await self._commit(
                replica, lake, lake.end, lake.end, lake.last_epoch, answer["location"],
                int(answer["start"]),
            )  # fmt: skip
            logger.info("lake_trimmed", stream=stream.full_name, start=answer["start"])
            await self._mark(replica, answer["location"], lake.location)
        if replica in self._led:
            sized = lake.end, stream.config.max_bytes
            self._trimmed[replica] = _Trimmed(lake.start, now_us, sized)
        return bool(answer["location"] != lake.location)

    def _may_trim(self, replica: Replica) -> bool:
        """Whether somebody has purged, or some time is over. To look takes the process that copies:
        the size of a lake that has not changed is not looked at again."""
        lake, config = replica.stream.lake, replica.stream.config
        last = self._trimmed.get(replica)
        is_purged = bool(lake.location) and lake.start > (last.start if last else 0)
        if is_purged or not lake.holds_records:
            return is_purged
        if last is None:
            return bool(config.max_age_us or config.max_bytes)
        since_us = self._clock() - last.at_us
        if config.max_bytes and last.sized != (lake.end, config.max_bytes):
            return since_us >= TRIM_US_MIN
        pause_us = min(max(config.max_age_us // 8, TRIM_US_MIN), TRIM_US_MAX)
        return bool(config.max_age_us) and since_us >= pause_us

    def _folder(self, stream: StreamMetadata) -> str:
        return folder_of(self._cluster_id, stream.id, stream.created_at_us)

    async def _copy(self, replica: Replica, found: LogSlice, leader_epoch: LeaderEpoch) -> None:
        stream = replica.stream
        lake = stream.lake
        encryption = replica.log.encryption
        if encryption is not None and encryption.keys.encrypts:
            raise CorruptBatchError(
                "this node encrypts its logs, and the lake would hold them plain"
            )
        task = Task(
            store=self._options.store,
            folder=self._folder(stream),
            location=lake.location,
            path=found.path,
            position=found.position,
            length=found.length,
            # A purge may have ended within a batch.
            begin=max(found.base_offset, lake.end, replica.log.log_start_offset),
            end=found.next_offset,
            start=lake.start if lake.holds_records else found.base_offset,
            attempt=f"{leader_epoch}-{secrets.token_hex(8)}",
            bytes_per_second=self._options.bytes_per_second,
            parent=os.getpid(),
            properties={
                **owner_properties(self._cluster_id, stream.id),
                "jetstream.stream": stream.full_name,
            },
            schema=stream.schema,
            schema_version=stream.schema_version,
        )
        begun_us = self._clock()
        async with asyncio.timeout(self._options.timeout_seconds):
            answer = await self._work(task)
        if replica.stream.leader_epoch != leader_epoch or replica.leadership is None:
            return
        is_quick = self._clock() - begun_us < self._options.timeout_seconds * 250_000
        if is_quick and replica in self._shares:
            self._shares[replica] = max(self._shares[replica] // 2, 1)
        await self._commit(
            replica, lake, task.begin, int(answer["end"]), int(answer["last_epoch"]),
            answer["location"],
        )  # fmt: skip
        self._reasons.pop(replica, None)
        self.counters.objects += 1
        self.counters.bytes += answer["length"]
        self.counters.stored_bytes += answer["stored"]
        logger.info(
            "lake_copied", stream=stream.full_name, begin=task.begin, end=answer["end"],
            length=answer["length"], stored=answer["stored"],
        )  # fmt: skip
        await self._mark(replica, answer["location"], lake.location)

    async def _commit(
        self,
        replica: Replica,
        lake: LakeMark,
        begin: int,
        end: int,
        last_epoch: int,
        location: str,
        start: int = 0,
    ) -> None:
        """Have the metadata name the table, instead of the one at `lake`.

        **safety** If what comes of it stays unknown, the mark is read, in the next round, and
        decides what is copied then. Nothing in the store is touched.
        """
        committed = await self._metadata.propose(
            CommitLake(
                stream_id=replica.stream.id,
                leader_epoch=replica.stream.leader_epoch,
                expected_location=lake.location,
                version=lake.version,
                begin=begin,
                end=end,
                last_epoch=LeaderEpoch(last_epoch),
                location=location,
                start=start,
            )
        )
        if replica in self._led:
            self._awaited[replica] = committed["version"]

    async def _mark(self, replica: Replica, location: str, before: str) -> None:
        """Note in the store what was committed. If this fails, the copy counts all the same, and
        the next sweep does it, or says why it cannot."""
        stream = replica.stream
        task = MarkTask(self._options.store, self._folder(stream), location, before, os.getpid())
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                await self._work(task)
        except (OSError, EOFError, JetstreamError) as error:
            reason = str(error) or type(error).__name__
            logger.info("lake_commit_not_noted", stream=stream.full_name, reason=reason)

    async def _in_thread(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)


class Copier:
    """The process that copies, kept while there is something to copy: to start it takes longer than
    to copy a small object."""

    def __init__(self, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._in_thread = in_thread
        self._process: subprocess.Popen[bytes] | None = None

    async def work(self, task: Task | TrimTask | MarkTask | AdoptTask) -> dict[str, Any]:
        """Have the process do it. Raises EOFError if it cannot, and UnavailableError if the store
        does not answer."""
        if self._process is None:
            self._process = worker_process.spawn(WORKER)
        is_well = False
        try:
            request = json.dumps(asdict(task)).encode() + b"\n"
            line = await self._in_thread(_converse, self._process, request)
            answer: dict[str, Any] = bounded_json.loads(line)
            is_well = True
        except ValueError as error:
            raise EOFError("the process that copies to the lake ended without an answer") from error
        finally:
            if not is_well:
                await self.end()
        if answer.get("is_away"):
            raise UnavailableError(answer["error"])
        if "error" in answer:
            raise EOFError(answer["error"])
        return answer

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.shield(self._in_thread(worker_process.clean_up, process))


def _converse(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    """The line that it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request)
    process.stdin.flush()
    return process.stdout.readline()
