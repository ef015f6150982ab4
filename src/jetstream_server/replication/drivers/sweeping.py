"""Deletes objects of the lake that no table needs: what interrupted copies, purges, max_age and
deleted streams have left.

lake/sweep.py has the rules. Who leads a stream sweeps its folder; every node looks for the folders
of deleted streams. **safety** Before anything of a stream is deleted, the metadata group confirms
that this node still leads it and that its mark is the newest one: a leader that was replaced knows
a table that lacks what its successor has added.

**safety** What sweeps have found counts only while they follow each other closely: between two of
them a version of the table may have been committed and replaced, without either having seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import structlog

from jetstream_protocol.errors import JetstreamError, PreconditionFailedError
from jetstream_protocol.types import LeaderEpoch, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.lake.access import Lake, Swept, SweptFolder
from jetstream_server.lake.stores import is_alike
from jetstream_server.lake.tasks import folder_of, owner_properties
from jetstream_server.metadata.state.commands import CommitLake
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.uploading import Proposer
from jetstream_server.replication.replica import Replica

ROUNDS_PER_GRACE = 8
ROUND_SECONDS_MAX = 3600.0
ROUND_SECONDS_MIN = 1.0
ROUNDS_MISSED_MAX = 4
"""After more of them, as when the store was away, the grace time begins anew. So a reader of an
earlier version has half of it at least."""

Result = TypeVar("Result")

logger = structlog.get_logger("jetstream.replication")


class Streams(Protocol):
    """The part of the registry that is needed."""

    @property
    def deleted(self) -> Mapping[StreamId, int]: ...


class Sweeping:
    """Call `start`, then `close`. led: the streams with `lake` that this node leads."""

    def __init__(
        self,
        metadata: Proposer,
        registry: Streams,
        lake: Lake,
        led: Callable[[], Collection[Replica]],
        *,
        cluster_id: str,
        grace_seconds: float,
        monotonic_clock: MonotonicClock,
    ) -> None:
        self._metadata = metadata
        self._registry = registry
        self._lake = lake
        self._led = led
        self._cluster_id = cluster_id
        self._grace_us = round(grace_seconds * 1e6)
        self._clock = monotonic_clock
        self._swept: dict[StreamId, Swept] = {}
        """What the last sweep of each stream has found."""
        self._folders: dict[StreamId, str] = {}
        self._reasons: dict[StreamId, str] = {}
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "jetstream-sweeping")
        self.objects_removed = 0
        self.failures = 0

    @property
    def objects_waiting(self) -> int:
        """How many objects that no table needs wait for the end of their grace time."""
        return sum(each.waiting for each in self._swept.values())

    def problem(self, stream_id: StreamId) -> str:
        """What somebody should know of the last sweep of a stream's folder; "": nothing."""
        if reason := self._reasons.get(stream_id):
            return f"what is not needed cannot be deleted: {reason}"
        unknown = self._swept.get(stream_id, Swept()).unknown
        if not unknown:
            return ""
        return f"the lake has tables that the metadata does not know: {', '.join(unknown)}"

    def start(self) -> None:
        self._running = run_in_background(self._run(), "sweeps of the lake")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._lake.stop)
        await loop.run_in_executor(None, self._thread.shutdown)

    @property
    def _pause(self) -> float:
        seconds = self._grace_us / 1e6 / ROUNDS_PER_GRACE
        return min(max(seconds, ROUND_SECONDS_MIN), ROUND_SECONDS_MAX)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            await self.round()

    async def round(self) -> None:
        led = {replica.stream.id: replica for replica in self._led()}
        for stream_id in [each for each in self._folders if each not in led]:
            # What it has found belongs to a leadership that has ended.
            folder = self._folders.pop(stream_id)
            self._swept.pop(stream_id, None)
            self._reasons.pop(stream_id, None)
            with suppress(JetstreamError):  # Whoever has ended has forgotten it.
                await self._in_thread(self._lake.forget, folder)
        for replica in led.values():
            if replica.stream.lake.location:
                await self._tried(replica.stream.id, self._sweep(replica))
        await self._tried(StreamId(0), self._sweep_folders())

    async def _tried(self, stream_id: StreamId, sweep: Any) -> None:
        try:
            await sweep
            self._reasons.pop(stream_id, None)
        except Exception as error:  # noqa: BLE001  a damaged table raises any; counted, and said
            self.failures += 1
            reason = str(error) or type(error).__name__
            before, self._reasons[stream_id] = self._reasons.get(stream_id), reason
            if not is_alike(before, reason):
                logger.warning("lake_sweep_failed", stream_id=stream_id, reason=reason)

    async def sweep_now(self, replica: Replica, *, dry_run: bool) -> list[tuple[str, int]]:
        """Sweep the folder of a stream that this node leads. Returns what its table does not need,
        what goes first at the beginning, and for how many microseconds it stays at least. Raises
        OSError, JetstreamError, ValueError."""
        if not replica.stream.lake.location:
            return []
        swept = await self._sweep(replica, dry_run=dry_run)
        waits = {**dict(swept.waits), **dict.fromkeys(swept.gone, 0)}
        return sorted(waits.items(), key=lambda each: each[1])

    async def _sweep(self, replica: Replica, *, dry_run: bool = False) -> Swept:
        stream = replica.stream
        before, begun_us = self._swept.get(stream.id), self._clock()
        missed_us = begun_us - before.at_us if before else 0
        folder = SweptFolder(
            folder_of(self._cluster_id, stream.id, stream.created_at_us),
            owner_properties(self._cluster_id, stream.id),
            self._grace_us,
            begins_anew=missed_us > ROUNDS_MISSED_MAX * self._pause * 1e6,
        )
        self._folders[stream.id] = folder.name
        listing = await self._in_thread(self._lake.list_folder, folder)
        location = await self._confirmed_location(replica)
        now_us = self._clock()
        swept = await self._in_thread(self._lake.sweep, folder, listing, location, now_us, dry_run)
        if stream.id not in self._folders:
            return swept  # This leadership has ended.
        self._swept[stream.id] = swept
        if dry_run:
            return swept
        self.objects_removed += swept.gone_count
        known = before.unknown if before else ()
        if swept.unknown and list(swept.unknown) != list(known):
            logger.warning("lake_has_unknown_tables", stream=stream.full_name, tables=swept.unknown)
        if swept.gone_count:
            logger.info("lake_swept", stream=stream.full_name, objects=swept.gone_count)
        return swept

    async def _confirmed_location(self, replica: Replica) -> str:
        """Where the newest table is. Raises JetstreamError if another node leads, or has."""
        while True:
            lake = replica.stream.lake
            try:
                await self._confirm(replica.stream)
            except PreconditionFailedError:
                if replica.stream.lake == lake:
                    raise
                continue  # A copy was committed meanwhile.
            return lake.location

    async def _confirm(self, stream: StreamMetadata) -> None:
        lake = stream.lake
        await self._metadata.propose(
            # The command that made this mark, or one that would have: it changes nothing.
            CommitLake(
                stream_id=stream.id,
                leader_epoch=stream.leader_epoch,
                expected_location=lake.location,
                version=lake.version - 1,
                begin=lake.start,
                end=lake.end,
                last_epoch=LeaderEpoch(lake.last_epoch),
                location=lake.location,
                start=lake.start,
            )
        )

    async def _sweep_folders(self) -> None:
        deleted = {
            folder_of(self._cluster_id, stream_id, made_us)
            for stream_id, made_us in self._registry.deleted.items()
            if made_us  # 0: it has never used the lake.
        }
        if not deleted:
            return
        gone = await self._in_thread(
            self._lake.sweep_folders, self._cluster_id, self._grace_us, deleted, self._clock()
        )
        for folder in gone:
            logger.info("lake_folder_removed", folder=folder)

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        self._lake.begin()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)
