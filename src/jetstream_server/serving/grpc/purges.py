"""Purging: a stream's leader finds where the log will begin, and the metadata records it.

Each replica carries it out by itself (replication/drivers/retention.py), the leader at once and
before its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from jetstream_protocol.errors import NotLeaderError, OffsetOutOfRangeError, UnavailableError
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import PurgeStream
from jetstream_server.replication.core.lake_bounds import held_text, start_offset
from jetstream_server.replication.drivers.replica_changes import ReplicaChanges
from jetstream_server.replication.drivers.retention import purged_below
from jetstream_server.replication.replica import Replica

PURGE_SECONDS = 8.0

Visit = Callable[[Replica], Awaitable[None]]
"""Has a purge that the metadata has recorded carried out here."""


class Purges:
    """Purges on the leader. Call `purge`."""

    def __init__(self, metadata: RaftMetadataLog, changes: ReplicaChanges, visit: Visit) -> None:
        self._metadata = metadata
        self._changes = changes
        self._visit = visit

    async def purge(self, replica: Replica, offset: int | None) -> int:
        """Remove the records below `offset`, or all that are committed. Returns the first offset
        kept. It begins a whole batch, so it may be a little lower than `offset`; it is higher if
        compaction has left nothing in between.

        Idempotent. Raises OffsetOutOfRangeError for an offset that is not committed, NotLeaderError
        and PreconditionFailedError when the leadership has moved, UnavailableError while the leader
        does not know yet that so much is committed, and when it takes long: once the metadata has
        recorded the purge, it is carried out all the same.
        """
        try:
            async with asyncio.timeout(PURGE_SECONDS):
                return await self._purge(replica, offset)
        except TimeoutError:
            raise UnavailableError(
                f"purging {replica.stream.full_name} takes longer than {PURGE_SECONDS:.0f} s; it "
                "continues, and another request waits for it"
            ) from None

    async def _purge(self, replica: Replica, offset: int | None) -> int:
        replica.check_readable()
        log, leader_epoch = replica.log, replica.stream.leader_epoch
        await self._reached(replica, leader_epoch, purged_below(replica.stream, log))
        if replica.leadership is not None and (offset is None or offset > replica.high_watermark):
            replica.leadership.check_end()
        start = _batch_start(replica, replica.high_watermark if offset is None else offset)
        if start <= start_offset(replica.stream, replica.log):
            return start_offset(replica.stream, replica.log)
        # **safety** On disk first: a log must not come back shorter than the purged part.
        if log.flushed_offset < start:
            replica.flush()
            await self._changes.until(replica, partial(_is_flushed, replica, leader_epoch, start))
        await self._metadata.propose(
            PurgeStream(stream_id=replica.stream.id, leader_epoch=leader_epoch, offset=start)
        )
        await self._reached(replica, leader_epoch, start)
        return start_offset(replica.stream, replica.log)

    async def _reached(self, replica: Replica, leader_epoch: int, start: int) -> None:
        """Wait until the log begins there."""
        if not _begins_at(replica, leader_epoch, start):
            await self._visit(replica)
        await self._changes.until(replica, partial(_begins_at, replica, leader_epoch, start))


def _is_flushed(replica: Replica, leader_epoch: int, offset: int) -> bool:
    _check_leads(replica, leader_epoch)
    return replica.log.flushed_offset >= offset


def _begins_at(replica: Replica, leader_epoch: int, offset: int) -> bool:
    _check_leads(replica, leader_epoch)
    return start_offset(replica.stream, replica.log) >= offset


def _check_leads(replica: Replica, leader_epoch: int) -> None:
    replica.check_readable()
    if replica.leadership is None or replica.stream.leader_epoch != leader_epoch:
        raise NotLeaderError(f"the leadership of {replica.stream.full_name} has moved; try again")


def _batch_start(replica: Replica, offset: int) -> int:
    """Where the batch that holds `offset` begins: replicas hold whole batches."""
    high_watermark = replica.high_watermark
    if offset > high_watermark:
        raise OffsetOutOfRangeError(
            f"offset {offset} of stream {replica.stream.name!r} is not committed: it "
            f"{held_text(start_offset(replica.stream, replica.log), high_watermark)}",
            start_offset(replica.stream, replica.log),
            high_watermark,
        )
    if offset == high_watermark or offset <= replica.log.log_start_offset:
        return offset
    found = replica.read(offset, 1)
    assert found is not None, "what is committed can be read"
    return found.base_offset
