"""`__cursors` on the node that leads it: the table in memory, and its records in the log.

    write ─> queue ──(once per turn of the loop)──> plan ─> one batch ─> append ─> commit ─> answers

A new leader reads its log before it answers. **safety** It answers only while this node certainly
leads, and only with committed records (table.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import structlog

from jetstream_protocol import batch as batches
from jetstream_protocol.errors import (
    CorruptBatchError,
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    RecordsDamagedError,
    StorageError,
    UnavailableError,
)
from jetstream_protocol.generated.groups_pb2 import ConsumerGroup
from jetstream_protocol.types import StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.cursors.coordinator import LEADER_CHANGES, Coordinator, StreamsOf
from jetstream_server.cursors.groups import Group
from jetstream_server.cursors.records import (
    CONSUMER_PREFIX,
    CURSOR_PREFIX,
    GROUP_PREFIX,
    group_from_proto,
    group_key,
    group_name,
    group_to_proto,
)
from jetstream_server.cursors.table import CursorTable, Entry, Outcome, Plan, Write
from jetstream_server.cursors.teller import EventTeller
from jetstream_server.log.encryption import plain_batches
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.activity import tells_of_cursors
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica

CURSORS = "__cursors"
SUBJECT = CURSORS.encode()
"""Subject of the records: a batch has a subject, and this one has no subscriber."""
SETTINGS = {
    "acks": "off",
    "compact": True,
    "duplicate_window_us": 0,
    "segment_bytes": 32 * 1024 * 1024,
}

READY_SECONDS = 5.0
COMMIT_SECONDS = 5.0
WAITING_MAX = 50_000
"""Upper bound on writes that wait for a commit, whether or not their callers still do. More are
refused."""
BATCH_BYTES = 4 * 1024 * 1024
"""Approximate bytes of a batch. Queued requests beyond it go into the next one."""
_LOAD_BYTES = 1024 * 1024
_RETRY_SECONDS = 0.5
SWEEP_SECONDS = 300.0
_SWEPT_AT_ONCE = 100

logger = structlog.get_logger("jetstream.cursors")


_Request = tuple[Sequence[Write], asyncio.Future[list[Outcome]]]


class CursorStore(RoleListener):
    """See the module. Owned by the event loop."""

    def __init__(
        self,
        lease_held: Callable[[], bool],
        streams_of: StreamsOf,
        monotonic_clock: MonotonicClock,
        metadata: RaftMetadataLog,
    ) -> None:
        """lease_held: returns whether this node's session lease holds. streams_of: returns the
        streams that a consumer group reads."""
        self._metadata = metadata
        self._lease_held = lease_held
        self._streams_of = streams_of
        self._clock = monotonic_clock
        self._leading: Leadership | None = None

    def role_changed(self, replica: Replica) -> None:
        stream = replica.stream
        if not stream.is_internal or stream.name != CURSORS:
            return
        before = self._leading
        leads = replica.leadership is not None and not replica.closed
        if before is not None:
            if leads and before.leader_epoch == stream.leader_epoch and not before.ended:
                return
            before.end()
            self._leading = None
        if leads:
            self._leading = Leadership(replica, self._streams_of, self._clock, self._metadata)

    async def write(self, writes: Sequence[Write]) -> list[Outcome]:
        """Append the records that may be written, and return one outcome for each write once they
        are committed.

        Raises NotLeaderError, UnavailableError (also when they may be committed later: writing them
        again is safe), NotEnoughReplicasError, StorageError.
        """
        leading = await self._ready()
        outcomes = await leading.write_fenced(writes)
        self._check_lease()
        return outcomes

    async def coordinator(self) -> Coordinator:
        """The coordinator of consumer groups. Raises NotLeaderError, UnavailableError."""
        return (await self._ready()).coordinator

    async def table(self) -> CursorTable:
        """The table of committed records. Raises NotLeaderError, UnavailableError."""
        return (await self._ready()).table

    def committed_now(self) -> Mapping[bytes, Entry]:
        """The committed records, without waiting; none on a node that does not lead."""
        leading = self._leading
        if leading is None or leading.ended or not leading.loaded.is_set():
            return {}
        return leading.table.committed_entries if self._lease_held() else {}

    def cursors_known(self) -> int | None:
        """The number of cursors; None on a node that does not lead them."""
        if self._leading is None:
            return None
        return sum(key.startswith(CURSOR_PREFIX) for key in self.committed_now())

    async def _ready(self) -> Leadership:
        leading = self._leading
        if leading is None:
            raise NotLeaderError("this node does not lead the cursors; try again")
        if leading.failure:
            raise StorageError(leading.failure)
        try:
            async with asyncio.timeout(READY_SECONDS):
                await leading.loaded.wait()
        except TimeoutError:
            why = f": {leading.trouble}" if leading.trouble else ""
            raise UnavailableError(f"the cursors are still being read{why}; try again") from None
        if leading.ended:
            raise NotLeaderError("this node led the cursors until a moment ago; try again")
        self._check_lease()
        return leading

    def _check_lease(self) -> None:
        if not self._lease_held():
            raise NotLeaderError("this node led the cursors, but its session has lapsed; try again")

    async def close(self) -> None:
        if self._leading is not None:
            self._leading.end()
            self._leading = None


class Leadership:
    """One leadership of `__cursors`. loaded: set once the table is complete, or it has ended."""

    def __init__(
        self,
        replica: Replica,
        streams_of: StreamsOf,
        monotonic_clock: MonotonicClock,
        metadata: RaftMetadataLog,
    ) -> None:
        self.coordinator = Coordinator(self._save, streams_of, monotonic_clock)
        self._watching: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.leader_epoch = replica.stream.leader_epoch
        self.table = CursorTable()
        self._registry = metadata.registry
        self._teller = EventTeller(self.table, self.write, metadata)
        self.loaded = asyncio.Event()
        self.ended = False
        self.trouble = ""
        self.failure = ""
        """Why there is nothing to load from."""
        self._replica = replica
        self._queue: list[_Request] = []
        # One list for each plan.
        self._plan_answers: deque[list[asyncio.Future[list[Outcome]]]] = deque()
        self._waiting = 0
        self._is_watching = False
        self._rose = asyncio.Event()
        self._written_at: dict[str, int] = {}
        """When the record of each group was appended, by the leader's wall clock, while loading."""
        self._last_append = 0
        self._loading = run_in_background(self._load(), "loading cursors")

    # Loading.

    async def _load(self) -> None:
        """Load the table. Every committed record counts, even those of earlier leaders. Records
        that no replica has are passed over: cursors and groups must not end with them."""
        await self._until_readable()
        log = self._replica.log
        offset, end_offset = log.log_start_offset, log.log_end_offset
        while offset < end_offset:
            try:
                offset = await self._load_from(offset)
                self.trouble = ""
            except RecordsDamagedError as error:
                if not error.retriable:
                    logger.error(
                        "cursors_damaged",
                        offset=error.start_offset,
                        end_offset=error.end_offset,
                        reason=error.message,
                    )
                    offset = max(offset + 1, error.end_offset)
                    continue
                self.trouble = error.message
                await asyncio.sleep(_RETRY_SECONDS)  # Until it is repaired from another replica.
            except JetstreamError as error:
                self.trouble = error.message
                logger.warning("cursors_not_loaded", offset=offset, reason=error.message)
                await asyncio.sleep(_RETRY_SECONDS)
                offset = max(offset, log.log_start_offset)
        self._load_groups()
        self._teller.start()
        logger.info(
            "cursors_loaded", count=len(self.table.committed_entries), records_end=end_offset
        )
        self.loaded.set()

    async def _until_readable(self) -> None:
        """**safety** A log that could not be opened looks empty: who heard that there is no cursor
        would begin anew."""
        while True:
            try:
                self._replica.check_readable()
            except JetstreamError as error:
                if not self.failure:
                    logger.error("cursors_not_loaded", offset=0, reason=error.message)
                self.failure = error.message
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self.failure = ""
                return

    async def _load_from(self, offset: int) -> int:
        """Load one part, and return the offset of the next one."""
        replica = self._replica
        found = replica.read(offset, _LOAD_BYTES)
        if found is None:
            self._rose.clear()
            self._watch()
            await self._rose.wait()
            return offset
        data = await asyncio.to_thread(replica.log.pread, found)
        data = plain_batches(replica.log.encryption, data)
        at = offset
        try:
            for batch in batches.iterate(data, file=found.path):
                if batch.header.next_offset > offset:
                    self._load_batch(batch)
                at = batch.header.next_offset
        except CorruptBatchError as error:
            # Once it is inspected, it is either readable or known to be damaged.
            replica.suspect(max(at, offset), error)
            raise
        return found.next_offset

    def _load_batch(self, batch: batches.Batch) -> None:
        keys = batch.keys()
        self.table.load(batch.offsets(), keys, batch.values())
        self._last_append = max(self._last_append, batch.header.append_timestamp)
        for key in keys:
            if key is not None and key.startswith(GROUP_PREFIX):
                self._written_at[group_name(key)] = batch.header.append_timestamp

    def _load_groups(self) -> None:
        ages = {name: (self._last_append - at) / 1e6 for name, at in self._written_at.items()}
        self.coordinator.load(
            (
                group_from_proto(ConsumerGroup.FromString(entry.value))
                for key, entry in self.table.committed_entries.items()
                if key.startswith(GROUP_PREFIX)
            ),
            ages,
        )
        self._written_at.clear()
        self._watching = run_in_background(self.coordinator.watch(), "consumer groups")
        self._sweeping = run_in_background(self._sweep(), "sweeping the cursors")

    async def _sweep(self) -> None:
        """Delete what durable consumers of deleted streams have left, now and then: if nobody led
        the stream when it was deleted, nobody else does."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            deleted = self._registry.deleted
            keys = [key for key in self.table.committed_entries if _consumed(key) in deleted]
            with suppress(JetstreamError):  # The next time, or the next leader.
                for at in range(0, len(keys), _SWEPT_AT_ONCE):
                    await self.write([Write(key, None) for key in keys[at : at + _SWEPT_AT_ONCE]])

    # Writing.

    async def _save(self, group: Group) -> None:
        value = None if group.is_deleted else group_to_proto(group).SerializeToString()
        (outcome,) = await self.write([Write(group_key(group.name), value)])
        if outcome.error is not None:
            raise outcome.error

    async def write_fenced(self, writes: Sequence[Write]) -> list[Outcome]:
        """Like `write`, and check each position against its consumer group.

        **safety** The check is made in the iteration of the loop in which the write is queued: so
        the log has the position before any change of the group that is decided later.
        """
        reasons = [self._why_not(write) for write in writes]
        allowed = [write for write, reason in zip(writes, reasons, strict=True) if not reason]
        outcomes = iter(await self.write(allowed) if allowed else ())
        return [
            Outcome(self.table.committed_entries.get(write.key), PreconditionFailedError(reason))
            if reason
            else next(outcomes)
            for write, reason in zip(writes, reasons, strict=True)
        ]

    def _why_not(self, write: Write) -> str:
        fence = write.fence
        return "" if fence is None else self.coordinator.why_not(*fence)

    async def write(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.ended:
            raise UnavailableError(LEADER_CHANGES)
        if self._waiting + len(writes) > WAITING_MAX:
            raise UnavailableError("too many cursors are being committed; try again")
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._append)
        self._queue.append((writes, answer))
        self._waiting += len(writes)
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                return await answer
        except TimeoutError:
            raise UnavailableError(
                "the cursors are not committed yet, and may be later: too few replicas of "
                "`__cursors` answer; try again"
            ) from None

    def _append(self) -> None:
        """Append the queued requests in one batch."""
        if self.ended:
            return
        count = _count_in(self._queue, BATCH_BYTES)
        queue, self._queue = self._queue[:count], self._queue[count:]
        if self._queue:
            asyncio.get_running_loop().call_soon(self._append)
        answers = [answer for _, answer in queue]
        try:
            plan = self._append_plan([writes for writes, _ in queue])
        except JetstreamError as error:
            _refuse(answers, error)
            self._waiting -= sum(len(writes) for writes, _ in queue)
            return
        self.table.appended(plan)
        self._plan_answers.append(answers)
        self._answer_committed()

    def _append_plan(self, requests: list[Sequence[Write]]) -> Plan:
        if self._replica.leadership is None:
            raise NotLeaderError("this node does not lead the cursors any more; try again")
        tells = tells_of_cursors(self._registry)
        plan = self.table.plan(
            requests, self._replica.log.log_end_offset, self.leader_epoch if tells else None
        )
        if plan.keys or plan.end_offset > self._replica.high_watermark:
            self._replica.check_can_commit()
        if plan.keys:
            encoded = batches.encode(plan.values, SUBJECT, keys=plan.keys)
            base_offset = self._replica.append(encoded)
            assert base_offset == plan.base_offset, "only this leader appends"
        return plan

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._replica.add_waiter(self._moved)

    def _moved(self) -> None:
        """Answer requests: more is committed, or the replica has closed."""
        self._is_watching = False
        self._rose.set()
        if not self.ended:
            self._answer_committed()

    def _answer_committed(self) -> None:
        for plan in self.table.advance(self._replica.high_watermark):
            for answer, outcomes in zip(self._plan_answers.popleft(), plan.answers, strict=True):
                self._waiting -= len(outcomes)
                if not answer.done():
                    answer.set_result(outcomes)
        self._teller.look()
        if self.table.waits:
            self._watch()

    def end(self) -> None:
        """Fail the waiting requests. The next leader may still commit what was appended."""
        self.ended = True
        self._loading.cancel()
        for task in (self._watching, self._sweeping):
            if task is not None:
                task.cancel()
        self.coordinator.end()
        self._teller.end()
        self._replica.remove_waiter(self._moved)
        self.loaded.set()
        error = UnavailableError(LEADER_CHANGES)
        _refuse([answer for _, answer in self._queue], error)
        for answers in self._plan_answers:
            _refuse(answers, error)
        self._plan_answers.clear()


def _consumed(key: bytes) -> StreamId | None:
    """The stream of a durable consumer; None: it is the key of something else."""
    return StreamId(int(key.split(b"/")[1])) if key.startswith(CONSUMER_PREFIX) else None


def _refuse(answers: Sequence[asyncio.Future[list[Outcome]]], error: JetstreamError) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)


def _count_in(queue: Sequence[_Request], bytes_max: int) -> int:
    """How many requests, at least one, have about that length together."""
    length = 0
    for number, (writes, _) in enumerate(queue, 1):
        length += sum(len(write.key) + len(write.value or b"") for write in writes)
        if length >= bytes_max:
            return number
    return len(queue)
