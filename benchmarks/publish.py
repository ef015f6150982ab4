"""Batched publishing from one Python process, against what a Python program has for the peer.

Ours: `client.publisher()` by its per-record API, by `publish_many`, and by `publish_many` straight
to the leader (`via="direct"`). JetStream: nats-py's
`publish_async`, and the raw socket loader of `ingest`, which no client library reaches. Kafka:
confluent-kafka, which is librdkafka. Liftbridge: its gRPC call PublishAsync. Nodes and data folders
are fresh for every run, but for Kafka and Liftbridge, which run elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks import jetstream_peer, this_server
from benchmarks.ingest import drive
from benchmarks.nats_socket import wait_for_port
from benchmarks.pairs import Pairs, Progress
from benchmarks.processes import HOST
from benchmarks.report import Column, Report, environment, thousands, times
from benchmarks.runs import Run, medians, run_load

OURS = ("send", "many", "direct")
SIDES_OF = {
    "jetstream": ("nats_py", "raw"),
    "kafka": ("kafka",),
    "liftbridge": ("liftbridge",),
}
"""The sides of a peer."""
REACH_SECONDS = 5.0

TITLE = "thousands of stored records per second from one process, medians"


def columns(report: Report) -> list[Column]:
    """Of the sides that were measured."""
    result = report.results[0]
    peers = [side for sides in SIDES_OF.values() for side in sides if side in result]
    found = [
        Column("replicas", lambda result: str(result["replicas"])),
        Column("size", lambda result: f"{result['size']} B"),
    ]
    for side in (*OURS, *peers):
        found.append(Column(side, partial(_rate_of, side)))
    for peer in peers:
        found += [Column(f"{ours} / {peer}", partial(_ratio_of, ours, peer)) for ours in OURS]
    for side in (*OURS, *peers):
        found.append(Column(f"{side} µs", partial(_processor_of, side)))
    return found


def _rate_of(side: str, result: dict[str, Any]) -> str:
    return thousands(result[side])


def _ratio_of(ours: str, peer: str, result: dict[str, Any]) -> str:
    return times(result[f"{ours}_over_{peer}"])


def _processor_of(side: str, result: dict[str, Any]) -> str:
    """Processor time per record: of the servers, as far as they are on this side, + the client."""
    servers = result[f"{side}_nodes_us"] + result[f"{side}_nats_us"]
    return f"{servers:.2f} + {result[f'{side}_client_us']:.2f}"


def run(
    sizes: list[int],
    pairs: int,
    seconds: float,
    replicas: list[int],
    peer: str,
    address: str,
    peer_sync: str,
    progress: Progress,
) -> Report:
    """address: of Kafka or Liftbridge; if it does not answer, only ours is measured."""
    missing = "" if peer == "jetstream" else _why_not(peer, address)
    if missing:
        progress(f"{missing}: only this server is measured")
    results = []
    for count in replicas:
        for size in sizes:
            sides: dict[str, Callable[[], Run]] = {
                api: partial(_ours, api, size, seconds, count) for api in OURS
            }
            if peer == "jetstream":
                sides["nats_py"] = partial(_nats_py, size, seconds, count, peer_sync)
                sides["raw"] = partial(_raw, size, seconds, count, peer_sync)
            elif not missing:
                load = [*_load(peer, address, size, seconds), "--replicas", str(count)]
                sides[peer] = partial(run_load, *load)
            measured = Pairs(size)
            measured.measure(pairs, sides, progress)
            results.append(_result(count, size, measured.runs))
    peers = {
        "jetstream": f"NATS JetStream, file storage; {jetstream_peer.flush_setting(peer_sync)}",
        "kafka": f"Kafka at {address}, confluent-kafka, acks=all",
        "liftbridge": f"Liftbridge at {address}, PublishAsync, acks of all replicas",
    }
    return Report(
        "publish",
        "this server, ack level all; flush: group at one replica, interval at more; beside the "
        "rates the processor time per record, of servers + client",
        missing or peers[peer],
        results,
        environment(),
    )


def _why_not(peer: str, address: str) -> str:
    """Why the peer cannot be measured; "" if it can."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return f"{peer} needs --address HOST:PORT"
    if peer == "kafka" and find_spec("confluent_kafka") is None:
        return "kafka needs a client: pip install confluent-kafka"
    try:
        wait_for_port(host, int(port), REACH_SECONDS)
    except TimeoutError:
        return f"{peer} does not answer at {address}"
    return ""


def _result(replicas: int, size: int, runs: dict[str, list[Run]]) -> dict[str, Any]:
    result: dict[str, Any] = {"replicas": replicas, "size": size}
    for side, found in runs.items():
        result |= medians(side, found)
    for ours in OURS:
        for peer in set(runs) - set(OURS):
            result[f"{ours}_over_{peer}"] = round(result[ours] / result[peer], 2)
    return result | {f"{side}_runs": [round(r.rate) for r in found] for side, found in runs.items()}


def _ours(api: str, size: int, seconds: float, replicas: int) -> Run:
    with this_server.this_server(this_server.default_flush(replicas), replicas) as addresses:
        return run_load(*_load(api, addresses.grpc, size, seconds))


def _nats_py(size: int, seconds: float, replicas: int, peer_sync: str) -> Run:
    with jetstream_peer.jetstream(peer_sync, replicas) as port:
        return run_load(*_load("nats-py", f"{HOST}:{port}", size, seconds))


def _raw(size: int, seconds: float, replicas: int, peer_sync: str) -> Run:
    with jetstream_peer.jetstream(peer_sync, replicas) as port:
        return drive(port, size, ["--seconds", str(seconds)])


def _load(api: str, server: str, size: int, seconds: float) -> list[str]:
    arguments = ["--api", api, "--server", server, "--size", str(size), "--seconds", str(seconds)]
    return ["benchmarks.publish_load", *arguments]
