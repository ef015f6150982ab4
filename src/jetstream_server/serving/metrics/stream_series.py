"""Series for single streams, on request: `/metrics?streams=PATTERN`.

At most STREAMS_MAX streams, the first by name; `jetstream_streams_left_out` says how many more
there are. To watch more of them, request several patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from jetstream_protocol.types import MonotonicUs
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.core.log_config import why_no_appends
from jetstream_server.replication.replica import Replica

STREAMS_MAX = 1000

_LABELS = ("stream", "subject")

_GAUGES: tuple[tuple[str, str, Callable[[Replica], float]], ...] = (
    ("log_bytes", "Bytes of its log", lambda r: r.log.size_bytes),
    ("log_segments", "Segments of its log", lambda r: r.log.segment_count),
    ("log_start_offset", "First offset kept", lambda r: start_offset(r.stream, r.log)),
    ("log_end_offset", "Next offset to assign", lambda r: r.log.log_end_offset),
    ("high_watermark", "Committed records are below it", lambda r: r.high_watermark),
    ("lake_start_offset", "First offset in the lake", lambda r: r.stream.lake.start),
    ("lake_end_offset", "The lake holds the records below it", lambda r: r.stream.lake.end),
    ("leader", "Whether this node leads it", lambda r: r.leadership is not None),
    ("leader_epoch", "Grows with every leadership", lambda r: r.stream.leader_epoch),
    ("isr", "Replicas in sync", lambda r: len(r.stream.isr)),
    ("replicas", "All its replicas", lambda r: len(r.stream.replicas)),
    ("observers", "Its observers, which do not count", lambda r: len(r.stream.observers)),
    (
        "offline",
        "Whether the replica takes no appends",
        lambda r: bool(why_no_appends(r.stream.config, r.log)),
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Replica], float]], ...] = (
    ("records_appended", "Records stored", lambda r: r.counters.records_appended),
    ("bytes_appended", "Bytes of batches stored", lambda r: r.counters.bytes_appended),
    ("acks_sent", "Acknowledgements sent", lambda r: r.counters.acks_sent),
    ("nacks_sent", "Refusals sent", lambda r: r.counters.nacks_sent),
    ("duplicates", "Messages that were stored already", lambda r: r.counters.duplicates),
    ("suspected_gaps", "Times it may have missed messages", lambda r: r.counters.suspected_gaps),
)


def matches(replica: Replica, pattern: str) -> bool:
    """Whether the stream's name or name@subject matches (`*` and `?` as in a shell)."""
    return names_match(replica.stream.name, replica.stream.full_name, pattern)


def names_match(name: str, full_name: str, pattern: str) -> bool:
    """See `matches`."""
    return fnmatchcase(name, pattern) or fnmatchcase(full_name, pattern)


def series(found: list[Replica], now_us: MonotonicUs) -> Iterator[Metric]:
    """The families, one at a time: each takes about 5 ms to write for STREAMS_MAX streams."""
    found.sort(key=lambda replica: replica.stream.full_name)
    replicas, left_out = found[:STREAMS_MAX], max(0, len(found) - STREAMS_MAX)
    labels = [(replica.stream.name, replica.stream.subject) for replica in replicas]
    for name, help_, value in _GAUGES:
        gauge = GaugeMetricFamily(f"jetstream_stream_{name}", help_, labels=_LABELS)
        for label, replica in zip(labels, replicas, strict=True):
            gauge.add_metric(label, value(replica))
        yield gauge
    for name, help_, value in _COUNTERS:
        counter = CounterMetricFamily(f"jetstream_stream_{name}", help_, labels=_LABELS)
        for label, replica in zip(labels, replicas, strict=True):
            counter.add_metric(label, value(replica))
        yield counter
    yield from _lags(replicas, now_us)
    yield GaugeMetricFamily(
        "jetstream_streams_left_out", "Streams that match beyond the limit", value=left_out
    )


def _lags(replicas: list[Replica], now_us: MonotonicUs) -> Iterator[Metric]:
    labels = [*_LABELS, "follower"]
    records = GaugeMetricFamily(
        "jetstream_stream_replication_lag_records", "How far a follower is behind", labels=labels
    )
    seconds = GaugeMetricFamily(
        "jetstream_stream_replication_lag_seconds", "For how long it has been", labels=labels
    )
    for replica in replicas:
        leadership, stream = replica.leadership, replica.stream
        for node_id in stream.copies if leadership is not None else ():
            if leadership is not None and node_id != replica.node_id:
                behind, us = leadership.lag_of(node_id, now_us)
                label = (stream.name, stream.subject, str(node_id))
                records.add_metric(label, behind)
                seconds.add_metric(label, us / 1e6)
    yield records
    yield seconds
