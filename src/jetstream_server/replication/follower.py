"""What a follower of a stream decides: where it stands, and what to do with an answer.

    position ──> FetchRequest;   Answer ──> decide ──> Append · Truncate · Reset · Ignore
                                               the caller does that to the log, then: settle

No I/O, no clock: the log is only looked at, and times (µs, monotonic) come from the caller.

**safety** rules.
* Truncation is by leader epoch, never to the high watermark: that lags by a round trip, and
  cutting to it before a failover loses what was acknowledged.
* Records are appended only at the log end, under the epoch they were asked for with; the log checks
  that their epochs are not above that, their lengths and their CRCs, since the bytes may have
  changed between the leader's decision and its send.
* Only the leader's word moves the high watermark, and never beyond the own log end; a diverging
  round leaves it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.messages import (
    INCOMPLETE,
    NO_RECORD,
    NOWHERE,
    Answer,
    Diverging,
    FetchRequest,
    LogView,
    OutOfRange,
    Records,
    Standing,
    last_epoch_of,
    skips,
)

SILENCE_MAX_US = 1_500_000
"""A leader that has not answered for so long is reported: as long as a session may be silent."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append the bytes that came with the answer, none of an epoch above `leader_epoch`.

    Without bytes there is nothing to append, only something to learn.
    """

    leader_epoch: int
    has_records: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop every record from `offset` on; then ask again."""

    offset: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop the whole log and begin anew at `offset`: nothing in it is in the leader's, or not all
    that is in the leader's log can be learnt any more."""

    offset: int


@dataclass(frozen=True, slots=True)
class Ignore:
    """The answer is to a question that does not stand any more."""


Step = Append | Truncate | Reset | Ignore


class FollowerState:
    """One replica's following of one leadership. `log` is its log, `high_watermark` what it knew.

    rebuild: the log's bytes cannot be believed (an operation of it failed). **safety** Such a log,
    and one that is offline, stands nowhere, so it acknowledges nothing; the leader says where to
    begin, and the log is emptied. A damaged one says how far it can be read, which does not count.
    """

    __slots__ = (
        "_asks_flush_since", "_confirmable", "_heard_at_us", "_incarnation", "_log", "_node_id",
        "_rebuild", "high_watermark", "stream",
    )  # fmt: skip

    def __init__(
        self,
        *,
        stream: StreamMetadata,
        node_id: int,
        incarnation: int,
        log: LogView,
        high_watermark: int,
        now_us: int,
        rebuild: bool = False,
    ) -> None:
        self.stream = stream
        self.high_watermark = high_watermark
        self._node_id = NodeId(node_id)
        self._incarnation = incarnation
        self._log = log
        self._heard_at_us = now_us
        self._rebuild = rebuild
        self._asks_flush_since = stream.stream_epoch
        self._confirmable = False

    @property
    def needs_rebuild(self) -> bool:
        return self._rebuild

    def distrust(self) -> None:
        """An operation of the log failed: what it holds is not to be believed."""
        self._rebuild = True

    def update(self, stream: StreamMetadata) -> None:
        """Newer metadata under this same leadership."""
        assert stream.leader_epoch == self.stream.leader_epoch, "that is another leadership"
        if stream.config.flush != self.stream.config.flush or skips(self.stream, stream):
            self._asks_flush_since = stream.stream_epoch
            self._confirmable = False
        self.stream = stream

    def position(self) -> FetchRequest:
        """What to ask the leader now. It acknowledges everything before `fetch_offset`."""
        log = self._log
        believed = not self._rebuild and (log.is_damaged or not log.offline_reason)
        return FetchRequest(
            stream_id=self.stream.id,
            follower=self._node_id,
            incarnation=self._incarnation,
            leader_epoch=self.stream.leader_epoch,
            fetch_offset=log.log_end_offset if believed else NOWHERE,
            last_epoch=last_epoch_of(log) if believed else NO_RECORD,
            flushed_offset=log.flushed_offset if believed else NOWHERE,
            stream_epoch=self.stream.stream_epoch if self._is_complete else INCOMPLETE,
            damaged=log.lost_range,
        )

    @property
    def _is_complete(self) -> bool:
        """Whether this log holds all that it was begun for: else it may be begun anew yet. One
        that holds nothing is begun with the next record. **safety** Nor is one complete of which
        the disk has lost records."""
        log = self._log
        if log.offline_reason or log.lost_range is not None:
            return False
        if not self.stream.was_compacted or log.log_start_offset == log.log_end_offset:
            return True
        try:
            return log.log_end_offset >= log.copied_under
        except StorageError:
            return False  # `decide` needs it as well, and raises.

    def decide(self, answer: Answer) -> Step:
        """What the answer asks of the log; the caller does it, then calls `settle`."""
        if not answer.asked.asks_the_same(self.position()):
            return Ignore()
        match answer:
            case Records() if self._missed_tombstones(answer.standing):
                return Reset(answer.standing.log_start_offset)
            case Records():
                return Append(self.stream.leader_epoch, answer.slice is not None)
            case OutOfRange():
                return Reset(answer.standing.log_start_offset)
            case Diverging():
                return self._part_from(answer)

    def _missed_tombstones(self, standing: Standing) -> bool:
        """**safety** Whether this log may hold what tombstones deleted that the leader does not
        have any more: it was away longer than their grace time, and would keep that for ever. Or
        whether it may come to: a copy goes on only from a log that is compacted as far as the one
        it was begun from, else it takes from one what another will not delete."""
        log = self._log
        gone, under = standing.tombstones_gone_below, log.copied_under
        return log.log_start_offset < log.log_end_offset < max(gone, under) and gone != under

    def _part_from(self, answer: Diverging) -> Step:
        """Cut back to where the two logs may agree; the next round tells whether they do."""
        log = self._log
        epoch, end_offset = log.epochs.end_offset_for(answer.epoch, log.log_end_offset)
        if epoch == answer.epoch:
            end_offset = min(end_offset, answer.end_offset)
        end_offset = min(end_offset, log.log_end_offset)
        leader_start_offset = answer.standing.log_start_offset
        if end_offset < log.log_start_offset or 0 < end_offset <= leader_start_offset:
            # Of what would be left, nothing is in the leader's log any more: it could be anything.
            return Reset(max(end_offset, leader_start_offset))
        if self.stream.was_compacted and end_offset < log.committed_below:
            # An unclean election: what is left lacks what the rest superseded.
            return Reset(leader_start_offset)
        return Truncate(end_offset)

    def settle(self, answer: Answer, step: Step, now_us: int) -> bool:
        """The step was done to the log. Returns whether the high watermark rose."""
        if isinstance(step, Ignore):
            return False
        self._heard_at_us = now_us
        if isinstance(step, Append):
            reached = min(answer.standing.high_watermark, self._log.log_end_offset)
            if answer.standing.stream_epoch >= self._asks_flush_since:
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
        """Whether a full flush from now on is worth telling the metadata group (`confirm_flush`).

        Only once the leader counts flushed positions too: until then it could commit what this
        replica holds in memory only.
        """
        return (
            self._confirmable
            and self.stream.config.flush == "group"
            and self._node_id in self.stream.unflushed
        )

    def report_due(self, now_us: int, silence_max_us: int = SILENCE_MAX_US) -> bool:
        """Whether the leader has been silent for so long that it is to be reported; then not
        again before as much time has passed."""
        if now_us - self._heard_at_us <= silence_max_us:
            return False
        self._heard_at_us = now_us
        return True
