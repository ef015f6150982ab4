"""All replicas this node holds: opened and closed as the metadata says, flushed as they ask.

Owned by the event loop. The one place where an append, its flush, its replication and the rise of
the high watermark are tied together:

    append ──> page cache ──(group)──> flusher thread: one fsync for all that queued up ──┐
                    │                                                                      │
                    ├──(interval, none)──> moved() <────────────────────────────────────────┘
                    └──> sessions: the followers are sent it

Who follows whom is following.py's, changes of the ISR are isr_driver.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

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
    StreamNotFoundError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.logfiles.names import base_offset_of
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.complaints import Complaints
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Disk
from jetstream_server.log.flusher import Flusher
from jetstream_server.log.recovery import Recovered
from jetstream_server.metadata.changes import (
    Change,
    NodeChanged,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
    StreamForgotten,
)
from jetstream_server.metadata.registry import Registry
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.found_logs import (
    flush_what_earlier_runs_left,
    forget_checkpoint,
    lost_log,
)
from jetstream_server.replication.listeners import (
    Healer,
    ProgressListener,
    ReplicaListener,
    RoleListener,
)
from jetstream_server.replication.log_config import log_config_for
from jetstream_server.replication.messages import Answer, FetchRequest
from jetstream_server.replication.replica import Replica, RoleChange
from jetstream_server.replication.run_book import RunBook

NOT_REGISTERED = -1
# `name@subject`, in one field or in two.
_NAME_AND_SUBJECT_MAX = subjects.NAME_LENGTH_MAX + 1 + subjects.SUBJECT_BYTES_MAX

CLOSING_AT_A_TIME = 32
FORGET_SECONDS = 30.0
"""Between rounds over all logs, to let go of message ids: a few milliseconds for 10,000 streams."""

logger = structlog.get_logger("jetstream.replicas")


class Replicas:
    """See the module. `directory` holds one folder per stream id."""

    def __init__(
        self,
        *,
        node_id: int,
        registry: Registry,
        disk: Disk,
        directory: str,
        config: LogConfig,
        flusher: Flusher,
        runs: RunBook,
        flush_interval_seconds: float,
        clock_us: Callable[[], int],
        now_us: Callable[[], int],
        speaks: Callable[[], bool],
    ) -> None:
        """clock_us: the wall clock, for append timestamps; now_us: the monotonic one. speaks:
        whether this node's session lease holds, at this very moment."""
        self._node_id = NodeId(node_id)
        self._registry = registry
        self._disk = disk
        self._directory = directory
        self._config = config
        self._flusher = flusher
        self._runs = runs
        self._flush_interval_seconds = flush_interval_seconds
        self._clock_us = clock_us
        self._now_us = now_us
        self._speaks = speaks
        self._incarnation = NOT_REGISTERED
        self._replicas: dict[StreamId, Replica] = {}
        self._dirty: dict[Replica, None] = {}  # flush `interval`: appended to since the last round
        self._by_log: dict[CommitLog, Replica] = {}
        self._rounds: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._just_failed: dict[Replica, None] = {}  # and nobody has been told
        self._not_noted: dict[StreamId, None] = {}  # suspects that the record of runs lacks
        self._complaints = Complaints(lambda: now_us() / 1e6)
        self._flush_ended = asyncio.Event()
        self.listener: ReplicaListener | None = None
        self.roles: list[RoleListener] = []
        self.progress: dict[ProgressListener, None] = {}
        self.healer: Healer | None = None
        self.heard: Callable[[NodeId], None] = _ignore
        """Called when a follower node has said something."""
        self.full_reason = ""
        """Why no append is taken anywhere (disk below its reserve); "": there is room."""

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    # Finding.

    def get(self, stream_id: int) -> Replica | None:
        return self._replicas.get(StreamId(stream_id))

    def led(self, stream_id: int) -> Replica:
        """The replica of a stream this node leads. Raises NotLeaderError."""
        replica = self._replicas.get(StreamId(stream_id))
        if replica is None or replica.leadership is None:
            raise NotLeaderError(f"node {self._node_id} does not lead stream {stream_id}")
        return replica

    def stream_of(self, ref: common_pb2.StreamRef) -> StreamMetadata:
        """The stream a request names: by id, name, or name and subject.

        Raises StreamNotFoundError, AmbiguousStreamError, InvalidRequestError.
        """
        if ref.id:
            stream = self._registry.streams.get(StreamId(ref.id))
            if stream is None:
                raise StreamNotFoundError(f"there is no stream with id {ref.id}: was it deleted?")
            return stream
        if not ref.name:
            raise InvalidRequestError("the request names no stream: give its name or its id")
        if len(ref.name) + len(ref.subject) > _NAME_AND_SUBJECT_MAX:
            raise InvalidRequestError("no stream has so long a name or subject")
        return self._registry.resolve(ref.name, ref.subject)

    def resolve(self, ref: common_pb2.StreamRef) -> Replica:
        """The replica here of the stream a request names.

        Raises StreamNotFoundError, AmbiguousStreamError, NotReplicaError (with who is one).
        """
        stream = self.stream_of(ref)
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
        """Who can be read from: its leader, without one another replica, alive if there is one."""
        nodes = self._registry.nodes
        known = (stream.leader, *stream.isr, *stream.replicas)
        alive = (each for each in known if each in nodes and not nodes[each].fenced)
        return next(alive, stream.replicas[0])

    def resolve_led(self, ref: common_pb2.StreamRef) -> Replica:
        """The same, if this node leads it. Raises NotLeaderError (with who does) as well."""
        stream = self.stream_of(ref)
        replica = self._replicas.get(stream.id)
        if replica is None or replica.leadership is None:
            who = f"ask node {stream.leader}" if stream.leader != NO_NODE else "nobody does now"
            raise NotLeaderError(
                f"node {self._node_id} does not lead stream {stream.name!r}; {who}",
                self.address_of(stream.leader),
            )
        if not self._speaks():
            raise NotLeaderError(
                f"node {self._node_id} led stream {stream.name!r}, but its session has lapsed; "
                "try again"
            )
        return replica

    def address_of(self, node_id: NodeId) -> common_pb2.NodeAddress | None:
        node = self._registry.nodes.get(node_id)
        if node is None:
            return None
        return common_pb2.NodeAddress(
            node_id=node.node_id,
            grpc=node.addresses.grpc,
            data=node.addresses.data,
            http=node.addresses.http,
        )

    # Opening, and following the metadata.

    def open(self, *, clean: bool, threads: Executor | None = None) -> list[StreamId]:
        """Open every stream the metadata places here; `clean`: the last stop left a marker.
        threads: in which what an earlier run left unflushed is flushed, as those of `close`.

        Returns the streams whose log is not to be counted on. Nothing leads or follows before
        `begin`.
        """
        for stream in self._registry.streams_of(self._node_id):
            self._open(stream, clean=clean)
        flush_what_earlier_runs_left([r.log for r in self._replicas.values()], threads)
        return [
            replica.stream.id
            for replica in self._replicas.values()
            if replica.log.offline_reason
            # The only replica is all there is, whatever its disk has lost.
            or (replica.log.lost_range is not None and len(replica.stream.replicas) > 1)
        ]

    def begin(self, incarnation: int) -> None:
        """This process is registered: take up the roles that the metadata gives it."""
        self._incarnation = incarnation
        for replica in self._replicas.values():
            self._incompleteness_told(replica)
            replica.incarnation = incarnation
            self._update(replica, self._registry.streams.get(replica.stream.id, replica.stream))
            if replica.has_failed:  # Before there was anybody to be told.
                for role_listener in self.roles:
                    role_listener.failed(replica)
        self._rounds = [
            run_in_background(self._flush_dirty(), "flush rounds"),
            run_in_background(self._forget_message_ids(), "rounds of forgetting"),
        ]

    def _incompleteness_told(self, replica: Replica) -> None:
        try:
            replica.log.incompleteness_told()
        except StorageError:
            pass  # The next start says it again; a log that failed has said so itself.

    async def until_served(self) -> None:
        """Wait until what survived in the logs that this node leads alone can be read again: under
        `group` it counts once it is flushed."""
        for replica in list(self._replicas.values()):
            while _must_flush_to_serve(replica):
                self._flush_ended.clear()
                await self._flush_ended.wait()

    def apply(self, change: Change) -> None:
        """Follow one change of the metadata."""
        match change:
            case StreamCreated(stream) if self._node_id in stream.replicas:
                self._update(self._open(stream, clean=True), stream)
            case StreamDeleted(stream):
                self._drop(stream, delete=True)
            case StreamForgotten(stream):
                self._drop(stream, delete=False)
            case StreamChanged(_, after):
                replica = self._replicas.get(after.id)
                if replica is not None:
                    self._update(replica, after)
            case NodeChanged(_, after) if after is not None:
                self._update_leaderships(after.node_id)

    def _update_leaderships(self, node_id: NodeId) -> None:
        """A node came, went or began another incarnation: its leaders count by that."""
        for replica in self._replicas.values():
            stream = replica.stream
            if len(stream.replicas) > 1 and node_id in stream.replicas:
                self._update(replica, self._registry.streams.get(stream.id, stream))

    def _open(self, stream: StreamMetadata, *, clean: bool) -> Replica:
        """Open one replica. Whatever is wrong with its log takes it offline, and no other."""
        directory = f"{self._directory}/{stream.id}"
        config = log_config_for(self._config, stream.config)
        unreadable_reason = ""
        is_suspect = stream.id in self._runs.record.suspects
        try:
            if is_suspect:
                clean = False
                forget_checkpoint(self._disk, directory)
            record = self._runs.record
            log = lost_log(self._disk, stream, directory, config, record) or CommitLog.open(
                self._disk, directory, config, clean=clean, boot_id=record.boot_id,
                duplicate_window_us=stream.config.duplicate_window_us,
            )  # fmt: skip
        except StorageError as error:
            unreadable_reason = error.message
            # Not as recovered damage, which a replica may drop: what is there is not known.
            log = CommitLog(self._disk, directory, config, Recovered())
            log.health.end(unreadable_reason)
        latest_epoch = log.epochs.latest_epoch
        is_newer = latest_epoch > stream.leader_epoch and len(stream.replicas) == 1
        if is_newer and not log.offline_reason:
            log.health.end(
                f"{directory} knows leader epoch {latest_epoch} and the metadata only "
                f"{stream.leader_epoch}: they are not of one time"
            )
        if log.offline_reason:
            logger.error("log_damaged", stream=stream.full_name, reason=log.offline_reason)
        if log.incomplete_reason:
            logger.error("log_cut", stream=stream.full_name, reason=log.incomplete_reason)
        replica = Replica(
            stream,
            log,
            node_id=self._node_id,
            incarnation=self._incarnation,
            rebuild=is_suspect and len(stream.replicas) > 1,
            unreadable_reason=unreadable_reason,
        )
        replica.on_commit = self._committed
        log.health.on_failure = lambda: self._log_failed(replica)
        replica.on_unreadable = self._suspect_bytes
        self._replicas[stream.id] = replica
        self._by_log[log] = replica
        return replica

    def _update(self, replica: Replica, stream: StreamMetadata) -> None:
        """Take up the role that `stream` gives the replica.

        **safety** Never an earlier one again: where several changes came at once, that of a node
        has brought the replica to where the last of them leaves the stream.
        """
        if stream.stream_epoch < replica.stream.stream_epoch:
            return
        before, known_epoch = replica.stream.config, replica.stream.stream_epoch
        changes = replica.update(stream, self._registry.nodes, self._now_us())
        for change in changes:
            self._role_changed(replica, change)
        is_altered = replica.stream.config != before
        if is_altered:
            self._altered(replica)
        # A follower says what it has anew: what it said before may not count any more.
        is_told = replica.following is not None and replica.stream.stream_epoch != known_epoch
        if changes or is_altered or is_told:
            for role_listener in self.roles:
                role_listener.role_changed(replica)
        self._progressed(replica)

    def _role_changed(self, replica: Replica, change: RoleChange) -> None:
        if change in (RoleChange.LEADS, RoleChange.FOLLOWS) and replica.flush_wanted:
            self._flusher.request(replica.log, self._flushed)
        if self.listener is None:
            return
        if change is RoleChange.STOPPED_LEADING:
            self.listener.stopped_leading(replica)
        elif change is RoleChange.LEADS:
            self.listener.leading(replica)
        elif change is RoleChange.FELL_BELOW_MINIMUM:
            self.listener.fell_below_minimum(replica)

    def _altered(self, replica: Replica) -> None:
        """Its settings changed. Under `group` what it holds counts once it is flushed."""
        replica.log.configure(log_config_for(self._config, replica.stream.config))
        if replica.counts_flushed and not replica.closed and not replica.log.offline_reason:
            self._flusher.request(replica.log, self._flushed)

    def _drop(self, stream: StreamMetadata, *, delete: bool) -> None:
        """Have nothing to do with a stream any more; its files stay unless it was deleted."""
        replica = self._replicas.pop(stream.id, None)
        if replica is None:
            return
        self._forget(replica)
        replica.close(clean=False)
        try:
            if delete:
                replica.log.delete()
        except StorageError as error:
            # The next start finds a folder nobody knows, and sets it aside.
            logger.error("log_not_deleted", stream=stream.full_name, reason=error.message)
        for role_listener in self.roles:
            role_listener.role_changed(replica)

    def _forget(self, replica: Replica) -> None:
        self._dirty.pop(replica, None)
        self._by_log.pop(replica.log, None)
        if self.listener is not None and replica.leadership is not None:
            self.listener.stopped_leading(replica)

    # Appending and flushing.

    def now_us(self) -> int:
        """The monotonic time, by which message ids age."""
        return self._now_us()

    def append(self, replica: Replica, batch: EncodedBatch) -> int:
        """Append to a stream this node leads and see to its flush; returns the base offset.

        Raises StorageFullError, StorageError, NotLeaderError.
        """
        if self.full_reason:
            raise StorageFullError(self.full_reason)
        base_offset = replica.append(batch, self._clock_us(), self._now_us())
        self._grew(replica)
        self._progressed(replica)
        return base_offset

    def flush(self, replica: Replica) -> None:
        """Have its log flushed, whatever the stream's policy."""
        self._flusher.request(replica.log, self._flushed)

    def log_start_rose(self, replica: Replica) -> None:
        """Retention moved a leader's log start: followers are told."""
        self._progressed(replica)

    def fetch(self, replica: Replica, request: FetchRequest, now_us: int) -> Answer:
        """Note where a follower stands, and answer it; raises as `Replica.fetch` does."""
        answer = replica.fetch(request, now_us)
        if request.follower not in replica.stream.isr:
            self._progressed(replica)
        return answer

    def accepted(self, replica: Replica) -> None:
        """A follower's log changed by its leader's word: see to its flush."""
        self._not_suspect(replica)
        self._grew(replica)

    # Logs that fail.

    def failed(self, replica: Replica, error: StorageError) -> None:
        """Something could not be done to the replica's log: it takes no more, and what it held
        unflushed may be lost."""
        replica.log.health.fail(error.message)
        self._tell_failures()

    def _log_failed(self, replica: Replica) -> None:
        """The log says so itself, on whatever thread met it."""
        self._just_failed[replica] = None
        try:
            self._loop.call_soon_threadsafe(self._tell_failures)
        except RuntimeError:
            pass  # The loop is closed: nobody is left to be told.

    def _tell_failures(self) -> None:
        while self._just_failed:
            replica = self._just_failed.popitem()[0]
            if not replica.closed and replica.has_failed:
                self._tell_failure(replica)

    def _tell_failure(self, replica: Replica) -> None:
        reason = replica.log.offline_reason
        logger.error("log_failed", stream=replica.stream.full_name, reason=reason)
        self._not_noted[replica.stream.id] = None
        self.note_suspects()
        replica.failed()
        if self.listener is not None:
            self.listener.failed(replica, StorageError(reason))
        # Whatever it led, it leads no more.
        self._update(replica, self._registry.streams.get(replica.stream.id, replica.stream))
        for role_listener in self.roles:
            role_listener.failed(replica)

    def note_suspects(self) -> bool:
        """Remember beyond this run which logs have failed: a later fsync of the same log would call
        it whole. Returns whether all of them are noted; to be tried again."""
        for stream_id in list(self._not_noted):
            try:
                self._runs.suspect(stream_id)
            except StorageError as error:
                if self._complaints.is_due("suspect_not_noted", error.message):
                    logger.error("suspect_not_noted", stream_id=stream_id, reason=error.message)
                return False
            del self._not_noted[stream_id]
        return True

    def _not_suspect(self, replica: Replica) -> None:
        """Its log was emptied and is fetched anew: its bytes are believed once more."""
        stream_id = replica.stream.id
        if replica.needs_rebuild or replica.has_failed:
            return
        self._not_noted.pop(stream_id, None)
        if stream_id in self._runs.record.suspects:
            try:
                self._runs.rebuilt(stream_id)
            except StorageError as error:
                # Until it can be noted, the next start fetches the log anew once more.
                logger.warning("rebuild_not_noted", stream_id=stream_id, reason=error.message)

    # What disks have lost (healing.py).

    def suspect(self, stream_id: int, offset: int) -> None:
        """Somebody could not read a stream here, or could not use what he was sent."""
        replica = self.get(stream_id)
        if replica is not None:
            self._suspect_bytes(replica, offset)

    def suspect_file(self, replica: Replica, path: str) -> None:
        """That segment could not be read; "": it is not known which."""
        base_offset = base_offset_of(path.rpartition("/")[2])
        if base_offset is not None and self.healer is not None:
            self.healer.suspect(replica, base_offset, whole=True)

    def _suspect_bytes(self, replica: Replica, offset: int) -> None:
        if self.healer is not None:
            self.healer.suspect(replica, offset)

    def distrust(self, replica: Replica) -> None:
        """Its disk has lost records: it is not to be counted in sync, nor to lead."""
        for role_listener in self.roles:
            role_listener.failed(replica)

    # What follows from that.

    def _grew(self, replica: Replica) -> None:
        flush = replica.stream.config.flush
        if flush == "group":
            self._flusher.request(replica.log, self._flushed)
        else:
            if flush == "interval":
                self._dirty[replica] = None
            replica.moved()

    def _progressed(self, replica: Replica) -> None:
        """Tell the followers' connections and the ISR's driver: there may be something to do."""
        if len(replica.stream.replicas) > 1:
            for listener in self.progress:
                listener.progressed(replica)

    def _committed(self, replica: Replica) -> None:
        if self.listener is not None:
            self.listener.committed(replica)
        self._progressed(replica)

    def _flushed(self, log: CommitLog, result: int | StorageError) -> None:
        """The flusher's answer, on the loop."""
        self._flush_ended.set()
        replica = self._by_log.get(log)
        if replica is None:
            return  # Deleted or closed meanwhile.
        if isinstance(result, StorageError):
            self.failed(replica, result)
        else:
            replica.moved()
            for role_listener in self.roles:
                role_listener.flushed(replica)

    async def _flush_dirty(self) -> None:
        while True:
            # Half of it to wait, half to write: what was appended is on disk within the interval.
            await asyncio.sleep(self._flush_interval_seconds / 2)
            dirty, self._dirty = self._dirty, {}
            for replica in dirty:
                self._flusher.request(replica.log, self._flushed)

    async def _forget_message_ids(self) -> None:
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            for replica in self._replicas.values():
                replica.log.forget_message_ids(self._now_us())

    def close(self, threads: Executor | None = None) -> bool:
        """Close every log; returns whether all of them were left clean. threads: in which that is
        done, CLOSING_AT_A_TIME of their own by default."""
        for task in self._rounds:
            task.cancel()
        replicas = list(self._replicas.values())
        self._replicas.clear()
        for replica in replicas:
            self._forget(replica)
            replica.retire()
        # **safety** Without the note a failed log would pass for one that was closed cleanly.
        all_noted = self.note_suspects()
        # In parallel: each waits for the disk, which serves many about as fast as one.
        with threads or ThreadPoolExecutor(CLOSING_AT_A_TIME, "jetstream-closing") as threads:
            return all(list(threads.map(_close_cleanly, replicas))) and all_noted


def _ignore(_: NodeId) -> None:
    pass


def _must_flush_to_serve(replica: Replica) -> bool:
    is_alone = len(replica.stream.replicas) == 1 and replica.leadership is not None
    return is_alone and replica.flush_wanted


def _close_cleanly(replica: Replica) -> bool:
    """Runs in a thread: nobody else uses the log any more."""
    try:
        replica.log.close(clean=True)
    except JetstreamError as error:
        logger.error("log_not_closed", stream=replica.stream.full_name, reason=str(error))
        return False
    return True
