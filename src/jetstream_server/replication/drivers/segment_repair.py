"""Repairs one segment of one replica: fetches its bad ranges from another node, and swaps.

It asks the leader first, then the other in-sync replicas, then any other live replica. The records
must fit the history of this log (log/repair.py).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import structlog

from jetstream_protocol.errors import DivergedError, JetstreamError, UnavailableError
from jetstream_protocol.types import NodeId
from jetstream_server.disk_errors import storage_error
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.damage import view
from jetstream_server.log.disk import Disk
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.inspection import BadRange, Inspected
from jetstream_server.log.repair import Repair, Successor, check_fetched, may_repair_exactly
from jetstream_server.log.segment import Segment
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.frame_connection import Dial
from jetstream_server.net.node_link import NodeIdentity
from jetstream_server.replication.drivers.record_source import RecordSource, reading_from
from jetstream_server.replication.replica import Replica

_Result = TypeVar("_Result")

logger = structlog.get_logger("jetstream.replication")


class SegmentRepair:
    """Call `repair` as often as needed, then `close` once."""

    def __init__(
        self,
        disk: Disk,
        registry: Registry,
        identity: NodeIdentity,
        dial: Dial,
        thread: Executor,
    ) -> None:
        """thread: its own thread, shut down at the end."""
        self._dial = dial
        self._disk = disk
        self._registry = registry
        self._identity = identity
        self._thread = thread

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def repair(self, replica: Replica, base_offset: int) -> int:
        """Repair the segment with that base offset. Returns the number of its bad ranges.

        The marks are then removed from memory. Raises DivergedError when the leader's records do
        not fit into this log, otherwise the reason why it is not possible at the moment.
        """
        log = replica.log
        segment = log.damage.segment_of(base_offset)
        if segment is None or not segment.bad:
            return 0
        if log.damage.is_last(segment):
            log.seal()  # This was not possible when the damage was found.
        seen = await self._in_thread(view, segment)
        _check_is_damaged(log, segment)
        problems: list[JetstreamError | OSError] = []
        for node_id in self._sources(replica):
            try:
                return await self._repair_from(node_id, replica, segment, seen)
            except DivergedError as error:
                # Its epochs may have been forgotten with the segment.
                _check_as_seen(replica, segment, seen)
                if node_id == replica.stream.leader:
                    raise
                problems.append(error)
            except (JetstreamError, OSError, EOFError) as error:
                problems.append(UnavailableError(f"node {node_id}: {error or 'it hung up'}"))
        raise UnavailableError(
            "; ".join(map(str, problems)) or "no other replica is alive: waiting for one"
        )

    def _sources(self, replica: Replica) -> list[NodeId]:
        stream, nodes = replica.stream, self._registry.nodes
        wanted = dict.fromkeys((stream.leader, *stream.isr, *stream.replicas))
        return [
            node_id
            for node_id in wanted
            if node_id != replica.node_id and node_id in nodes and not nodes[node_id].fenced
        ]

    async def _repair_from(
        self, node_id: NodeId, replica: Replica, segment: Segment, seen: Inspected
    ) -> int:
        node = self._registry.nodes.get(node_id)
        if node is None:
            raise UnavailableError("it was removed from the cluster")
        log, ranges = replica.log, segment.bad
        repair = Repair(
            self._disk, seen, secrets.token_hex(8),
            interval_bytes=log.damage.interval_bytes,
            epoch_at=LeaderEpochCache(log.epochs.entries).epoch_at,
            has_gaps=replica.stream.was_compacted,
        )  # fmt: skip
        host, _, port = node.addresses.data.rpartition(":")
        address = host.removeprefix("[").removesuffix("]"), int(port)
        try:
            await self._in_thread(repair.begin)
            async with reading_from(self._dial, node_id, address, self._identity) as source:
                for bad in ranges:
                    await self._in_thread(repair.copy_until, bad.position)
                    await self._fetch(source, replica, repair, bad)
                    repair.replaced(bad)
            successor = await self._in_thread(repair.finish)
            await self._in_thread(log.damage.begin_swap, segment)
            self._swap(replica, segment, seen, ranges, successor)
        except BaseException:
            # Blocks for a moment, and runs even after a cancellation.
            repair.discard()
            raise
        await self._in_thread(self._sync, replica)
        log.damage.repaired(segment.base_offset)
        return len(ranges)

    async def _fetch(
        self, source: RecordSource, replica: Replica, repair: Repair, bad: BadRange
    ) -> None:
        log, offset = replica.log, bad.start_offset
        epochs = LeaderEpochCache(log.epochs.entries)
        while offset < bad.end_offset:
            last_epoch = epochs.epoch_at(offset - 1) if offset > log.log_start_offset else -1
            head, data = await source.fetch(replica.stream.id, offset, last_epoch)
            if replica.stream.was_compacted and not may_repair_exactly(
                [bad], log.tombstones_gone_below, head.tombstones_gone_below
            ):
                raise DivergedError(
                    "the log is compacted differently there, and lacks tombstones", -1, offset
                )
            if not data:
                raise UnavailableError(f"it has no records from offset {offset} on yet")
            used, offset = check_fetched(
                data, offset, bad, epochs.epoch_at, has_gaps=replica.stream.was_compacted
            )
            await self._in_thread(repair.add, memoryview(data)[:used])

    def _swap(
        self,
        replica: Replica,
        segment: Segment,
        seen: Inspected,
        ranges: tuple[BadRange, ...],
        successor: Successor,
    ) -> None:
        """Swap in the repaired segment. Runs on the loop, which owns the log."""
        log = replica.log
        _check_as_seen(replica, segment, seen)
        if segment.bad is not ranges:
            raise UnavailableError("the segment was inspected while it was repaired")
        if replica.stream.was_compacted:
            log.compaction.note_committed(successor.gaps_end_at)
            log.compaction.note_repaired(ranges[0].start_offset)
        try:
            log.damage.swap(segment, successor)
        except OSError as error:
            raise storage_error(error, f"repairing {segment.path}") from error

    def _sync(self, replica: Replica) -> None:
        try:
            self._disk.fsync_directory(replica.log.directory)
        except OSError as error:
            raise storage_error(error, f"syncing {replica.log.directory}") from error

    async def _in_thread(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, function, *arguments)
        except OSError as error:
            raise storage_error(error, "repairing") from error


def _check_is_damaged(log: CommitLog, segment: Segment) -> None:
    """Check that the segment, as it was seen, is to be repaired, and can be swapped."""
    if not segment.bad or log.damage.is_last(segment):
        raise UnavailableError("the segment was cut before its repair")


def _check_as_seen(replica: Replica, segment: Segment, seen: Inspected) -> None:
    """Raise UnavailableError if the segment was cut or removed meanwhile."""
    if replica.closed or not replica.log.damage.is_as_seen(segment, seen):
        raise UnavailableError("the log was cut or closed while it was repaired")
