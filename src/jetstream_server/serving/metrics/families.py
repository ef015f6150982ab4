"""The metrics of a node: names, types, help, and the source of each value.

Names follow Prometheus' conventions: base units (`_seconds`, `_bytes`), `_total` for values that
only grow. Labels have few values, all known beforehand: error codes, nodes of the cluster, phases.
docs/operations/metrics.md, "Metrics", explains each metric; a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from jetstream_protocol.types import NO_NODE
from jetstream_server.serving.metrics.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _Number:
    """One number without labels. name: without the prefix and `_total`."""

    name: str
    help: str
    value: Callable[[Snapshot], float | None]


_GAUGES = (
    _Number("ready", "Whether the node may be sent work", lambda s: s.is_ready),
    _Number("session_held", "Whether its session lease holds", lambda s: s.session_held),
    _Number("streams", "Replicas held by this node", lambda s: s.streams.replicas),
    _Number("streams_led", "Streams that this node leads", lambda s: s.streams.led),
    _Number(
        "streams_offline",
        "Replicas that take no appends: act on this",
        lambda s: s.streams.offline,
    ),
    _Number(
        "streams_damaged",
        "Replicas whose disk has lost records: act on this",
        lambda s: s.streams.damaged,
    ),
    _Number(
        "streams_under_replicated",
        "Streams led here with replicas out of sync",
        lambda s: s.streams.under_replicated,
    ),
    _Number(
        "streams_under_min_isr",
        "Streams led here that refuse publishers: too few replicas are in sync",
        lambda s: s.streams.under_min_isr,
    ),
    _Number(
        "streams_leaderless",
        "Streams of the cluster without a leader",
        lambda s: len(s.leaderships.leaderless),
    ),
    _Number("log_bytes", "Bytes in all logs", lambda s: s.streams.log_bytes),
    _Number("log_segments", "Segments of all logs", lambda s: s.streams.segments),
    _Number("pending_acks", "Acknowledgements that wait for a commit", lambda s: s.pending_acks),
    _Number(
        "uncommitted_bytes",
        "Of batches whose acks wait for a commit",
        lambda s: s.uncommitted_bytes,
    ),
    _Number("cursors", "Cursors kept, from the node that leads them", lambda s: s.cursors),
    _Number("waiting_fetches", "Long polls, over both ports", lambda s: s.waiting_fetches),
    _Number("data_plane_connections", "Open connections", lambda s: s.data_plane_connections),
    _Number("nats_connected", "Whether NATS is connected", lambda s: s.nats_connected),
    _Number(
        "nats_subscriptions_refused",
        "Subscriptions that NATS refuses now",
        lambda s: s.nats_subscriptions_refused,
    ),
    _Number(
        "leaf_link_connected",
        "Whether the leaf link is connected, where nats.api_domain is set",
        lambda s: s.api.is_connected if s.api else None,
    ),
    _Number(
        "controller",
        "Whether this node is the controller",
        lambda s: s.raft.controller_epoch is not None,
    ),
    _Number(
        "raft_has_leader",
        "Whether this node knows a metadata leader",
        lambda s: s.raft.leader != NO_NODE,
    ),
    _Number("raft_term", "Term of the metadata group", lambda s: s.raft.term),
    _Number("raft_commit_index", "Entries known to be committed", lambda s: s.raft.commit_index),
    _Number("raft_applied_index", "Entries applied here", lambda s: s.raft.applied_index),
    _Number("raft_journal_entries", "Not yet in the snapshot", lambda s: s.raft.journal_entries),
    _Number("raft_journal_bytes", "Size of the metadata's journal", lambda s: s.raft.journal_bytes),
    _Number("raft_voters", "Voters of the metadata group", lambda s: len(s.raft.voters)),
    _Number("raft_peers_connected", "Members with a link here", lambda s: len(s.raft.connected)),
    _Number(
        "lake_streams_failing",
        "Streams led here that cannot be copied to the lake",
        lambda s: s.lake.streams_failing if s.lake else None,
    ),
    _Number(
        "lake_cache_bytes",
        "Kept here of what was read from the lake",
        lambda s: s.lake.cache_bytes if s.lake else None,
    ),
    _Number(
        "lake_objects_waiting",
        "Objects of the lake that no table needs, until they are deleted",
        lambda s: s.lake.objects_waiting if s.lake else None,
    ),
    _Number("disk_free_bytes", "Free space of the data folder", lambda s: s.disk_free_bytes),
    _Number(
        "disk_reserve_bytes",
        "With less free space appends are refused",
        lambda s: s.disk_reserve_bytes,
    ),
)

_COUNTERS = (
    _Number("records_appended", "Records stored", lambda s: s.streams.counters.records_appended),
    _Number(
        "bytes_appended", "Bytes of batches stored", lambda s: s.streams.counters.bytes_appended
    ),
    _Number("acks_sent", "Acknowledgements sent", lambda s: s.streams.counters.acks_sent),
    _Number(
        "acks_suppressed",
        "Acks requested on subjects outside ack_subjects",
        lambda s: s.streams.counters.acks_suppressed,
    ),
    _Number(
        "duplicates",
        "Messages and batches that were stored already",
        lambda s: s.streams.counters.duplicates,
    ),
    _Number(
        "suspected_gaps",
        "Times a stream may have missed messages without acks",
        lambda s: s.streams.counters.suspected_gaps,
    ),
    _Number(
        "hand_overs", "Leaderships taken over by plan", lambda s: s.streams.counters.hand_overs
    ),
    _Number(
        "hand_over_gap_seconds",
        "Time during hand-overs without a subscription",
        lambda s: s.streams.counters.hand_over_gaps_us / 1e6,
    ),
    _Number("elections", "Leaderships begun here", lambda s: s.leaderships.elections),
    _Number(
        "lossy_elections",
        "Of these, those that may have lost committed records: act on this",
        lambda s: s.leaderships.lossy_elections,
    ),
    _Number("isr_shrinks", "Changes that removed replicas", lambda s: s.leaderships.isr_shrinks),
    _Number("isr_expands", "Changes that added replicas", lambda s: s.leaderships.isr_expands),
    _Number("nats_messages", "Messages received from NATS", lambda s: s.nats_messages),
    _Number("nats_disconnects", "Losses of the NATS connection", lambda s: s.nats_disconnects),
    _Number("nats_reconnects", "NATS connections made anew", lambda s: s.nats_reconnects),
    _Number(
        "nats_writes_refused",
        "Acks dropped because too much waited to be sent",
        lambda s: s.nats_writes_refused,
    ),
    _Number(
        "api_requests",
        "Requests of the JetStream API taken",
        lambda s: s.api.requests if s.api else None,
    ),
    _Number(
        "api_errors", "Of these, answered by an error", lambda s: s.api.errors if s.api else None
    ),
    _Number(
        "api_requests_refused",
        "Requests of the JetStream API not taken: too many, or NATS takes answers too slowly",
        lambda s: s.api.refused if s.api else None,
    ),
    _Number(
        "api_answers_dropped",
        "Answers that NATS, or ack_subjects, would not let through",
        lambda s: s.api.answers_dropped if s.api else None,
    ),
    _Number(
        "lake_objects", "Objects copied to the lake", lambda s: s.lake.objects if s.lake else None
    ),
    _Number(
        "lake_copied_bytes", "Bytes of the log in them", lambda s: s.lake.bytes if s.lake else None
    ),
    _Number(
        "lake_stored_bytes", "Their own bytes", lambda s: s.lake.stored_bytes if s.lake else None
    ),
    _Number(
        "lake_copy_failures",
        "Copies to the lake that failed",
        lambda s: s.lake.failures if s.lake else None,
    ),
    _Number("lake_reads", "Parts of objects read", lambda s: s.lake.reads if s.lake else None),
    _Number(
        "lake_read_failures",
        "Reads of the lake that failed",
        lambda s: s.lake.read_failures if s.lake else None,
    ),
    _Number(
        "lake_objects_removed",
        "Objects of the lake deleted because no table needed them",
        lambda s: s.lake.objects_removed if s.lake else None,
    ),
    _Number(
        "lake_sweep_failures",
        "Times this could not be done",
        lambda s: s.lake.sweep_failures if s.lake else None,
    ),
    _Number("fetches", "Fetches answered by the data plane", lambda s: s.fetches.fetches),
    _Number("fetched_bytes", "Bytes of batches sent by it", lambda s: s.fetches.sent_bytes),
    _Number("compaction_passes", "Passes that ended well", lambda s: s.compaction.passes),
    _Number("compaction_failures", "Passes that failed", lambda s: s.compaction.failures),
    _Number(
        "compaction_seconds", "Duration of all passes", lambda s: s.compaction.duration_us / 1e6
    ),
    _Number("compaction_read_bytes", "Read by passes", lambda s: s.compaction.bytes_read),
    _Number("compaction_removed_bytes", "Removed by passes", lambda s: s.compaction.bytes_removed),
    _Number(
        "compaction_removed_records", "Removed by passes", lambda s: s.compaction.records_removed
    ),
    _Number(
        "retention_removed_records",
        "Removed by limits and purges",
        lambda s: s.retention_removed_records,
    ),
    _Number(
        "authentication_failures",
        "Requests of callers that were not identified",
        lambda s: s.authentication_failures,
    ),
    _Number(
        "authorization_failures",
        "Requests refused to a principal",
        lambda s: s.authorization_failures,
    ),
    _Number(
        "quota_refusals",
        "Requests refused to a principal that has reached its limit",
        lambda s: s.quota_refusals,
    ),
    _Number(
        "log_lines_lost", "Lines for people that could not be written", lambda s: s.log_lines_lost
    ),
    _Number("scrubbed_bytes", "Read by the scrub", lambda s: s.scrubbed_bytes),
    _Number(
        "damaged_ranges_found",
        "Ranges of records that a disk has lost",
        lambda s: s.damaged_ranges_found,
    ),
    _Number(
        "damaged_ranges_repaired",
        "Of these, fetched again from another replica",
        lambda s: s.damaged_ranges_repaired,
    ),
)


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """The metrics of the node. Unknown values are left out."""
    build = GaugeMetricFamily(
        "jetstream_build_info", "What runs: always 1", labels=["version", "ingest"]
    )
    build.add_metric([version("jetstream-log"), snapshot.ingest_form], 1)
    yield build
    keys = GaugeMetricFamily(
        "jetstream_encryption_key_info",
        "Keys of encryption at rest: always 1",
        labels=["key_id", "use"],
    )
    for key_id in snapshot.key_ids:
        keys.add_metric([key_id, "encrypt" if key_id == snapshot.key_ids[0] else "decrypt"], 1)
    yield keys
    for number in _GAUGES:
        value = number.value(snapshot)
        yield GaugeMetricFamily(f"jetstream_{number.name}", number.help, value=value)
    for number in _COUNTERS:
        total = number.value(snapshot)
        yield CounterMetricFamily(f"jetstream_{number.name}", number.help, value=total)
    yield _nacks(snapshot)
    yield _connections_refused(snapshot)
    yield _fetch_seconds(snapshot)
    yield from _lags(snapshot)
    nodes = GaugeMetricFamily("jetstream_nodes", "Nodes of the cluster", labels=["state"])
    for state, count in snapshot.nodes.items():
        nodes.add_metric([state], count)
    yield nodes


def _nacks(snapshot: Snapshot) -> Metric:
    nacks = CounterMetricFamily("jetstream_nacks_sent", "Refusals sent", labels=["reason"])
    for code, count in sorted(snapshot.streams.counters.nacks_by_code.items()):
        nacks.add_metric([code], count)
    return nacks


def _connections_refused(snapshot: Snapshot) -> Metric:
    refused = CounterMetricFamily(
        "jetstream_connections_refused",
        "Connections closed because there were too many",
        labels=["port"],
    )
    for port in ("data", "grpc", "http"):
        refused.add_metric([port], snapshot.connections_refused.get(port, 0))
    return refused


def _fetch_seconds(snapshot: Snapshot) -> Metric:
    times = snapshot.fetches
    seconds = CounterMetricFamily(
        "jetstream_fetch_seconds", "Where the time of fetches went", labels=["phase"]
    )
    for phase, us in (
        ("queue", times.queue_us),
        ("wait", times.wait_us),
        ("local", times.local_us),
        ("send", times.send_us),
    ):
        seconds.add_metric([phase], us / 1e6)
    return seconds


def _lags(snapshot: Snapshot) -> Iterator[Metric]:
    streams = snapshot.streams
    for prefix, what, lags in (
        ("replication", "a replica's node", streams.lags),
        ("observer", "an observer's node", streams.observer_lags),
    ):
        records = GaugeMetricFamily(
            f"jetstream_{prefix}_lag_records",
            f"The most by which {what} is behind in a stream led here",
            labels=["follower"],
        )
        seconds = GaugeMetricFamily(
            f"jetstream_{prefix}_lag_seconds",
            "The longest time for which it has been behind in one",
            labels=["follower"],
        )
        for node_id, (behind, us) in sorted(lags.items()):
            records.add_metric([str(node_id)], behind)
            seconds.add_metric([str(node_id)], us / 1e6)
        yield records
        yield seconds
