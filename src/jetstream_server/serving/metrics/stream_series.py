"""Series for single streams, on request: `/metrics?streams=PATTERN`.

At most STREAMS_MAX streams, the first by name; `jetstream_streams_left_out` says how many more
there are. To watch more of them, request several patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from prometheus_client.metrics_core import Metric

from jetstream_protocol.types import MonotonicUs
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.core.log_config import why_no_appends
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.metrics import family_helpers
from jetstream_server.serving.metrics.family_helpers import Row

STREAMS_MAX = 1000

_LABELS = ("stream", "subject")

_ROWS: tuple[Row[Replica], ...] = (
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
    ("offline", "Whether the replica takes no appends",
        lambda r: bool(why_no_appends(r.stream.config, r.log))),
    ("records_appended_total", "Records stored", lambda r: r.counters.records_appended),
    ("bytes_appended_total", "Bytes of batches stored", lambda r: r.counters.bytes_appended),
    ("acks_sent_total", "Acknowledgements sent", lambda r: r.counters.acks_sent),
    ("nacks_sent_total", "Refusals sent", lambda r: r.counters.nacks_sent),
    ("duplicates_total", "Messages that were stored already", lambda r: r.counters.duplicates),
    ("suspected_gaps_total", "Times it may have missed messages",
        lambda r: r.counters.suspected_gaps),
)  # fmt: skip
_LAGS: tuple[Row[tuple[int, int]], ...] = (
    ("replication_lag_records", "How far a follower is behind", lambda lag: lag[0]),
    ("replication_lag_seconds", "For how long it has been", lambda lag: lag[1] / 1e6),
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
    shown = [((each.stream.name, each.stream.subject), each) for each in found[:STREAMS_MAX]]
    yield from family_helpers.series("stream", _LABELS, _ROWS, shown)
    lags = [
        ((*labels, str(node_id)), replica.leadership.lag_of(node_id, now_us))
        for labels, replica in shown
        if replica.leadership is not None
        for node_id in replica.stream.copies
        if node_id != replica.node_id
    ]
    yield from family_helpers.series("stream", (*_LABELS, "follower"), _LAGS, lags)
    yield family_helpers.left_out("streams", len(found) - len(shown))
