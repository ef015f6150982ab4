"""Durations counted in buckets, and the measurement of one of them: the event loop's delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client import Histogram, disable_created_metrics
from prometheus_client.metrics_core import Metric

# Without this, each histogram has a gauge `*_created` beside it, which is not expected.
disable_created_metrics()  # type: ignore[no-untyped-call]

LOOP_CHECK_SECONDS = 0.1
_FLUSH_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Histograms:
    """The histograms of a node. `flush_seconds.observe` may be called on any thread."""

    def __init__(self) -> None:
        self.flush_seconds = Histogram(
            "jetstream_flush_seconds",
            "How long the flush of a log took",
            registry=None,
            buckets=_FLUSH_BUCKETS,
        )
        self.event_loop_lag_seconds = Histogram(
            "jetstream_event_loop_lag_seconds",
            "How late the event loop was, measured ten times a second",
            registry=None,
            buckets=_LAG_BUCKETS,
        )

    def collect(self) -> Iterator[Metric]:
        yield from self.flush_seconds.collect()
        yield from self.event_loop_lag_seconds.collect()


async def watch_loop(clock: Callable[[], int], observe: Callable[[float], object]) -> None:
    """Call `observe` for ever with the running loop's delay, in seconds. clock: in µs."""
    while True:
        due_us = clock() + round(LOOP_CHECK_SECONDS * 1e6)
        await asyncio.sleep(LOOP_CHECK_SECONDS)
        observe(max(0, clock() - due_us) / 1e6)
