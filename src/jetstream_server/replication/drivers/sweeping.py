"""Deletes objects of the lake that no table needs: what interrupted copies, purges, max_age and
deleted streams have left.

lake/sweep.py has the rules. Who leads a stream sweeps its folder; every node looks for the folders
of deleted streams. **safety** Before anything of a stream is deleted, the metadata group confirms
that this node still leads it and that its mark is the newest one: a leader that was replaced knows
a table that lacks what its successor has added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import LeaderEpoch, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.lake.stores import StoppableStore, Store, is_alike
from jetstream_server.lake.tasks import folder_of, owner_properties
from jetstream_server.metadata.state.commands import CommitLake
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.uploading import Proposer
from jetstream_server.replication.replica import Replica

if TYPE_CHECKING:
    from jetstream_server.lake.sweep import FolderSweeper, Sweeper

ROUNDS_PER_GRACE = 8
ROUND_SECONDS_MAX = 3600.0
ROUND_SECONDS_MIN = 1.0

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
        store: Store,
        led: Callable[[], Collection[Replica]],
        *,
        cluster_id: str,
        grace_seconds: float,
        monotonic_clock: MonotonicClock,
    ) -> None:
        self._metadata = metadata
        self._registry = registry
        self._store = StoppableStore(store)
        self._led = led
        self._cluster_id = cluster_id
        self._grace_us = round(grace_seconds * 1e6)
        self._clock = monotonic_clock
        self._sweepers: dict[StreamId, Sweeper] = {}
        self._folders: FolderSweeper | None = None
        self._reasons: dict[StreamId, str] = {}
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "jetstream-sweeping")
        self.objects_removed = 0
        self.failures = 0

    @property
    def objects_waiting(self) -> int:
        """How many objects that no table needs wait for the end of their grace time."""
        return sum(len(each.unreached) for each in self._sweepers.values())

    def problem(self, stream_id: StreamId) -> str:
        """What somebody should know of the last sweep of a stream's folder; "": nothing."""
        if reason := self._reasons.get(stream_id):
            return f"what is not needed cannot be deleted: {reason}"
        sweeper = self._sweepers.get(stream_id)
        if sweeper is None or not sweeper.unknown:
            return ""
        return f"the lake has tables that the metadata does not know: {', '.join(sweeper.unknown)}"

    def start(self) -> None:
        self._running = run_in_background(self._run(), "sweeps of the lake")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._store.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _run(self) -> None:
        seconds = self._grace_us / 1e6 / ROUNDS_PER_GRACE
        pause = min(max(seconds, ROUND_SECONDS_MIN), ROUND_SECONDS_MAX)
        while True:
            await asyncio.sleep(pause)
            await self.round()

    async def round(self) -> None:
        led = {replica.stream.id: replica for replica in self._led()}
        for stream_id in [each for each in self._sweepers if each not in led]:
            # What it has found belongs to a leadership that has ended.
            del self._sweepers[stream_id]
            self._reasons.pop(stream_id, None)
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
        gone = await self._sweep(replica, dry_run=dry_run)
        sweeper = self._sweepers.get(replica.stream.id)  # None: it leads no more.
        waits = {} if sweeper is None else sweeper.waits_us(self._clock())
        return sorted({**waits, **dict.fromkeys(gone, 0)}.items(), key=lambda each: each[1])

    async def _sweep(self, replica: Replica, *, dry_run: bool = False) -> list[str]:
        stream_id = replica.stream.id
        sweeper = self._sweepers.get(stream_id)
        if sweeper is None:
            sweeper = await self._in_thread(self._sweeper_of, replica.stream)
            self._sweepers[stream_id] = sweeper
        listed = await self._in_thread(sweeper.listed)
        location = await self._confirmed_location(replica)
        before = sweeper.unknown
        sweep = partial(sweeper.sweep, dry_run=dry_run)
        gone = await self._in_thread(sweep, listed, location, self._clock())
        if dry_run:
            return gone
        self.objects_removed += len(gone)
        if sweeper.unknown and sweeper.unknown != before:
            logger.warning(
                "lake_has_unknown_tables", stream=replica.stream.full_name, tables=sweeper.unknown
            )
        if gone:
            logger.info("lake_swept", stream=replica.stream.full_name, objects=len(gone))
        return gone

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
        if self._folders is None:
            self._folders = await self._in_thread(self._folder_sweeper)
        deleted = {folder_of(self._cluster_id, *each) for each in self._registry.deleted.items()}
        gone = await self._in_thread(self._folders.sweep, deleted, self._clock())
        for folder in gone:
            logger.info("lake_folder_removed", folder=folder)

    def _sweeper_of(self, stream: StreamMetadata) -> Sweeper:
        from jetstream_server.lake.sweep import Sweeper
        from jetstream_server.lake.table import StreamTable

        properties = owner_properties(self._cluster_id, stream.id)
        folder = folder_of(self._cluster_id, stream.id, stream.created_at_us)
        table = StreamTable(self._store, self._store.url, folder, properties)
        return Sweeper(table, self._store, self._grace_us)

    def _folder_sweeper(self) -> FolderSweeper:
        from jetstream_server.lake.sweep import FolderSweeper

        return FolderSweeper(self._store, self._cluster_id, self._grace_us)

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)
