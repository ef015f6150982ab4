"""What a leaf link that is on and unused costs ingest, end to end: processor time of a message.

Two nodes of this server, each beside a nats-server of its own. One has a leaf link and serves the
JetStream API, which nobody asks anything; the other has none. Both get the load of `ingest`, in
turn, and begin in turn. Each pair of runs gives a ratio; the median of the ratios counts.
"""

from __future__ import annotations

from statistics import median

from benchmarks.consumers import api_server
from benchmarks.ingest import drive
from benchmarks.pairs import Progress, costs
from benchmarks.report import Column, Report, environment, thousands
from benchmarks.runs import Run

WARM_UP = ["--messages", "20000"]

TITLE = "ingest without and with an idle leaf link: node's processor time of a message, and rates"
COLUMNS = (
    Column("size", lambda r: f"{r['size']} B"),
    Column("off, µs", lambda r: f"{r['off_us']:.2f}"),
    Column("on, µs", lambda r: f"{r['on_us']:.2f}"),
    Column("the link costs", lambda r: f"{r['cost_percent']:+.1f} %"),
    Column("from", lambda r: f"{r['cost_percent_least']:+.1f} %"),
    Column("to", lambda r: f"{r['cost_percent_most']:+.1f} %"),
    Column("off: rate", lambda r: thousands(r["off_rate"])),
    Column("on: rate", lambda r: thousands(r["on_rate"])),
)


def run(sizes: list[int], pairs: int, load: list[str], progress: Progress) -> Report:
    """`load`: what tells the loader when to stop, for example ["--seconds", "4"]."""
    results = [_measured(size, pairs, load, progress) for size in sizes]
    return Report("idle-link", "with a leaf link", "without", results, environment())


def _measured(size: int, pairs: int, load: list[str], progress: Progress) -> dict[str, float]:
    runs: dict[str, list[Run]] = {"off": [], "on": []}
    with api_server(has_link=False) as off, api_server() as on:
        ports = {"off": off, "on": on}
        for port in ports.values():
            drive(port, size, WARM_UP)
        for pair in range(pairs):
            for side in list(ports)[:: 1 if pair % 2 == 0 else -1]:
                runs[side].append(drive(ports[side], size, load))
            found = ", ".join(f"{runs[side][-1].nodes_us:.2f} µs {side}" for side in ports)
            progress(f"{size} B, pair {pair + 1} of {pairs}: {found}")
    microseconds = {side: [each.nodes_us for each in runs[side]] for side in ports}
    rates = {f"{side}_rate": median(each.rate for each in runs[side]) for side in ports}
    return {"size": size} | costs(microseconds["off"], microseconds["on"]) | rates
