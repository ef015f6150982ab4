"""Latency of an acknowledged publish, at one replica and at three.

One at a time: the next message is sent when the ack of the last one has come (round_trips.py). Open
loop: messages are sent on a schedule, half of what the slower side can take, and timed from the
moment when they were due (open_loop.py).

All sides: the same loader process on one connection; nodes and data folders fresh for every run. A
message to this server passes one more process: nats-server, node, and back; "direct" are batches of
one record that go straight to the leader (one at a time only). The limit of everything that answers
from outside the nats-server is a bare request and its reply, by a process with a blocking socket
(core_nats.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean, median
from typing import Any

from benchmarks import jetstream_peer, this_server
from benchmarks.core_nats import core_nats
from benchmarks.ingest import drive
from benchmarks.pairs import Progress
from benchmarks.processes import run_json
from benchmarks.report import Column, Report, environment, times
from benchmarks.usage import processor_seconds, server_seconds

PERCENTILES = ("p50_us", "p99_us", "p999_us")
SIDES = ("ours", "direct", "peer", "bare")
ONE_AT_A_TIME = "benchmarks.round_trips"
CAPACITY_SECONDS = 1.0
LOAD_SHARE = 0.5
"""Of the slower side's rate."""

Found = dict[str, float]
"""What one run found: percentiles, and processor time per message."""
LoadOf = Callable[[int, int], list[str]]
"""For so many replicas and that size: the module of the load, and its arguments."""


def one_at_a_time(messages: int) -> LoadOf:
    """That many round trips in each run."""
    return lambda _replicas, _size: [ONE_AT_A_TIME, "--messages", str(messages)]


def open_loop(
    seconds: float,
    rate: int | None,
    flush: this_server.FlushName,
    peer_sync: str,
    progress: Progress,
) -> LoadOf:
    """Messages on a schedule. rate: per second; None: LOAD_SHARE of what both sides can take."""

    def load(replicas: int, size: int) -> list[str]:
        chosen = rate
        if chosen is None:
            run = ["--seconds", str(CAPACITY_SECONDS)]
            with this_server.this_server(flush, replicas) as addresses:
                ours = drive(addresses.nats_port, size, run).rate
            with jetstream_peer.jetstream(peer_sync, replicas) as port:
                peer = drive(port, size, run).rate
            chosen = max(1, int(LOAD_SHARE * min(ours, peer)))
            progress(f"RF {replicas}, {size} B: ours {ours:,.0f}/s, peer {peer:,.0f}/s")
        return ["benchmarks.open_loop", "--rate", str(chosen), "--seconds", str(seconds)]

    return load


def run(
    sizes: list[int],
    pairs: int,
    load_of: LoadOf,
    replicas: list[int],
    flush: this_server.FlushName,
    peer_sync: str,
    progress: Progress,
) -> Report:
    results = []
    for copies in replicas:
        for size in sizes:
            load = [*load_of(copies, size), "--size", str(size)]
            measure = {
                "ours": partial(_ours, load, flush, copies),
                "direct": partial(_direct, load, flush, copies),
                "peer": partial(_peer, load, peer_sync, copies),
                "bare": partial(_bare, load),
            }
            sides = [side for side in SIDES if side != "direct" or load[0] == ONE_AT_A_TIME]
            runs: dict[str, list[Found]] = {side: [] for side in sides}
            for number in range(pairs):
                for side in sides[:: 1 if number % 2 == 0 else -1]:
                    runs[side].append(measure[side]())
                told = ", ".join(f"{side} {runs[side][-1]['p50_us']:,.0f} µs" for side in runs)
                progress(f"RF {copies}, {size} B, pair {number + 1} of {pairs}: p50 {told}")
            results.append(_result(copies, size, runs))
    return Report(
        "latency",
        f"this server, one node per replica, ack level all; {this_server.FLUSH_SETTINGS[flush]}",
        f"NATS JetStream, one server per replica, file storage; "
        f"{jetstream_peer.flush_setting(peer_sync)}; bare: a NATS request and its reply",
        results,
        environment(),
    )


def _ours(load: list[str], flush: this_server.FlushName, replicas: int) -> Found:
    """With the processor time of leader and followers apart."""
    with this_server.this_server(flush, replicas) as addresses:
        leader = this_server.leader(addresses)
        return _by_node(addresses, leader, partial(_timed, load, addresses.nats_port))


def _direct(load: list[str], flush: this_server.FlushName, replicas: int) -> Found:
    with this_server.this_server(flush, replicas) as addresses:
        leader = this_server.leader(addresses)
        load = [*load, "--stream", this_server.STREAM]
        port = this_server.data_plane_port(addresses, leader)
        return _by_node(addresses, leader, partial(_timed, load, port))


def _by_node(addresses: this_server.Addresses, leader: int, measure: Callable[[], Found]) -> Found:
    before = [processor_seconds([pid]) for pid in addresses.pids]
    found = measure()
    after = [processor_seconds([pid]) for pid in addresses.pids]
    messages = found["messages"] + found["warm_up"]
    used = [1e6 * (b - a) / messages for a, b in zip(before, after, strict=True)]
    found["leader_us"] = used.pop(leader)
    return found | ({"follower_us": mean(used)} if used else {})


def _peer(load: list[str], peer_sync: str, replicas: int) -> Found:
    with jetstream_peer.jetstream(peer_sync, replicas) as port:
        return _timed(load, port)


def _bare(load: list[str]) -> Found:
    with core_nats() as port:
        return _timed(load, port)


def _timed(load: list[str], port: int) -> Found:
    module, *arguments = load
    before = server_seconds()
    found = run_json(module, *arguments, "--port", str(port), "--subject", jetstream_peer.SUBJECT)
    nats = server_seconds().since(before).nats
    found["nats_us"] = 1e6 * nats / (found["messages"] + found["warm_up"])
    found["client_us"] = 1e6 * found["processor_seconds"] / found["messages"]
    found["rate"] = found["messages"] / found["seconds"]
    return found


def _result(replicas: int, size: int, runs: dict[str, list[Found]]) -> dict[str, Any]:
    """Medians over the runs, and ours over the others': below 1 is faster."""
    result: dict[str, Any] = {"replicas": replicas, "size": size}
    for side, found in runs.items():
        for name in sorted(set(found[0]) - {"messages", "warm_up", "seconds", "processor_seconds"}):
            result[f"{side}_{name}"] = round(median(run[name] for run in found), 1)
    for percentile in PERCENTILES:
        name = percentile.removesuffix("_us")
        for side, prefix in (("ours", ""), ("direct", "direct_")):
            for other, ratio in (("peer", "ratio"), ("bare", "bare_ratio")):
                if side in runs:
                    both = result[f"{side}_{percentile}"], result[f"{other}_{percentile}"]
                    result[f"{prefix}{ratio}_{name}"] = round(both[0] / both[1], 2)
    return result | {f"{side}_runs": found for side, found in runs.items()}


def _us(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda result: f"{result[name]:,.0f}" if name in result else ""


def _times(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda result: times(result[name])


TITLE = "µs per acknowledged publish, medians; below 1 × ours is faster"
_FIRST = (
    Column("RF", lambda result: str(result["replicas"])),
    Column("size", lambda result: f"{result['size']} B"),
)
_PROCESSOR = (
    Column("leader µs", _us("ours_leader_us")),
    Column("follower", _us("ours_follower_us")),
    Column("NATS", _us("ours_nats_us")),
    Column("client", _us("ours_client_us")),
    Column("peer µs", _us("peer_nats_us")),
)
"""Processor time of a message."""
COLUMNS: tuple[Column, ...] = (
    *_FIRST,
    Column("p50: ours", _us("ours_p50_us")),
    Column("peer", _us("peer_p50_us")),
    Column("ratio", _times("ratio_p50")),
    Column("bare", _us("bare_p50_us")),
    Column("ratio", _times("bare_ratio_p50")),
    Column("p99: ours", _us("ours_p99_us")),
    Column("peer", _us("peer_p99_us")),
    Column("ratio", _times("ratio_p99")),
    *_PROCESSOR,
    Column("p50: direct", _us("direct_p50_us")),
    Column("ratio", _times("direct_ratio_p50")),
    Column("p99: direct", _us("direct_p99_us")),
    Column("leader µs", _us("direct_leader_us")),
    Column("follower", _us("direct_follower_us")),
)
OPEN_LOOP_COLUMNS: tuple[Column, ...] = (
    *_FIRST,
    Column("a second", _us("ours_rate")),
    *(
        Column(heading, text)
        for name in ("p50", "p99", "p999")
        for heading, text in (
            (f"{name.replace('999', '99.9')}: ours", _us(f"ours_{name}_us")),
            ("peer", _us(f"peer_{name}_us")),
            ("ratio", _times(f"ratio_{name}")),
            ("bare", _us(f"bare_{name}_us")),
        )
    ),
    *_PROCESSOR,
)
