"""Ingest: plain NATS publishes with a reply, acknowledged by this server and by JetStream.

Both sides: the same loader process, one connection, PUB with a reply subject, at most 16,384
messages unacknowledged; nats-servers of the same binary; as many nodes as the stream has replicas;
nodes and data folders fresh for every run. This server adds a hop: its nats-server hands the
messages to a separate process, while JetStream stores them inside the nats-server. The load goes to
our only nats-server, and to the peer's server that leads the stream.

With several replicas every run is measured with one replica as well, under the same flush setting:
what is left of the rate is the price of replication.

Core NATS is the ceiling: the same load through a nats-server that stores nothing, to one subscriber
that counts the messages (core_nats.py).

Beside each rate stands the processor time that a message takes of all servers together, and of the
loader: it survives a busy machine better than a rate does.
"""

from __future__ import annotations

from functools import partial

from benchmarks import jetstream_peer, this_server
from benchmarks.core_nats import core_nats
from benchmarks.pairs import Pairs, Progress
from benchmarks.report import Report, environment
from benchmarks.runs import Run, run_load


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

    def ours(size: int, replicas: int) -> Run:
        with this_server.this_server(flush, replicas) as addresses:
            return drive(addresses.nats_port, size, load)

    def peer(size: int, replicas: int) -> Run:
        with jetstream_peer.jetstream(peer_sync, replicas) as port:
            return drive(port, size, load)

    def core(size: int) -> Run:
        with core_nats() as port:
            return drive(port, size, load)

    results = []
    for size in sizes:
        sides = {
            "ours": partial(ours, size, replicas),
            "peer": partial(peer, size, replicas),
            "core": partial(core, size),
        }
        if replicas > 1:
            sides |= {"ours_rf1": partial(ours, size, 1), "peer_rf1": partial(peer, size, 1)}
        measured = Pairs(size)
        measured.measure(pairs, sides, progress)
        results.append({"replicas": replicas} | measured.result())
    nodes = "one node" if replicas == 1 else f"{replicas} nodes here, {replicas} replicas"
    return Report(
        "ingest",
        f"this server, {nodes}, ack level all; {this_server.FLUSH_SETTINGS[flush]}",
        f"NATS JetStream, {nodes}, file storage; {jetstream_peer.flush_setting(peer_sync)}",
        results,
        environment(),
    )


def drive(nats_port: int, size: int, load: list[str]) -> Run:
    """One run of the loader."""
    arguments = ["--port", str(nats_port), "--subject", jetstream_peer.SUBJECT]
    return run_load("benchmarks.load", *arguments, "--size", str(size), *load)
