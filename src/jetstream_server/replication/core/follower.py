"""The decisions of a stream's follower: its position, and what to do with an answer.

    position ──> FetchRequest;   Answer ──> decide ──> Append · Truncate · Reset · Ignore
                                               the caller changes the log, then: settle

No I/O, no clock: the log is only read, and callers pass times (µs, monotonic).

**safety** rules.
* Truncation is by leader epoch, never to the high watermark: that lags by a round trip, and
  truncating to it before a failover loses acknowledged records.
* Records are appended only at the log end, under the epoch of the request. The log checks their
  lengths, their CRCs, and that no epoch is above that epoch, because the bytes may have changed
  between the leader's decision and its send.
* Only the leader's answers move the high watermark, and never beyond this log's end. A diverging
  answer leaves it unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.messages import (
    INCOMPLETE,
    NO_RECORD,
    NOWHERE,
    Answer,
    Diverging,
    FetchRequest,
    LeaderSnapshot,
    LogView,
    OutOfRange,
    Records,
    last_epoch_of,
    skips,
)


@dataclass(frozen=True, slots=True)
class Append:
    """Append the bytes that came with the answer. No epoch in them may be above `leader_epoch`.

    Without bytes nothing is appended: the answer only carries the leader's state.
    """

    leader_epoch: int
    has_records: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop every record from `offset` on, then ask again."""

    offset: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop the whole log, and begin anew at `offset`. Either nothing in it is in the leader's log,
    or it cannot receive everything that the leader's log holds."""

    offset: int


@dataclass(frozen=True, slots=True)
class Ignore:
    """Do nothing: the answer is to an outdated request."""


@dataclass(frozen=True, slots=True)
class Later(Ignore):
    """Do nothing yet, and ask again: this node has not heard all that its leader has."""


Step = Append | Truncate | Reset | Ignore


class FollowerState:
    """One replica that follows one leadership. high_watermark: begins with the last one known here.

    rebuild: the log's bytes are not trusted (an operation has failed). **safety** Such a log, and
    an offline one, has no position, so it acknowledges nothing. The leader says where to begin, and
    the log is emptied. A damaged log reports how far it can be read, which does not count.
    """

    __slots__ = (
        "_asks_flush_since", "_confirmable", "_incarnation", "_log", "_node_id", "_rebuild",
        "high_watermark", "stream",
    )  # fmt: skip

    def __init__(
        self,
        *,
        stream: StreamMetadata,
        node_id: int,
        incarnation: int,
        log: LogView,
        high_watermark: int,
        rebuild: bool = False,
    ) -> None:
        self.stream = stream
        self.high_watermark = high_watermark
        self._node_id = NodeId(node_id)
        self._incarnation = incarnation
        self._log = log
        self._rebuild = rebuild
        self._asks_flush_since = stream.stream_epoch
        self._confirmable = False

    @property
    def needs_rebuild(self) -> bool:
        return self._rebuild

    def distrust(self) -> None:
        """Note that an operation of the log failed: its content is not trusted."""
        self._rebuild = True

    def update(self, stream: StreamMetadata) -> None:
        """Take newer metadata of this same leadership."""
        assert stream.leader_epoch == self.stream.leader_epoch, "that is another leadership"
        if stream.config.flush != self.stream.config.flush or skips(self.stream, stream):
            self._asks_flush_since = stream.stream_epoch
            self._confirmable = False
        self.stream = stream

    def position(self) -> FetchRequest:
        """The next request. It acknowledges everything before `fetch_offset`."""
        log = self._log
        fetch_offset, last_epoch = self._place()
        return FetchRequest(
            stream_id=self.stream.id,
            follower=self._node_id,
            incarnation=self._incarnation,
            leader_epoch=self.stream.leader_epoch,
            fetch_offset=fetch_offset,
            last_epoch=last_epoch,
            flushed_offset=NOWHERE if fetch_offset == NOWHERE else log.flushed_offset,
            stream_epoch=self.stream.stream_epoch if self._is_complete else INCOMPLETE,
            damaged=log.lost_range,
        )

    def _is_at(self, request: FetchRequest) -> bool:
        """Whether `position` would still ask for the same."""
        return (
            request.leader_epoch == self.stream.leader_epoch
            and request.incarnation == self._incarnation
            and (request.fetch_offset, request.last_epoch) == self._place()
        )

    def _place(self) -> tuple[int, int]:
        """Where the log ends, and the epoch before that. A log that is not trusted begins anew."""
        log = self._log
        if self._rebuild or (log.offline_reason and not log.is_damaged):
            return NOWHERE, NO_RECORD
        return log.log_end_offset, last_epoch_of(log)

    @property
    def _is_complete(self) -> bool:
        """Whether the copy is complete. An incomplete copy may have to begin anew. An empty log
        begins with the next record. **safety** A log whose disk has lost records is not complete
        either."""
        log = self._log
        if log.offline_reason or log.lost_range is not None:
            return False
        if not self.stream.was_compacted or log.log_start_offset == log.log_end_offset:
            return True
        try:
            return log.log_end_offset >= log.copied_under
        except StorageError:
            return False  # `decide` needs the same state, and raises.

    def decide(self, answer: Answer) -> Step:
        """What the answer requires of the log. The caller does it, then calls `settle`."""
        if not self._is_at(answer.request):
            return Ignore()
        match answer:
            case Records() if self._missed_tombstones(answer.snapshot):
                return Reset(answer.snapshot.log_start_offset)
            case Records():
                return Append(self.stream.leader_epoch, answer.slice is not None)
            case OutOfRange():
                step: Step = Reset(answer.snapshot.log_start_offset)
            case Diverging():
                step = self._part_from(answer)
        return Later() if self._is_beyond_lake(step, answer.snapshot) else step

    def _is_beyond_lake(self, step: Step, snapshot: LeaderSnapshot) -> bool:
        """**safety** Whether this log would begin where the lake does not reach yet, for all that
        this node knows: it would tell readers that the records before are gone. The leader knows
        newer metadata."""
        stream = self.stream
        is_beyond = isinstance(step, Reset) and step.offset > stream.lake.end
        return is_beyond and stream.config.lake and snapshot.stream_epoch > stream.stream_epoch

    def _missed_tombstones(self, snapshot: LeaderSnapshot) -> bool:
        """Whether this log may hold, or may get, records whose tombstones the leader has removed.

        **safety** A replica that was away longer than the grace time would keep such records for
        ever. A copy may get them, because it continues only from a log that is compacted as far as
        the log with which it began.
        """
        log = self._log
        gone, under = snapshot.tombstones_gone_below, log.copied_under
        return log.log_start_offset < log.log_end_offset < max(gone, under) and gone != under

    def _part_from(self, answer: Diverging) -> Step:
        """Truncate to where the two logs may agree. The next answer shows whether they do."""
        log = self._log
        epoch, end_offset = log.epochs.end_offset_for(answer.epoch, log.log_end_offset)
        if epoch == answer.epoch:
            end_offset = min(end_offset, answer.end_offset)
        end_offset = min(end_offset, log.log_end_offset)
        leader_start_offset = answer.snapshot.log_start_offset
        if end_offset < log.log_start_offset or 0 < end_offset <= leader_start_offset:
            # Nothing of the rest is in the leader's log any more, so it cannot be compared.
            return Reset(max(end_offset, leader_start_offset))
        if self.stream.was_compacted and end_offset < log.committed_below:
            # After an unclean election: the rest lacks records that the dropped ones superseded.
            return Reset(leader_start_offset)
        return Truncate(end_offset)

    def settle(self, answer: Answer, step: Step) -> bool:
        """Note that the step was done. Returns whether the high watermark rose."""
        if isinstance(step, Ignore):
            return False
        if isinstance(step, Append):
            reached = min(answer.snapshot.high_watermark, self._log.log_end_offset)
            if answer.snapshot.stream_epoch >= self._asks_flush_since:
                self._confirmable = True
            if reached > self.high_watermark:
                self.high_watermark = reached
                return True
            return False
        self._rebuild = False
        self.high_watermark = min(self.high_watermark, self._log.log_end_offset)
        return False

    @property
    def may_confirm_flush(self) -> bool:
        """Whether to report a full flush to the metadata group (`confirm_flush`).

        Only once the leader counts flushed positions too. Before that, it could commit records that
        this replica holds only in memory.
        """
        return (
            self._confirmable
            and self.stream.config.flush == "group"
            and self._node_id in self.stream.unflushed
        )
