"""What the cluster says about itself: frozen values in the words of docs/protocol.md."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from jetstream_protocol.errors import InvalidRequestError

Flush: TypeAlias = Literal["none", "interval", "group"]
AcksOption: TypeAlias = Literal["reply", "envelope", "off"]
AckLevel: TypeAlias = Literal["none", "leader", "all"]
Payload: TypeAlias = bytes | bytearray | memoryview | str
"""What a value or a key may be; text is stored as UTF-8."""
ReadFrom: TypeAlias = Literal["leader", "nearest", "any"]
"""Which replica serves a reader: see docs/guarantees.md, "Reading from replicas"."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_MAX_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def to_datetime(timestamp_us: int) -> datetime:
    """Aware, UTC, exact to the microsecond (a float of seconds would not be).

    Producers may give any 64-bit number: what no datetime can hold becomes the nearest it can.
    """
    return _EPOCH + timedelta(microseconds=min(max(timestamp_us, _MIN_US), _MAX_US))


def to_timestamp_us(moment: datetime) -> int:
    """Microseconds since 1970. Raises InvalidRequestError for a naive datetime."""
    if moment.tzinfo is None:
        raise InvalidRequestError("a naive datetime is ambiguous: give it a time zone")
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of the registry. `leader` is -1 where there is none.

    Settings in seconds and bytes. max_age, max_bytes, max_messages: 0 is unlimited.
    duplicate_window: 0 is off. segment_bytes, segment_age: 0 leaves it to the server.
    lossy_elections: leaders elected although committed records may have been lost.
    """

    id: int
    name: str
    subject: str
    group: str
    replication_factor: int
    min_insync_replicas: int
    flush: str
    acks: str
    max_age: float
    max_bytes: int
    max_messages: int
    compact: bool
    tombstone_grace: float
    duplicate_window: float
    segment_bytes: int
    segment_age: float
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    stream_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    created_at: datetime
    lossy_elections: int

    @property
    def full_name(self) -> str:
        """`name@subject`, which is never ambiguous."""
        return f"{self.name}@{self.subject}"


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far a follower has come, as the leader knows.

    offset: its log end, under flush "group" what it has flushed of it; -1: not heard of in this
    leadership. lag: the records between there and the leader's log end, None where unknown.
    """

    node: int
    offset: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Records [start, end) that a node's disk has lost: it fetches them from another replica."""

    node: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CompactionInfo:
    """How far the leader's log is compacted.

    cleaned_to: no two records below this offset have the same key. dirty_ratio: the part of the
    sealed, committed bytes that is behind it. ended_at (None: there was none), duration (seconds)
    and what follows: of the last pass. tombstones: below cleaned_to, in their grace time.
    """

    cleaned_to: int
    dirty_ratio: float
    ended_at: datetime | None
    duration: float
    bytes_before: int
    bytes_after: int
    records_removed: int
    tombstones: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDescription(Stream):
    """A stream with what its leader knows; None where no leader has answered.

    Committed records are `[log_start_offset, high_watermark)`. `state` is "online" or says why
    not. The counters run since the leader's process started. `progress` names every follower.
    `compaction` is also None for a stream that never had `compact`. `damaged`: what disks have lost
    and what is not repaired yet, all of the leader's and the first of each follower's.
    hand_overs: leaderships of the stream that its leader was handed by plan; hand_over_gap: for how
    many seconds nobody listened at the last of them, so that publishers without acks lost messages.
    """

    log_start_offset: int | None = None
    high_watermark: int | None = None
    log_end_offset: int | None = None
    flushed_offset: int | None = None
    size_bytes: int | None = None
    segments: int | None = None
    state: str
    records_appended: int | None = None
    acks_sent: int | None = None
    nacks_sent: int | None = None
    acks_suppressed: int | None = None
    suspected_gaps: int | None = None
    hand_overs: int | None = None
    hand_over_gap: float | None = None
    progress: tuple[ReplicaProgress, ...] = ()
    compaction: CompactionInfo | None = None
    damaged: tuple[DamagedRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica as it is known now; the offsets are None where nobody has told.

    alive: its node is in touch and has answered. standing: "isr", "elr", "last_known" (not
    believed, and may hold everything committed all the same), or "" for one that may lack
    committed records. last_epoch: of its last record, -1 where it holds none. high_watermark: what
    it knows to be committed. problem: why its log or node is not as it should be, else "".
    """

    node: int
    alive: bool
    standing: str
    log_start_offset: int | None
    log_end_offset: int | None
    last_epoch: int | None
    high_watermark: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """What an election by hand costs, and the stream after it (or as it is, if it was only asked).

    records_lost_max: records that other replicas hold and the chosen one does not, at most.
    unheard: nodes that may hold further committed records; nobody knows how many.
    """

    stream: Stream
    replicas: tuple[ReplicaState, ...]
    records_lost_max: int
    unheard: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A server process of the cluster and where to reach its ports."""

    id: int
    grpc: str
    data: str
    http: str
    rack: str
    incarnation: int
    fenced: bool
    draining: bool


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """`controller` is -1 where there is none; `nats` are the URLs to publish to."""

    cluster_id: str
    controller: int
    nodes: tuple[Node, ...]
    nats: tuple[str, ...]
    server_version: str
    answering_node: int

    def node(self, node_id: int) -> Node | None:
        return next((node for node in self.nodes if node.id == node_id), None)


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """A position resolved: the offset, and the leader epoch of the record there.

    leader_epoch: -1 where there is no record yet, and for `Last`.
    """

    offset: int
    leader_epoch: int


StreamLike: TypeAlias = str | int | Stream
"""A stream's name, `name@subject`, its id, or the stream itself."""
