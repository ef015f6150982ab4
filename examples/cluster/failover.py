"""The failover, performed: a leader is killed under load, replaced, and comes back.

publish ──> kill -9 the leader ──> acks pause ──> another leads ──> restart ──> back in the ISR ──>
hold the log against what was acknowledged
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from examples.cluster.local import LocalCluster
from examples.cluster.publisher import Publisher, Verdict, judge
from examples.cluster.scene import Scene
from jetstream_client import AsyncClient, JetstreamError, StreamDescription

STREAM = "orders"
SUBJECT = "orders.eu"
BEFORE_SECONDS = 3.0
AFTER_SECONDS = 2.0
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 120.0
ASK_TIMEOUT = 0.5
"""While it looks for a new leader, it asks again soon instead of waiting."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Outcome:
    """What the demonstration found."""

    gap_seconds: float
    verdict: Verdict


class FailoverError(Exception):
    """Something did not happen in time."""


async def perform(cluster: LocalCluster, scene: Scene, rate: int) -> Outcome:
    """From a running cluster to the verdict. Raises FailoverError, JetstreamError, ClusterError."""
    nodes = cluster.node_ids
    async with AsyncClient(cluster.grpc_addresses) as client:
        await client.create_stream(STREAM, subject="orders.>", replicas=len(nodes))
        before = await client.describe_stream(STREAM)
        leader = before.leader
        scene.done(f"stream {STREAM}", f"node {leader} leads, in sync: {_nodes(before)}")
        publisher = Publisher(client, SUBJECT, rate)
        scene.watch(publisher.books)
        publisher.start()
        await asyncio.sleep(BEFORE_SECONDS)

        killed_at = time.monotonic()
        scene.mark("kill -9", f"node {leader}, the leader, {rate:,} messages a second under way")
        await asyncio.to_thread(cluster.kill_node, leader)
        survivors = [a for n, a in zip(nodes, cluster.grpc_addresses, strict=True) if n != leader]
        async with AsyncClient(survivors, timeout=ASK_TIMEOUT) as watcher:
            after = await _until(watcher, lambda found: found.leader not in (leader, -1))
        scene.mark("elected", f"node {after.leader} leads now, epoch {after.leader_epoch}")
        await _until_acked_since(publisher, time.monotonic())
        gap = publisher.books.longest_pause(killed_at - LOOK_SECONDS, time.monotonic())
        scene.done("acknowledging again", f"the longest pause was {gap * 1000:,.0f} ms")
        await asyncio.sleep(AFTER_SECONDS)

        restarted_at = time.monotonic()
        scene.mark("restart", f"node {leader}, on the data it had")
        cluster.start_node(leader)
        await asyncio.to_thread(cluster.wait_for_nodes, leader)
        await _until(client, lambda found: leader in found.isr)
        seconds = time.monotonic() - restarted_at
        scene.mark("in sync", f"node {leader} is back in the ISR after {seconds:.1f} s")
        await asyncio.sleep(AFTER_SECONDS)

        books = await publisher.stop()
        scene.unwatch()
        stored = await _read(client)
        verdict = judge(books, stored)
        scene.verdict(verdict, len(stored))
        return Outcome(gap, verdict)


async def _until(
    client: AsyncClient, holds: Callable[[StreamDescription], bool]
) -> StreamDescription:
    """The stream's description, once `holds` is true of it."""

    async def look() -> StreamDescription | None:
        try:
            found = await client.describe_stream(STREAM)
        except JetstreamError:
            return None  # Nobody leads it at the moment.
        return found if holds(found) else None

    return await _wait_for(look, "the stream did not get that far")


async def _until_acked_since(publisher: Publisher, moment: float) -> None:
    async def look() -> bool | None:
        times = publisher.books.acked_at
        return True if times and times[-1] > moment else None

    await _wait_for(look, "nothing is acknowledged")


async def _wait_for(look: Callable[[], Awaitable[Found | None]], complaint: str) -> Found:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = await look()
        if found is not None:
            return found
        await asyncio.sleep(LOOK_SECONDS)
    raise FailoverError(f"{complaint} within {PATIENCE_SECONDS:.0f} s")


async def _read(client: AsyncClient) -> list[int]:
    """The numbers in the log, from offset 0 on."""
    stored: list[int] = []
    end = await client.offset_at(STREAM, "latest")
    while len(stored) < end:
        messages = await client.fetch(STREAM, len(stored), max_wait=5.0)
        if messages.offsets() != list(range(len(stored), messages.next_offset)):
            raise FailoverError(f"the log has a gap after offset {len(stored)}")
        stored += [int(value or b"-1") for value in messages.values()]
    return stored


def _nodes(stream: StreamDescription) -> str:
    return ", ".join(map(str, stream.isr))
