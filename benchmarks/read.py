"""Read: a whole stream from its start, every value made a Python object once.

Ours: the SDK's fetch loop. Peer: an ordered consumer on a raw socket (see read_jetstream.py),
lighter than any client library's. Both read what the same loader wrote, from servers that stay up
for all pairs of a size; the data is in the page cache on both sides.
"""

from __future__ import annotations

from functools import partial

from benchmarks import jetstream_peer, this_server
from benchmarks.pairs import Pairs, Progress
from benchmarks.processes import HOST, run_json
from benchmarks.report import Report, environment
from benchmarks.runs import Run, run_of
from benchmarks.usage import server_seconds


def run(
    sizes: list[int],
    pairs: int,
    messages: int,
    touch: str,
    progress: Progress,
) -> Report:
    """Read `messages` messages of each size, `pairs` times on either side."""
    results = []
    for size in sizes:
        measured = Pairs(size)
        with this_server.this_server() as addresses, jetstream_peer.jetstream() as peer_port:
            for port in (addresses.nats_port, peer_port):
                _fill(port, size, messages)
            progress(f"{size} B: {messages:,} messages written to each side")
            sides = {
                "ours": partial(_read, _ours(addresses.grpc, messages, touch), messages * size),
                "peer": partial(_read, _peer(peer_port, messages), messages * size),
            }
            measured.measure(pairs, sides, progress)
        results.append(measured.result())
    return Report(
        "read",
        f"this server; SDK fetch loop on the data plane, touching {touch}; "
        f"written with {this_server.FLUSH_SETTINGS['group']}",
        "NATS JetStream; ordered consumer on a raw socket, touching values; "
        f"written with {jetstream_peer.flush_setting('2m')}",
        results,
        environment(),
    )


def _fill(port: int, size: int, messages: int) -> None:
    arguments = ["--port", str(port), "--subject", jetstream_peer.SUBJECT, "--size", str(size)]
    run_json("benchmarks.load", *arguments, "--messages", str(messages), "--warm-up", "0")


def _read(arguments: list[str], bytes_min: int) -> Run:
    before = server_seconds()
    result = run_json(*arguments)
    if result["bytes"] < bytes_min:
        raise RuntimeError(f"{arguments}: read too little: {result}")
    return run_of(result, server_seconds().since(before))


def _ours(grpc: str, messages: int, touch: str) -> list[str]:
    return [
        "benchmarks.read_jetstream_log", "--server", grpc, "--stream", this_server.STREAM,
        "--messages", str(messages), "--touch", touch,
    ]  # fmt: skip


def _peer(port: int, messages: int) -> list[str]:
    return [
        "benchmarks.read_jetstream", "--host", HOST, "--port", str(port),
        "--stream", jetstream_peer.STREAM, "--messages", str(messages),
    ]  # fmt: skip
