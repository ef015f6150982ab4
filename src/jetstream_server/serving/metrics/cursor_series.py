"""Series for single cursors, on request: `/metrics?streams=PATTERN` has those in the streams that
match, on the node that leads `__cursors`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from jetstream_server.serving.grpc.cursor_lags import CursorLag

_LABELS = ("cursor", "stream", "subject")


def series(found: Sequence[CursorLag], left_out: int) -> Iterator[Metric]:
    """The families. An unknown lag is left out."""
    records = GaugeMetricFamily(
        "jetstream_cursor_lag_records", "Committed records after the cursor", labels=_LABELS
    )
    seconds = GaugeMetricFamily(
        "jetstream_cursor_lag_seconds",
        "For how long the first of them has been waiting",
        labels=_LABELS,
    )
    offsets = GaugeMetricFamily(
        "jetstream_cursor_offset", "The next record that it is to read", labels=_LABELS
    )
    times = GaugeMetricFamily(
        "jetstream_cursor_committed_timestamp_seconds",
        "When it was last committed, in seconds since 1970",
        labels=_LABELS,
    )
    for each in found:
        label = (each.cursor, each.stream, each.subject)
        if each.lag is not None:
            records.add_metric(label, each.lag.records)
            if each.lag.seconds is not None:
                seconds.add_metric(label, each.lag.seconds)
        offsets.add_metric(label, each.offset)
        times.add_metric(label, each.committed_at_us / 1e6)
    yield records
    yield seconds
    yield offsets
    yield times
    yield GaugeMetricFamily(
        "jetstream_cursors_left_out", "Cursors that match beyond the limit", value=left_out
    )
