"""Catch-up: a follower that was killed and comes back to a log that has grown meanwhile.

Three nodes, three replicas. Clock and processor time run from the last moment at which the leader
says that the follower has got no further, to the moment at which it has everything: what a process
takes to start is no part of it. Both sides: the same messages, no disk waited for (`interval`,
`2m`); the leader is asked for the follower's position fifty times a second.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks import jetstream_peer, this_server
from benchmarks.jetstream_peer import STREAM as PEER_STREAM
from benchmarks.jetstream_peer import SUBJECT
from benchmarks.nats_socket import NatsSocket
from benchmarks.pairs import Progress
from benchmarks.processes import HOST, run_json, server
from benchmarks.report import Column, Report, environment, times
from benchmarks.usage import processor_seconds
from examples.cluster.local import node_name
from jetstream_client import Client

REPLICAS = 3
CATCH_UP_SECONDS = 120.0
POLL_SECONDS = 0.02
SIDES = ("ours", "peer")
FIGURES = ("megabytes_per_second", "leader_ms_per_gigabyte", "follower_ms_per_gigabyte")

TITLE = "catch-up of a follower, medians; MB of values"
COLUMNS = (
    Column("size", lambda r: f"{r['size']} B"),
    Column("ours: MB/s", lambda r: f"{r['ours_megabytes_per_second']:,.0f}"),
    Column("peer", lambda r: f"{r['peer_megabytes_per_second']:,.0f}"),
    Column("ratio", lambda r: times(r["ratio"])),
    Column("leader ms/GB", lambda r: f"{r['ours_leader_ms_per_gigabyte']:,.0f}"),
    Column("follower ms/GB", lambda r: f"{r['ours_follower_ms_per_gigabyte']:,.0f}"),
    Column("peer's leader", lambda r: f"{r['peer_leader_ms_per_gigabyte']:,.0f}"),
    Column("its follower", lambda r: f"{r['peer_follower_ms_per_gigabyte']:,.0f}"),
)

Found = dict[str, float]


class Sample(NamedTuple):
    """position: messages that the follower has. Processor seconds of both processes until then."""

    at: float
    position: int
    leader: float
    follower: float


def run(sizes: list[int], megabytes: int, pairs: int, progress: Progress) -> Report:
    """megabytes: of values that the follower misses."""
    results = []
    for size in sizes:
        messages = max(1, megabytes * 1_000_000 // size)
        measure = {"ours": partial(_ours, size, messages), "peer": partial(_peer, size, messages)}
        runs: dict[str, list[Found]] = {side: [] for side in SIDES}
        for number in range(pairs):
            for side in SIDES[:: 1 if number % 2 == 0 else -1]:
                runs[side].append(measure[side]())
            told = ", ".join(f"{s} {runs[s][-1]['megabytes_per_second']:,.0f} MB/s" for s in SIDES)
            progress(f"{size} B, pair {number + 1} of {pairs}: {told}")
        results.append(_result(size, messages, runs))
    return Report(
        "replicate",
        f"this server, {REPLICAS} nodes; {this_server.FLUSH_SETTINGS['interval']}",
        f"NATS JetStream, {REPLICAS} servers, file storage; {jetstream_peer.flush_setting('2m')}",
        results,
        environment(),
    )


def _result(size: int, messages: int, runs: dict[str, list[Found]]) -> dict[str, Any]:
    result: dict[str, Any] = {"size": size, "messages": messages}
    for side, found in runs.items():
        for name in FIGURES:
            result[f"{side}_{name}"] = round(median(each[name] for each in found), 1)
    both = [result[f"{side}_megabytes_per_second"] for side in SIDES]
    result["ratio"] = round(both[0] / both[1], 2)
    return result | {f"{side}_runs": found for side, found in runs.items()}


def _ours(size: int, messages: int) -> Found:
    with ExitStack() as stack:
        cluster, nats_port = stack.enter_context(this_server.local_cluster(REPLICAS))
        with Client(",".join(cluster.grpc_addresses), timeout=60) as client:
            stream = client.create_stream(
                this_server.STREAM, subject=SUBJECT, replicas=REPLICAS, flush="interval"
            )
            _publish(nats_port, size, 1)
            leader = stream.leader
            follower = next(node for node in stream.replicas if node != leader)
            cluster.kill_node(follower)
            _publish(nats_port, size, messages)
            cluster.start_node(follower)
            pids = [cluster.pids()[node_name(node)] for node in (leader, follower)]

            def position() -> int:
                progress = client.describe_stream(stream).progress
                return max((one.offset for one in progress if one.node == follower), default=-1)

            return _caught_up(position, messages + 1, pids, size)


def _peer(size: int, messages: int) -> Found:
    with ExitStack() as stack:
        servers = stack.enter_context(jetstream_peer.servers("2m", REPLICAS))
        with NatsSocket(HOST, servers[0].port, jetstream_peer.REQUEST_SECONDS) as client:
            settings = jetstream_peer.stream_settings(PEER_STREAM, SUBJECT, REPLICAS)
            jetstream_peer.create_when_ready(client, settings)
            name = jetstream_peer.leader_of(client, REPLICAS)
        leader = next(one for one in servers if one.name == name)
        follower = next(one for one in servers if one.name != name)
        _publish(leader.port, size, 1)
        os.kill(follower.pid, signal.SIGKILL)
        _publish(leader.port, size, messages)
        client = stack.enter_context(NatsSocket(HOST, leader.port, CATCH_UP_SECONDS))
        pid = stack.enter_context(server(follower.command, follower.port, follower.folder))

        def position() -> int:
            info = client.request_json(f"$JS.API.STREAM.INFO.{PEER_STREAM}", {})
            cluster = info["cluster"]
            if cluster.get("leader") != leader.name:
                raise RuntimeError(f"another server leads now: {cluster}")
            one = next(each for each in cluster["replicas"] if each["name"] == follower.name)
            if one.get("offline") or not (one["current"] or one.get("lag")):
                return -1
            return int(info["state"]["messages"]) - int(one.get("lag", 0))

        return _caught_up(position, messages + 1, [leader.pid, pid], size)


def _publish(nats_port: int, size: int, messages: int) -> None:
    arguments = ["--port", str(nats_port), "--subject", SUBJECT, "--size", str(size)]
    run_json("benchmarks.load", *arguments, "--messages", str(messages), "--warm-up", "0")


def _caught_up(position: Callable[[], int], end: int, pids: list[int], size: int) -> Found:
    """Wait until the follower has everything. pids: of leader and follower. Raises TimeoutError."""

    def sample() -> Sample:
        used = [processor_seconds([pid]) for pid in pids]
        return Sample(time.perf_counter(), position(), *used)

    samples = [sample()]
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while samples[-1].position < end:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the follower has {samples[-1].position} of {end} messages")
        time.sleep(POLL_SECONDS)
        samples.append(sample())
    # At first the leader may tell what it knew before the kill: the catch-up begins at the least.
    first = min(reversed(samples), key=lambda each: each.position)
    last = samples[-1]
    gigabytes = max(1, last.position - max(0, first.position)) * size / 1e9
    return {
        "megabytes_per_second": 1000 * gigabytes / max(last.at - first.at, POLL_SECONDS),
        "leader_ms_per_gigabyte": 1000 * (last.leader - first.leader) / gigabytes,
        "follower_ms_per_gigabyte": 1000 * (last.follower - first.follower) / gigabytes,
    }
