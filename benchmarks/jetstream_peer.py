"""The peer: NATS JetStream, in nats-servers of the same binary, with file-backed streams.

A cluster of it is three nats-servers with routes between them. The load goes to the server that
leads the stream, its best case: anywhere else a message would make one hop more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.nats_socket import NatsSocket
from benchmarks.processes import HOST, data_folder, executable, free_port_base, server

STREAM = "BENCH"
SUBJECT = "bench.load"
READY_SECONDS = 30.0
REQUEST_SECONDS = 1.0
"""Without a metadata leader nobody answers: ask again soon. Creating again is harmless."""


class PeerServer(NamedTuple):
    name: str
    port: int
    pid: int
    command: list[str]
    folder: Path


def settings(sync: str) -> str:
    """The nats-server configuration; `sync` is its sync_interval.

    max_buffered_msgs is raised above the load's window: with its default of 10,000 the server may
    refuse messages instead of storing them.
    """
    return f"""
jetstream {{
  sync_interval: {sync}
  max_buffered_msgs: 65536
}}
"""


def _cluster_settings(name: str, port: int, ports: list[int]) -> str:
    routes = ", ".join(f"nats://{HOST}:{other}" for other in ports)
    return f"""
server_name: {name}
cluster {{
  name: benchmark
  listen: {HOST}:{port}
  routes: [{routes}]
}}
"""


def flush_setting(sync: str) -> str:
    """What the results say about this side's durability."""
    if sync == "always":
        return "sync_interval: always (fsync before each ack)"
    return f"sync_interval: {sync} (acks do not wait for fsync)"


@contextmanager
def servers(sync: str, count: int) -> Iterator[list[PeerServer]]:
    """`count` running nats-servers with JetStream, one cluster; without streams."""
    with ExitStack() as stack:
        base = free_port_base(2 * count)
        routes = list(range(base + count, base + 2 * count))
        started = []
        for number in range(count):
            folder = stack.enter_context(data_folder())
            name, port = f"n{number}", base + number
            config = folder / "nats.conf"
            text = settings(sync)
            if count > 1:
                text += _cluster_settings(name, routes[number], routes)
            config.write_text(text)
            command = [
                executable("nats-server"), "--config", str(config), "--jetstream",
                "--store_dir", str(folder), "--addr", HOST, "--port", str(port),
            ]  # fmt: skip
            pid = stack.enter_context(server(command, port, folder))
            started.append(PeerServer(name, port, pid, command, folder))
        yield started


def stream_settings(name: str, subject: str, replicas: int) -> dict[str, Any]:
    """The request that creates a stream: a plain log, nothing ever removed."""
    return {
        "name": name,
        "subjects": [subject],
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "num_replicas": replicas,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
    }


@contextmanager
def jetstream(sync: str = "2m", replicas: int = 1) -> Iterator[int]:
    """JetStream on that many servers with an empty stream on SUBJECT; the port of its leader."""
    with servers(sync, replicas) as started:
        with NatsSocket(HOST, started[0].port, REQUEST_SECONDS) as client:
            create_when_ready(client, stream_settings(STREAM, SUBJECT, replicas))
            leader = leader_of(client, replicas)
        yield next((one.port for one in started if one.name == leader), started[0].port)


def create_when_ready(client: NatsSocket, request: dict[str, Any]) -> None:
    """Create a stream as soon as the servers have found each other. Raises TimeoutError."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            client.request_json(f"$JS.API.STREAM.CREATE.{request['name']}", request)
            return
        except (RuntimeError, TimeoutError) as error:
            # No metadata leader yet, or one that does not know all servers yet.
            if time.monotonic() > deadline:
                raise TimeoutError(f"JetStream does not become ready: {error}") from error
            time.sleep(0.2)


def leader_of(client: NatsSocket, replicas: int) -> str:
    """The name of the stream's leader once every replica is current; "" on a single server."""
    deadline = time.monotonic() + READY_SECONDS
    while replicas > 1:
        cluster = client.request_json(f"$JS.API.STREAM.INFO.{STREAM}", {}).get("cluster", {})
        followers = cluster.get("replicas", [])
        if cluster.get("leader") and len([f for f in followers if f["current"]]) == replicas - 1:
            return str(cluster["leader"])
        if time.monotonic() > deadline:
            raise TimeoutError(f"JetStream's replicas do not become current: {cluster}")
        time.sleep(0.1)
    return ""
