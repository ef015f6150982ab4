"""Descriptions of streams, nodes and the cluster: frozen values with the names of
docs/protocol.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from jetstream_client.values.record_objects import RecordObject
from jetstream_client.values.settings import StreamFields

AckLevel: TypeAlias = Literal["none", "leader", "all"]
Payload: TypeAlias = bytes | bytearray | memoryview | str
"""Types of a value or a key; text is stored as UTF-8."""
Value: TypeAlias = Payload | RecordObject
"""Types of a value; an object is stored as JSON (docs/typed_streams.md)."""
OnReset: TypeAlias = Literal["error", "earliest", "latest"]
"""What to do where a stream no longer holds the position of a cursor."""
ReadFrom: TypeAlias = Literal["leader", "nearest", "any"]
"""Which replica serves a reader: see docs/guarantees.md, "Reading from replicas"."""

Via: TypeAlias = Literal["nats", "direct", "auto"]
"""How what is published reaches its streams: as NATS messages; straight to the leader of each
stream; or straight where that stores the same, and else by NATS."""


@dataclass(frozen=True, slots=True, repr=False)
class Stream(StreamFields):
    """A stream of the registry. `leader` is -1 if there is none.

    Settings are in seconds and bytes. max_age, max_bytes, max_messages: 0 is unlimited.
    duplicate_window: 0 is off. segment_bytes, segment_age: 0 leaves it to the server. restoring: a
    restore is filling it, and it does not listen to its subject. encryption: "aes-256-gcm", or
    "node": as the nodes are configured. lossy_elections: how many leaders
    were elected although committed records may have been lost. readonly: every record is refused.
    paused: the stream does not listen to its subject. target_replicas: while the stream is
    reassigned, the nodes that it will be on; until then `replicas` also has the nodes that will go.
    Empty: it is not reassigned. observers: the nodes whose copies serve readers and never count; a
    replica that becomes an observer is in both lists while the stream is reassigned. partition: its
    number in a keyed group, from 0; None: it is in none. partitions: how many streams the group was
    to have when this one was created. The lake holds [lake_start_offset, lake_end_offset).
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    stream_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    created_at: datetime
    lossy_elections: int
    readonly: bool = False
    paused: bool = False
    target_replicas: tuple[int, ...] = ()
    partition: int | None = None
    partitions: int = 0
    observers: tuple[int, ...] = ()
    lake_start_offset: int = 0
    lake_end_offset: int = 0

    @property
    def full_name(self) -> str:
        """`name@subject`, which is never ambiguous."""
        return f"{self.name}@{self.subject}" if self.subject else self.name

    def __repr__(self) -> str:
        """Short: with all of its fields (`dataclasses.asdict`) it fills a screen."""
        where = f"leader {self.leader}, isr {list(self.isr)}"
        return f"<{type(self).__name__} {self.full_name!r}, id {self.id}, {where}>"


def partitions_of(group: str, streams: Iterable[Stream]) -> list[str]:
    """The names of the streams of a keyed group, by number."""
    found = {each.partition: each.name for each in streams if each.group == group}
    return [found[number] for number in sorted(each for each in found if each is not None)]


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A stream that a plan would move, as it is now, and the nodes that it would be on. observers:
    None: they stay as they are."""

    stream: Stream
    replicas: tuple[int, ...]
    observers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """The position of a follower, replica or observer, as the leader knows it. offset: its log end,
    or with flush "group" its flushed offset; -1: the leader has not heard of it since it leads.
    lag: the records between that and the leader's log end; None: unknown."""

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
    """Compaction of the leader's log. cleaned_to: no two records below this offset have the same
    key. dirty_ratio: the share of the sealed, committed bytes that are not compacted yet. ended_at
    (None: there was no pass), duration (seconds) and the later fields are of the last pass.
    tombstones: how many there are below cleaned_to, in their grace time."""

    cleaned_to: int
    dirty_ratio: float
    ended_at: datetime | None
    duration: float
    bytes_before: int
    bytes_after: int
    records_removed: int
    tombstones: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StreamDescription(Stream):
    """A stream with what its leader knows; fields are None if no leader has answered.

    Committed records are `[log_start_offset, high_watermark)`; a new leader that does not know yet
    where they end has None as high_watermark. `state` is "online" or says why not.
    The counters run since the leader's process started. `progress` names every follower.
    `compaction` is also None for a stream that never had `compact`. `damaged`: records that disks
    have lost and that are not repaired yet: all ranges of the leader, and the first of each
    follower. hand_overs: how often its leader got the leadership by a hand-over; hand_over_gap: for
    how many seconds there was no subscription at the last one, so that messages without acks were
    lost. last_append: when the leader appended the last record; None: there is none, or the server
    is too old to tell. key_id: of the key with which the leader encrypts new batches; "": it does
    not.
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
    last_append: datetime | None = None
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica as it is known now; offsets are None if unknown. alive: its node has a session
    and has answered. standing: "isr", "elr", "last_known" (its log is not trusted, but may hold
    everything committed), or "" for one that may lack committed records. last_epoch: of its last
    record, -1 if it holds none. high_watermark: what it knows to be committed. problem: what is
    wrong with its log or node, else "".
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
    """What an election by hand costs, and the stream after it (with dry_run: as it is).
    records_lost_max: other replicas hold at most so many records that the chosen one lacks.
    unheard: nodes that may hold further committed records; their number is unknown."""

    stream: Stream
    replicas: tuple[ReplicaState, ...]
    records_lost_max: int
    unheard: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A server process of the cluster and the addresses of its ports.

    not_ready: why the node does not serve publishers and readers. A node that catches up after its
    start does serve, although its /readyz still waits. voter: whether it votes on the metadata, as
    the answering node knows; None: that is an older server. disk_full: its disk was below its
    reserve within the last minute, so nothing new is placed there.
    """

    id: int
    grpc: str
    data: str
    http: str
    rack: str
    incarnation: int
    fenced: bool
    draining: bool
    not_ready: tuple[str, ...] = ()
    voter: bool | None = None
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The nodes of the cluster. `controller` is -1 if there is none; `nats` are the URLs to publish
    to. copy_bytes_per_second: what each node sends at most to replicas that are not in sync; 0: no
    limit. replica_lag_max: seconds after which a replica that lags leaves the ISR; 0: the servers'
    10 s."""

    cluster_id: str
    controller: int
    nodes: tuple[Node, ...]
    nats: tuple[str, ...]
    server_version: str
    answering_node: int
    copy_bytes_per_second: int = 0
    replica_lag_max: float = 0.0

    def node(self, node_id: int) -> Node | None:
        """The node of this number; None: there is none."""
        return next((node for node in self.nodes if node.id == node_id), None)


@dataclass(frozen=True, slots=True)
class Voter:
    """A node that votes on the metadata. address: of its Raft port; "": unknown."""

    node: int
    address: str


@dataclass(frozen=True, slots=True)
class Voters:
    """The nodes that vote on the metadata, as `answering_node` sees them. leader: -1 if there is
    none. linked: those that it is linked to. is_committed: whether they have agreed on the last
    change."""

    voters: tuple[Voter, ...]
    leader: int
    linked: tuple[int, ...]
    is_committed: bool
    answering_node: int

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of the voters, in their order."""
        return tuple(voter.node for voter in self.voters)


@dataclass(frozen=True, slots=True)
class NodeDebug:
    """What support needs to know of a node. config: as it runs, secrets as "***". metrics: as its
    /metrics. log: its last lines, JSON, the oldest first. versions: of server, Python, system."""

    config: dict[str, Any]
    metrics: str
    log: tuple[str, ...]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class HistorySeries:
    """name: what is counted, as "records" (a second) or "lag". stream_id: of the stream, or of the
    cursor's stream; None: it is of a node. values: one for each of the times; None: unknown."""

    name: str
    stream_id: int | None
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The last hour, as a node has kept it since its start. times: of the samples, the oldest
    first."""

    node: int
    times: tuple[datetime, ...]
    series: tuple[HistorySeries, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's position in a stream, as it is committed.

    stream: `name@subject`. stream_id: the id of the stream whose records were read. offset: the
    next record to read. last_epoch: leader epoch of the record before it, -1 if it is not known.
    owner: the client that committed it, by the name that it gives itself. metadata: text stored
    with it. revision: grows with every commit. stream_id_now: the id of the stream that has that
    name and subject now, None: there is none. creator: the principal that made the cursor, "" if
    security was off.
    """

    name: str
    stream: str
    stream_id: int
    offset: int
    last_epoch: int
    committed_at: datetime
    owner: str
    metadata: str
    revision: int
    stream_id_now: int | None
    creator: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the stream is still the one that was read."""
        return self.stream_id_now == self.stream_id


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorDescription(Cursor):
    """A cursor with what the stream's leader knows; fields are None if it does not answer, and
    those that need the end of what is committed until a new leader knows it.

    state: "current", "stream deleted", "stream re-created", or "truncated": the stream no longer
    holds this position. lag: the number of committed records that are not read yet; on a compacted
    stream an upper bound. lag_seconds: the time since the first of them was appended, 0 if there is
    none.
    """

    state: str
    log_start_offset: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group. instance: the name that outlives its process, "" for none.
    streams: the ids of the streams that it reads."""

    id: str
    instance: str
    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group. source: the group of streams, or the stream, that it reads; streams: their
    ids. is_settled: no stream is moving from one member to another. creator: the principal of its
    first member, "" if security was off."""

    name: str
    source: str
    generation: int
    members: tuple[GroupMember, ...]
    streams: tuple[int, ...]
    is_settled: bool
    creator: str = ""


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """The schema of a stream's values. version: of the last of `versions`; 0: it never had one.
    versions: the texts of the newest, the oldest first; "": none from that version on."""

    version: int
    versions: tuple[str, ...]

    @property
    def text(self) -> str:
        """The schema; "": the stream has none."""
        return self.versions[-1] if self.versions else ""


@dataclass(frozen=True, slots=True)
class StreamLake:
    """What of a stream is in the lake: [start_offset, end_offset).

    committed_offset: the end of what is committed. table_url: of the metadata of its Iceberg table;
    "": there is none yet. problem: why the last copy failed; "": it did not.
    """

    start_offset: int
    end_offset: int
    committed_offset: int
    table_url: str
    problem: str

    @property
    def waiting(self) -> int:
        """How many offsets are not in the lake yet."""
        return max(self.committed_offset - self.end_offset, 0)


@dataclass(frozen=True, slots=True)
class UnneededObject:
    """An object in the lake that no table needs. name: below the lake's URL. wait: for how many
    seconds it stays at least; 0: it is deleted, or with `dry_run` would be."""

    name: str
    wait: float


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """A resolved position: the offset, and the leader epoch of the record there.

    leader_epoch: -1 if there is no record yet, and for `Last`.
    """

    offset: int
    leader_epoch: int


StreamLike: TypeAlias = str | int | Stream
"""A stream's name, `name@subject`, its id, or the stream itself."""
