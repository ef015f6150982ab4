"""Reading from replicas of three real nodes: which one serves, and what happens when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    NotReplicaError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.values.types import ReadFrom
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated.common_pb2 import StreamRef
from tests.support.api import call
from tests.support.cluster import TestCluster
from tests.support.following import Questions, waits
from tests.support.loops import eventually, on_loop
from tests.support.stages import cluster_stage

RACKS = ("east", "west", "north")


cluster = cluster_stage(len(RACKS), RACKS)
"""Each node in a rack of its own."""


def asked(client: AsyncClient, stream_id: int, read_from: ReadFrom) -> str:
    """The data plane that the client reads the stream from."""
    return client._reader._data._routes._chosen[(stream_id, "", ""), read_from]


async def publish(client: AsyncClient, subject: str, acknowledged: dict[int, bytes]) -> None:
    for number in range(1_000_000):
        value = b"%d" % number
        try:
            result = await client.publish(subject, value, timeout=2.0)
        except (UnknownOutcomeError, UnavailableError):
            continue  # The leader was killed before it answered; or nobody leads yet.
        acknowledged[result.offset] = value


@on_loop
async def test_the_replica_in_the_clients_rack_serves_it(cluster: TestCluster) -> None:
    async with AsyncClient(cluster.servers, timeout=60) as client:
        stream = await client.create_stream("racks", "racks.>")
        await client.publish("racks.x", b"1", msg_id="1")
    for number, rack in enumerate(RACKS):
        data, served_by = cluster.cluster.config["nodes"][number]["data"], ""
        async with asyncio.timeout(60):
            while served_by != data:  # One that stands still may be out of sync for a moment.
                async with AsyncClient(cluster.servers, rack=rack, timeout=60) as client:
                    found = await client.fetch(stream.id, 0, read_from="nearest", max_wait=60.0)
                    assert found.values() == [b"1"]
                    served_by = asked(client, stream.id, "nearest")


@pytest.mark.parametrize(("read_from", "kills"), [("nearest", True), ("any", False)])
def test_a_replica_killed_or_frozen_costs_its_reader_no_record_and_none_comes_twice(
    cluster: TestCluster, read_from: ReadFrom, kills: bool
) -> None:
    @on_loop
    async def scenario() -> None:
        async with AsyncClient(cluster.servers, timeout=8, rack=RACKS[2]) as client:
            stream = await client.create_stream("moved", "moved.>")
            cluster.wait_for_isr("moved", cluster.nodes)
            acknowledged: dict[int, bytes] = {}
            publisher = asyncio.ensure_future(publish(client, "moved.x", acknowledged))
            found: list[tuple[int, bytes | None]] = []

            async def read() -> None:
                async for message in client.consume(stream, read_from=read_from):
                    found.append((message.offset, message.value))

            reader = asyncio.ensure_future(read())
            await eventually(lambda: len(found) > 200)
            victim = asked(client, stream.id, read_from)
            nodes = cluster.cluster.config["nodes"]
            number = next(index for index, node in enumerate(nodes) if node["data"] == victim)
            await asyncio.to_thread(cluster.kill if kills else cluster.freeze, number)
            try:
                before = len(found)
                await eventually(lambda: len(found) > before + 200)
                assert asked(client, stream.id, read_from) != victim
                publisher.cancel()
                await asyncio.gather(publisher, return_exceptions=True)
                await eventually(lambda: len(found) > max(acknowledged))
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
            finally:
                await asyncio.to_thread(cluster.restart if kills else cluster.thaw, number)
            await client.delete_stream(stream)
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert {**dict(found), **acknowledged} == dict(found)

    scenario()


@on_loop
async def test_a_replica_that_is_followed_and_freezes_is_left_for_another(
    cluster: TestCluster, questions: Questions
) -> None:
    """The one in the reader's rack, which does not lead."""
    async with AsyncClient(cluster.servers, timeout=60) as admin, AsyncExitStack() as stack:
        stream = await admin.create_stream("near", "near.>")
        await asyncio.to_thread(cluster.wait_for_isr, "near", cluster.nodes)
        leader = (await admin.describe_stream("near")).leader
        near = next(number for number in range(len(RACKS)) if number != leader)
        address = cluster.cluster.config["nodes"][near]["data"]
        end = 0

        async def goes_on(consumer: AsyncConsumer, holds: Callable[[], bool]) -> None:
            """It gets each record that comes, until then."""
            nonlocal end
            while not holds():
                coming = waits(consumer)
                end = 1 + (await admin.publish("near.x", b"%d" % end, msg_id=f"m{end}")).offset
                assert await coming == [(end - 1, b"%d" % (end - 1))]

        async def consumer_of_near() -> AsyncConsumer:
            client = AsyncClient(cluster.servers, timeout=4, rack=RACKS[near])
            await stack.enter_async_context(client)
            consumer = client.consume("near", end, read_from="nearest")
            await stack.enter_async_context(consumer)
            await goes_on(consumer, lambda: bool(questions.followed))
            return consumer

        consumer = await consumer_of_near()
        while questions.followed[-1] != address:  # It was out of sync for a moment.
            questions.followed.clear()
            consumer = await consumer_of_near()
        await asyncio.to_thread(cluster.freeze, near)
        try:
            await goes_on(consumer, lambda: questions.followed[-1] != address)
        finally:
            await asyncio.to_thread(cluster.thaw, near)
        await admin.delete_stream(stream)


@on_loop
async def test_a_reader_that_has_seen_more_than_its_replica_waits_for_it(
    cluster: TestCluster,
) -> None:
    async with AsyncClient(cluster.servers, timeout=60) as client:
        await client.create_stream("ahead", "ahead.>")
        for number in range(100):
            offset = (await client.publish("ahead.x", b"%d" % number, msg_id=f"m{number}")).offset
            # Acknowledged an instant ago: a follower may not have heard that it is committed.
            found = await client.fetch("ahead", offset, read_from="any", max_wait=60.0)
            assert found.values() == [b"%d" % number]


def test_with_the_metadata_majority_lost_a_replica_still_serves(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("alone", "alone.>")
        client.publish("alone.x", b"1", msg_id="1")
        cluster.wait_for_isr("alone", cluster.nodes)
        cluster.wait_for(
            "node 2 knows that it is committed", lambda: bool(cluster.api(2).fetch("alone").batches)
        )
        cluster.freeze(0)
        cluster.freeze(1)
        try:
            with Client(cluster.cluster.grpc_addresses[2], timeout=6.0, rack=RACKS[2]) as near:
                assert near.fetch("alone", 0, read_from="nearest").values() == [b"1"]
                assert near.fetch("alone", 1, read_from="nearest").values() == []
        finally:
            cluster.thaw(0)
            cluster.thaw(1)


def test_a_node_without_a_replica_says_who_has_one(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as client:
        stream = client.create_stream("single", "single.>", replicas=1)
        client.publish("single.x", b"1", msg_id="1")
        (holder,) = stream.replicas
        stranger = next(node for node in cluster.nodes if node != holder)
        known = pb.DescribeStreamRequest(stream=StreamRef(name="single"), registry_only=True)
        cluster.wait_for(
            "it knows the stream",
            lambda: bool(call(cluster.api(stranger).streams.DescribeStream, known)),
        )
        with pytest.raises(NotReplicaError, match=f"ask node {holder}") as raised:
            cluster.api(stranger).fetch("single")
        assert raised.value.redirect is not None
        assert raised.value.redirect.node_id == holder
        for read_from in ("leader", "nearest", "any"):
            found = client.fetch("single", 0, read_from=read_from)
            assert found.values() == [b"1"]


def test_a_replica_that_was_never_in_sync_does_not_say_that_there_is_nothing(
    cluster: TestCluster,
) -> None:
    ways: tuple[ReadFrom, ...] = ("leader", "any")
    with (
        Client(cluster.servers, timeout=8) as client,
        Client(cluster.servers, timeout=6) as impatient,
    ):
        stream = client.create_stream("lone", "lone", replicas=1)
        client.publish("lone", b"the only one", msg_id="the only one")
        leader = client.describe_stream(stream).leader
        target = next(node for node in cluster.nodes if node != leader)
        cluster.freeze(target)
        try:
            client.reassign_stream(stream, [leader, target])
            cluster.kill(leader)
        finally:
            cluster.thaw(target)
        try:
            cluster.wait_for("nobody leads", lambda: client.describe_stream(stream).leader < 0)
            for read_from in ways:
                with pytest.raises(UnavailableError, match="has no leader"):
                    impatient.fetch(stream, 0, read_from=read_from, max_wait=1.0)
        finally:
            cluster.restart(leader)
        cluster.wait_for_isr("lone", sorted([leader, target]))
        for read_from in ways:
            assert client.fetch(stream, 0, read_from=read_from).values() == [b"the only one"]
        client.delete_stream(stream)
