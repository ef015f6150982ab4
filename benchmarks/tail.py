"""Tail: readers at the head of a stream that is being published to.

A message is published at a steady rate, and every reader gets every message. Ours: readers that
follow the stream over a data-plane connection each, as the SDK does.
JetStream: as many ordered consumers, on a connection each. Both are as light as possible and share
one process (tail_readers.py), since it is the servers that are measured: their processor time for
each message delivered, with the publishing in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks import jetstream_peer, this_server
from benchmarks.open_loop import counts
from benchmarks.pairs import Progress
from benchmarks.processes import HOST, run_json
from benchmarks.report import Column, Report, environment, times
from benchmarks.runs import PROCESSOR, Run, run_of
from benchmarks.tail_readers import READY
from benchmarks.usage import server_seconds

SIDES = ("ours", "peer")

TITLE = "µs of the servers' processor per delivered message, medians; below 1 × ours takes less"
COLUMNS = (
    Column("readers", lambda r: f"{r['readers']:,}"),
    Column("size", lambda r: f"{r['size']} B"),
    Column("published/s", lambda r: f"{r['rate']:,}"),
    Column("ours", lambda r: f"{r['ours_servers_us']:.2f}"),
    Column("peer", lambda r: f"{r['peer_servers_us']:.2f}"),
    Column("ratio", lambda r: times(r["ratio"])),
    Column("node µs", lambda r: f"{r['ours_nodes_us']:.2f}"),
    Column("NATS µs", lambda r: f"{r['ours_nats_us']:.2f}"),
    Column("readers µs", lambda r: f"{r['ours_client_us']:.2f}"),
    Column("peer's readers", lambda r: f"{r['peer_client_us']:.2f}"),
)


def run(
    readers: list[int],
    sizes: list[int],
    rates: list[int],
    seconds: float,
    pairs: int,
    progress: Progress,
) -> Report:
    """rates: messages published per second."""
    results = []
    for count in readers:
        for size in sizes:
            for rate in rates:
                runs: dict[str, list[Run]] = {side: [] for side in SIDES}
                for number in range(pairs):
                    for side in SIDES[:: 1 if number % 2 == 0 else -1]:
                        runs[side].append(_measure(side, count, size, rate, seconds))
                    told = ", ".join(f"{s} {_servers_us(runs[s][-1]):.2f} µs" for s in SIDES)
                    progress(
                        f"{count} readers, {size} B, {rate}/s, pair {number + 1} of {pairs}: {told}"
                    )
                results.append(_result(count, size, rate, runs))
    return Report(
        "tail",
        "this server, one node, follows on the data plane; "
        f"{this_server.FLUSH_SETTINGS['interval']}",
        "NATS JetStream, one node, ordered consumers on raw sockets; "
        f"{jetstream_peer.flush_setting('2m')}",
        results,
        environment(),
    )


def _servers_us(run: Run) -> float:
    return run.nodes_us + run.nats_us


def _result(readers: int, size: int, rate: int, runs: dict[str, list[Run]]) -> dict[str, Any]:
    result: dict[str, Any] = {"readers": readers, "size": size, "rate": rate}
    for side, found in runs.items():
        result[f"{side}_servers_us"] = round(median(map(_servers_us, found)), 2)
        for name in PROCESSOR:
            result[f"{side}_{name}"] = round(median(getattr(one, name) for one in found), 2)
    both = [result[f"{side}_servers_us"] for side in SIDES]
    result["ratio"] = round(both[0] / both[1], 2) if both[1] else 0.0
    return result | {f"{side}_runs": [one._asdict() for one in runs[side]] for side in SIDES}


def _measure(side: str, readers: int, size: int, rate: int, seconds: float) -> Run:
    if side == "ours":
        with this_server.this_server("interval") as addresses:
            data = f"{HOST}:{int(addresses.grpc.rpartition(':')[2]) + 1}"
            return _read(side, data, addresses.nats_port, readers, size, rate, seconds)
    with jetstream_peer.jetstream() as port:
        return _read(side, f"{HOST}:{port}", port, readers, size, rate, seconds)


def _read(
    side: str, server: str, nats_port: int, readers: int, size: int, rate: int, seconds: float
) -> Run:
    """server: where the readers connect."""
    command = [
        sys.executable, "-m", "benchmarks.tail_readers", "--side", side, "--server", server,
        "--readers", str(readers), "--messages", str(sum(counts(rate, seconds))),
    ]  # fmt: skip
    reading = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert reading.stdout is not None
        if reading.stdout.readline() != READY:
            raise RuntimeError("the readers did not start")
        before = server_seconds()
        run_json(
            "benchmarks.open_loop", "--port", str(nats_port), "--subject", jetstream_peer.SUBJECT,
            "--size", str(size), "--rate", str(rate), "--seconds", str(seconds),
        )  # fmt: skip
        result, _ = reading.communicate()
        servers = server_seconds().since(before)
    finally:
        reading.kill()
        reading.wait()
    if reading.returncode:
        raise RuntimeError("the readers have failed")
    return run_of(json.loads(result), servers)
