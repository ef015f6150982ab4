"""Batched publishing from one Python process, against JetStream's asynchronous publish.

Ours: `client.publisher()` by its per-record API and by `publish_many`. JetStream: nats-py's
`publish_async`, which is what a Python program has, and the raw socket loader of `ingest`, which
no client library reaches. Nodes and data folders are fresh for every run.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

from benchmarks import jetstream_peer, this_server
from benchmarks.pairs import Pairs, Progress
from benchmarks.processes import HOST, run_json
from benchmarks.report import Column, Report, environment, thousands, times

SIDES = ("send", "many", "nats_py", "raw")

TITLE = "thousands of stored records per second from one process, medians"
COLUMNS = (
    Column("replicas", lambda result: str(result["replicas"])),
    Column("size", lambda result: f"{result['size']} B"),
    Column("ours: send", lambda result: thousands(result["send"])),
    Column("ours: many", lambda result: thousands(result["many"])),
    Column("peer: nats-py", lambda result: thousands(result["nats_py"])),
    Column("peer: raw", lambda result: thousands(result["raw"])),
    Column("send / nats-py", lambda result: times(result["send_over_nats_py"])),
    Column("many / nats-py", lambda result: times(result["many_over_nats_py"])),
    Column("many / raw", lambda result: times(result["many_over_raw"])),
)


def run(
    sizes: list[int],
    pairs: int,
    seconds: float,
    replicas: list[int],
    peer_sync: str,
    progress: Progress,
) -> Report:
    results = []
    for count in replicas:
        for size in sizes:
            measured = Pairs(size)
            sides = {
                "send": partial(_ours, "send", size, seconds, count),
                "many": partial(_ours, "many", size, seconds, count),
                "nats_py": partial(_nats_py, size, seconds, count, peer_sync),
                "raw": partial(_raw, size, seconds, count, peer_sync),
            }
            measured.measure(pairs, sides, progress)
            results.append(_result(count, size, measured.runs))
    return Report(
        "publish",
        "this server, ack level all; flush: group at one replica, interval at more",
        f"NATS JetStream, file storage; {jetstream_peer.flush_setting(peer_sync)}",
        results,
        environment(),
    )


def _result(replicas: int, size: int, runs: dict[str, list[float]]) -> dict[str, Any]:
    middle = {name: median(rates) for name, rates in runs.items()}
    result: dict[str, Any] = {"replicas": replicas, "size": size}
    result |= {name: round(rate) for name, rate in middle.items()}
    for ours in ("send", "many"):
        for peer in ("nats_py", "raw"):
            result[f"{ours}_over_{peer}"] = round(middle[ours] / middle[peer], 2)
    result |= {f"{name}_runs": [round(rate) for rate in rates] for name, rates in runs.items()}
    return result


def _ours(api: str, size: int, seconds: float, replicas: int) -> float:
    with this_server.this_server(this_server.default_flush(replicas), replicas) as addresses:
        return _rate("benchmarks.publish_load", api, addresses.grpc, size, seconds)


def _nats_py(size: int, seconds: float, replicas: int, peer_sync: str) -> float:
    with jetstream_peer.jetstream(peer_sync, replicas) as port:
        return _rate("benchmarks.publish_load", "nats-py", f"{HOST}:{port}", size, seconds)


def _raw(size: int, seconds: float, replicas: int, peer_sync: str) -> float:
    with jetstream_peer.jetstream(peer_sync, replicas) as port:
        arguments = ["--port", str(port), "--subject", jetstream_peer.SUBJECT, "--size", str(size)]
        result = run_json("benchmarks.load", *arguments, "--seconds", str(seconds))
    return float(result["messages"] / result["seconds"])


def _rate(module: str, api: str, server: str, size: int, seconds: float) -> float:
    arguments = ["--api", api, "--server", server, "--size", str(size), "--seconds", str(seconds)]
    result = run_json(module, *arguments)
    return float(result["messages"] / result["seconds"])
