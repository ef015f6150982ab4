"""Damage in flushed segments of this node: verified, marked, reported, and repaired from other
replicas.

    suspect (reader, follower, compaction, scrub) ──> inspect the file ──> mark ──> distrust
    marked ──> fetch the bad part from another replica ──> verify ──> swap ──> in sync again

**safety** Reports alone mark nothing: this node reads its own file and marks what it finds. A
marked replica is not in sync until all of it is repaired (`FollowerState.position`), and only
verified bytes are used (log/repair.py). A leader alone in its ISR keeps leading: no other replica
may have the later records.

Long work runs on threads, one stream at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

import structlog

from jetstream_protocol.errors import DivergedError, JetstreamError, StorageError
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.disk_errors import lacks_descriptors
from jetstream_server.log.damage import LogDamage, view
from jetstream_server.log.disk import Disk
from jetstream_server.log.inspection import inspect, inspect_at
from jetstream_server.log.segment import Segment
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from jetstream_server.replication.listeners import Healer, RoleListener
from jetstream_server.replication.replica import Replica

EXAMINED_BYTES: Final = 4 * 1024 * 1024
"""Bytes inspected for one report: as much as an answer to a reader or a follower may hold."""
SUSPICIONS_MAX: Final = 1000
EXAMINED_SECONDS: Final = 2.0
"""How long a caller that reports bad bytes waits for the inspection."""
PACE: Final = 10
"""Share of a thread that false reports may use: any reader can send them."""
RETRY_SECONDS: Final = 1.0
REASONS_MAX: Final = 100
"""Different ones that are logged of a replica until it is whole."""

_Result = TypeVar("_Result")

logger = structlog.get_logger("jetstream.replication")


class Healing(RoleListener, Healer):
    """Call `start`, then `close`."""

    def __init__(self, repair: SegmentRepair, disk: Disk, thread: Executor) -> None:
        """thread: its own thread, shut down at the end."""
        self._repair = repair
        self._disk = disk
        self._suspicions: dict[tuple[Replica, int, bool], list[asyncio.Future[None]]] = {}
        self._suspected = asyncio.Event()
        self._damaged: dict[Replica, None] = {}
        self._wake = asyncio.Event()
        self._inspected: set[Replica] = set()  # their marks were made in this run
        self._reasons: dict[Replica, set[str]] = {}  # that were logged
        self._failed_at: dict[Replica, int] = {}  # the segment that was tried last, in vain
        self._thread = thread
        self._tasks: list[asyncio.Task[None]] = []
        self.ranges_found = 0
        self.ranges_repaired = 0
        self.forget_in_lake: Callable[[int, int], None] = lambda stream_id, offset: None
        """Has what was kept of the lake read anew, for the records there may be bad in it."""

    def start(self) -> None:
        self._tasks = [
            run_in_background(self._examine_each(), "inspections"),
            run_in_background(self._repair_each(), "repairs"),
        ]

    async def close(self) -> None:
        await end_tasks(*self._tasks)
        await self._repair.close()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    # A RoleListener.

    def role_changed(self, replica: Replica) -> None:
        if replica.closed:
            self._damaged.pop(replica, None)
            self._forget(replica)
        elif replica.log.damage.is_damaged:
            self._damaged[replica] = None
            self._wake.set()

    # Suspicions.

    def suspect(
        self,
        replica: Replica,
        offset: int,
        error: JetstreamError | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Have the bytes at `offset` inspected. error: why this node could not read them. whole:
        inspect the whole segment at once."""
        if error is not None and lacks_descriptors(error.__cause__):
            return  # That says nothing of the file.
        self.forget_in_lake(replica.stream.id, offset)
        key = replica, offset, whole
        if key not in self._suspicions and len(self._suspicions) < SUSPICIONS_MAX:
            self._suspicions[key] = []
            self._suspected.set()

    async def examined(self, replica: Replica, offset: int) -> None:
        """Like `suspect`. Returns after the inspection, or after EXAMINED_SECONDS."""
        self.suspect(replica, offset)
        waiting = self._suspicions.get((replica, offset, False))
        if waiting is None:
            return
        found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(found)
        await asyncio.wait([found], timeout=EXAMINED_SECONDS)

    async def _examine_each(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._suspected.wait()
            if not self._suspicions:
                self._suspected.clear()
                continue
            key = next(iter(self._suspicions))
            begun = loop.time()
            is_bad = False
            try:
                is_bad = await self._examine(*key)
            except OSError as error:  # No descriptor is left: whoever reads on will report it anew.
                logger.warning("records_not_inspected", offset=key[1], reason=str(error))
            finally:
                for waiting in self._suspicions.pop(key):
                    if not waiting.done():
                        waiting.set_result(None)
            if not is_bad:
                await asyncio.sleep(PACE * (loop.time() - begun))

    async def _examine(self, replica: Replica, offset: int, whole: bool) -> bool:
        """Inspect the bytes. Returns whether they are bad."""
        if replica.closed or any(
            bad.start_offset <= offset < bad.end_offset for bad in replica.log.damage.ranges
        ):
            return not replica.closed
        segment = replica.log.damage.segment_of(offset)
        if segment is None:
            return False
        seen = await self._in_thread(view, segment)
        if not whole:
            found = await self._in_thread(inspect_at, self._disk, seen, offset, EXAMINED_BYTES)
            if not found:
                logger.info("records_found_intact", stream=replica.stream.full_name, offset=offset)
                return False
        return await self._inspect(replica, segment)

    async def _inspect(self, replica: Replica, segment: Segment) -> bool:
        """Inspect the whole segment, and mark its bad ranges. Returns whether it has any."""
        damage = replica.log.damage
        while True:
            seen = await self._in_thread(view, segment)
            found = await self._in_thread(inspect, self._disk, seen)
            if replica.closed:
                return False
            if segment.is_gone or damage.is_as_seen(segment, seen):
                break  # Otherwise it was cut meanwhile.
        before = damage.ranges
        fresh = damage.mark(segment, seen, found)
        if damage.ranges != before:
            await self._save(replica, damage)
        if fresh:
            self.ranges_found += len(fresh)
            for bad in fresh[:10]:
                logger.error(
                    "records_damaged",
                    stream=replica.stream.full_name,
                    node=replica.node_id,
                    file=seen.path,
                    position=bad.position,
                    start_offset=bad.start_offset,
                    end_offset=bad.end_offset,
                    reason=bad.reason,
                )
            self._seal(replica, segment)
            replica.log.compaction.abandon()
            self.role_changed(replica)
            self._distrust(replica)
        return bool(found)

    def _seal(self, replica: Replica, segment: Segment) -> None:
        """Append nothing more to a segment with bad bytes: the last segment must be sound at a
        start, otherwise the log end is unknown."""
        log = replica.log
        if log.damage.is_last(segment) and not log.offline_reason:
            try:
                log.seal()
            except StorageError as error:
                self._log_reason(replica, error.message)
            else:
                replica.flush()

    async def _save(self, replica: Replica, damage: LogDamage) -> None:
        try:
            await self._in_thread(damage.save)
        except StorageError as error:
            # The mark is in memory. After a restart the damage is found again.
            logger.error(
                "damage_not_recorded", stream=replica.stream.full_name, reason=error.message
            )

    def _distrust(self, replica: Replica) -> None:
        """Remove the replica, which lacks records, from the ISR, while the ISR has another
        member."""
        if replica.must_be_distrusted:
            replica.distrust()

    # Repairs.

    async def _repair_each(self) -> None:
        while True:
            if not self._damaged:
                await self._wake.wait()
            self._wake.clear()
            for replica in tuple(self._damaged):
                if not replica.closed:
                    await self._repair_replica(replica)
            if self._damaged:
                try:
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def _repair_replica(self, replica: Replica) -> None:
        """Repair what can be repaired at the moment. Failures are tried again."""
        damage = replica.log.damage
        self._distrust(replica)
        if replica.needs_rebuild or replica.log.offline_reason:
            return
        try:
            await self._inspect_again(replica)
        except OSError as error:
            self._log_reason(replica, str(error))
            return
        failed_at = self._failed_at.pop(replica, -1)
        marked = {bad.base_offset for bad in damage.ranges}
        # What nobody has must not keep others from their turn, nor a round waiting for each.
        for base_offset in sorted(marked, key=lambda at: (at <= failed_at, at)):
            if replica.stream.is_alone(replica.node_id):
                return  # No replica has it. The rest can be read.
            if _is_being_removed(replica, base_offset):
                continue  # The log may not know its epochs any more.
            try:
                repaired = await self._repair.repair(replica, base_offset)
            except DivergedError as error:
                self._failed_at[replica] = base_offset
                self._log_reason(replica, error.message)
                if replica.following is not None:
                    replica.log.health.fail(error.message)
                return
            except (JetstreamError, OSError) as error:
                self._failed_at[replica] = base_offset
                self._log_reason(replica, str(error))
                self._inspected.discard(replica)  # There may be more damage than is known.
                return
            self.ranges_repaired += repaired
            await self._save(replica, damage)
        if not replica.closed and not damage.is_damaged:
            self._healed(replica)

    async def _inspect_again(self, replica: Replica) -> None:
        """Inspect again: marks from the file may be out of date, or incomplete."""
        if replica in self._inspected:
            return
        damage = replica.log.damage
        marked = {bad.base_offset for bad in damage.ranges}
        for segment in damage.segments():
            if damage.is_unknown or segment.base_offset in marked:
                await self._inspect(replica, segment)
        if replica.closed:
            return
        damage.inspected_all()
        await self._save(replica, damage)
        self._inspected.add(replica)

    def _healed(self, replica: Replica) -> None:
        self._damaged.pop(replica, None)
        self._forget(replica)
        logger.info("records_repaired", stream=replica.stream.full_name, node=replica.node_id)
        replica.healed()

    def _forget(self, replica: Replica) -> None:
        self._inspected.discard(replica)
        self._reasons.pop(replica, None)
        self._failed_at.pop(replica, None)

    def _log_reason(self, replica: Replica, reason: str) -> None:
        logged = self._reasons.setdefault(replica, set())
        if reason not in logged and len(logged) < REASONS_MAX:
            logged.add(reason)
            logger.warning("records_not_repaired", stream=replica.stream.full_name, reason=reason)

    async def _in_thread(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)


def _is_being_removed(replica: Replica, base_offset: int) -> bool:
    """Whether retention removes the segment: a sealed one wholly below the log start."""
    damage = replica.log.damage
    segment = damage.segment_of(base_offset)
    if segment is None or damage.is_last(segment):
        return False
    return segment.next_offset <= replica.log.log_start_offset
