"""Writes changes of the metadata to the stream `__activity`, on the node that leads it.

    outbox (metadata/state/activity.py) ─> one batch ─> append ─> commit ─> TrimActivity

**safety** An event leaves the outbox only once it is committed in the log. A new leader first waits
until everything in its log is committed, and reads the number of the last event there. It appends
only events with higher numbers, so each event is in the log once, in order. A record takes the
place of numbers that are missing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import structlog

from jetstream_protocol import batch as batches
from jetstream_protocol.errors import JetstreamError, NotLeaderError, UnavailableError
from jetstream_server.background import run_in_background
from jetstream_server.log.encryption import plain_batches
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.activity import ACTIVITY
from jetstream_server.metadata.state.changes import ActivityChanged, Change
from jetstream_server.metadata.state.commands import TrimActivity
from jetstream_server.metadata.state.outbox import sequence_of
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

SUBJECT = ACTIVITY.encode()
SETTINGS = {"acks": "off", "duplicate_window_us": 0, "max_age_us": 90 * 86_400 * 1_000_000}
EVENTS_PER_BATCH = 1000
RETRY_SECONDS = 0.5
_LAST_BYTES = 1024 * 1024

logger = structlog.get_logger("jetstream.activity")


class ActivityRecorder(RoleListener):
    """Owned by the event loop. `close` ends it."""

    def __init__(self, replicas: ReplicaManager, metadata: RaftMetadataLog) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._leader_epoch = -1
        self._recording: asyncio.Task[None] | None = None
        self._more = asyncio.Event()

    def apply(self, change: Change) -> None:
        """Note a change of the metadata: a change of the outbox may require work."""
        if isinstance(change, ActivityChanged):
            self._more.set()

    def role_changed(self, replica: Replica) -> None:
        stream = replica.stream
        if not stream.is_internal or stream.name != ACTIVITY:
            return
        leads = replica.leadership is not None and not replica.closed
        if leads and self._recording is not None and self._leader_epoch == stream.leader_epoch:
            return
        self._end()
        if leads:
            self._leader_epoch = stream.leader_epoch
            self._recording = run_in_background(self._record(replica), "recording of activity")

    def _end(self) -> None:
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None

    async def close(self) -> None:
        recording = self._recording
        self._end()
        if recording is not None:
            await asyncio.gather(recording, return_exceptions=True)

    # While this node leads the stream.

    async def _record(self, replica: Replica) -> None:
        reason, recorded = "", -1
        while True:
            try:
                if recorded < 0:
                    await _committed(replica, replica.log.log_end_offset)
                    recorded = await self._last_recorded(replica)
                recorded = await self._record_next(replica, recorded)
                reason = ""
            except JetstreamError as error:
                if error.message != reason:
                    reason = error.message
                    logger.warning("activity_not_recorded", reason=reason)
                recorded = -1  # Read the log again to find out what it holds.
                await asyncio.sleep(RETRY_SECONDS)

    async def _last_recorded(self, replica: Replica) -> int:
        """The number of the last event that the log has had; 0: none."""
        log = replica.log
        if log.log_end_offset == log.log_start_offset:
            # Retention keeps no number: what has left the outbox was recorded.
            is_new = log.log_end_offset == 0
            return 0 if is_new else self._metadata.registry.activity.first_sequence - 1
        found = replica.read(log.log_end_offset - 1, _LAST_BYTES)
        if found is None:
            raise UnavailableError("the last event is not committed yet")
        data = plain_batches(log.encryption, await asyncio.to_thread(log.pread, found))
        batch = list(batches.iterate(data, file=found.path))[-1]
        return sequence_of(list(batch.values())[-1] or b"")

    async def _record_next(self, replica: Replica, recorded: int) -> int:
        """Wait for events and append them to the log. Returns the number of the last event there.

        Raises the errors of appending and proposing.
        """
        self._more.clear()
        outbox = self._metadata.registry.activity
        events = outbox.after(recorded)[:EVENTS_PER_BATCH]
        if events:
            values = _records(events, recorded)
            replica.append(batches.encode(values, SUBJECT), must_commit=True)
            recorded = sequence_of(events[-1])
            await _committed(replica, replica.log.log_end_offset)
        elif not outbox.events:
            await self._more.wait()
            return recorded
        await self._metadata.propose(TrimActivity(through=recorded))
        return recorded


async def _committed(replica: Replica, end_offset: int) -> None:
    """Return once everything below that offset is committed. Raises NotLeaderError when the replica
    stops leading."""
    while replica.high_watermark < end_offset:
        rose = asyncio.Event()
        replica.add_waiter(rose.set)
        try:
            await rose.wait()
        finally:
            replica.remove_waiter(rose.set)
        if replica.closed or replica.leadership is None:
            raise NotLeaderError("this node does not lead the stream of activity any more")


def _records(events: Sequence[str], recorded: int) -> list[bytes]:
    """The records of events after the number `recorded`, and of the numbers that are missing."""
    records: list[bytes] = []
    for event in events:
        sequence = sequence_of(event)
        if sequence > recorded + 1:
            records.append(_lost_record(recorded + 1, sequence - 1))
        records.append(event.encode())
        recorded = sequence
    return records


def _lost_record(first: int, last: int) -> bytes:
    event = {"sequence": last, "type": "events_lost", "first": first, "last": last}
    return json.dumps(event, separators=(",", ":")).encode()
