"""Throughput of two sides, measured alternately; the side that goes first alternates, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.report import Column, spread, thousands, times

Progress = Callable[[str], None]
"""Takes one line about what has just been measured."""


@dataclass
class Pairs:
    """Messages per second of each side at one message size, run by run.

    Sides are "ours" and "peer", and with suffix "_rf1" the same on one node with one replica.
    """

    size: int
    runs: dict[str, list[float]] = field(default_factory=dict)

    def measure(
        self, pairs: int, sides: Mapping[str, Callable[[], float]], progress: Progress
    ) -> None:
        for number in range(pairs):
            # Neither side always meets the tidier machine.
            names = list(sides)[:: 1 if number % 2 == 0 else -1]
            for name in names:
                self.runs.setdefault(name, []).append(sides[name]())
            rates = ", ".join(f"{name} {self.runs[name][-1]:,.0f}/s" for name in sides)
            progress(f"{self.size} B, pair {number + 1} of {pairs}: {rates}")

    def result(self) -> dict[str, Any]:
        """Medians, their ratios, and the runs; rates are whole messages per second."""
        middle = {name: median(rates) for name, rates in self.runs.items()}
        result: dict[str, Any] = {"size": self.size}
        result |= {name: round(rate) for name, rate in middle.items()}
        result["ratio"] = round(middle["ours"] / middle["peer"], 2)
        for side in ("ours", "peer"):
            if f"{side}_rf1" in middle:
                result[f"{side}_over_rf1"] = round(middle[side] / middle[f"{side}_rf1"], 2)
        result |= {f"{name}_runs": [round(r) for r in runs] for name, runs in self.runs.items()}
        return result


TITLE = "thousands of messages per second, medians"
_RATES = (
    Column("size", lambda result: f"{result['size']} B"),
    Column("ours", lambda result: thousands(result["ours"])),
    Column("peer", lambda result: thousands(result["peer"])),
    Column("ratio", lambda result: times(result["ratio"])),
)
COLUMNS = (
    *_RATES,
    Column("ours: runs", lambda result: spread(result["ours_runs"], thousands)),
    Column("peer: runs", lambda result: spread(result["peer_runs"], thousands)),
)
_PROCESSOR = (
    Column("node µs", lambda result: f"{result['ours_nodes_us']:.2f}"),
    Column("NATS µs", lambda result: f"{result['ours_nats_us']:.2f}"),
    Column("peer µs", lambda result: f"{result['peer_us']:.2f}"),
)
"""Processor time per message of our nodes, of our nats-server, and of the peer's servers."""
INGEST_COLUMNS = (*_RATES, *_PROCESSOR)
INGEST_CLUSTER_COLUMNS = (
    *_RATES,
    Column("kept", lambda result: times(result["ours_over_rf1"])),
    Column("peer's", lambda result: times(result["peer_over_rf1"])),
    *_PROCESSOR,
)
