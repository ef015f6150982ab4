"""This server: one node with a nats-server of its own, or a cluster of nodes beside one.

A cluster is what `scripts/cluster` starts: each node a process, one nats-server beside them, to
which the load goes and every node subscribes. So a message makes one hop more than in JetStream,
which stores inside the nats-server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from benchmarks.jetstream_peer import SUBJECT
from benchmarks.nats_socket import wait_for_port
from benchmarks.processes import (
    HOST,
    START_SECONDS,
    data_folder,
    executable,
    free_port_base,
    server,
)
from examples.cluster.local import (
    NATS_PORT,
    PORTS_BETWEEN_NODES,
    LocalCluster,
    node_name,
    running,
)
from examples.cluster.processes import ClusterError
from jetstream_client import Client

FlushName: TypeAlias = Literal["group", "interval", "none"]

STREAM = "bench"
PORTS = 5
"""gRPC, data plane, Raft, HTTP, NATS, in this order from the port base on."""

START_ATTEMPTS = 3

FLUSH_SETTINGS: dict[FlushName, str] = {
    "group": "flush: group (fsync before each ack, shared by all that queued up)",
    "interval": "flush: interval (fsync each second; acks do not wait for it)",
    "none": "flush: none (the operating system decides; acks do not wait for it)",
}


class Addresses(NamedTuple):
    grpc: str
    """What a client is given: one address, or several with commas."""
    nats_port: int
    pids: list[int]
    """Of the nodes, without NATS."""
    folder: Path
    """All data is below it."""


def default_flush(replicas: int) -> FlushName:
    """What a stream with that many replicas has unless told otherwise."""
    return "group" if replicas == 1 else "interval"


def nodes(count: int) -> AbstractContextManager[Addresses]:
    """That many nodes without streams, and a nats-server."""
    return _single_node() if count == 1 else _cluster(count)


@contextmanager
def this_server(flush: FlushName = "group", replicas: int = 1) -> Iterator[Addresses]:
    """As many nodes as replicas, with an empty stream on SUBJECT."""
    with nodes(replicas) as addresses:
        with Client(addresses.grpc) as client:
            client.create_stream(STREAM, subject=SUBJECT, replicas=replicas, flush=flush)
        yield addresses


def leader(addresses: Addresses) -> int:
    """Of the stream: an index into the addresses and process ids of the nodes."""
    with Client(addresses.grpc) as client:
        return client.describe_stream(STREAM).leader


def data_plane_port(addresses: Addresses, node: int) -> int:
    return int(addresses.grpc.split(",")[node].rpartition(":")[2]) + 1


@contextmanager
def _single_node() -> Iterator[Addresses]:
    with data_folder() as folder:
        base = free_port_base(PORTS)
        command = [
            executable("jetstream-server"), "--dev", "--data", str(folder / "data"),
            "--port-base", str(base), "--log-level", "warning",
        ]  # fmt: skip
        with server(command, base, folder) as pid:
            wait_for_port(HOST, base + 4, START_SECONDS)
            yield Addresses(f"{HOST}:{base}", base + 4, [pid], folder)


@contextmanager
def _cluster(count: int) -> Iterator[Addresses]:
    with local_cluster(count) as (cluster, nats_port):
        pids = cluster.pids()
        yield Addresses(
            ",".join(cluster.grpc_addresses),
            nats_port,
            [pids[node_name(node)] for node in cluster.node_ids],
            cluster.directory,
        )


@contextmanager
def local_cluster(count: int) -> Iterator[tuple[LocalCluster, int]]:
    """A cluster whose nodes can be killed and started, and the port of NATS."""
    with data_folder() as folder, ExitStack() as stack:
        for attempt in range(1, START_ATTEMPTS + 1):
            base = free_port_base(PORTS_BETWEEN_NODES * count)
            try:
                cluster = stack.enter_context(running(folder / f"cluster-{attempt}", count, base))
            except ClusterError as error:
                # Another process has taken one of the ports meanwhile.
                if attempt == START_ATTEMPTS or "in use" not in str(error):
                    raise
            else:
                break
        yield cluster, base + NATS_PORT
