"""Consumers in a cluster: whichever node is asked, the stream's leader serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from jetstream_client import Client
from tests.support.jetstream_api import ApiCluster, api_cluster
from tests.support.leaf import LeafServer, asked, client_of
from tests.support.loops import eventually, on_loop
from tests.support.stages import hub_stage

STREAMS = ("one", "two", "three")
PULL = b'{"expires":600000000000}'


hub = hub_stage()


@pytest.fixture(scope="module")
def cluster(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCluster]:
    """Three streams, each led by another node; and one with a copy on each node."""
    with api_cluster(tmp_path_factory.mktemp("consumers"), hub) as running:
        with Client(running.servers, timeout=60) as client:
            for name in STREAMS:
                client.create_stream(name, f"{name}.>", replicas=1)
            for name in ("safe", "waited"):
                client.create_stream(name, f"{name}.>", replicas=3)
        yield running


async def published(client: NatsClient, subject: str, payload: bytes) -> None:
    """Publish, and again while a leadership moves: nobody hears the subject for a moment then. It
    is stored once."""
    headers = {"Nats-Msg-Id": client.new_inbox()}
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TimeoutError, nats.errors.Error):
                await client.request(subject, payload, timeout=5, headers=headers)
                return
            await asyncio.sleep(0.02)


async def linked(hub: LeafServer) -> None:
    """Return once all three nodes have announced what they serve."""
    await eventually(lambda: hub.log.count("LS+ $JS.log.API.STREAM.>") >= 3)


@on_loop
async def test_ordered_readers_are_served_by_each_leader(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    await linked(hub)
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        manager = client.jetstream(domain="log", timeout=60)
        for name in STREAMS:
            for number in range(5):
                await published(client, f"{name}.x", b"%d" % number)
        for _ in range(4):  # Another node may get each request.
            for name in STREAMS:
                subscription = await manager.subscribe(f"{name}.>", ordered_consumer=True)
                found = [(await subscription.next_msg(60)).data for _ in range(5)]
                assert found == [b"%d" % number for number in range(5)]
                await subscription.unsubscribe()


@on_loop
async def test_an_ordered_reader_goes_on_when_another_node_leads(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    await linked(hub)
    with Client(cluster.servers, timeout=60) as own:
        async with client_of(hub.url) as client:
            await asked(client, "INFO", b"")
            manager = client.jetstream(domain="log", timeout=60)
            subscription = await manager.subscribe(
                "safe.>", ordered_consumer=True, idle_heartbeat=1
            )
            for number in range(5):
                await published(client, "safe.x", b"%d" % number)
            for number in range(5):
                assert (await subscription.next_msg(60)).data == b"%d" % number
            leader = cluster.settled("safe").stream.leader
            target = next(node for node in cluster.nodes if node != leader)
            await asyncio.to_thread(cluster.wait_for_isr, "safe", cluster.nodes)
            await asyncio.to_thread(own.transfer_leader, "safe", target)
            for number in range(5, 10):
                await published(client, "safe.x", b"%d" % number)
            for number in range(5, 10):
                assert (await subscription.next_msg(60)).data == b"%d" % number
            await subscription.unsubscribe()


async def acked(message: Msg) -> None:
    """Until the leader has answered: there may be none for a moment."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TimeoutError, nats.errors.Error):
                await message.ack_sync(timeout=5)
                return
            await asyncio.sleep(0.02)


async def fetched(
    subscription: JetStreamContext.PullSubscription, count: int, seconds: float = 60
) -> list[Msg]:
    """So many messages, with as many fetches as it takes: a leader may be away meanwhile."""
    found: list[Msg] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            with contextlib.suppress(TimeoutError, nats.errors.Error, nats.js.errors.Error):
                found += await subscription.fetch(count - len(found), timeout=2)
    return found


@on_loop
async def test_acknowledgements_outlive_a_transfer_and_pulls_go_on(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    await linked(hub)
    with Client(cluster.servers, timeout=60) as own:
        async with client_of(hub.url) as client:
            await asked(client, "INFO", b"")
            manager = client.jetstream(domain="log", timeout=60)
            for number in range(6):
                await published(client, "safe.moved", b"%d" % number)
            subscription = await manager.pull_subscribe("safe.moved", durable="moved")
            messages = await fetched(subscription, 6)
            for number in (0, 1, 3, 4, 5):
                await acked(messages[number])
            await messages[2].nak(delay=3600)
            waiting = asyncio.create_task(fetched(subscription, 2))
            leader = cluster.settled("safe").stream.leader
            target = next(node for node in cluster.nodes if node != leader)
            await asyncio.to_thread(cluster.wait_for_isr, "safe", cluster.nodes)
            await asyncio.to_thread(own.transfer_leader, "safe", target)
            await published(client, "safe.moved", b"after")
            again, after = await waiting
            assert again.data == b"2"
            assert again.metadata.num_delivered >= 2
            assert after.data == b"after"


@on_loop
async def test_what_was_acknowledged_does_not_come_again_after_a_crash(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    """And ordered readers go on: to miss heartbeats would take them twenty minutes."""
    await linked(hub)
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        manager = client.jetstream(domain="log", timeout=60)
        for number in range(20):
            await published(client, "safe.crash", b"%d" % number)
        subscription = await manager.pull_subscribe("safe.crash", durable="crash")
        messages = await fetched(subscription, 10)
        for message in messages[::2]:
            await acked(message)
        ordered = await manager.subscribe("safe.crash", ordered_consumer=True, idle_heartbeat=600)
        for number in range(20):
            assert (await ordered.next_msg(60)).data == b"%d" % number
        leader = cluster.settled("safe").stream.leader
        cluster.kill(leader)
        try:
            expected = {b"%d" % number for number in range(20)} - {
                each.data for each in messages[::2]
            }
            found: set[bytes] = set()
            async with asyncio.timeout(100):
                while len(found) < len(expected):  # Some come twice, if a lease is lost.
                    found |= {each.data for each in await fetched(subscription, 1)}
            assert found == expected
            await published(client, "safe.crash", b"20")
            assert (await ordered.next_msg(60)).data == b"20"
            await ordered.unsubscribe()
        finally:
            cluster.restart(leader)


@on_loop
async def test_a_pull_that_waits_is_served_after_a_crash(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    """Without the other nodes it would wait until it expires."""
    await linked(hub)
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        manager = client.jetstream(domain="log", timeout=60)
        await manager.pull_subscribe("waited.>", durable="waiter")
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        subject = "$JS.log.API.CONSUMER.MSG.NEXT.waited.waiter"
        heard = "<<- [LS+ $JS.log.API.CONSUMER.MSG.NEXT.waited.*"
        await eventually(lambda: hub.log.count(heard) >= 3)
        await client.publish(subject, PULL, reply=inbox)
        await until_it_waits(client)
        leader = cluster.settled("waited").stream.leader
        cluster.kill(leader)
        storing = asyncio.create_task(until_stored(client, "waited.x"))
        try:
            async with asyncio.timeout(90):
                while (answer := await answers.next_msg(60)).data != b"after":
                    # As libraries do: a pull that has ended is made again.
                    assert answer.headers["Status"] in ("408", "503")
                    await asyncio.sleep(0.05)
                    await client.publish(subject, PULL, reply=inbox)
            await storing
        finally:
            storing.cancel()
            cluster.restart(leader)


async def until_stored(client: NatsClient, subject: str) -> None:
    """Publish until a leader has stored it."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TimeoutError, nats.errors.Error):
                await client.request(subject, b"after", timeout=2)
                return
            await asyncio.sleep(0.05)


async def until_it_waits(client: NatsClient) -> None:
    """Return once a pull has reached the leader. The others hear it before they see it end."""
    async with asyncio.timeout(60):
        waiting = 0
        while not waiting:
            info = json.loads(await asked(client, "CONSUMER.INFO.waited.waiter", b""))
            waiting = info["num_waiting"]
