"""One replica of one stream on this node: its log, its leadership, and who waits for it.

Owned by the event loop. Appends go to the page cache at once; what makes them durable and
committed is told to `moved` by the flusher. Reads see only committed records (design 8).

Invariants. `high_watermark <= log.log_end_offset`. Listeners hear of every rise of the high
watermark, once. After `close` nothing is appended, and every waiter has been woken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import (
    DivergedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    UnknownEpochError,
)
from jetstream_server.log.commit_log import CommitLog, LogSlice
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.leader import LeaderState

CommitListener = Callable[["Replica"], None]
Waiter = Callable[[], None]


@dataclass(slots=True)
class Counters:
    """Since the server started."""

    records_appended: int = 0
    bytes_appended: int = 0
    acks_sent: int = 0
    nacks_sent: int = 0
    acks_suppressed: int = 0
    suspected_gaps: int = 0


class Replica:
    """See the module. `leadership` is None where this node does not lead the stream."""

    __slots__ = (
        "_waiters",
        "closed",
        "counters",
        "high_watermark",
        "leadership",
        "log",
        "on_commit",
        "stream",
    )

    def __init__(self, stream: StreamMetadata, log: CommitLog) -> None:
        self.stream = stream
        self.log = log
        self.leadership: LeaderState | None = None
        self.counters = Counters()
        self.closed = False
        self.high_watermark = log.log_start_offset
        self.on_commit: CommitListener | None = None
        """Called with this replica when its high watermark rose; set by who sends the acks."""
        self._waiters: dict[Waiter, None] = {}

    @property
    def counts_flushed(self) -> bool:
        """Whether a record counts only once it is flushed (flush `group`)."""
        return self.stream.config.flush == "group"

    def lead(self, stream: StreamMetadata, node_id: int) -> None:
        """Begin the leadership that `stream` assigns: the epoch first, then anything else.

        With one replica, everything that survived in the log is committed once it counts.
        """
        self.stream = stream
        self.log.start_epoch(stream.leader_epoch)
        self.leadership = LeaderState(
            node_id=node_id,
            isr=stream.isr,
            min_insync_replicas=stream.config.min_insync_replicas,
            counts_flushed=self.counts_flushed,
            high_watermark=self.log.log_start_offset,
        )
        if self.log.offline_reason and len(stream.replicas) == 1:
            # Nothing will be flushed any more; what can be read is all there is.
            self.high_watermark = self.log.log_end_offset
        self.moved()

    def append(self, batch: EncodedBatch, timestamp_us: int) -> int:
        """Append as the leader; returns the base offset. Raises NotLeaderError, StorageError.

        A NotEnoughReplicasError is the caller's to ask for (`leadership.check_can_append`):
        messages that want no acknowledgement are appended even below the minimum.
        """
        if self.leadership is None:
            raise NotLeaderError(f"this node does not lead stream {self.stream.name!r}")
        base_offset = self.log.append(
            batch, leader_epoch=self.stream.leader_epoch, timestamp_us=timestamp_us
        )
        self.counters.records_appended += batch.record_count
        self.counters.bytes_appended += batch.length
        return base_offset

    def moved(self) -> None:
        """The log grew or was flushed: raise the high watermark if it may, and say so."""
        if self.leadership is None or self.closed:
            return
        if self.leadership.moved(
            log_end_offset=self.log.log_end_offset, flushed_offset=self.log.flushed_offset
        ):
            self.high_watermark = self.leadership.high_watermark
            if self.on_commit is not None:
                self.on_commit(self)
            self._wake()

    def read(self, offset: int, bytes_max: int, last_epoch: int = -1) -> LogSlice | None:
        """Whole committed batches from the one that holds `offset` on; None: not available yet.

        last_epoch: leader epoch of the record before `offset` as its reader saw it, -1 unknown.
        Raises OffsetOutOfRangeError below the log start and beyond any possible end,
        DivergedError when the reader's last record is not in this log, StreamNotFoundError once
        the stream is deleted.
        """
        if self.closed:
            raise StreamNotFoundError(f"stream {self.stream.name!r} was deleted")
        log = self.log
        if offset < log.log_start_offset or offset > log.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in stream {self.stream.name!r}: it holds "
                f"[{log.log_start_offset}, {self.high_watermark})",
                log.log_start_offset,
                self.high_watermark,
            )
        self._check_history(offset, last_epoch)
        if offset >= self.high_watermark:
            return None
        return log.read(offset, bytes_max, self.high_watermark)

    def _check_history(self, offset: int, last_epoch: int) -> None:
        if last_epoch < 0 or offset == 0:
            return
        if last_epoch > self.stream.leader_epoch:
            raise UnknownEpochError(
                f"leader epoch {last_epoch} of stream {self.stream.name!r} is not known here yet; "
                "try again"
            )
        epoch, end_offset = self.log.epochs.end_offset_for(last_epoch, self.log.log_end_offset)
        if epoch != last_epoch or end_offset < offset:
            raise DivergedError(
                f"the record before offset {offset} of stream {self.stream.name!r} is not of "
                f"leader epoch {last_epoch} any more: the log was truncated or re-created",
                epoch,
                end_offset,
            )

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

    def close(self, *, clean: bool) -> None:
        """Stop: no append, no leadership; waiters wake to find it closed."""
        self.closed = True
        self.leadership = None
        self.log.close(clean=clean)
        self._wake()
