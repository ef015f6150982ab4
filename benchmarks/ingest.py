"""Ingest: plain NATS publishes with a reply, acknowledged by this server and by JetStream.

Both sides: the same loader process, one connection, PUB with a reply subject, at most 16,384
messages unacknowledged; nats-servers of the same binary; as many nodes as the stream has replicas;
nodes and data folders fresh for every run. This server adds a hop: its nats-server hands the
messages to a separate process, while JetStream stores them inside the nats-server. The load goes to
our only nats-server, and to the peer's server that leads the stream.

With several replicas every run is measured with one replica as well, under the same flush setting:
what is left of the rate is the price of replication.

Beside each rate stands the processor time that a message takes of all servers together: it survives
a busy machine better than a rate does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from benchmarks import jetstream_peer, this_server, usage
from benchmarks.load import WARM_UP_MESSAGES
from benchmarks.pairs import Pairs, Progress
from benchmarks.processes import run_json
from benchmarks.report import Report, environment


def run(
    sizes: list[int],
    pairs: int,
    load: list[str],
    replicas: int,
    flush: this_server.FlushName,
    peer_sync: str,
    progress: Progress,
) -> Report:
    """`load`: what tells the loader when to stop, for example ["--seconds", "4"]."""

    def ours(size: int, replicas: int, used: Used | None = None) -> float:
        with this_server.this_server(flush, replicas) as addresses:
            return _rate(addresses.nats_port, size, load, used)

    def peer(size: int, replicas: int, used: Used | None = None) -> float:
        with jetstream_peer.jetstream(peer_sync, replicas) as port:
            return _rate(port, size, load, used)

    results = []
    for size in sizes:
        ours_used, peer_used = Used(), Used()
        sides = {
            "ours": partial(ours, size, replicas, ours_used),
            "peer": partial(peer, size, replicas, peer_used),
        }
        if replicas > 1:
            sides |= {"ours_rf1": partial(ours, size, 1), "peer_rf1": partial(peer, size, 1)}
        measured = Pairs(size)
        measured.measure(pairs, sides, progress)
        processor = {
            "ours_nodes_us": ours_used.per_message(lambda seconds: seconds.nodes),
            "ours_nats_us": ours_used.per_message(lambda seconds: seconds.nats),
            "peer_us": peer_used.per_message(lambda seconds: seconds.nats),
        }
        results.append(measured.result() | processor)
    nodes = "one node" if replicas == 1 else f"{replicas} nodes here, {replicas} replicas"
    return Report(
        "ingest",
        f"this server, {nodes}, ack level all; {this_server.FLUSH_SETTINGS[flush]}",
        f"NATS JetStream, {nodes}, file storage; {jetstream_peer.flush_setting(peer_sync)}",
        results,
        environment(),
    )


class Used:
    """What the servers of one side took of the processor, run by run."""

    def __init__(self) -> None:
        self._runs: list[tuple[usage.ServerSeconds, int]] = []

    def add(self, seconds: usage.ServerSeconds, messages: int) -> None:
        self._runs.append((seconds, messages))

    def per_message(self, of: Callable[[usage.ServerSeconds], float]) -> float:
        """Median, in µs."""
        return round(median(1e6 * of(seconds) / messages for seconds, messages in self._runs), 2)


def _rate(nats_port: int, size: int, load: list[str], used: Used | None) -> float:
    arguments = ["--port", str(nats_port), "--subject", jetstream_peer.SUBJECT]
    before = usage.server_seconds()
    result = run_json("benchmarks.load", *arguments, "--size", str(size), *load)
    if used is not None:
        messages = result["messages"] + WARM_UP_MESSAGES
        used.add(usage.server_seconds().since(before), messages)
    return float(result["messages"] / result["seconds"])
