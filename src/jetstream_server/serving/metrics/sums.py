"""Sums over the replicas of a node, for its metrics: ten thousand streams would have too many
series. Adding one replica takes some microseconds, so the caller divides the work."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.log_config import why_no_appends
from jetstream_server.replication.replica import Replica


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
