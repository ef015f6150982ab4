"""Sums over the replicas of a node, for its metrics: ten thousand streams would have too many
series. Adding one replica takes some microseconds, so the caller divides the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.log_config import why_no_appends
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.metrics.family_helpers import Row, labelled, numbers


@dataclass(slots=True)
class StreamSums:
    """replicas: on this node. led: those of them that this node leads; all fields after `segments`
    are about them. lags: the most by which a follower is behind in any stream, in records and µs;
    observer_lags: the same of observers."""

    replicas: int = 0
    offline: int = 0
    damaged: int = 0
    log_bytes: int = 0
    segments: int = 0
    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    lags: dict[NodeId, tuple[int, int]] = field(default_factory=dict)
    observer_lags: dict[NodeId, tuple[int, int]] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)

    def add(self, replica: Replica, now_us: MonotonicUs) -> None:
        log = replica.log
        self.replicas += 1
        self.offline += bool(why_no_appends(replica.stream.config, log))
        self.damaged += log.damage.is_damaged
        self.log_bytes += log.size_bytes
        self.segments += log.segment_count
        self.counters.add(replica.counters)
        if replica.leadership is not None:
            self._add_led(replica, replica.leadership, now_us)

    def _add_led(self, replica: Replica, leadership: LeaderState, now_us: MonotonicUs) -> None:
        self.led += 1
        self.under_replicated += len(leadership.isr) < len(replica.stream.replicas)
        self.under_min_isr += not leadership.can_commit
        stream = replica.stream
        for node_id in stream.copies:
            if node_id != replica.node_id:
                lags = self.lags if node_id in stream.replicas else self.observer_lags
                records, us = leadership.lag_of(node_id, now_us)
                most_records, most_us = lags.get(node_id, (0, 0))
                lags[node_id] = max(records, most_records), max(us, most_us)


_SUMS: tuple[Row[StreamSums], ...] = (
    ("streams", "Replicas held by this node", lambda s: s.replicas),
    ("streams_led", "Streams that this node leads", lambda s: s.led),
    ("streams_offline", "Replicas that take no appends: act on this", lambda s: s.offline),
    ("streams_damaged", "Replicas whose disk has lost records: act on this", lambda s: s.damaged),
    ("streams_under_replicated", "Streams led here with replicas out of sync",
        lambda s: s.under_replicated),
    ("streams_under_min_isr",
        "Streams led here that refuse publishers: too few replicas are in sync",
        lambda s: s.under_min_isr),
    ("log_bytes", "Bytes in all logs", lambda s: s.log_bytes),
    ("log_segments", "Segments of all logs", lambda s: s.segments),
)  # fmt: skip

_COUNTED: tuple[Row[Counters], ...] = (
    ("records_appended_total", "Records stored", lambda c: c.records_appended),
    ("bytes_appended_total", "Bytes of batches stored", lambda c: c.bytes_appended),
    ("acks_sent_total", "Acknowledgements sent", lambda c: c.acks_sent),
    ("acks_suppressed_total", "Acks requested on subjects outside ack_subjects",
        lambda c: c.acks_suppressed),
    ("duplicates_total", "Messages and batches that were stored already", lambda c: c.duplicates),
    ("suspected_gaps_total", "Times a stream may have missed messages without acks",
        lambda c: c.suspected_gaps),
    ("hand_overs_total", "Leaderships taken over by plan", lambda c: c.hand_overs),
    ("hand_over_gap_seconds_total", "Time during hand-overs without a subscription",
        lambda c: c.hand_over_gaps_us / 1e6),
)  # fmt: skip


def families(sums: StreamSums) -> Iterator[Metric]:
    yield from numbers(sums, _SUMS)
    yield from numbers(sums.counters, _COUNTED)
    nacks = sorted(sums.counters.nacks_by_code.items())
    yield labelled("nacks_sent_total", "Refusals sent", "reason", nacks)
    yield from _lag_families("replication", "a replica's node", sums.lags)
    yield from _lag_families("observer", "an observer's node", sums.observer_lags)


def _lag_families(
    prefix: str, what: str, lags: Mapping[NodeId, tuple[int, int]]
) -> Iterator[Metric]:
    by_node = sorted(lags.items())
    yield labelled(
        f"{prefix}_lag_records",
        f"The most by which {what} is behind in a stream led here",
        "follower",
        ((node_id, records) for node_id, (records, _) in by_node),
    )
    yield labelled(
        f"{prefix}_lag_seconds",
        "The longest time for which it has been behind in one",
        "follower",
        ((node_id, us / 1e6) for node_id, (_, us) in by_node),
    )
