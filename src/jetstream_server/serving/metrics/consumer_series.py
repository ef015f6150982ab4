"""Series for single consumers, on request: `/metrics?streams=PATTERN` has those of the streams that
match and are led by this node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from jetstream_server.consumers.consumer import Consumer
from jetstream_server.serving.metrics import family_helpers
from jetstream_server.serving.metrics.family_helpers import Row

CONSUMERS_MAX = 1000
_LABELS = ("consumer", "stream", "subject")

_ROWS: tuple[Row[Consumer], ...] = (
    ("pending", "Messages not yet delivered; with a filter at most", lambda c: c.pending),
    ("ack_pending", "Delivered and not acknowledged", lambda c: len(c.deliveries.open)),
    ("oldest_unacknowledged_seconds", "Since the first of those was delivered",
        lambda c: c.oldest_open_us / 1e6),
    ("waiting_pulls", "Pulls that wait for messages", lambda c: len(c.pulls)),
    ("redeliveries_total", "Deliveries after the first of a message", lambda c: c.redeliveries),
    ("given_up_total", "Messages delivered as often as they may be", lambda c: c.given_up),
)  # fmt: skip


def series(found: Sequence[Consumer]) -> Iterator[Metric]:
    """The families, of the first CONSUMERS_MAX by stream and name."""
    known = sorted(found, key=lambda it: (it.replica.stream.full_name, it.config.name))
    shown = [
        ((each.config.name, each.replica.stream.name, each.replica.stream.subject), each)
        for each in known[:CONSUMERS_MAX]
    ]
    yield from family_helpers.series("consumer", _LABELS, _ROWS, shown)
    yield family_helpers.left_out("consumers", len(known) - len(shown))
