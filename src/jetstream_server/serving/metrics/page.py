"""The page `/metrics`, in Prometheus' text format, written without blocking the event loop.

Everything is read from counters that the parts keep anyway. After REPLICAS_PER_TURN replicas, and
after each family, the page rests for PAUSE_SECONDS: what came in meanwhile takes several turns of
the loop, and the flusher's thread in between, until it is acknowledged. Only one page is written at
a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from typing import Protocol

from prometheus_client import ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from jetstream_server.clocks import MonotonicClock
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.grpc.cursor_lags import CursorLag
from jetstream_server.serving.metrics import consumer_series, cursor_series, stream_series
from jetstream_server.serving.metrics.histograms import Histograms
from jetstream_server.serving.metrics.sums import StreamSums, families

REPLICAS_PER_TURN = 200
"""Replicas per turn: about 1 ms of the event loop."""
PAUSE_SECONDS = 0.002
Matches = Callable[[str, str], bool]
"""Returns whether a stream of that name and `name@subject` is wanted."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Replicas(Iterable[Replica], Sized, Protocol):
    """The part of ReplicaManager that the page needs."""

    gone: Counters


class MetricsPage:
    """See the module."""

    def __init__(
        self,
        replicas: Replicas,
        of_node: Callable[[], Iterable[Metric]],
        histograms: Histograms,
        monotonic_clock: MonotonicClock,
        cursors: Callable[[Matches], Awaitable[tuple[list[CursorLag], int]]],
        consumers: Iterable[Consumer] = (),
    ) -> None:
        """of_node: everything but the sums over the streams. cursors: see CursorLags.find.
        consumers: those that this node serves."""
        self._consumers = consumers
        self._cursors = cursors
        self._replicas = replicas
        self._of_node = of_node
        self._histograms = histograms
        self._clock = monotonic_clock
        self._process = ProcessCollector(registry=None)
        self._writing = asyncio.Lock()

    async def text(self, streams: str = "") -> bytes:
        """The page. streams: a pattern; each stream that it matches has series of its own."""
        async with self._writing:
            sums = StreamSums()
            sums.counters.add(self._replicas.gone)
            found: list[Replica] = []
            for count, replica in enumerate(list(self._replicas), 1):
                sums.add(replica, self._clock())
                if streams and stream_series.matches(replica, streams):
                    found.append(replica)
                if count % REPLICAS_PER_TURN == 0:
                    await asyncio.sleep(PAUSE_SECONDS)
            parts = [_text(self._without_single_streams(sums))]
            await asyncio.sleep(PAUSE_SECONDS)
            if streams:
                for family in stream_series.series(found, self._clock()):
                    parts.append(_text([family]))
                    await asyncio.sleep(PAUSE_SECONDS)
                lags, left_out = await self._cursors(
                    lambda name, full_name: stream_series.names_match(name, full_name, streams)
                )
                parts.append(_text(cursor_series.series(lags, left_out)))
                await asyncio.sleep(PAUSE_SECONDS)
                shared = [
                    each for each in self._consumers if stream_series.matches(each.replica, streams)
                ]
                parts.append(_text(consumer_series.series(shared)))
            return b"".join(parts)

    def _without_single_streams(self, sums: StreamSums) -> Iterator[Metric]:
        yield from self._of_node()
        yield from families(sums)
        yield from self._histograms.collect()
        yield from self._process.collect()


class _Collected:
    """Metrics that were collected already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _text(metrics: Iterable[Metric]) -> bytes:
    return generate_latest(_Collected(metrics))
