"""The table of the replicas on this node: opens and closes them as the metadata says, and finds
the one that a request names.

Owned by the event loop. A replica does the rest itself (replica.py); fetcher_manager.py chooses
what each follower fetches from; drivers/isr_driver.py changes the ISR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    NotReplicaError,
    StorageError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import NO_NODE, MonotonicUs, NodeId, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock, WallClock
from jetstream_server.log.config import LogConfig
from jetstream_server.log.disk import Disk
from jetstream_server.log.flusher import Flusher
from jetstream_server.metadata.state.changes import (
    Change,
    NodeChanged,
    SettingsChanged,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
    StreamForgotten,
)
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication import found_logs
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.core.log_config import log_config_for
from jetstream_server.replication.failures import Failures
from jetstream_server.replication.listeners import Healer, Listeners, ProgressListener
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.run_record import RunRecordFile
from jetstream_server.replication.services import Services

NOT_REGISTERED = -1

CLOSING_AT_A_TIME = 32

FORGET_SECONDS = 30.0
"""Pause between rounds over all logs that expire message ids; a round takes milliseconds."""

AGAIN_SECONDS, AGAIN_DOUBLED_MAX = 1.0, 6
"""Pause before a new log is opened again, and how often it is doubled."""

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
        self._runs = runs
        self._flush_interval_seconds = flush_interval_seconds
        self._lease_held = lease_held
        self._unsettled = unsettled
        loop = asyncio.get_running_loop()
        self.failures = Failures(
            runs, monotonic_clock, self._report_failure, loop.call_soon_threadsafe
        )
        self._services = Services(
            flusher=flusher,
            wall_clock=wall_clock,
            monotonic_clock=monotonic_clock,
            log_config=config,
            failures=self.failures,
            call_later=loop.call_later,
        )
        self._incarnation = NOT_REGISTERED
        self._replicas: dict[StreamId, Replica] = {}
        self._rounds: list[asyncio.Task[None]] = []
        self._is_closed = False
        self.index_wanted: Callable[[Replica], None] = lambda replica: None
        """Called for a replica whose index of subjects must be brought up to date."""
        self.disk_is_full: Callable[[], None] = lambda: None
        """Called again and again while it is."""
        self.gone = Counters()
        """Counters of replicas that are gone: with them, sums over all replicas never fall."""

    @property
    def full_reason(self) -> str:
        """Why every append is refused; "": appends are accepted."""
        return self._services.full_reason

    @property
    def log_config(self) -> LogConfig:
        """The node's configuration of its logs."""
        return self._services.log_config

    def refuse_appends(self, reason: str) -> None:
        """Refuse all appends from now on, with this reason; "": accept them again."""
        self._services.full_reason = reason
        if reason:
            self.disk_is_full()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def now_us(self) -> MonotonicUs:
        """The time by which message ids age."""
        return self._services.monotonic_clock()

    def get(self, stream_id: int) -> Replica | None:
        return self._replicas.get(StreamId(stream_id))

    def led_replica(self, stream_id: int) -> Replica:
        """The replica of a stream that this node leads. Raises NotLeaderError."""
        replica = self._replicas.get(StreamId(stream_id))
        if replica is None or replica.leadership is None:
            raise NotLeaderError(f"node {self._node_id} does not lead stream {stream_id}")
        return replica

    def resolve(self, ref: common_pb2.StreamRef) -> Replica:
        """The replica here of the stream that a request names. Raises the errors of both steps."""
        return self.replica_of(self._registry.stream_of(ref))

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
        return self.led_replica_of(self._registry.stream_of(ref))

    def led_replica_of(self, stream: StreamMetadata) -> Replica:
        """The replica, if this node leads it now. Raises NotLeaderError, which names the leader."""
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
        self._services.listeners = listeners
        self._services.progress = dict.fromkeys(listeners.progress)
        for replica in self._replicas.values():
            replica.record_incompleteness()
            replica.incarnation = incarnation
            self._follow_metadata(replica)
            if replica.has_failed:  # It failed before there were listeners.
                listeners.failed(replica)
        self._rounds = [
            run_in_background(self._flush_dirty(), "flush rounds"),
            run_in_background(self._forget_message_ids(), "rounds of forgetting"),
        ]

    async def until_served(self) -> None:
        """Wait until the surviving records of the logs that this node leads alone can be read
        again: under `group` they count once they are flushed."""
        for replica in [r for r in self._replicas.values() if r.stream.is_alone(self._node_id)]:
            while replica.leadership is not None and replica.flush_wanted:
                self._services.flush_ended.clear()
                await self._services.flush_ended.wait()

    def apply(self, change: Change) -> None:
        """Apply one change of the metadata. After `close` nothing is opened: the next start opens
        what the metadata has by then."""
        if self._is_closed:
            return
        match change:
            case StreamCreated(stream) if self._node_id in stream.copies:
                self._open_new(stream)
            case StreamDeleted(stream):
                self._drop(stream, delete=True, is_deleted=True)
            case StreamForgotten(stream):
                self._drop(stream, delete=False)
            case StreamChanged(_, after):
                self._stream_changed(after)
            case NodeChanged(_, after) if after is not None:
                self._update_leaderships(after.node_id)
            case SettingsChanged(_, settings):
                for replica in self._replicas.values():
                    replica.limit_lag(settings.replica_lag_max_us)

    def _stream_changed(self, stream: StreamMetadata) -> None:
        replica, is_here = self._replicas.get(stream.id), self._node_id in stream.copies
        if replica is not None and is_here:
            replica.follow_metadata(stream, self._registry.nodes)
        elif replica is not None:
            self._drop(stream, delete=True)  # It was moved, and the others have all of it.
        elif is_here:
            self._open_new(stream)

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
            replica.follow_metadata(stream, self._registry.nodes)

    def _open_new(self, stream: StreamMetadata, attempts: int = 0) -> None:
        """Open the replica of a stream that was not on this node, and take its role. If its log
        cannot be made, it has failed: others are to lead, and it is copied from them later. The
        only replica's is opened again after a pause. attempts: that were in vain before."""
        replica = self._open(stream, clean=True)
        if replica.unreadable_reason and stream.is_alone(self._node_id):
            pause = AGAIN_SECONDS * 2 ** min(attempts, AGAIN_DOUBLED_MAX)
            self._services.call_later(pause, partial(self._again, replica, attempts + 1))
        elif replica.unreadable_reason:
            replica.log.health.unread(replica.unreadable_reason)
            replica.log.health.fail(replica.unreadable_reason)
        replica.follow_metadata(stream, self._registry.nodes)

    def _again(self, replica: Replica, attempts: int) -> None:
        """Open a new log again that could not be opened: nothing was ever stored in it."""
        stream = self._registry.streams.get(replica.stream.id)
        is_current = self._replicas.get(replica.stream.id) is replica
        if self._is_closed or not is_current or stream is None:
            return
        if self._node_id in stream.copies:
            self._drop(replica.stream, delete=False)
            self._open_new(stream, attempts)

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
            self._services,
            node_id=self._node_id,
            incarnation=self._incarnation,
            rebuild=is_suspect and not is_alone,
            unreadable_reason=unreadable_reason,
        )
        replica.limit_lag(self._registry.settings.replica_lag_max_us)
        log.health.on_failure = lambda: self.failures.add(replica)
        self._replicas[stream.id] = replica
        if stream.config.flush == "interval" and found_logs.is_unflushed(log):
            self._services.dirty[replica] = None
        return replica

    def _drop(self, stream: StreamMetadata, *, delete: bool, is_deleted: bool = False) -> None:
        """Close a stream here. delete: delete its files too."""
        replica = self._replicas.pop(stream.id, None)
        if replica is None:
            return
        self._forget(replica)
        self.gone.add(replica.counters)
        replica.close(clean=False, is_deleted=is_deleted)
        # First: it ends what writes files to the folder.
        self._services.listeners.role_changed(replica)
        try:
            if delete:
                replica.log.delete()
        except StorageError as error:
            # The next start finds an unknown folder and sets it aside.
            logger.error("log_not_deleted", stream=stream.full_name, reason=error.message)

    def _forget(self, replica: Replica) -> None:
        self._services.dirty.pop(replica, None)
        if replica.leadership is not None:
            self._services.listeners.leadership.stopped_leading(replica)

    # Failed logs.

    def _report_failure(self, replica: Replica) -> None:
        listeners = self._services.listeners
        reason = replica.log.offline_reason
        logger.error("log_failed", stream=replica.stream.full_name, reason=reason)
        self.failures.note(replica.stream.id)
        replica.failed()
        listeners.leadership.failed(replica, StorageError(reason))
        # It does not lead any more.
        stream = self._registry.streams.get(replica.stream.id, replica.stream)
        replica.follow_metadata(stream, self._registry.nodes)
        listeners.failed(replica)

    def suspect(self, stream_id: int, offset: int, error: JetstreamError | None = None) -> None:
        """Note that a reader or a follower could not use the records at this offset of a stream.
        error: why, if this node could not read them."""
        replica = self.get(stream_id)
        if replica is not None:
            replica.suspect(offset, error)

    @property
    def healer(self) -> Healer:
        """The inspector of files that are reported as damaged."""
        return self._services.listeners.healer

    # Reports to listeners.

    def add_progress_listener(self, listener: ProgressListener) -> None:
        """Call this listener from now on, until `remove_progress_listener`."""
        self._services.progress[listener] = None

    def remove_progress_listener(self, listener: ProgressListener) -> None:
        self._services.progress.pop(listener, None)

    def heard(self, node_id: NodeId) -> None:
        """Note that a follower node has sent something."""
        self._services.listeners.heard(node_id)

    # Rounds.

    async def _flush_dirty(self) -> None:
        while True:
            # Half of the interval to wait, half to write: records are on disk within the interval.
            await asyncio.sleep(self._flush_interval_seconds / 2)
            dirty, self._services.dirty = self._services.dirty, {}
            for replica in dirty:
                replica.flush()

    async def _forget_message_ids(self) -> None:
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            for replica in self._replicas.values():
                replica.log.forget_message_ids(self._services.monotonic_clock())

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
        return self.failures.note_the_last() and is_clean


def close_cleanly(
    replicas: Sequence[Replica], threads: Executor | None, *, is_registered: bool
) -> bool:
    """Flush and close all logs, which nothing else may use any more. Returns whether all succeeded.

    **safety** A log that could not be opened is not clean, before the metadata knows that it is not
    trusted (is_registered): what an earlier run wrote may still not be on disk.

    threads: runs the work; by default CLOSING_AT_A_TIME threads of its own, because the disk serves
    many threads about as fast as one.
    """
    with threads or ThreadPoolExecutor(CLOSING_AT_A_TIME, "jetstream-closing") as threads:
        closed = list(threads.map(_close, replicas))
    is_known = is_registered or not any(replica.unreadable_reason for replica in replicas)
    return all(closed) and is_known


def _close(replica: Replica) -> bool:
    """Flush and close one log. Runs in a thread."""
    try:
        replica.log.close(clean=True)
    except JetstreamError as error:
        logger.error("log_not_closed", stream=replica.stream.full_name, reason=str(error))
        return False
    return True
