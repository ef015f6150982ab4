"""The metrics of a node itself: each a row of name, help and value. Those of its streams, cursors
and consumers are in serving/metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from jetstream_protocol.types import NO_NODE
from jetstream_protocol.version import VERSION
from jetstream_server.ingest.nats.compiled import INGEST_FORM
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.jetstream_api.api import JetStreamApi
from jetstream_server.lake.reader import LakeReader
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.node.node import Node
from jetstream_server.node.output import LOST
from jetstream_server.node.readiness import not_ready
from jetstream_server.node.server import Server
from jetstream_server.replication.drivers.compaction import CompactionCounters
from jetstream_server.replication.drivers.disk_reserve import free_bytes
from jetstream_server.replication.drivers.sweeping import Sweeping
from jetstream_server.replication.drivers.uploading import Uploading
from jetstream_server.serving.metrics.family_helpers import Row, labelled, numbers


class _Lake(NamedTuple):
    uploading: Uploading
    reader: LakeReader
    sweeping: Sweeping


_SERVER: tuple[Row[Server], ...] = (
    ("ready", "Whether the node may be sent work", lambda s: not not_ready(s)),
    ("session_held", "Whether its session lease holds", lambda s: s.node.membership.lease_held()),
    ("streams_leaderless", "Streams of the cluster without a leader",
        lambda s: len(s.node.leaderships.leaderless)),
    ("elections_total", "Leaderships begun here", lambda s: s.node.leaderships.elections),
    ("lossy_elections_total", "Of these, those that may have lost committed records: act on this",
        lambda s: s.node.leaderships.lossy_elections),
    ("isr_shrinks_total", "Changes that removed replicas",
        lambda s: s.node.leaderships.isr_shrinks),
    ("isr_expands_total", "Changes that added replicas", lambda s: s.node.leaderships.isr_expands),
    ("pending_acks", "Acknowledgements that wait for a commit", lambda s: s.bounds.pending_acks),
    ("uncommitted_bytes", "Of batches whose acks wait for a commit",
        lambda s: s.bounds.uncommitted_bytes),
    ("cursors", "Cursors kept, from the node that leads them",
        lambda s: s.node.drivers.cursors.cursors_known()),
    ("waiting_fetches", "Long polls, over both ports", lambda s: s.node.fetches.waiting),
    ("fetches_total", "Fetches answered by the data plane", lambda s: s.node.fetches.times.fetches),
    ("fetched_bytes_total", "Bytes of batches sent by it",
        lambda s: s.node.fetches.times.sent_bytes),
    ("data_plane_connections", "Open connections", lambda s: s.node.data_plane.connection_count),
    ("disk_free_bytes", "Free space of the data folder", lambda s: free_bytes(s.config.data)),
    ("disk_reserve_bytes", "With less free space appends are refused",
        lambda s: s.config.log.disk_reserve_bytes),
    ("retention_removed_records_total", "Removed by limits and purges",
        lambda s: s.node.drivers.retention.records_removed),
    ("authentication_failures_total", "Requests of callers that were not identified",
        lambda s: s.node.access.audit.authentication_failures),
    ("authorization_failures_total", "Requests refused to a principal",
        lambda s: s.node.access.audit.authorization_failures),
    ("quota_refusals_total", "Requests refused to a principal that has reached its limit",
        lambda s: s.node.access.audit.quota_refusals),
    ("log_lines_lost_total", "Lines for people that could not be written", lambda _: LOST.count),
    ("scrubbed_bytes_total", "Read by the scrub", lambda s: s.node.drivers.scrub.bytes_read),
    ("damaged_ranges_found_total", "Ranges of records that a disk has lost",
        lambda s: s.node.drivers.healing.ranges_found),
    ("damaged_ranges_repaired_total", "Of these, fetched again from another replica",
        lambda s: s.node.drivers.healing.ranges_repaired),
)  # fmt: skip

_NATS: tuple[Row[NatsConnection], ...] = (
    ("nats_connected", "Whether NATS is connected", lambda n: n.is_connected),
    ("nats_subscriptions_refused", "Subscriptions that NATS refuses now",
        lambda n: n.subscriptions_refused),
    ("nats_messages_total", "Messages received from NATS", lambda n: n.counters.messages),
    ("nats_disconnects_total", "Losses of the NATS connection", lambda n: n.counters.disconnects),
    ("nats_reconnects_total", "NATS connections made anew", lambda n: n.counters.reconnects),
    ("nats_writes_refused_total", "Acks dropped because too much waited to be sent",
        lambda n: n.counters.writes_refused),
)  # fmt: skip

_RAFT: tuple[Row[MetadataStatus], ...] = (
    ("controller", "Whether this node is the controller", lambda r: r.controller_epoch is not None),
    ("raft_has_leader", "Whether this node knows a metadata leader", lambda r: r.leader != NO_NODE),
    ("raft_term", "Term of the metadata group", lambda r: r.term),
    ("raft_commit_index", "Entries known to be committed", lambda r: r.commit_index),
    ("raft_applied_index", "Entries applied here", lambda r: r.applied_index),
    ("raft_journal_entries", "Not yet in the snapshot", lambda r: r.journal_entries),
    ("raft_journal_bytes", "Size of the metadata's journal", lambda r: r.journal_bytes),
    ("raft_voters", "Voters of the metadata group", lambda r: len(r.voters)),
    ("raft_peers_connected", "Members with a link here", lambda r: len(r.connected)),
)

_COMPACTION: tuple[Row[CompactionCounters], ...] = (
    ("compaction_passes_total", "Passes that ended well", lambda c: c.passes),
    ("compaction_failures_total", "Passes that failed", lambda c: c.failures),
    ("compaction_seconds_total", "Duration of all passes", lambda c: c.duration_us / 1e6),
    ("compaction_read_bytes_total", "Read by passes", lambda c: c.bytes_read),
    ("compaction_removed_bytes_total", "Removed by passes", lambda c: c.bytes_removed),
    ("compaction_removed_records_total", "Removed by passes", lambda c: c.records_removed),
)

_LAKE: tuple[Row[_Lake], ...] = (
    ("lake_streams_failing", "Streams led here that cannot be copied to the lake",
        lambda each: each.uploading.streams_failing),
    ("lake_lag_seconds", "How long sealed records of a stream led here wait to be copied, at most",
        lambda each: each.uploading.lag_seconds),
    ("lake_cache_bytes", "Kept here of what was read from the lake",
        lambda each: each.reader.kept_bytes),
    ("lake_objects_waiting", "Objects of the lake that no table needs, until they are deleted",
        lambda each: each.sweeping.objects_waiting),
    ("lake_objects_total", "Objects copied to the lake",
        lambda each: each.uploading.counters.objects),
    ("lake_copied_bytes_total", "Bytes of the log in them",
        lambda each: each.uploading.counters.bytes),
    ("lake_stored_bytes_total", "Their own bytes",
        lambda each: each.uploading.counters.stored_bytes),
    ("lake_copy_failures_total", "Copies to the lake that failed",
        lambda each: each.uploading.counters.failures),
    ("lake_reads_total", "Parts of objects read", lambda each: each.reader.reads),
    ("lake_rereads_total", "Of these, what had been kept before, and had to make room",
        lambda each: each.reader.rereads),
    ("lake_read_failures_total", "Reads of the lake that failed",
        lambda each: each.reader.failures),
    ("lake_objects_removed_total", "Objects of the lake deleted because no table needed them",
        lambda each: each.sweeping.objects_removed),
    ("lake_sweep_failures_total", "Times this could not be done",
        lambda each: each.sweeping.failures),
)  # fmt: skip

_API: tuple[Row[JetStreamApi], ...] = (
    ("leaf_link_connected", "Whether the leaf link is connected, where nats.api_domain is set",
        lambda a: a.link.is_connected),
    ("api_requests_total", "Requests of the JetStream API taken", lambda a: a.counters.requests),
    ("api_errors_total", "Of these, answered by an error", lambda a: a.counters.errors),
    ("api_requests_refused_total",
        "Requests of the JetStream API not taken: too many, or NATS takes answers too slowly",
        lambda a: a.counters.refused),
    ("api_answers_dropped_total", "Answers that NATS, or ack_subjects, would not let through",
        lambda a: a.link.counters.answers_dropped),
)  # fmt: skip


def families(server: Server | None) -> Iterator[Metric]:
    """The metrics of a node that has joined; None: all of them, without values."""
    node = None if server is None else server.node
    yield from numbers(server, _SERVER)
    yield from numbers(None if server is None else server.connection, _NATS)
    yield from numbers(None if node is None else node.metadata.status(), _RAFT)
    yield from numbers(None if node is None else node.drivers.compaction.counters, _COMPACTION)
    yield from numbers(None if node is None else _lake(node), _LAKE)
    yield from numbers(None if server is None else server.api, _API)
    yield _build()
    yield _keys(node)
    refused = {} if server is None else server.refused
    at_data = 0 if node is None else node.data_plane.connections_refused
    yield labelled(
        "connections_refused_total",
        "Connections closed because there were too many",
        "port",
        {"data": at_data, "grpc": refused.get("grpc", 0), "http": refused.get("http", 0)}.items(),
    )
    yield labelled(
        "fetch_seconds_total",
        "Where the time of fetches went",
        "phase",
        () if node is None else _fetch_seconds(node),
    )
    counts = Counter[str](serving=0, draining=0, fenced=0)
    if node is not None:
        counts.update(map(_state, node.metadata.registry.nodes.values()))
    yield labelled("nodes", "Nodes of the cluster", "state", counts.items())


def _lake(node: Node) -> _Lake | None:
    uploading, reader, sweeping = node.drivers.uploading, node.fetches.lake, node.drivers.sweeping
    if uploading is None or reader is None or sweeping is None:
        return None
    return _Lake(uploading, reader, sweeping)


def _build() -> Metric:
    build = GaugeMetricFamily(
        "jetstream_build_info", "What runs: always 1", labels=["version", "ingest"]
    )
    build.add_metric([VERSION, INGEST_FORM], 1)
    return build


def _keys(node: Node | None) -> Metric:
    """Those of encryption at rest, the active one first."""
    family = GaugeMetricFamily(
        "jetstream_encryption_key_info",
        "Keys of encryption at rest: always 1",
        labels=["key_id", "use"],
    )
    keys = None if node is None else node.replicas.log_config.keys
    for number, key_id in enumerate(() if keys is None else keys.ids):
        family.add_metric([key_id, "decrypt" if number else "encrypt"], 1)
    return family


def _fetch_seconds(node: Node) -> Iterator[tuple[str, float]]:
    times = node.fetches.times
    yield "queue", times.queue_us / 1e6
    yield "wait", times.wait_us / 1e6
    yield "local", times.local_us / 1e6
    yield "send", times.send_us / 1e6


def _state(node: NodeMetadata) -> str:
    if node.fenced:
        return "fenced"
    return "draining" if node.yields_leadership else "serving"
