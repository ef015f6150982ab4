"""All values that the metrics of one scrape consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.replication.core.leaderships import Leaderships
from jetstream_server.replication.drivers.compaction import CompactionCounters
from jetstream_server.serving.long_poll import FetchTimes
from jetstream_server.serving.metrics.sums import StreamSums


@dataclass(frozen=True, slots=True)
class ApiNumbers:
    """Counters of the JetStream API of this node."""

    is_connected: bool
    requests: int
    errors: int
    refused: int
    answers_dropped: int


@dataclass(frozen=True, slots=True)
class LakeNumbers:
    """Counters of the lake at this node, and how much of it is kept here. streams_failing: of those
    that this node leads, how many cannot be copied."""

    objects: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    failures: int = 0
    streams_failing: int = 0
    reads: int = 0
    read_failures: int = 0
    cache_bytes: int = 0
    objects_waiting: int = 0
    objects_removed: int = 0
    sweep_failures: int = 0


@dataclass(slots=True)
class Snapshot:
    """The parts' own counters, and single numbers. nodes: how many, by state.
    key_ids: of encryption at rest, the active one first.
    disk_free_bytes: None: unknown. api, lake: None: it is off. cursors: None unless this node leads
    them."""

    raft: MetadataStatus
    leaderships: Leaderships
    compaction: CompactionCounters = field(default_factory=CompactionCounters)
    lake: LakeNumbers | None = None
    fetches: FetchTimes = field(default_factory=FetchTimes)
    streams: StreamSums = field(default_factory=StreamSums)
    nodes: Mapping[str, int] = field(default_factory=dict)
    ingest_form: str = ""
    key_ids: Sequence[str] = ()
    is_ready: bool = False
    session_held: bool = False
    nats_connected: bool = False
    nats_messages: int = 0
    nats_disconnects: int = 0
    nats_reconnects: int = 0
    nats_writes_refused: int = 0
    nats_subscriptions_refused: int = 0
    data_plane_connections: int = 0
    waiting_fetches: int = 0
    pending_acks: int = 0
    cursors: int | None = None
    uncommitted_bytes: int = 0
    scrubbed_bytes: int = 0
    damaged_ranges_found: int = 0
    damaged_ranges_repaired: int = 0
    retention_removed_records: int = 0
    authentication_failures: int = 0
    authorization_failures: int = 0
    quota_refusals: int = 0
    log_lines_lost: int = 0
    connections_refused: Mapping[str, int] = field(default_factory=dict)
    disk_free_bytes: int | None = None
    disk_reserve_bytes: int = 0
    api: ApiNumbers | None = None

    @classmethod
    def empty(cls) -> Snapshot:
        """The snapshot of a node that has done nothing yet."""
        return cls(MetadataStatus.absent(NodeId(0), ()), Leaderships(0))
