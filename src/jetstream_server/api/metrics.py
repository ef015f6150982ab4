"""The node's numbers in Prometheus' form, read from the running parts when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jetstream_server.replication.replicas import Replicas


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """What is not per stream."""

    data_plane_connections: int
    waiting_fetches: int
    nats_disconnects: int
    nats_reconnects: int
    pending_acks: int
    uncommitted_bytes: int
    scrubbed_bytes: int
    damaged_ranges_found: int
    damaged_ranges_repaired: int


class NodeMetrics(Collector):
    """Sums over the streams of this node: with ten thousand streams a series each is a burden."""

    def __init__(
        self, replicas: Replicas, numbers: Callable[[], NodeNumbers], *, ingest_form: str
    ) -> None:
        """ingest_form: how the hot path of ingest runs, `compiled` or `python`."""
        self._ingest_form = ingest_form
        self._replicas = replicas
        self._numbers = numbers

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "jetstream_build_info", "What runs: always 1", labels=["version", "ingest"]
        )
        build.add_metric([version("jetstream-log"), self._ingest_form], 1)
        yield build
        numbers = self._numbers()
        replicas = list(self._replicas)
        offline = sum(1 for replica in replicas if replica.log.offline_reason)
        damaged = sum(1 for replica in replicas if replica.log.damage.is_damaged)
        counters = [replica.counters for replica in replicas]
        for name, text, value in (
            ("streams", "Replicas held by this node", len(replicas)),
            ("streams_offline", "Replicas that take no appends: act on this", offline),
            ("streams_damaged", "Replicas whose disk has lost records: act on this", damaged),
            ("log_bytes", "Bytes in all logs", sum(r.log.size_bytes for r in replicas)),
            ("pending_acks", "Acknowledgements that wait for a commit", numbers.pending_acks),
            ("uncommitted_bytes", "Appended and not committed", numbers.uncommitted_bytes),
            ("waiting_fetches", "Long polls, over both ports", numbers.waiting_fetches),
            ("data_plane_connections", "Open connections", numbers.data_plane_connections),
        ):
            yield GaugeMetricFamily(f"jetstream_{name}", text, value)
        totals: tuple[tuple[str, str, float], ...] = (
            ("records_appended", "Records stored", sum(c.records_appended for c in counters)),
            ("bytes_appended", "Bytes of batches stored", sum(c.bytes_appended for c in counters)),
            ("acks_sent", "Acknowledgements sent", sum(c.acks_sent for c in counters)),
            ("nacks_sent", "Refusals sent", sum(c.nacks_sent for c in counters)),
            (
                "acks_suppressed",
                "Acks asked for on subjects outside ack_subjects",
                sum(c.acks_suppressed for c in counters),
            ),
            ("hand_overs", "Leaderships taken over by plan", sum(c.hand_overs for c in counters)),
            (
                "hand_over_gap_seconds",
                "For how long nobody listened at them, in all",
                sum(c.hand_over_gaps_us for c in counters) / 1e6,
            ),
            ("nats_disconnects", "Losses of the NATS connection", numbers.nats_disconnects),
            ("nats_reconnects", "NATS connections made anew", numbers.nats_reconnects),
            ("scrubbed_bytes", "Read by the scrub", numbers.scrubbed_bytes),
            (
                "damaged_ranges_found",
                "Ranges of records that a disk has lost",
                numbers.damaged_ranges_found,
            ),
            (
                "damaged_ranges_repaired",
                "Of these, fetched again from another replica",
                numbers.damaged_ranges_repaired,
            ),
        )
        for name, text, total in totals:
            yield CounterMetricFamily(f"jetstream_{name}", text, total)
