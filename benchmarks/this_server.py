"""This server: `jetstream-server --dev` with its own nats-server, and a stream on SUBJECT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from jetstream_client import Client

FlushName: TypeAlias = Literal["group", "interval", "none"]

STREAM = "bench"
PORTS = 5
"""gRPC, data plane, Raft, HTTP, NATS, in this order from the port base on."""

FLUSH_SETTINGS: dict[FlushName, str] = {
    "group": "flush: group (fsync before each ack, shared by all that queued up)",
    "interval": "flush: interval (fsync each second; acks do not wait for it)",
    "none": "flush: none (the operating system decides; acks do not wait for it)",
}


class Addresses(NamedTuple):
    grpc: str
    nats_port: int


@contextmanager
def this_server(flush: FlushName = "group") -> Iterator[Addresses]:
    """A running server with an empty stream on SUBJECT."""
    with data_folder() as folder:
        base = free_port_base(PORTS)
        command = [
            executable("jetstream-server"), "--dev", "--data", str(folder / "data"),
            "--port-base", str(base), "--log-level", "warning",
        ]  # fmt: skip
        with server(command, base, folder):
            wait_for_port(HOST, base + 4, START_SECONDS)
            addresses = Addresses(f"{HOST}:{base}", base + 4)
            with Client(addresses.grpc) as client:
                client.create_stream(STREAM, subject=SUBJECT, flush=flush)
            yield addresses
