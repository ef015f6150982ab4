"""All replicas on this node: opens and closes them as the metadata says, and flushes them on
request.

Owned by the event loop. It connects an append, its flush, its replication and the rise of the high
watermark:

    append ──> page cache ──(group)──> flusher thread: one fsync for all that queued up ──┐
                    │                                                                      │
                    ├──(interval, none)──> moved() <────────────────────────────────────────┘
                    └──> connections: sent to the followers

fetcher_manager.py chooses what each follower fetches from; isr.py changes the ISR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor

import structlog

from jetstream_protocol import subjects
from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    NotReplicaError,
    StorageError,
    StorageFullError,
    StreamReadonlyError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.logfiles.names import base_offset_of
from jetstream_protocol.types import NO_NODE, MonotonicUs, NodeId, StreamId, WallUs
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock, WallClock
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Disk, NoDescriptorError
from jetstream_server.log.flusher import Flusher
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.metadata.state.changes import (
    Change,
    NodeChanged,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
    StreamForgotten,
)
from jetstream_server.metadata.state.model import StreamMetadata
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.replication import found_logs
from jetstream_server.replication.closing import close_cleanly
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.core.incompleteness import incompleteness_recorded
from jetstream_server.replication.core.log_config import log_config_for
from jetstream_server.replication.core.messages import Answer, FetchRequest
from jetstream_server.replication.core.replica import Replica
from jetstream_server.replication.core.role_change import RoleChange
from jetstream_server.replication.listeners import Healer, Listeners, ProgressListener
from jetstream_server.replication.run_record import RunRecordFile

NOT_REGISTERED = -1
# `name@subject`, in one field or in two.
_NAME_AND_SUBJECT_MAX = subjects.NAME_LENGTH_MAX + 1 + subjects.SUBJECT_BYTES_MAX
FLUSH_AGAIN_SECONDS = 0.1

FORGET_SECONDS = 30.0
"""Pause between rounds over all logs that expire message ids; a round takes milliseconds."""

logger = structlog.get_logger("jetstream.replicas")


class ReplicaManager:
    """See the module. directory: has one folder per stream id."""

    def __init__(
        self,
        *,
        node_id: int,
        registry: Registry,
        disk: Disk,
        directory: str,
        config: LogConfig,
        flusher: Flusher,
        runs: RunRecordFile,
        flush_interval_seconds: float,
        wall_clock: WallClock,
        monotonic_clock: MonotonicClock,
        lease_held: Callable[[], bool],
        unsettled: Mapping[int, StorageError],
    ) -> None:
        """lease_held: returns whether this node's session lease holds at this moment. unsettled:
        see DataFolder."""
        self._node_id = NodeId(node_id)
        self._registry = registry
        self._disk = disk
        self._directory = directory
        self.log_config = config
        self._flusher = flusher
        self._runs = runs
        self._flush_interval_seconds = flush_interval_seconds
        self._wall_clock = wall_clock
        self._monotonic_clock = monotonic_clock
        self._lease_held = lease_held
        self._unsettled = unsettled
        self._incarnation = NOT_REGISTERED
        self._replicas: dict[StreamId, Replica] = {}
        self._dirty: dict[Replica, None] = {}  # flush `interval`: appended to since the last round
        self._by_log: dict[CommitLog, Replica] = {}
        self._rounds: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._just_failed: dict[Replica, None] = {}  # failures not reported yet
        self._not_noted: dict[StreamId, None] = {}  # suspects missing in the run record
        self._throttle = LogThrottle(lambda: monotonic_clock() / 1e6)
        self._flush_ended = asyncio.Event()
        self._listeners = Listeners()
        self._progress: dict[ProgressListener, None] = {}
        self._full_reason = ""
        self._is_closed = False
        self.gone = Counters()
        """Counters of replicas that are gone: with them, sums over all replicas never fall."""

    @property
    def full_reason(self) -> str:
        """Why every append is refused; "": appends are accepted."""
        return self._full_reason

    def refuse_appends(self, reason: str) -> None:
        """Refuse all appends from now on, with this reason; "": accept them again."""
        self._full_reason = reason

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, stream_id: int) -> Replica | None:
        return self._replicas.get(StreamId(stream_id))

    def led(self, stream_id: int) -> Replica:
        """The replica of a stream that this node leads. Raises NotLeaderError."""
        replica = self._replicas.get(StreamId(stream_id))
        if replica is None or replica.leadership is None:
            raise NotLeaderError(f"node {self._node_id} does not lead stream {stream_id}")
        return replica

    def stream_of(self, ref: common_pb2.StreamRef) -> StreamMetadata:
        """The stream that a request names: by id, by name, or by name and subject.

        Raises StreamNotFoundError, AmbiguousStreamError, InvalidRequestError.
        """
        if ref.id:
            return self._registry.with_id(StreamId(ref.id))
        if not ref.name:
            raise InvalidRequestError("the request names no stream: give its name or its id")
        if len(ref.name) + len(ref.subject) > _NAME_AND_SUBJECT_MAX:
            raise InvalidRequestError("no stream has a name or subject of that length")
        return self._registry.resolve(ref.name, ref.subject)

    def resolve(self, ref: common_pb2.StreamRef) -> Replica:
        """The replica here of the stream that a request names. Raises the errors of both steps."""
        return self.replica_of(self.stream_of(ref))

    def replica_of(self, stream: StreamMetadata) -> Replica:
        """The replica here, or the observer's copy. Raises NotReplicaError, which names a node that
        has one."""
        replica = self._replicas.get(stream.id)
        if replica is None:
            reader = self._any_reader_of(stream)
            raise NotReplicaError(
                f"node {self._node_id} holds no replica of stream {stream.name!r}; "
                f"ask node {reader}",
                self.address_of(reader),
            )
        return replica

    def _any_reader_of(self, stream: StreamMetadata) -> NodeId:
        """A node to read from: the leader, otherwise another replica, a live one if possible."""
        nodes = self._registry.nodes
        known = (stream.leader, *stream.isr, *stream.copies)
        alive = (each for each in known if each in nodes and not nodes[each].fenced)
        return next(alive, stream.replicas[0])

    def resolve_led(self, ref: common_pb2.StreamRef) -> Replica:
        """Like `resolve`, if this node leads it. Raises also NotLeaderError, which names the
        leader."""
        stream = self.stream_of(ref)
        replica = self._replicas.get(stream.id)
        if replica is None or replica.leadership is None:
            who = f"ask node {stream.leader}" if stream.leader != NO_NODE else "no node does now"
            raise NotLeaderError(
                f"node {self._node_id} does not lead stream {stream.name!r}; {who}",
                self.address_of(stream.leader),
            )
        if not self._lease_held():
            raise NotLeaderError(
                f"node {self._node_id} led stream {stream.name!r}, but its session has lapsed; "
                "try again"
            )
        return replica

    def address_of(self, node_id: NodeId) -> common_pb2.NodeAddress | None:
        node = self._registry.nodes.get(node_id)
        if node is None:
            return None
        at = node.addresses
        return common_pb2.NodeAddress(node_id=node_id, grpc=at.grpc, data=at.data, http=at.http)

    # Opening, and following the metadata.

    def open(self, *, clean: bool, threads: Executor | None = None) -> None:
        """Open every stream that the metadata places here. clean: the last stop left a marker.
        threads: flushes what an earlier run left unflushed; see `close`.

        No replica leads or follows before `begin`.
        """
        for stream in self._registry.streams_of(self._node_id):
            self._open(stream, clean=clean)
        found_logs.flush_what_earlier_runs_left([r.log for r in self._replicas.values()], threads)

    def begin(self, incarnation: int, listeners: Listeners) -> None:
        """Take the roles that the metadata gives this process, which is registered. No listener is
        called before."""
        self._incarnation = incarnation
        self._listeners = listeners
        self._progress = dict.fromkeys(listeners.progress)
        for replica in self._replicas.values():
            incompleteness_recorded(replica)
            replica.incarnation = incarnation
            self._follow_metadata(replica)
            if replica.has_failed:  # It failed before there were listeners.
                self._listeners.failed(replica)
        self._rounds = [
            run_in_background(self._flush_dirty(), "flush rounds"),
            run_in_background(self._forget_message_ids(), "rounds of forgetting"),
        ]

    async def until_served(self) -> None:
        """Wait until the surviving records of the logs that this node leads alone can be read
        again: under `group` they count once they are flushed."""
        for replica in [r for r in self._replicas.values() if r.stream.is_alone(self._node_id)]:
            while replica.leadership is not None and replica.flush_wanted:
                self._flush_ended.clear()
                await self._flush_ended.wait()

    def apply(self, change: Change) -> None:
        """Apply one change of the metadata. After `close` nothing is opened: the next start opens
        what the metadata has by then."""
        if self._is_closed:
            return
        match change:
            case StreamCreated(stream) if self._node_id in stream.copies:
                self._update(self._open(stream, clean=True), stream)
            case StreamDeleted(stream):
                self._drop(stream, delete=True, is_deleted=True)
            case StreamForgotten(stream):
                self._drop(stream, delete=False)
            case StreamChanged(_, after):
                self._stream_changed(after)
            case NodeChanged(_, after) if after is not None:
                self._update_leaderships(after.node_id)

    def _stream_changed(self, stream: StreamMetadata) -> None:
        replica, is_here = self._replicas.get(stream.id), self._node_id in stream.copies
        if replica is not None and is_here:
            self._update(replica, stream)
        elif replica is not None:
            self._drop(stream, delete=True)  # It was moved, and the others have all of it.
        elif is_here:
            self._update(self._open(stream, clean=True), stream)

    def _update_leaderships(self, node_id: NodeId) -> None:
        """Update the leaders: a node came, went or began a new incarnation."""
        for replica in self._replicas.values():
            copies = replica.stream.copies
            if len(copies) > 1 and node_id in copies:
                self._follow_metadata(replica)

    def _follow_metadata(self, replica: Replica) -> None:
        """Give the replica its current role in the stream, unless a change that ends it is about to
        be applied."""
        stream = self._registry.streams.get(replica.stream.id, replica.stream)
        if self._node_id in stream.copies:
            self._update(replica, stream)

    def _open(self, stream: StreamMetadata, *, clean: bool) -> Replica:
        """Open one replica. A problem takes only its own log offline."""
        record, is_alone = self._runs.record, stream.is_alone(self._node_id)
        is_suspect = stream.id in record.suspects
        log, unreadable_reason = found_logs.open_log(
            self._disk,
            stream,
            f"{self._directory}/{stream.id}",
            log_config_for(self.log_config, stream.config),
            record,
            clean=clean and not is_suspect,
            is_only_replica=is_alone,
            unsettled=self._unsettled.get(stream.id),
        )
        replica = Replica(
            stream,
            log,
            node_id=self._node_id,
            incarnation=self._incarnation,
            rebuild=is_suspect and not is_alone,
            unreadable_reason=unreadable_reason,
        )
        replica.on_commit = self._committed
        log.health.on_failure = lambda: self._log_failed(replica)
        replica.on_unreadable = lambda *read: self.healer.suspect(*read)
        self._replicas[stream.id] = replica
        self._by_log[log] = replica
        if stream.config.flush == "interval" and found_logs.is_unflushed(log):
            self._dirty[replica] = None
        return replica

    def _update(self, replica: Replica, stream: StreamMetadata) -> None:
        """Give the replica its role in `stream`.

        **safety** Never an earlier role again: if several changes came at once, a change of a node
        has already brought the replica to the stream's latest state.
        """
        if stream.stream_epoch < replica.stream.stream_epoch:
            return
        known = replica.stream
        changes = replica.update(stream, self._registry.nodes, self._monotonic_clock())
        for change in changes:
            self._role_changed(replica, change)
        is_access_changed = (known.readonly, known.is_silent) != (stream.readonly, stream.is_silent)
        if replica.leadership is not None and is_access_changed:
            self._listeners.leadership.access_changed(replica)
        is_altered = stream.config != known.config
        if is_altered:
            self._altered(replica)
        # A follower sends its position again: the earlier one may not count any more.
        is_told = replica.following is not None and stream.stream_epoch != known.stream_epoch
        is_moved = (stream.replicas, stream.observers) != (known.replicas, known.observers)
        if changes or is_altered or is_told or is_moved or stream.purge != known.purge:
            self._listeners.role_changed(replica)
        self._progressed(replica)

    def _role_changed(self, replica: Replica, change: RoleChange) -> None:
        if change in (RoleChange.LEADS, RoleChange.FOLLOWS) and replica.flush_wanted:
            self._flusher.request(replica.log, self._flushed)
        if change is RoleChange.STOPPED_LEADING:
            self._listeners.leadership.stopped_leading(replica)
        elif change is RoleChange.LEADS:
            self._listeners.leadership.leading(replica)
        elif change is RoleChange.FOLLOWS:
            self._listeners.leadership.led_elsewhere(replica)
        elif change is RoleChange.FELL_BELOW_MINIMUM:
            self._listeners.leadership.fell_below_minimum(replica)

    def _altered(self, replica: Replica) -> None:
        """Apply changed settings. The flush policy holds for the records of before, too."""
        replica.log.configure(log_config_for(self.log_config, replica.stream.config))
        if not replica.closed and not replica.log.offline_reason:
            self._grew(replica)

    def _drop(self, stream: StreamMetadata, *, delete: bool, is_deleted: bool = False) -> None:
        """Close a stream here. delete: delete its files too."""
        replica = self._replicas.pop(stream.id, None)
        if replica is None:
            return
        self._forget(replica)
        self.gone.add(replica.counters)
        replica.close(clean=False, is_deleted=is_deleted)
        self._listeners.role_changed(replica)  # First: it ends what writes files to the folder.
        try:
            if delete:
                replica.log.delete()
        except StorageError as error:
            # The next start finds an unknown folder and sets it aside.
            logger.error("log_not_deleted", stream=stream.full_name, reason=error.message)

    def _forget(self, replica: Replica) -> None:
        self._dirty.pop(replica, None)
        self._by_log.pop(replica.log, None)
        if replica.leadership is not None:
            self._listeners.leadership.stopped_leading(replica)

    # Appending and flushing.

    def now_us(self) -> MonotonicUs:
        """The time by which message ids age."""
        return self._monotonic_clock()

    def append(
        self, replica: Replica, batch: EncodedBatch, timestamp_us: WallUs | None = None
    ) -> int:
        """Append to a stream that this node leads, request its flush, and return the base offset.

        timestamp_us: for a restored batch: when it was appended first. Raises StreamReadonlyError,
        StorageFullError, StorageError, NotLeaderError.
        """
        if replica.stream.readonly:
            name = replica.stream.name
            raise StreamReadonlyError(
                f"stream {name!r} is read-only: nothing was stored; "
                f"'jetstream stream readonly {name} --undo' makes it writable"
            )
        if self._full_reason:
            raise StorageFullError(self._full_reason)
        timestamp_us = self._wall_clock() if timestamp_us is None else timestamp_us
        base_offset = replica.append(batch, timestamp_us, self._monotonic_clock())
        self._grew(replica)
        self._progressed(replica)
        return base_offset

    def flush(self, replica: Replica) -> None:
        """Flush the log, whatever the stream's policy."""
        self._flusher.request(replica.log, self._flushed)

    def log_start_rose(self, replica: Replica) -> None:
        """Report a risen log start to the listeners, and to the followers if this node leads."""
        self._listeners.log_start_rose(replica)
        self._progressed(replica)

    def fetch(self, replica: Replica, request: FetchRequest, now_us: MonotonicUs) -> Answer:
        """Note a follower's position, and answer it. Raises the errors of `Replica.fetch`."""
        answer = replica.fetch(request, now_us)
        stream = replica.stream
        if request.follower in stream.replicas and request.follower not in stream.isr:
            self._progressed(replica)
        return answer

    def accepted(self, replica: Replica) -> None:
        """Request the flush of a follower that has applied its leader's answer."""
        self._not_suspect(replica)
        self._grew(replica)

    # Failed logs.

    def failed(self, replica: Replica, error: StorageError) -> None:
        """Note a failed operation on the replica's log: it takes no more records, and unflushed
        records may be lost."""
        replica.log.health.fail(error.message)
        self._report_failures()

    def _log_failed(self, replica: Replica) -> None:
        """Note a failed log. May be called on any thread."""
        self._just_failed[replica] = None
        try:
            self._loop.call_soon_threadsafe(self._report_failures)
        except RuntimeError:
            pass  # The loop is closed: nothing needs to know.

    def _report_failures(self) -> None:
        while self._just_failed:
            replica = self._just_failed.popitem()[0]
            if not replica.closed and replica.has_failed:
                self._report_failure(replica)

    def _report_failure(self, replica: Replica) -> None:
        reason = replica.log.offline_reason
        logger.error("log_failed", stream=replica.stream.full_name, reason=reason)
        self._not_noted[replica.stream.id] = None
        self.note_suspects()
        replica.failed()
        self._listeners.leadership.failed(replica, StorageError(reason))
        # It does not lead any more.
        self._update(replica, self._registry.streams.get(replica.stream.id, replica.stream))
        self._listeners.failed(replica)

    def note_suspects(self) -> bool:
        """Note beyond this run which logs have failed: a later fsync of the same log would report
        success. Returns whether all are noted; if not, try again."""
        for stream_id in list(self._not_noted):
            try:
                self._runs.suspect(stream_id)
            except StorageError as error:
                if self._throttle.is_due("suspect_not_noted", error.message):
                    logger.error("suspect_not_noted", stream_id=stream_id, reason=error.message)
                return False
            del self._not_noted[stream_id]
        return True

    def _not_suspect(self, replica: Replica) -> None:
        """Trust the log again: it was emptied, and is fetched anew."""
        stream_id = replica.stream.id
        if replica.needs_rebuild or replica.has_failed:
            return
        self._not_noted.pop(stream_id, None)
        if stream_id in self._runs.record.suspects:
            try:
                self._runs.rebuilt(stream_id)
            except StorageError as error:
                # If it cannot be recorded, the next start fetches the log anew once more.
                logger.warning("rebuild_not_noted", stream_id=stream_id, reason=error.message)

    # Records that disks have lost (healing.py).

    def suspect(self, stream_id: int, offset: int, error: JetstreamError | None = None) -> None:
        """Note that a reader or a follower could not use the records at this offset of a stream.
        error: why, if this node could not read them."""
        replica = self.get(stream_id)
        if replica is not None:
            self.healer.suspect(replica, offset, error)

    def suspect_file(self, replica: Replica, path: str, error: JetstreamError | None) -> None:
        """Note that a segment could not be read, and why. path: "": it is unknown which."""
        base_offset = base_offset_of(path.rpartition("/")[2])
        if base_offset is not None:
            self.healer.suspect(replica, base_offset, error, whole=True)

    @property
    def healer(self) -> Healer:
        """The inspector of files that are reported as damaged."""
        return self._listeners.healer

    def healed(self, replica: Replica) -> None:
        """Note that the lost records are there again: the replica's position counts once more."""
        self._listeners.role_changed(replica)

    def distrust(self, replica: Replica) -> None:
        """Note that the disk has lost records: the replica must not be in sync, nor lead."""
        self._listeners.failed(replica)

    # Reports to listeners.

    def add_progress_listener(self, listener: ProgressListener) -> None:
        """Call this listener from now on, until `remove_progress_listener`."""
        self._progress[listener] = None

    def remove_progress_listener(self, listener: ProgressListener) -> None:
        self._progress.pop(listener, None)

    def heard(self, node_id: NodeId) -> None:
        """Note that a follower node has sent something."""
        self._listeners.heard(node_id)

    def _grew(self, replica: Replica) -> None:
        flush = replica.stream.config.flush
        if flush == "group":
            self._flusher.request(replica.log, self._flushed)
        else:
            if flush == "interval":
                self._dirty[replica] = None
            replica.moved()

    def _progressed(self, replica: Replica) -> None:
        """Call the followers' connections and the ISR driver: there may be something to do."""
        if len(replica.stream.copies) > 1:
            for listener in self._progress:
                listener.progressed(replica)

    def _committed(self, replica: Replica) -> None:
        self._listeners.leadership.committed(replica)
        self._progressed(replica)

    def _flushed(self, log: CommitLog, result: int | StorageError) -> None:
        """Take the flusher's result, on the loop."""
        self._flush_ended.set()
        replica = self._by_log.get(log)
        if replica is None:
            return  # The replica was deleted or closed meanwhile.
        if isinstance(result, NoDescriptorError):
            self._loop.call_later(FLUSH_AGAIN_SECONDS, self._flush_again, replica)
        elif isinstance(result, StorageError):
            self.failed(replica, result)
        else:
            replica.moved()
            self._listeners.flushed(replica)

    def _flush_again(self, replica: Replica) -> None:
        if replica.log in self._by_log:
            self.flush(replica)

    async def _flush_dirty(self) -> None:
        while True:
            # Half of the interval to wait, half to write: records are on disk within the interval.
            await asyncio.sleep(self._flush_interval_seconds / 2)
            dirty, self._dirty = self._dirty, {}
            for replica in dirty:
                self._flusher.request(replica.log, self._flushed)

    async def _forget_message_ids(self) -> None:
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            for replica in self._replicas.values():
                replica.log.forget_message_ids(self._monotonic_clock())

    def close(self, threads: Executor | None = None, *, is_gone: bool = False) -> bool:
        """Close every log. Returns whether all were closed cleanly. threads: see `close_cleanly`.
        is_gone: the files are not where they were, so nothing is written."""
        self._is_closed = True
        for task in self._rounds:
            task.cancel()
        replicas = list(self._replicas.values())
        self._replicas.clear()
        for replica in replicas:
            self._forget(replica)
            replica.retire()
        if is_gone:
            return False
        is_clean = close_cleanly(replicas, threads, is_registered=self._runs.record.is_registered)
        # **safety** Without the note a log that failed, if only now, would count as good.
        self._not_noted.update((replica.stream.id, None) for replica in self._just_failed)
        return self.note_suspects() and is_clean
