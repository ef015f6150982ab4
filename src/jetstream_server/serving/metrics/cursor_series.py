"""Series for single cursors, on request: `/metrics?streams=PATTERN` has those in the streams that
match, on the node that leads `__cursors`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from jetstream_server.serving.grpc.cursor_lags import CursorLag
from jetstream_server.serving.metrics import family_helpers
from jetstream_server.serving.metrics.family_helpers import Row

_LABELS = ("cursor", "stream", "subject")

_ROWS: tuple[Row[CursorLag], ...] = (
    ("lag_records", "Committed records after the cursor",
        lambda c: None if c.lag is None else c.lag.records),
    ("lag_seconds", "For how long the first of them has been waiting",
        lambda c: None if c.lag is None else c.lag.seconds),
    ("offset", "The next record that it is to read", lambda c: c.offset),
    ("committed_timestamp_seconds", "When it was last committed, in seconds since 1970",
        lambda c: c.committed_at_us / 1e6),
)  # fmt: skip


def series(found: Sequence[CursorLag], left_out: int) -> Iterator[Metric]:
    """The families. An unknown lag is left out."""
    shown = [((each.cursor, each.stream, each.subject), each) for each in found]
    yield from family_helpers.series("cursor", _LABELS, _ROWS, shown)
    yield family_helpers.left_out("cursors", left_out)
