"""Cursors that are committed once a second each: what a commit takes of the node's processor.

Two loads. `shared`: all cursors belong to consumers of one client, whose commits share calls.
`single`: each commit is a call of its own, as of programs with one consumer each, with so many
calls under way at a time. Every second each cursor is committed once; a round that takes longer
makes the next one late, and the rate says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from benchmarks import this_server
from benchmarks.pairs import Progress
from benchmarks.report import Column, Report, environment
from benchmarks.usage import processor_seconds
from jetstream_client import AsyncClient
from jetstream_client.reading.cursor import ConsumerCursor
from jetstream_client.transport.cursors import commit_of
from jetstream_client.transport.wire import to_ref
from jetstream_protocol.generated import cursors_pb2 as pb

AT_A_TIME = 64
STREAM = "bench"

TITLE = "commits per second, and what one takes of the node's processor"
COLUMNS = (
    Column("replicas", lambda result: str(result["replicas"])),
    Column("cursors", lambda result: f"{result['cursors']:,}"),
    Column("load", lambda result: str(result["load"])),
    Column("commits/s", lambda result: f"{result['rate']:,.0f}"),
    Column("round", lambda result: f"{result['round_seconds']:.2f} s"),
    Column("processor", lambda result: f"{result['commit_us']:.0f} µs"),
    Column("of a core", lambda result: f"{result['rate'] * result['commit_us'] / 1e4:.0f} %"),
)

CommitAll = Callable[[int], Awaitable[None]]
"""Commits every cursor once, in the round of that number."""


class Measured(NamedTuple):
    """rate: commits per second. commit_us: processor time of all nodes for one."""

    rate: float
    round_seconds: float
    commit_us: float


def run(cursors: int, seconds: int, replicas: list[int], progress: Progress) -> Report:
    results = []
    for count in replicas:
        with this_server.nodes(count) as addresses:
            for load in ("shared", "single"):
                progress(f"{count} replicas, {load}")
                measured = asyncio.run(_measure(addresses, load, cursors, seconds))
                results.append(
                    {"replicas": count, "cursors": cursors, "load": load, **measured._asdict()}
                )
    return Report(
        "cursors",
        f"this server; single: {AT_A_TIME} calls at a time",
        "none: JetStream acknowledges message by message",
        results,
        environment(),
    )


async def _measure(
    addresses: this_server.Addresses, load: str, cursors: int, seconds: int
) -> Measured:
    async with AsyncClient(addresses.grpc, timeout=60.0) as client:
        stream = await client.create_stream(STREAM, STREAM)
        names = [f"cursor-{number}" for number in range(cursors)]
        shared = await _shared(client, stream.id, names)
        await shared(0)  # It makes `__cursors`, and every cursor.
        commit_all = shared if load == "shared" else _single(client, stream.id, names)
        before = processor_seconds(addresses.pids)
        began = time.perf_counter()
        rounds = []
        for number in range(1, seconds + 1):
            begun = time.perf_counter()
            await commit_all(number)
            rounds.append(time.perf_counter() - begun)
            await asyncio.sleep(max(0.0, began + number - time.perf_counter()))
        elapsed = time.perf_counter() - began
        used = processor_seconds(addresses.pids) - before
    commits = cursors * seconds
    return Measured(commits / elapsed, sorted(rounds)[len(rounds) // 2], used / commits * 1e6)


async def _shared(client: AsyncClient, stream_id: int, names: list[str]) -> CommitAll:
    """Each has looked its cursor up, and then knows the revision that it follows."""
    turns = asyncio.Semaphore(AT_A_TIME)

    async def opened(name: str) -> ConsumerCursor:
        cursor = client._consumer_cursor(name, stream_id, "error", False)
        assert cursor is not None
        async with turns:
            await cursor.open()
        return cursor

    cursors = await asyncio.gather(*map(opened, names))

    async def commit_all(number: int) -> None:
        await asyncio.gather(*(cursor.commit(number, -1) for cursor in cursors))

    return commit_all


def _single(client: AsyncClient, stream_id: int, names: list[str]) -> CommitAll:
    ref = to_ref(stream_id)

    async def commit_all(number: int) -> None:
        turns = asyncio.Semaphore(AT_A_TIME)

        async def commit(name: str) -> Any:
            async with turns:
                return await client._control.call(
                    pb.CommitCursorsRequest(
                        commits=[commit_of(name, ref, number, -1, "", "", None)]
                    ),
                    what="committing a cursor",
                )

        for answer in await asyncio.gather(*map(commit, names)):
            assert not answer.results[0].HasField("error"), answer

    return commit_all
