"""Series for single consumers, on request: `/metrics?streams=PATTERN` has those of the streams that
match and are led by this node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from jetstream_server.consumers.consumer import Consumer

CONSUMERS_MAX = 1000
_LABELS = ("consumer", "stream", "subject")

_GAUGES: tuple[tuple[str, str, Callable[[Consumer], float | None]], ...] = (
    ("pending", "Messages not yet delivered; with a filter at most", lambda c: c.pending),
    ("ack_pending", "Delivered and not acknowledged", lambda c: len(c.deliveries.open)),
    (
        "oldest_unacknowledged_seconds",
        "Since the first of those was delivered",
        lambda c: c.oldest_open_us / 1e6,
    ),
    ("waiting_pulls", "Pulls that wait for messages", lambda c: len(c.pulls)),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Consumer], float]], ...] = (
    ("redeliveries", "Deliveries after the first of a message", lambda c: c.redeliveries),
    ("given_up", "Messages delivered as often as they may be", lambda c: c.given_up),
)


def series(found: Sequence[Consumer]) -> Iterator[Metric]:
    """The families, of the first CONSUMERS_MAX by stream and name."""
    known = sorted(found, key=lambda it: (it.replica.stream.full_name, it.config.name))
    shown, left_out = known[:CONSUMERS_MAX], max(0, len(known) - CONSUMERS_MAX)
    labels = [(it.config.name, it.replica.stream.name, it.replica.stream.subject) for it in shown]
    for name, help_, value in _GAUGES:
        gauge = GaugeMetricFamily(f"jetstream_consumer_{name}", help_, labels=_LABELS)
        for label, consumer in zip(labels, shown, strict=True):
            if (amount := value(consumer)) is not None:
                gauge.add_metric(label, amount)
        yield gauge
    for name, help_, value in _COUNTERS:
        counter = CounterMetricFamily(f"jetstream_consumer_{name}", help_, labels=_LABELS)
        for label, consumer in zip(labels, shown, strict=True):
            counter.add_metric(label, value(consumer))
        yield counter
    yield GaugeMetricFamily(
        "jetstream_consumers_left_out", "Consumers that match beyond the limit", value=left_out
    )
