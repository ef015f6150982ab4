"""Ingest: plain NATS publishes with a reply, acknowledged by this server and by JetStream.

Both sides: the same loader process, one connection, PUB with a reply subject, at most 16,384
messages unacknowledged; a nats-server of the same binary; a stream of one replica on disk; server
and data folder fresh for every run. This server adds a hop: its nats-server hands the messages to
a separate process, while JetStream stores them inside the nats-server.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import jetstream_peer, this_server
from benchmarks.processes import run_json
from benchmarks.report import Pairs, Report, environment


def run(
    sizes: list[int],
    pairs: int,
    load: list[str],
    flush: this_server.FlushName,
    peer_sync: str,
    progress: Callable[[str], None],
) -> Report:
    """`load`: what tells the loader when to stop, for example ["--seconds", "4"]."""

    def ours(size: int) -> float:
        with this_server.this_server(flush) as addresses:
            return _rate(addresses.nats_port, size, load)

    def peer(size: int) -> float:
        with jetstream_peer.jetstream(peer_sync) as port:
            return _rate(port, size, load)

    results = []
    for size in sizes:
        measured = Pairs(size)
        for number in range(pairs):
            # Whoever goes first alternates too: neither side always meets the tidier machine.
            sides = [(ours, measured.ours), (peer, measured.peer)]
            for measure, rates in sides if number % 2 == 0 else reversed(sides):
                rates.append(measure(size))
            progress(
                f"{size} B, pair {number + 1} of {pairs}: "
                f"ours {measured.ours[-1]:,.0f}/s, peer {measured.peer[-1]:,.0f}/s"
            )
        results.append(measured.result())
    return Report(
        "ingest",
        f"this server; {this_server.FLUSH_SETTINGS[flush]}",
        f"NATS JetStream, file storage; {jetstream_peer.flush_setting(peer_sync)}",
        results,
        environment(),
    )


def _rate(nats_port: int, size: int, load: list[str]) -> float:
    arguments = ["--port", str(nats_port), "--subject", jetstream_peer.SUBJECT]
    result = run_json("benchmarks.load", *arguments, "--size", str(size), *load)
    return float(result["messages"] / result["seconds"])
