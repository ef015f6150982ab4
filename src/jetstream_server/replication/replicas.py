"""All replicas this node holds: opened, led and closed as the metadata says; flushed as they ask.

Owned by the event loop. The one place where an append, its flush and the rise of the high watermark
are tied together:

    append ──> page cache ──(group)──> flusher thread: one fsync for all that queued up ──┐
                    │                                                                      │
                    └──(interval, none)──> moved() <────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import structlog

from jetstream_protocol import subjects
from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotReplicaError,
    StorageError,
    StorageFullError,
    StreamNotFoundError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Disk
from jetstream_server.log.flusher import Flusher
from jetstream_server.log.recovery import Recovered
from jetstream_server.metadata.changes import Change, StreamChanged, StreamCreated, StreamDeleted
from jetstream_server.metadata.registry import Registry
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.replica import Replica, RoleChange

# `name@subject`, in one field or in two.
_NAME_AND_SUBJECT_MAX = subjects.NAME_LENGTH_MAX + 1 + subjects.SUBJECT_BYTES_MAX

logger = structlog.get_logger("jetstream.replicas")


class ReplicaListener(Protocol):
    """Who follows leaderships: ingest subscribes and acknowledges by it."""

    def leading(self, replica: Replica) -> None:
        """This node leads the stream from now on."""

    def stopped_leading(self, replica: Replica) -> None:
        """It does not any more: deleted, closed, or led elsewhere."""

    def committed(self, replica: Replica) -> None:
        """The high watermark rose."""

    def failed(self, replica: Replica, error: StorageError) -> None:
        """The disk refused: what is not committed yet never will be, here."""


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
        flush_interval_seconds: float,
        clock_us: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._registry = registry
        self._disk = disk
        self._directory = directory
        self._config = config
        self._flusher = flusher
        self._flush_interval_seconds = flush_interval_seconds
        self._clock_us = clock_us
        self._replicas: dict[StreamId, Replica] = {}
        self._dirty: dict[Replica, None] = {}  # flush `interval`: appended to since the last round
        self._by_log: dict[CommitLog, Replica] = {}
        self._flush_rounds: asyncio.Task[None] | None = None
        self.listener: ReplicaListener | None = None
        self.full_reason = ""
        """Why no append is taken anywhere (disk below its reserve); "": there is room."""

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, stream_id: int) -> Replica | None:
        return self._replicas.get(StreamId(stream_id))

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
        """The replica of the stream a request names.

        Raises StreamNotFoundError, AmbiguousStreamError, NotReplicaError (with who is one).
        """
        stream = self.stream_of(ref)
        replica = self._replicas.get(stream.id)
        if replica is None:
            leader = self._registry.nodes.get(stream.leader)
            address = None
            if leader is not None:
                address = common_pb2.NodeAddress(
                    node_id=leader.node_id,
                    grpc=leader.addresses.grpc,
                    data=leader.addresses.data,
                    http=leader.addresses.http,
                )
            raise NotReplicaError(
                f"this node holds no replica of stream {stream.name!r}; nodes "
                f"{', '.join(map(str, stream.replicas))} do",
                address,
            )
        return replica

    def start(self, *, clean: bool) -> None:
        """Open every stream the metadata places here; `clean`: the last stop left a marker."""
        for stream in self._registry.streams.values():
            if self._node_id in stream.replicas:
                self._open(stream, clean=clean)
        self._flush_rounds = asyncio.get_running_loop().create_task(self._flush_dirty())

    def apply(self, change: Change) -> None:
        """Follow one change of the metadata."""
        if isinstance(change, StreamCreated) and self._node_id in change.stream.replicas:
            self._open(change.stream, clean=True)
        elif isinstance(change, StreamDeleted):
            self._delete(change.stream)
        elif isinstance(change, StreamChanged):
            self._change(change.after)

    def _open(self, stream: StreamMetadata, *, clean: bool) -> None:
        """Open one replica. Whatever is wrong with its log takes it offline, and no other."""
        directory = f"{self._directory}/{stream.id}"
        unreadable_reason = ""
        try:
            log = CommitLog.open(self._disk, directory, self._config, clean=clean)
        except StorageError as error:
            unreadable_reason = error.message
            log = CommitLog(self._disk, directory, self._config, Recovered())
            log.offline_reason = unreadable_reason
        latest_epoch = log.epochs.latest_epoch
        is_newer = latest_epoch > stream.leader_epoch and len(stream.replicas) == 1
        if is_newer and not log.offline_reason:
            log.offline_reason = (
                f"{directory} knows leader epoch {latest_epoch} and the metadata only "
                f"{stream.leader_epoch}: they are not of one time"
            )
        if log.offline_reason:
            logger.error(
                "log_damaged",
                stream=stream.full_name,
                reason=log.offline_reason,
            )
        replica = Replica(
            stream,
            log,
            node_id=self._node_id,
            incarnation=self._registry.nodes[NodeId(self._node_id)].incarnation,
            unreadable_reason=unreadable_reason,
        )
        replica.on_commit = self._committed
        self._replicas[stream.id] = replica
        self._by_log[log] = replica
        self._follow_leadership(replica, stream)

    def _change(self, stream: StreamMetadata) -> None:
        replica = self._replicas.get(stream.id)
        if replica is not None:
            self._follow_leadership(replica, stream)

    def _follow_leadership(self, replica: Replica, stream: StreamMetadata) -> None:
        """Begin, keep or end this node's leadership as `stream` says."""
        now_us = int(asyncio.get_running_loop().time() * 1_000_000)
        for change in replica.update(stream, self._registry.nodes, now_us):
            if change is RoleChange.LEADS and replica.flush_wanted:
                self._flusher.request(replica.log, self._flushed)
            if self.listener is None:
                continue
            if change is RoleChange.STOPPED_LEADING:
                self.listener.stopped_leading(replica)
            elif change is RoleChange.LEADS:
                self.listener.leading(replica)

    def _delete(self, stream: StreamMetadata) -> None:
        replica = self._replicas.pop(stream.id, None)
        if replica is None:
            return
        self._forget(replica)
        replica.close(clean=False)
        try:
            replica.log.delete()
        except StorageError as error:
            # The next start finds a folder nobody knows, and sets it aside.
            logger.error("log_not_deleted", stream=stream.full_name, reason=error.message)

    def _forget(self, replica: Replica) -> None:
        self._dirty.pop(replica, None)
        self._by_log.pop(replica.log, None)
        if self.listener is not None and replica.leadership is not None:
            self.listener.stopped_leading(replica)

    def append(self, replica: Replica, batch: EncodedBatch) -> int:
        """Append to a stream this node leads and see to its flush; returns the base offset.

        Raises StorageFullError, StorageError, NotLeaderError.
        """
        if self.full_reason:
            raise StorageFullError(self.full_reason)
        base_offset = replica.append(batch, self._clock_us())
        flush = replica.stream.config.flush
        if flush == "group":
            self._flusher.request(replica.log, self._flushed)
        else:
            if flush == "interval":
                self._dirty[replica] = None
            replica.moved()
        return base_offset

    def _committed(self, replica: Replica) -> None:
        if self.listener is not None:
            self.listener.committed(replica)

    def _flushed(self, log: CommitLog, result: int | StorageError) -> None:
        """The flusher's answer, on the loop."""
        replica = self._by_log.get(log)
        if replica is None:
            return  # Deleted or closed meanwhile.
        if isinstance(result, StorageError):
            logger.error(
                "log_not_flushed",
                stream=replica.stream.full_name,
                reason=str(result),
            )
            if self.listener is not None:
                self.listener.failed(replica, result)
        else:
            replica.moved()

    async def _flush_dirty(self) -> None:
        while True:
            await asyncio.sleep(self._flush_interval_seconds)
            dirty, self._dirty = self._dirty, {}
            for replica in dirty:
                self._flusher.request(replica.log, self._flushed)

    def close(self) -> bool:
        """Close every log; returns whether all of them were left clean."""
        if self._flush_rounds is not None:
            self._flush_rounds.cancel()
        clean = True
        for replica in self._replicas.values():
            self._forget(replica)
            try:
                replica.close(clean=True)
            except JetstreamError as error:
                clean = False
                logger.error("log_not_closed", stream=replica.stream.full_name, reason=str(error))
        self._replicas.clear()
        return clean
