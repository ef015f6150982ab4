"""Consumers at the head follow: with real servers that die, freeze, purge and encrypt meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress

import pytest

from jetstream_client import (
    AsyncClient,
    StreamNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.transport.follow import CREDIT_BYTES, Follow
from tests.support.cluster import TestCluster
from tests.support.following import Questions, some, waits
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess


@on_loop
async def test_a_consumer_at_the_head_asks_once_for_all_that_comes(
    server: ServerProcess, questions: Questions
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("head", "head.>")
        async with client.consume("head", "latest") as consumer:
            for number in range(100):
                coming = waits(consumer)
                await client.publish("head.x", b"%d" % number)
                assert await coming == [(number, b"%d" % number)]
        assert (len(questions.follows), questions.fetches) == (1, 0)
        assert questions.taken <= 100
        await client.delete_stream(stream)


@on_loop
async def test_what_is_far_behind_is_fetched_and_the_head_is_followed(
    server: ServerProcess, questions: Questions
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("far", "far.>")
        values = [os.urandom(1000) for _ in range(3000)]
        async with client.publisher("far.x") as publisher:
            await publisher.publish_many(values)
        async with client.consume("far", 0) as consumer:
            assert [value for _, value in await some(consumer, 3000)] == values
            assert questions.fetches >= 1
            coming = waits(consumer)
            await client.publish("far.x", b"new")
            assert await coming == [(3000, b"new")]
        assert len(questions.follows) == 2
        await client.delete_stream(stream)


@on_loop
async def test_with_a_filter_only_what_is_wanted_comes(
    server: ServerProcess, questions: Questions
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("sifted", "sifted.>")
        async with client.consume("sifted", "latest", filter="sifted.eu") as consumer:
            for number in range(30):
                coming = waits(consumer)
                await client.publish("sifted.us", b"unwanted")
                await client.publish("sifted.eu", b"%d" % number)
                assert await coming == [(2 * number + 1, b"%d" % number)]
        assert questions.follows
        assert questions.taken
        await client.delete_stream(stream)


@on_loop
async def test_who_pauses_keeps_what_came_and_misses_nothing(
    server: ServerProcess, questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than its credit is published meanwhile: the node sends no more than that."""
    came = 0
    sink = Follow.came

    def counting(follow: Follow, frame: object) -> None:
        nonlocal came
        came += len(frame.tail)  # type: ignore[attr-defined]
        sink(follow, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(Follow, "came", counting)
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("paused", "paused.>")
        async with client.consume("paused", "latest") as consumer:
            coming = waits(consumer)
            await client.publish("paused.x", b"first")
            assert await coming == [(0, b"first")]
            consumer.pause()
            values = [os.urandom(10_000) for _ in range(400)]
            for value in values:
                await client.publish("paused.x", value)
            await client.publish("paused.x", b"last")
            assert came <= CREDIT_BYTES + 20_000
            consumer.resume()
            found = await some(consumer, 401)
            assert found == list(enumerate([*values, b"last"], start=1))
        await client.delete_stream(stream)


@on_loop
async def test_who_seeks_is_sent_on_from_there(server: ServerProcess, questions: Questions) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("sought", "sought.>")
        async with client.consume("sought", "latest") as consumer:
            for number in range(5):
                coming = waits(consumer)
                await client.publish("sought.x", b"%d" % number)
                assert await coming == [(number, b"%d" % number)]
            await consumer.seek(2)
            assert [offset for offset, _ in await some(consumer, 3)] == [2, 3, 4]
            coming = waits(consumer)
            await client.publish("sought.x", b"5")
            assert await coming == [(5, b"5")]
            await client.publish("sought.x", b"6")
            await client.publish("sought.x", b"7")
            await consumer.seek(7)
            assert await some(consumer, 1) == [(7, b"7")]
        await client.delete_stream(stream)


@on_loop
async def test_another_stream_of_the_name_is_not_read(
    server: ServerProcess, questions: Questions
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("again", "again.>")
        async with client.consume("again", "latest") as consumer:
            coming = waits(consumer)
            await client.publish("again.x", b"0")
            assert await coming == [(0, b"0")]
            coming = waits(consumer)
            await client.delete_stream("again")
            await client.create_stream("again", "again.>")
            await client.publish("again.x", b"of another stream")
            with pytest.raises(StreamNotFoundError):
                await coming
        await client.delete_stream("again")


@on_loop
async def test_a_purge_removes_nothing_for_whoever_is_at_the_head(
    server: ServerProcess, questions: Questions
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("purged", "purged.>")
        async with client.consume("purged", "latest") as consumer:
            for number in range(3):
                coming = waits(consumer)
                await client.publish("purged.x", b"%d" % number)
                assert await coming == [(number, b"%d" % number)]
                await client.purge_stream("purged")
        await client.delete_stream(stream)


@on_loop
async def test_a_forgotten_consumer_is_not_sent_anything_for_long(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("forgotten", "forgotten.>")
        consumer = client.consume("forgotten", "latest")
        await consumer.begin()
        coming = waits(consumer)
        await client.publish("forgotten.x", b"0")
        await coming
        consumer._ahead and consumer._ahead.cancel()  # Or it would live as long as its fetch.
        await asyncio.sleep(0)
        pools = client._data_plane._pools
        del consumer, coming

        def is_idle() -> bool:
            gc.collect()
            return all(not each.pending for pool in pools.values() for each in pool)

        await eventually(is_idle)
        await client.delete_stream(stream)


@pytest.mark.parametrize("fault", ["killed", "frozen"])
@on_loop
async def test_a_leader_that_goes_is_followed_by_another_and_nothing_is_missed(
    cluster: TestCluster, questions: Questions, fault: str
) -> None:
    async with (
        AsyncClient(cluster.servers, timeout=60) as client,
        AsyncClient(cluster.servers, timeout=6) as hasty,  # It soon looks for another leader.
    ):
        stream = await client.create_stream("led", "led.>")
        consumer = hasty.consume("led", "latest")
        await consumer.begin()
        coming = waits(consumer)
        await client.publish("led.x", b"0", msg_id="first")
        assert await coming == [(0, b"0")]
        leader = (await client.describe_stream("led")).leader
        before = len(questions.follows)
        await asyncio.to_thread(cluster.kill if fault == "killed" else cluster.freeze, leader)
        try:
            coming = asyncio.create_task(some(consumer, 20))
            sent: list[tuple[int, bytes | None]] = []
            while len(sent) < 20:
                value = b"%d" % len(sent)
                with suppress(UnknownOutcomeError, UnavailableError):
                    result = await client.publish(
                        "led.x", value, msg_id=f"led-{len(sent)}", timeout=4
                    )
                    sent.append((result.offset, value))
            assert await coming == sent
            await eventually(lambda: len(questions.follows) > before)
        finally:
            await asyncio.to_thread(cluster.restart if fault == "killed" else cluster.thaw, leader)
        await consumer.aclose()
        await client.delete_stream(stream)
