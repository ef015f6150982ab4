"""Many streams: how long creating them takes, and what they cost while nothing happens.

At one replica on one node and at three on three: `created` streams are created, 16 at a time, and
timed; then more, up to `idle`, each with one record; and when all is quiet, processor time and
resident memory of each node are taken. Ours: the SDK over gRPC; a creation returns when the stream
listens. Peer: nats-py. Not counted: our nats-server, which holds a subscription per stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import nats
from nats.js.api import StreamConfig

from benchmarks import jetstream_peer, this_server
from benchmarks.nats_socket import RECEIVE_BYTES, NatsSocket
from benchmarks.pairs import Progress
from benchmarks.processes import HOST
from benchmarks.report import Column, Report, environment
from benchmarks.usage import processor_shares, resident_bytes
from jetstream_client import AsyncClient

IN_FLIGHT = 16
CREATE_TIMEOUT = 60.0
PAYLOAD = b"x" * 128
FILL_AT_ONCE = 500
Create = Callable[[int], Awaitable[object]]
"""Creates the stream of that number."""
CreateAll = Callable[[int, int], Coroutine[Any, Any, float]]
"""Creates the streams numbered from the first to before the second; returns the seconds."""


class Plan(NamedTuple):
    """How many streams are created against the clock, and how many then idle, watched how long."""

    created: int
    idle: int
    settle_seconds: float
    watch_seconds: float


class Servers(NamedTuple):
    """The processes of one side, and where its messages go."""

    side: str
    pids: list[int]
    nats_port: int


def run(plan: Plan, peer_idle: int, replicas: list[int], progress: Progress) -> Report:
    """peer_idle: streams that idle at the peer; 0 leaves it out."""
    peer_plan = plan._replace(created=min(plan.created, peer_idle), idle=peer_idle)
    results = []
    for copies in replicas:
        results.append(_ours(copies, plan, progress))
        if peer_idle:
            results.append(_peer(copies, peer_plan, progress))
    return Report(
        "streams",
        f"this server, one node per replica, SDK, {IN_FLIGHT} creations at a time",
        f"NATS JetStream, one server per replica, nats-py, {IN_FLIGHT} creations at a time",
        results,
        environment(),
    )


def _ours(replicas: int, plan: Plan, progress: Progress) -> dict[str, Any]:
    with this_server.nodes(replicas) as addresses:

        async def create_all(first: int, end: int) -> float:
            async with AsyncClient(addresses.grpc, timeout=CREATE_TIMEOUT) as client:

                def create(number: int) -> Awaitable[object]:
                    return client.create_stream(
                        f"idle{number}", f"idle.{number}", replicas=replicas
                    )

                return await _timed(create, first, end)

        servers = Servers("ours", addresses.pids, addresses.nats_port)
        return _measure(servers, create_all, plan, progress)


def _peer(replicas: int, plan: Plan, progress: Progress) -> dict[str, Any]:
    with jetstream_peer.servers("2m", replicas) as started:
        port = started[0].port
        with NatsSocket(HOST, port, jetstream_peer.REQUEST_SECONDS) as client:
            warm_up = jetstream_peer.stream_settings("WARMUP", "warm.up", replicas)
            jetstream_peer.create_when_ready(client, warm_up)

        async def create_all(first: int, end: int) -> float:
            connection = await nats.connect(f"nats://{HOST}:{port}")
            context = connection.jetstream(timeout=CREATE_TIMEOUT)

            def create(number: int) -> Awaitable[object]:
                settings = jetstream_peer.stream_settings(
                    f"idle{number}", f"idle.{number}", replicas
                )
                return context.add_stream(StreamConfig.from_response(settings))

            try:
                return await _timed(create, first, end)
            finally:
                await connection.close()

        servers = Servers("peer", [one.pid for one in started], port)
        return _measure(servers, create_all, plan, progress)


async def _timed(create: Create, first: int, end: int) -> float:
    """Seconds to create the streams numbered `first` to `end`, IN_FLIGHT at a time."""
    numbers = iter(range(first, end))

    async def work() -> None:
        for number in numbers:
            await create(number)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())
    return time.perf_counter() - start


def _measure(
    servers: Servers, create_all: CreateAll, plan: Plan, progress: Progress
) -> dict[str, Any]:
    side, pids = servers.side, servers.pids
    empty = [resident_bytes(pid) for pid in pids]
    seconds = asyncio.run(create_all(0, plan.created))
    progress(f"{side}, {len(pids)} nodes: {plan.created:,} streams created in {seconds:.1f} s")
    more_seconds = asyncio.run(create_all(plan.created, plan.idle))
    progress(f"{side}: {plan.idle - plan.created:,} more in {more_seconds:.1f} s")
    _store_one_record_each(servers.nats_port, plan.idle)
    time.sleep(plan.settle_seconds)
    shares = processor_shares(pids, plan.watch_seconds)
    resident = [resident_bytes(pid) for pid in pids]
    progress(f"{side}: {plan.idle:,} idle streams: {_each(shares)} %, {_mebibytes(resident)} MiB")
    return {
        "side": side,
        "replicas": len(pids),
        "created": plan.created,
        "create_seconds": round(seconds, 2),
        "idle": plan.idle,
        "cpu_percent": [round(share, 1) for share in shares],
        "resident_bytes": resident,
        "resident_bytes_without_streams": empty,
    }


def _store_one_record_each(nats_port: int, streams: int) -> None:
    """Publish to every stream once, and wait for the acks. Raises TimeoutError, RuntimeError."""
    inbox = "_INBOX.benchmark.fill"
    with NatsSocket(HOST, nats_port, timeout=60.0) as client:
        client.subscribe(inbox, 1)
        for first in range(0, streams, FILL_AT_ONCE):
            numbers = range(first, min(streams, first + FILL_AT_ONCE))
            client.socket.sendall(
                b"".join(
                    b"PUB idle.%d %b %d\r\n%b\r\n" % (n, inbox.encode(), len(PAYLOAD), PAYLOAD)
                    for n in numbers
                )
            )
            received = b""
            while received.count(b'"seq"') < len(numbers):
                received += client.socket.recv(RECEIVE_BYTES)
                if b'"error"' in received or b" 503\r\n" in received:
                    raise RuntimeError(f"a message was refused: {received[-300:]!r}")


def _each(shares: list[float]) -> str:
    return " / ".join(f"{share:.1f}" for share in shares)


def _mebibytes(sizes: list[int]) -> str:
    return " / ".join(f"{size / 2**20:,.0f}" for size in sizes)


TITLE = "creating streams, and what idle ones cost each node"
COLUMNS = (
    Column("RF", lambda result: str(result["replicas"])),
    Column("side", lambda result: str(result["side"])),
    Column("created", lambda result: f"{result['created']:,}"),
    Column("s", lambda result: f"{result['create_seconds']:.1f}"),
    Column("idle", lambda result: f"{result['idle']:,}"),
    Column("CPU %", lambda result: _each(result["cpu_percent"])),
    Column("MiB", lambda result: _mebibytes(result["resident_bytes"])),
)
