"""The messages between follower and leader of one stream (docs/replication.md, "Fetching").

    follower ── FetchRequest: where my log ends, and how ──> leader
    follower <── Records | Diverging | OutOfRange ────────── leader

The position in a request *is* the acknowledgement of everything before it. An answer repeats its
request: **safety** a follower acts on an answer only while its position is that of the request, so
late, repeated and reordered answers do nothing.

Messages are never changed. They are not `frozen`, because making a frozen one takes six times as
long, and each acknowledged message takes several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.logfiles.recorded import LedEpoch
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.metadata.state.streams import StreamMetadata

NO_RECORD = -1
"""As `last_epoch`: there is no record before the position."""

INCOMPLETE = -2
"""As `stream_epoch`: the log is an incomplete copy, or it is damaged. **safety** Its position
acknowledges nothing: the log may have to begin anew or be truncated, as the leader's answer says,
or records that the disk has lost must still be fetched."""

NOWHERE = -1
"""As `fetch_offset`: before the start of every log. The leader answers where to begin."""


@dataclass(slots=True, unsafe_hash=True)
class FetchRequest:
    """A follower's position.

    leader_epoch: the leadership that it follows. fetch_offset: its log end. last_epoch: leader
    epoch of the record before that; NO_RECORD: there is none. flushed_offset: records below it
    survive a power failure. stream_epoch: of the metadata that the follower had applied, or
    INCOMPLETE. damaged: the first offsets that its disk has lost, [start, end). cannot_append: it
    had no room, descriptor or key for what was sent, and tries again.
    """

    stream_id: StreamId
    follower: NodeId
    incarnation: int
    leader_epoch: int
    fetch_offset: int
    last_epoch: int
    flushed_offset: int
    stream_epoch: int
    damaged: tuple[int, int] | None = None
    cannot_append: bool = False

    def matches(self, other: FetchRequest) -> bool:
        """Whether one answer serves both: the flushed offset and the stream epoch may differ."""
        return (
            self.leader_epoch == other.leader_epoch
            and self.fetch_offset == other.fetch_offset
            and self.last_epoch == other.last_epoch
            and self.incarnation == other.incarnation
        )


@dataclass(slots=True, unsafe_hash=True)
class LeaderSnapshot:
    """The leader's state when it answered. Part of every answer.

    stream_epoch: of the metadata that it had applied. tombstones_gone_below: compaction may have
    removed tombstones below this offset.
    """

    high_watermark: int
    log_start_offset: int
    stream_epoch: int
    tombstones_gone_below: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Records:
    """The logs agree up to the position. slice: the records after it; None: there are none yet.

    The bytes of the slice are sent separately, and may arrive damaged or cut short.
    """

    request: FetchRequest
    snapshot: LeaderSnapshot
    slice: LogSlice | None


@dataclass(slots=True, unsafe_hash=True)
class Diverging:
    """The logs diverge: the leader has no record of an epoch above `epoch` before its
    `end_offset`."""

    request: FetchRequest
    snapshot: LeaderSnapshot
    epoch: int
    end_offset: int


@dataclass(slots=True, unsafe_hash=True)
class OutOfRange:
    """The leader's log begins after the position, or ends before the start of an empty
    follower."""

    request: FetchRequest
    snapshot: LeaderSnapshot


Answer = Records | Diverging | OutOfRange


@dataclass(slots=True, unsafe_hash=True)
class Refused:
    """The request is refused, or its answer cannot be read."""

    request: FetchRequest
    error: JetstreamError


def length_of(part: Answer | Refused) -> int:
    """How many bytes of batches go with the answer."""
    return part.slice.length if isinstance(part, Records) and part.slice is not None else 0


class LogView(Protocol):
    """The part of a log that the cores read. `CommitLog` has it."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    @property
    def epochs(self) -> LeaderEpochCache: ...

    @property
    def led_epoch(self) -> LedEpoch:
        """The last leader epoch of this node that was noted on disk, with or without records."""

    @property
    def offline_reason(self) -> str:
        """Why nothing can be appended; "" if appends are possible."""

    @property
    def is_damaged(self) -> bool:
        """Whether damage is the reason. The log is valid up to the damage."""

    @property
    def lost_range(self) -> tuple[int, int] | None:
        """The first offsets, [start, end), that the disk has lost; None: nothing is lost."""

    @property
    def tombstones_gone_below(self) -> int:
        """The offset below which compaction may have removed tombstones."""

    @property
    def copied_under(self) -> int:
        """The leader's `tombstones_gone_below` when the copying of this log began."""

    @property
    def committed_below(self) -> int:
        """The offset below which records were committed at the last compaction; 0: unknown."""


def last_epoch_of(log: LogView) -> int:
    """Leader epoch of the record before the log end, even if retention has removed that record;
    NO_RECORD when there was none."""
    return log.epochs.epoch_at(log.log_end_offset - 1)


def skips(before: StreamMetadata, after: StreamMetadata) -> bool:
    """Whether metadata between the two was never seen here (a snapshot was installed).

    A setting that looks unchanged may have had another value in between.
    """
    return after.stream_epoch > before.stream_epoch + 1
