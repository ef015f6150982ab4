"""Latency: one acknowledged publish at a time, at one replica and at three.

Both sides: the same loader process on one connection, the next message sent when the ack of the
last one has come; nodes and data folders fresh for every run. A message to this server passes one
more process: nats-server, node, and back.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks import jetstream_peer, this_server
from benchmarks.pairs import Progress
from benchmarks.processes import run_json
from benchmarks.report import Column, Report, environment, times

PERCENTILES = ("p50_us", "p99_us")


def run(
    sizes: list[int],
    pairs: int,
    messages: int,
    replicas: list[int],
    flush: this_server.FlushName,
    peer_sync: str,
    progress: Progress,
) -> Report:
    """`messages` round trips in each run."""
    results = []
    for copies in replicas:
        for size in sizes:
            runs: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
            for number in range(pairs):
                for side in ("ours", "peer") if number % 2 == 0 else ("peer", "ours"):
                    if side == "ours":
                        with this_server.this_server(flush, copies) as addresses:
                            found = _trips(addresses.nats_port, size, messages)
                    else:
                        with jetstream_peer.jetstream(peer_sync, copies) as port:
                            found = _trips(port, size, messages)
                    runs[side].append(found)
                told = ", ".join(f"{side} {runs[side][-1]['p50_us']:,.0f} µs" for side in runs)
                progress(f"RF {copies}, {size} B, pair {number + 1} of {pairs}: p50 {told}")
            results.append(_result(copies, size, runs))
    return Report(
        "latency",
        f"this server, one node per replica, ack level all; {this_server.FLUSH_SETTINGS[flush]}",
        f"NATS JetStream, one server per replica, file storage; "
        f"{jetstream_peer.flush_setting(peer_sync)}",
        results,
        environment(),
    )


def _trips(port: int, size: int, messages: int) -> dict[str, float]:
    return run_json(
        "benchmarks.round_trips", "--port", str(port), "--subject", jetstream_peer.SUBJECT,
        "--size", str(size), "--messages", str(messages),
    )  # fmt: skip


def _result(replicas: int, size: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians over the runs of each percentile, and ours over the peer's: below 1 is faster."""
    result: dict[str, Any] = {"replicas": replicas, "size": size}
    for percentile in PERCENTILES:
        name = percentile.removesuffix("_us")
        values = {side: median(run[percentile] for run in found) for side, found in runs.items()}
        result |= {f"{side}_{percentile}": round(value) for side, value in values.items()}
        result[f"ratio_{name}"] = round(values["ours"] / values["peer"], 2)
    return result | {f"{side}_runs": found for side, found in runs.items()}


TITLE = "µs per acknowledged publish, medians; below 1 × ours is faster"
COLUMNS = (
    Column("RF", lambda result: str(result["replicas"])),
    Column("size", lambda result: f"{result['size']} B"),
    Column("p50: ours", lambda result: f"{result['ours_p50_us']:,}"),
    Column("peer", lambda result: f"{result['peer_p50_us']:,}"),
    Column("ratio", lambda result: times(result["ratio_p50"])),
    Column("p99: ours", lambda result: f"{result['ours_p99_us']:,}"),
    Column("peer", lambda result: f"{result['peer_p99_us']:,}"),
    Column("ratio", lambda result: times(result["ratio_p99"])),
)
