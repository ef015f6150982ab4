"""One replica of one stream on this node: its log, its role, its flush, and its waiting readers.

    metadata ──> follow_metadata ──> leads (LeaderState) · follows (FollowerState) · neither
    as leader:   append, moved, fetch, propose, settle
    as follower: position, accept, accepted (also as an observer, which does not count)

    append ──> page cache ──(group)──> flusher thread: one fsync for all that queued up ──┐
                    │                                                                      │
                    ├──(interval, none)──> moved() <────────────────────────────────────────┘
                    └──> the followers' connections: records are sent

The cores decide, this class changes the log, asks for its flush, and calls the listeners, always in
this order: persist, flush, send. The event loop owns it. It has no I/O except the log's. Times are
in µs, of the monotonic clock unless stated otherwise. Readers see only committed records.

Invariants. `high_watermark <= log.log_end_offset`, and it falls only when a lossy election cut the
log. Listeners are notified of every rise, once. After `close` nothing is appended, and every waiter
has been woken. **safety** A process whose incarnation is not the registered one neither leads nor
follows. **safety** A replica whose log has failed does not lead, unless it is the only one. It
follows without a position until its log has been emptied (`failed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    RecordsDamagedError,
    StorageError,
    StorageFullError,
    StreamReadonlyError,
)
from jetstream_protocol.logfiles.names import base_offset_of
from jetstream_protocol.types import NO_NODE, MonotonicUs, NodeId, WallUs
from jetstream_server.disk_errors import NoDescriptorError
from jetstream_server.log.commit_log import CommitLog, LogSlice
from jetstream_server.metadata.state.commands import ChangeIsr, ConfirmFlush
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core import lake_bounds
from jetstream_server.replication.core.closeness import Closeness
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.core.follower import (
    Append,
    FollowerState,
    Ignore,
    Reset,
    Step,
    Truncate,
)
from jetstream_server.replication.core.leader import REPLICA_LAG_MAX_US, LeaderState
from jetstream_server.replication.core.log_config import log_config_for, why_no_appends
from jetstream_server.replication.core.messages import Answer, FetchRequest, Records, skips
from jetstream_server.replication.core.pending_isr import Outcome
from jetstream_server.replication.core.unreadable import (
    check_epoch_known,
    damage_error,
    end_unread_error,
    gone_error,
    no_beginning_error,
    unread_error,
)
from jetstream_server.replication.listeners import RoleChange
from jetstream_server.replication.newest import Newest
from jetstream_server.replication.services import Services

FETCH_BYTES_MAX = 1024 * 1024
"""Bytes of one stream in one answer to a follower. The first batch always fits."""

FLUSH_AGAIN_SECONDS = 0.1

CommitListener = Callable[["Replica"], None]
Waiter = Callable[[], None]


class Replica:
    """See the module. At most one of `leadership` and `following` is set."""

    __slots__ = (
        "_flush_target", "_lag_default_us", "_lag_max_us", "_rebuild", "_recorded_failure",
        "_services", "_waiters",
        "closed", "closeness", "counters", "failures", "following", "high_watermark", "incarnation",
        "is_deleted", "leader_log_start_offset", "leadership", "log", "newest", "node_id",
        "on_commit", "stream", "unreadable_reason", "why_unheard",
    )  # fmt: skip

    def __init__(
        self,
        stream: StreamMetadata,
        log: CommitLog,
        services: Services,
        *,
        node_id: int,
        incarnation: int,
        lag_max_us: int = REPLICA_LAG_MAX_US,
        rebuild: bool = False,
        unreadable_reason: str = "",
    ) -> None:
        """rebuild: the log's bytes are not trusted; a follower fetches everything again."""
        if log.lacks_beginning or log.is_start_unknown or unreadable_reason:
            rebuild = rebuild or not stream.is_alone(node_id)
        self.stream = stream
        self.log = log
        self._services = services
        self.node_id = NodeId(node_id)
        self.incarnation = incarnation
        self.leadership: LeaderState | None = None
        self.following: FollowerState | None = None
        self.counters = Counters()
        self.why_unheard = ""
        """Why NATS refuses the subscription of this leader; "": it does not."""
        self.closeness = Closeness(lag_max_us)
        self.closed = self.is_deleted = False
        self.high_watermark = log.log_start_offset
        if not rebuild:
            self._know_gaps()
        self.on_commit: CommitListener | None = None
        """Called with this replica when its high watermark rises. Ingest sets it while it leads."""
        self.leader_log_start_offset = 0
        """The leader's log start, from its last answer."""
        self._lag_default_us = self._lag_max_us = lag_max_us
        self._rebuild = rebuild
        self.failures = int(log.health.has_failed)
        """How often the log has failed in this run."""
        self._recorded_failure = 0
        self._flush_target: int | None = None
        self._waiters: dict[Waiter, None] = {}
        self.newest: Newest | None = None  # what `append` has just stored, during the call
        self.unreadable_reason = unreadable_reason
        """Why the log could not be opened, so that its offsets are unknown; "" when it is open."""

    def limit_lag(self, lag_max_us: int) -> None:
        """How long a replica may lag, from now on; 0: as long as by default."""
        self._lag_max_us = lag_max_us or self._lag_default_us
        self.closeness.limit_lag(self._lag_max_us)
        if self.leadership is not None:
            self.leadership.limit_lag(self._lag_max_us)

    @property
    def needs_rebuild(self) -> bool:
        """Whether the log's bytes are still not trusted."""
        return self._rebuild

    @property
    def counts_flushed(self) -> bool:
        """Whether a record counts only once it is flushed (flush `group`)."""
        return self.stream.config.flush == "group"

    @property
    def flush_wanted(self) -> bool:
        """Whether a flush would raise the position of this replica."""
        log = self.log
        return (
            self.counts_flushed
            and log.flushed_offset < log.log_end_offset
            and not log.offline_reason
        )

    @property
    def must_confirm_flush(self) -> bool:
        """Whether the metadata group waits for this replica's `flush_confirmation`."""
        return self.node_id in self.stream.unflushed

    # A failed log.

    @property
    def has_failed(self) -> bool:
        """Whether an operation of the log has failed and the log was not replaced since."""
        return self.log.health.has_failed

    def fail(self, error: StorageError) -> None:
        """Note a failed operation on the log: it takes no more records, and unflushed records may
        be lost."""
        self.log.health.fail(error.message)
        self._services.failures.report()

    def failed(self) -> None:
        """Note that the log has failed. If there are other replicas, it is fetched anew."""
        self.failures += 1
        if not self._is_only_one:
            self._rebuild = True
            if self.following is not None:
                self.following.distrust()

    def failure_recorded(self, failure: int) -> None:
        """Note that the metadata has recorded that failure, numbered as `failures` counts."""
        self._recorded_failure = max(self._recorded_failure, failure)

    @property
    def is_failure_recorded(self) -> bool:
        """Whether the metadata has recorded the latest failure of this log."""
        return self._recorded_failure == self.failures

    def is_counted_on(self) -> bool:
        """Whether the metadata counts on this replica: its leader, in its ISR, or eligible."""
        stream = self.stream
        return self.node_id in (stream.leader, *stream.isr, *stream.elr)

    @property
    def must_be_distrusted(self) -> bool:
        """Whether the metadata counts on this replica although its disk has lost records. A leader
        alone in its ISR is an exception: no other replica may have the later records."""
        others = [member for member in self.stream.isr if member != self.node_id]
        return self.log.lost_range is not None and self.is_counted_on() and bool(others)

    @property
    def waits_for_election(self) -> bool:
        """Whether no eligible replica is left, and this one may hold the most records."""
        return self.stream.has_no_eligible_replica and self.node_id in self.stream.replicas

    def record_incompleteness(self) -> None:
        """Clear the mark of a log that may lack records, because the metadata knows it.

        **safety** A log that may lack its beginning and has to be fetched anew keeps its mark: the
        next run must not take the rest for a complete log.
        """
        if self._rebuild and self.log.is_start_unknown:
            return
        try:
            self.log.incompleteness_recorded()
        except StorageError:
            pass  # The next start reports it again; a failed log has reported itself.

    def suspect(
        self, offset: int, error: JetstreamError | None = None, *, whole: bool = False
    ) -> None:
        """Have the bytes at `offset` inspected. error: why this node could not read them; None: it
        has not tried. whole: the whole segment."""
        self._services.listeners.healer.suspect(self, offset, error, whole=whole)

    def distrust(self) -> None:
        """Note that the disk has lost records: this replica must not be in sync, nor lead."""
        self._services.listeners.failed(self)

    def healed(self) -> None:
        """Note that the lost records are there again: this replica's position counts once more."""
        self._services.listeners.role_changed(self)

    def suspect_file(self, path: str, error: JetstreamError | None) -> None:
        """Have a segment inspected. error: why it could not be read. path: "": it is unknown
        which."""
        base_offset = base_offset_of(path.rpartition("/")[2])
        if base_offset is not None:
            self.suspect(base_offset, error, whole=True)

    def revive(self) -> None:
        """Use the readable part of the failed log, for an unclean election. Raises StorageError."""
        self.log.salvage(is_elected=False)

    @property
    def _is_only_one(self) -> bool:
        return self.stream.is_alone(self.node_id)

    def _can_lead(self, *, is_new: bool) -> bool:
        """Whether this replica may lead. **safety** A log that has failed or could not be opened
        does not lead, except the only replica's, which can still be read.

        is_new: a leadership begins: it was elected by its readable part, and damage is discarded.
        """
        log = self.log
        if self._is_only_one or not log.offline_reason:
            return True
        if not log.is_damaged:
            return False
        if is_new:
            try:
                log.salvage()
            except StorageError as error:
                log.health.fail(error.message)  # A full disk, too: what has failed is tried again.
                return False
        return True

    # Role.

    def follow_metadata(self, stream: StreamMetadata, nodes: Mapping[NodeId, NodeMetadata]) -> None:
        """Take the role in `stream`, and call the listeners.

        **safety** Never an earlier role again: if several changes came at once, a change of a node
        has already brought the replica to the stream's latest state.
        """
        known, listeners = self.stream, self._services.listeners
        if stream.stream_epoch < known.stream_epoch:
            return
        changes = self.update(stream, nodes, self._services.monotonic_clock())
        for change in changes:
            if change in (RoleChange.LEADS, RoleChange.FOLLOWS) and self.flush_wanted:
                self.flush()
            listeners.leadership.changed(self, change)
        is_access_changed = (known.readonly, known.is_silent) != (stream.readonly, stream.is_silent)
        if self.leadership is not None and is_access_changed:
            listeners.leadership.access_changed(self)
        is_altered = stream.config != known.config
        if is_altered:
            self._altered()
        # A follower sends its position again: the earlier one may not count any more.
        is_news_to_leader = self.following is not None and stream.stream_epoch != known.stream_epoch
        is_moved = (stream.replicas, stream.observers) != (known.replicas, known.observers)
        if changes or is_altered or is_news_to_leader or is_moved or stream.purge != known.purge:
            listeners.role_changed(self)
        self._progressed()

    def _altered(self) -> None:
        """Apply changed settings. The flush policy holds for the records of before, too."""
        self.log.configure(log_config_for(self._services.log_config, self.stream.config))
        if not self.closed and not self.log.offline_reason:
            self._grew()

    def update(
        self, stream: StreamMetadata, nodes: Mapping[NodeId, NodeMetadata], now_us: MonotonicUs
    ) -> tuple[RoleChange, ...]:
        """Take the role that the metadata gives, the stream's and the nodes' of one revision, and
        return what has changed by it."""
        if self.closed:
            return ()
        before, self.stream = self.stream, stream
        self.log.producers.window_us = stream.config.duplicate_window_us
        if stream.config.flush != before.config.flush or skips(before, stream):
            self._flush_target = None
        me = nodes.get(self.node_id)
        is_current = me is not None and me.incarnation == self.incarnation
        leader = stream.leader if is_current else NO_NODE
        same_epoch = stream.leader_epoch == before.leader_epoch
        if leader == self.node_id and not self._can_lead(is_new=self.leadership is None):
            leader = NO_NODE
        if self.leadership is not None and same_epoch and leader == self.node_id:
            return self._keep_leading(self.leadership, stream, nodes)
        if self.following is not None and same_epoch and leader not in (NO_NODE, self.node_id):
            self.following.update(stream)
            return ()
        return self._change_role(leader, nodes, now_us)

    def _keep_leading(
        self,
        leadership: LeaderState,
        stream: StreamMetadata,
        nodes: Mapping[NodeId, NodeMetadata],
    ) -> tuple[RoleChange, ...]:
        could_commit = leadership.can_commit
        if leadership.update(stream, nodes):
            self._rose(leadership.high_watermark)
        if could_commit and not leadership.can_commit:
            return (RoleChange.FELL_BELOW_MINIMUM,)
        return ()

    def _change_role(
        self, leader: NodeId, nodes: Mapping[NodeId, NodeMetadata], now_us: MonotonicUs
    ) -> tuple[RoleChange, ...]:
        changes = [] if self.leadership is None else [RoleChange.STOPPED_LEADING]
        was_idle = self.leadership is None and self.following is None
        self.leadership = self.following = self._flush_target = None
        self.closeness.lost()
        if leader == self.node_id:
            self._lead(nodes, now_us)
            changes.append(RoleChange.LEADS)
        elif leader != NO_NODE:
            self._follow()
            changes.append(RoleChange.FOLLOWS)
        elif not was_idle:
            changes.append(RoleChange.IDLES)
        return tuple(changes)

    def _lead(self, nodes: Mapping[NodeId, NodeMetadata], now_us: MonotonicUs) -> None:
        """**safety** The epoch begins in the log before anything is appended or served under it.

        With one replica, every record in the log is committed once it counts.
        """
        log, high_watermark = self.log, self.high_watermark
        if self._rebuild:
            self._rebuild = False  # There was no better replica to elect.
            self._know_gaps()
            self.record_incompleteness()
        if lake_bounds.begin_after_lake(self.stream, log):
            self.high_watermark = log.log_start_offset
        self.high_watermark = max(self.high_watermark, log.log_start_offset)
        if self.stream.was_compacted and not log.offline_reason:
            try:
                log.compaction.lead_from(log.log_end_offset)
            except StorageFullError:
                pass  # It is known in memory. The next leadership records it again.
            except StorageError as error:
                log.health.fail(error.message)
        if not log.offline_reason:
            log.start_epoch(self.stream.leader_epoch)
        elif self._is_only_one:
            # Nothing will be flushed any more: the readable part counts.
            self.high_watermark = log.log_end_offset
        self.leadership = LeaderState(
            stream=self.stream, node_id=self.node_id, nodes=nodes, log=log, now_us=now_us,
            high_watermark=self.high_watermark, lag_max_us=self._lag_max_us, notes_epoch=True,
        )  # fmt: skip
        if self.high_watermark > high_watermark:
            self._rose(self.high_watermark)
        if self.leadership.must_note_epoch:
            log.note_epoch(self.stream.leader_epoch)
            self.flush()
        self.moved()

    def _know_gaps(self) -> None:
        """Note the committed offset: compaction leaves, and followers accept, gaps only below."""
        if self.stream.was_compacted:
            known = min(self.log.committed_below, self.log.log_end_offset)
            self.high_watermark = max(self.high_watermark, known)

    def _follow(self) -> None:
        # An epoch without records cannot diverge. It would only keep out records of earlier epochs.
        self.log.epochs.truncate_from_end(self.log.log_end_offset)
        self.following = FollowerState(
            stream=self.stream,
            node_id=self.node_id,
            incarnation=self.incarnation,
            log=self.log,
            high_watermark=self.high_watermark,
            rebuild=self._rebuild,
        )

    # As the leader.

    def append(
        self,
        batch: EncodedBatch,
        timestamp_us: WallUs | None = None,
        *,
        must_commit: bool = False,
    ) -> int:
        """Append as the leader, ask for the flush, and return the base offset.

        timestamp_us: for a restored batch: when it was appended first. must_commit: refuse the
        batch below the minimum of replicas in sync; messages without acks are stored even then.

        Nothing is stored if it raises NotLeaderError, StreamReadonlyError, StorageFullError,
        NotEnoughReplicasError, StorageError; UnavailableError if the end of the log could not be
        read, which is inspected then.
        """
        services = self._services
        if self.stream.readonly:
            name = self.stream.name
            raise StreamReadonlyError(
                f"stream {name!r} is read-only: nothing was stored; "
                f"'jetstream stream readonly {name} --undo' makes it writable"
            )
        if services.full_reason:
            raise StorageFullError(services.full_reason)
        if must_commit:
            self.check_can_commit()
        timestamp_us = services.wall_clock() if timestamp_us is None else timestamp_us
        base_offset = self._append(batch, timestamp_us, services.monotonic_clock())
        try:
            self._grew()
            self._progressed()
        finally:
            self.newest = None
        return base_offset

    def check_can_commit(self) -> None:
        """Raise NotEnoughReplicasError below the minimum of replicas in sync, and NotLeaderError.
        What waits for its commit is not appended then; messages that ask for no ack are."""
        self._leader_state().check_can_append()

    @property
    def why_no_appends(self) -> str:
        """Why this node could not store a record of the stream, if it led it; "": it could."""
        return self._services.full_reason or why_no_appends(self.stream.config, self.log)

    def _append(self, batch: EncodedBatch, timestamp_us: WallUs, now_us: MonotonicUs) -> int:
        """Change the log and the counters. timestamp_us: of the wall clock."""
        self._leader_state()
        try:
            epoch, log = self.stream.leader_epoch, self.log
            base_offset = log.append(
                batch, leader_epoch=epoch, timestamp_us=timestamp_us, now_us=now_us
            )
        except NoDescriptorError as error:
            raise end_unread_error(self.stream, self.node_id, error.__cause__) from error
        except StorageError as error:
            is_full = isinstance(error, StorageFullError)
            if is_full or why_no_appends(self.stream.config, self.log):
                raise
            # The end could not be read, because the index of the last segment was missing.
            self.suspect(self.log.log_end_offset, error)
            raise end_unread_error(self.stream, self.node_id, error.__cause__) from error
        if len(self.stream.copies) > 1:
            self.newest = Newest(base_offset, batch)
        self.log.note_end()
        self.counters.appended(batch.record_count, batch.length)
        return base_offset

    def moved(self) -> None:
        """Raise the high watermark if possible, and report it: the log grew or was flushed."""
        if self.leadership is not None and not self.closed and self.leadership.moved():
            self._rose(self.leadership.high_watermark)

    def fetch(
        self, request: FetchRequest, now_us: MonotonicUs, bytes_max: int = FETCH_BYTES_MAX
    ) -> Answer:
        """Record a follower's position, and answer it.

        Raises NotLeaderError, FencedEpochError, UnknownEpochError, InvalidRequestError. Raises
        CorruptBatchError and StorageError when the next records cannot be read.
        """
        leadership = self.leadership or self._leader_state()
        problem = leadership.fetch(request, now_us)
        if leadership.high_watermark > self.high_watermark:
            self._rose(leadership.high_watermark)
        answer = problem or self._records(leadership, request, bytes_max)
        stream = self.stream
        if request.follower in stream.replicas and request.follower not in stream.isr:
            self._progressed()  # It may join the ISR now.
        return answer

    def answer_again(self, request: FetchRequest) -> Answer:
        """Answer a recorded request that has waited. Raises the errors of `fetch`."""
        leadership = self._leader_state()
        leadership.check(request)
        return leadership.compare(request) or self._records(leadership, request, FETCH_BYTES_MAX)

    def _records(self, leadership: LeaderState, request: FetchRequest, bytes_max: int) -> Records:
        end_offset, found = self.log.log_end_offset, None
        if request.fetch_offset != end_offset:
            found = self._read(request.fetch_offset, bytes_max, end_offset)
        return Records(request, leadership.snapshot, found)

    def tick(self, now_us: MonotonicUs) -> None:
        """Let time pass. Called several times a second, unless `is_settled`."""
        if self.leadership is not None:
            self.leadership.tick(now_us)

    def is_settled(self, now_us: MonotonicUs) -> bool:
        """See `LeaderState.is_settled`. True without a leadership."""
        return self.leadership is None or self.leadership.is_settled(now_us)

    def propose(self, now_us: MonotonicUs) -> ChangeIsr | None:
        """The change of the ISR to propose. See `LeaderState.propose`."""
        return None if self.leadership is None else self.leadership.propose(now_us)

    def settle(self, change: ChangeIsr, outcome: Outcome, now_us: MonotonicUs) -> None:
        """Take the outcome of a proposal, which may be of an earlier leadership."""
        if self.leadership is not None and self.leadership.settle(change, outcome, now_us):
            self._rose(self.leadership.high_watermark)

    def _leader_state(self) -> LeaderState:
        if self.leadership is None:
            raise NotLeaderError(f"this node does not lead stream {self.stream.name!r}")
        return self.leadership

    # As a follower.

    def position(self) -> FetchRequest | None:
        """The next request to the leader; None: there is none.

        **safety** None also while the metadata counts on a log that must be fetched anew, or has
        not recorded its failure: the emptied log could be added to the ISR, or elected.
        """
        if self.following is None or self._must_not_be_emptied:
            return None
        return self.following.position()

    @property
    def _must_not_be_emptied(self) -> bool:
        if not self._rebuild:
            return self.has_failed  # A thread has noted it; `failed` is still to be called.
        return self.is_counted_on() or not self.is_failure_recorded

    def accept(self, answer: Answer, data: bytes, now_us: MonotonicUs) -> Step | None:
        """Apply the leader's answer to the log. data: the bytes of the answer's slice.

        Returns the step that was taken. Raises CorruptBatchError and DivergedError for unexpected
        bytes (fetch again), StorageFullError (fetch later), StorageError.
        """
        following = self.following
        if following is None or self.closed or self._must_not_be_emptied:
            return None
        step = following.decide(answer)
        if not isinstance(step, Ignore):
            self.closeness.heard(answer.snapshot.high_watermark, self.log.log_end_offset, now_us)
        if self.log.is_damaged and not isinstance(step, Ignore | Reset):
            self.log.salvage()  # The leader has the records. Fetch them again.
        match step:
            case Append(leader_epoch, True):
                if self.log.log_start_offset == self.log.log_end_offset:
                    self.log.compaction.note_copied_under(answer.snapshot.tombstones_gone_below)
                high_watermark = answer.snapshot.high_watermark
                # Records that are already committed were appended some time ago.
                is_late = high_watermark > self.log.log_end_offset
                try:
                    self.log.append_replica(
                        data,
                        leader_epoch=leader_epoch,
                        gaps_below=high_watermark if self.stream.was_compacted else 0,
                        now_us=None if is_late else now_us,
                    )
                except JetstreamError:
                    self.log.note_end()  # Batches in earlier segments stay, and count.
                    self.log.compaction.not_appended(self.log.log_end_offset)
                    raise
                self.log.note_end()
            case Truncate(offset) | Reset(offset):
                try:
                    (self.log.reset if isinstance(step, Reset) else self.log.truncate)(offset)
                except StorageError:
                    # What is left of it, if anything, is to be compared with no reader's record.
                    end_offset = min(self.high_watermark, self.log.log_end_offset)
                    self.high_watermark = max(end_offset, self.log.log_start_offset)
                    raise
                if isinstance(step, Reset):
                    self.unreadable_reason = ""
        rose = following.settle(answer, step)
        self._rebuild = following.needs_rebuild
        if rose:
            self._rose(following.high_watermark)
        else:
            self.high_watermark = following.high_watermark
        self.leader_log_start_offset = answer.snapshot.log_start_offset
        if isinstance(step, Append):
            self.closeness.reached(self.log.log_end_offset)
        return step

    def accepted(self) -> None:
        """Ask for the flush of what `accept` has changed."""
        if not (self._rebuild or self.has_failed):
            self._services.failures.trust(self.stream.id)
        self._grew()

    # In either role.

    def log_start_rose(self) -> None:
        """Report a risen log start to the listeners, and to the followers if this node leads."""
        self._services.listeners.log_start_rose(self)
        self._progressed()

    def flush_confirmation(self) -> ConfirmFlush | None:
        """The command that reports this replica as fully flushed since flush became `group`; None
        if it is not, or if no report is needed."""
        if not self._may_confirm_flush():
            self._flush_target = None
            return None
        if self._flush_target is None:
            self._flush_target = self.log.log_end_offset
        if self.log.flushed_offset < min(self._flush_target, self.log.log_end_offset):
            return None
        return ConfirmFlush(
            stream_id=self.stream.id,
            node_id=self.node_id,
            stream_epoch=self.stream.stream_epoch,
        )

    def _may_confirm_flush(self) -> bool:
        if self.following is not None:
            return self.following.may_confirm_flush
        return (
            self.leadership is not None
            and self.counts_flushed
            and self.node_id in self.stream.unflushed
        )

    def _rose(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        if self.on_commit is not None:
            self.on_commit(self)
        if self.leadership is not None:
            self._progressed()
        self._wake()

    def _progressed(self) -> None:
        """Call the followers' connections and the ISR driver: there may be something to do."""
        if len(self.stream.copies) > 1:
            for listener in self._services.progress:
                listener.progressed(self)

    # The flush.

    def flush(self) -> None:
        """Ask for a flush of the log, whatever the stream's policy."""
        self._services.flusher.request(self.log, self._flushed)

    def _grew(self) -> None:
        """Ask for the flush of what was appended. What does not wait for one counts already."""
        flush = self.stream.config.flush
        if flush == "group":
            self._services.flusher.request(self.log, self._flushed)
        else:
            if flush == "interval":
                self._services.dirty[self] = None
            self.moved()

    def _flushed(self, log: CommitLog, result: int | StorageError) -> None:
        """Take the flusher's result, on the loop."""
        services = self._services
        services.flush_ended.set()
        if self.closed:
            return
        if isinstance(result, NoDescriptorError):
            services.call_later(FLUSH_AGAIN_SECONDS, self._flush_again)
        elif isinstance(result, StorageError):
            self.fail(result)
        else:
            self.moved()
            services.listeners.flushed(self)
            if self.leadership is not None and self.leadership.must_note_epoch:
                services.call_later(FLUSH_AGAIN_SECONDS, self._flush_again)  # The disk was full.

    def _flush_again(self) -> None:
        if not self.closed:
            self.flush()

    # Readers.

    def observes_closely(self, now_us: MonotonicUs) -> bool:
        """Whether this is an observer that gets what is committed without a long delay."""
        return (
            self.node_id in self.stream.observers
            and self.following is not None
            and not self.log.offline_reason
            and self.closeness.holds(now_us)
        )

    @property
    def is_in_sync(self) -> bool:
        """Whether this replica leads or is in the ISR, as far as this node knows."""
        return self.leadership is not None or self.node_id in self.stream.isr

    def read(
        self, offset: int, bytes_max: int, last_epoch: int = -1, *, is_leader: bool = True
    ) -> LogSlice | None:
        """Locate whole committed batches from the one that holds `offset` on; None: not there yet.

        last_epoch: leader epoch of the record before `offset` as the reader saw it; -1: unknown.
        is_leader: this node leads, and holds its lease. Elsewhere a reader may have seen more.
        Raises OffsetOutOfRangeError below the log start and beyond any possible end, DivergedError
        when the reader's last record is not and cannot be in this log, and the errors of
        `check_readable`.
        """
        self.check_readable()
        if is_leader:
            check_epoch_known(self.stream, last_epoch)
            is_leader = self.leadership is None or self.leadership.is_followed
        log = self.log
        if offset < log.log_start_offset:
            lake_bounds.check_in_log(self.stream, log, self.node_id, offset)
            self.check_start()
        if offset < log.log_start_offset or (is_leader and offset > log.log_end_offset):
            raise lake_bounds.out_of_range_error(self.stream, log, offset, self.high_watermark)
        end = self.high_watermark
        lake_bounds.check_before(self.stream, log, end, offset, last_epoch, is_leader=is_leader)
        return self._read(offset, bytes_max, end) if offset < end else None

    def _read(self, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
        """Read the log. Raises RecordsDamagedError for known damage, otherwise UnavailableError."""
        try:
            return self.log.read(offset, bytes_max, limit_offset)
        except RecordsDamagedError as error:
            raise damage_error(self.stream, self.node_id, error) from error
        except StorageError as error:
            self.suspect(offset, error)
            raise unread_error(self.stream, self.node_id, offset, error.__cause__) from error

    def check_readable(self) -> None:
        """Raise an error unless reading is possible: StreamNotFoundError for a deleted stream,
        NotReplicaError for a replica closed otherwise, StorageError for a log that could not be
        opened or is gone. Its offsets would be wrong: readers would see a truncation."""
        if self.closed:
            raise gone_error(self.stream, self.node_id, is_deleted=self.is_deleted)
        reason = self.unreadable_reason or (self.log.offline_reason if self.log.is_lost else "")
        if reason:
            raise StorageError(f"stream {self.stream.name!r} is offline here: {reason}")

    def check_start(self) -> None:
        """Raise UnavailableError if this log has lost its beginning and is to be fetched anew: a
        reader would take its start for the stream's, and skip records."""
        if self._rebuild and (self.log.lacks_beginning or self.log.is_start_unknown):
            raise no_beginning_error(self.stream, self.node_id)

    def add_waiter(self, waiter: Waiter) -> None:
        """Call `waiter` once, when more is committed or the replica closes."""
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, {}
            for waiter in waiters:
                waiter()

    def retire(self, *, is_deleted: bool = False) -> None:
        """Stop appends and leadership, and wake the waiters. The log stays open."""
        self.closed, self.is_deleted = True, is_deleted
        self.leadership = self.following = None
        self._wake()

    def close(self, *, clean: bool, is_deleted: bool = False) -> None:
        """Retire, then close the log."""
        self.retire(is_deleted=is_deleted)
        self.log.close(clean=clean)
