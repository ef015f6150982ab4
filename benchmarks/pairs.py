"""Throughput of the sides, measured alternately; the side that goes first alternates, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.report import Column, spread, thousands, times
from benchmarks.runs import Run, medians

Progress = Callable[[str], None]
"""Takes one line about what has just been measured."""


@dataclass
class Pairs:
    """The runs of each side at one message size.

    Sides are "ours" and "peer", with suffix "_rf1" the same on one node with one replica, and
    whatever a benchmark measures besides.
    """

    size: int
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def measure(
        self, pairs: int, sides: Mapping[str, Callable[[], Run]], progress: Progress
    ) -> None:
        for number in range(pairs):
            # Neither side always meets the tidier machine.
            names = list(sides)[:: 1 if number % 2 == 0 else -1]
            for name in names:
                self.runs.setdefault(name, []).append(sides[name]())
            rates = ", ".join(f"{name} {self.runs[name][-1].rate:,.0f}/s" for name in sides)
            progress(f"{self.size} B, pair {number + 1} of {pairs}: {rates}")

    def result(self) -> dict[str, Any]:
        """Medians, their ratios, and the rates of the runs, in whole messages per second."""
        result: dict[str, Any] = {"size": self.size}
        for name, runs in self.runs.items():
            result |= medians(name, runs)
        result["ratio"] = round(result["ours"] / result["peer"], 2)
        if "core" in self.runs:
            result["of_core"] = round(result["ours"] / result["core"], 2)
        for side in ("ours", "peer"):
            if f"{side}_rf1" in self.runs:
                result[f"{side}_over_rf1"] = round(result[side] / result[f"{side}_rf1"], 2)
        rates = {f"{name}_runs": [round(r.rate) for r in runs] for name, runs in self.runs.items()}
        return result | rates


def costs(off: Sequence[float], on: Sequence[float]) -> dict[str, float]:
    """What something costs that is off and on in turn: the medians of both sides' µs, and of the
    pairs' differences in per cent."""
    percent = [100 * (b / a - 1) for a, b in zip(off, on, strict=True)]
    return {
        "off_us": median(off),
        "on_us": median(on),
        "cost_percent": median(percent),
        "cost_percent_least": min(percent),
        "cost_percent_most": max(percent),
    }


TITLE = "thousands of messages per second, medians"
_RATES = (
    Column("size", lambda result: f"{result['size']} B"),
    Column("ours", lambda result: thousands(result["ours"])),
    Column("peer", lambda result: thousands(result["peer"])),
    Column("ratio", lambda result: times(result["ratio"])),
)
_PROCESSOR = (
    Column("node µs", lambda result: f"{result['ours_nodes_us']:.2f}"),
    Column("NATS µs", lambda result: f"{result['ours_nats_us']:.2f}"),
    Column("client µs", lambda result: f"{result['ours_client_us']:.2f}"),
    Column("peer µs", lambda result: f"{result['peer_nats_us']:.2f}"),
    Column("its client", lambda result: f"{result['peer_client_us']:.2f}"),
)
"""Processor time per message of our nodes, our nats-server and the load, and on the peer's side."""
COLUMNS = (
    *_RATES,
    Column("ours: runs", lambda result: spread(result["ours_runs"], thousands)),
    Column("peer: runs", lambda result: spread(result["peer_runs"], thousands)),
    *_PROCESSOR,
)
_CORE = (
    Column("core NATS", lambda result: thousands(result["core"])),
    Column("of it", lambda result: times(result["of_core"])),
)
INGEST_COLUMNS = (*_RATES, *_CORE, *_PROCESSOR)
INGEST_CLUSTER_COLUMNS = (
    *_RATES,
    *_CORE,
    Column("kept", lambda result: times(result["ours_over_rf1"])),
    Column("peer's", lambda result: times(result["peer_over_rf1"])),
    *_PROCESSOR,
)
