"""Consumers of the JetStream API: what a delivery takes, against JetStream in the same run.

Both sides are read by the same client on a raw socket (consumer_load.py), from servers that stay up
for all pairs of a size. Ours answers over its leaf link, so each message passes one process more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import jetstream_peer, this_server
from benchmarks.nats_socket import wait_for_port
from benchmarks.pairs import Pairs, Progress
from benchmarks.processes import (
    HOST,
    START_SECONDS,
    data_folder,
    executable,
    free_port_base,
    run_json,
    server,
)
from benchmarks.report import Column, Report, environment
from benchmarks.runs import Run, run_of
from benchmarks.usage import server_seconds
from jetstream_client import Client

DOMAIN = "log"
WAYS = {
    "ordered push": (0, 1, 1), "pull of 500": (500, 1, 1), "pull of 1": (1, 20, 1),
    "push to 1,000": (0, 1, 1000),
}  # fmt: skip
"""The messages that are asked for at once, how much shorter a run is, and how many consumers get a
message."""

TITLE = "thousands of deliveries per second, medians"
WAY = Column("way", lambda result: str(result["way"]))


@contextmanager
def api_server(*, has_link: bool = True) -> Iterator[int]:
    """One node that serves the API, with an empty stream on SUBJECT; the port of its NATS.
    has_link: without one it serves no API."""
    with data_folder() as folder:
        base = free_port_base(this_server.PORTS + 1)
        nats, leaf = base + this_server.PORTS - 1, base + this_server.PORTS
        config = folder / "nats.conf"
        config.write_text(f'leafnodes {{ listen: "{HOST}:{leaf}" }}\n')
        beside = [
            executable("nats-server"), "--config", str(config), "--addr", HOST,
            "--port", str(nats),
        ]  # fmt: skip
        link = [
            f"JETSTREAM_NATS__API_DOMAIN={DOMAIN}",
            f'JETSTREAM_NATS__LEAF={{"servers":["nats://{HOST}:{leaf}"]}}',
        ]
        command = [
            "env", *(link if has_link else []), executable("jetstream-server"), "--dev", "--nats", f"nats://{HOST}:{nats}",
            "--data", str(folder / "data"), "--port-base", str(base), "--log-level", "warning",
        ]  # fmt: skip
        with server(beside, nats, folder), server(command, base, folder):
            wait_for_port(HOST, base, START_SECONDS)
            with Client(f"{HOST}:{base}") as client:
                client.create_stream(this_server.STREAM, subject=jetstream_peer.SUBJECT)
            yield nats


def run(sizes: list[int], pairs: int, messages: int, progress: Progress) -> Report:
    """Read `messages` messages of each size in each way, `pairs` times on either side."""
    results = []
    for size in sizes:
        with api_server() as port, jetstream_peer.jetstream() as peer_port:
            for each in (port, peer_port):
                _fill(each, size, messages)
            progress(f"{size} B: {messages:,} messages written to each side")
            for way, (batch, shorter, consumers) in WAYS.items():
                measured, count = Pairs(size), max(1, messages // shorter)
                api = f"$JS.{DOMAIN}.API"
                load = partial(_read, count, batch, consumers, size)
                ours = partial(load, port, api, this_server.STREAM)
                peer = partial(load, peer_port, "$JS.API", jetstream_peer.STREAM)
                measured.measure(pairs, {"ours": ours, "peer": peer}, progress)
                results.append({"way": way} | measured.result())
    return Report(
        "consumers",
        f"this server, one node, its API on a leaf link; {this_server.FLUSH_SETTINGS['group']}",
        f"NATS JetStream, one node; {jetstream_peer.flush_setting('2m')}",
        results,
        environment(),
    )


def _fill(port: int, size: int, messages: int) -> None:
    arguments = ["--port", str(port), "--subject", jetstream_peer.SUBJECT, "--size", str(size)]
    run_json("benchmarks.load", *arguments, "--messages", str(messages), "--warm-up", "0")


def _read(
    messages: int, batch: int, consumers: int, size: int, port: int, api: str, stream: str
) -> Run:
    before = server_seconds()
    result = run_json(
        "benchmarks.consumer_load", "--port", str(port), "--api", api, "--stream", stream,
        "--messages", str(messages), "--batch", str(batch), "--consumers", str(consumers),
        "--size", str(size),
    )  # fmt: skip
    return run_of(result, server_seconds().since(before))
