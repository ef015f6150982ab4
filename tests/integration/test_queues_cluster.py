"""Work queues in a cluster: after a failover what was not acknowledged comes again, and what was
does not; and NATS clients and our own readers share a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from jetstream_client import AsyncClient, AsyncQueue, Client
from tests.integration.test_consumers_cluster import fetched, linked, published
from tests.support.jetstream_api import ApiCluster, api_cluster
from tests.support.leaf import LeafServer, asked, client_of
from tests.support.loops import on_loop
from tests.support.stages import hub_stage

hub = hub_stage()


@pytest.fixture(scope="module")
def cluster(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCluster]:
    with api_cluster(tmp_path_factory.mktemp("queues"), hub) as running:
        with Client(running.servers, timeout=60) as client:
            client.create_stream("safe", "safe.>", replicas=3)
            client.create_stream("mixed", "mixed.>", replicas=3)
        yield running


async def taken(queue: AsyncQueue, count: int) -> list[tuple[int, int]]:
    """Acknowledges so many messages, and returns offset and number of deliveries of each."""
    found = []
    async with asyncio.timeout(120):
        async for message in queue:
            if await message.ack():
                found.append((message.offset, message.deliveries))
            if len(found) == count:
                break
    return found


@on_loop
async def test_a_list_of_all_consumers_has_those_of_a_stream_that_moves_meanwhile(
    cluster: ApiCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader to be is asked before it leads, and the one before it after that."""
    leads = cluster.settled("safe").stream.leader
    moved = asyncio.Event()
    to = next(node for node in cluster.nodes if node != leads)
    ask = AsyncClient._consumers_of

    async def asked(client: AsyncClient, stream: object, address: str | None) -> object:
        if address == cluster.cluster.grpc_addresses[leads]:
            await moved.wait()
        found = await ask(client, stream, address)
        if address == cluster.cluster.grpc_addresses[to]:
            await client.transfer_leader("safe", to)
            moved.set()
        return found

    async with AsyncClient(cluster.servers, timeout=60) as client:
        made = await client.create_consumer("safe", "moved")
        monkeypatch.setattr(AsyncClient, "_consumers_of", asked)
        known = [(each.stream_id, each.name) for each in await client.list_consumers()]
        assert known.count((made.stream_id, "moved")) == 1
        monkeypatch.undo()
        await client.delete_consumer("safe", "moved")


@on_loop
async def test_a_leader_crashes(cluster: ApiCluster, hub: LeafServer) -> None:
    await linked(hub)
    async with client_of(hub.url) as nats:
        for number in range(20):
            await published(nats, "safe.x", b"%d" % number)
    async with AsyncClient(cluster.servers, timeout=60) as client:
        async with client.queue("safe", "mailers", ack_wait=3600, prefetch=10) as queue:
            async with asyncio.timeout(60):
                messages = [await anext(queue) for _ in range(10)]
            done = {each.offset for each in messages[::2]}
            for message in messages[::2]:
                assert await message.ack()
            leader = cluster.settled("safe").stream.leader
            cluster.kill(leader)
            try:
                again = set[int]()
                async with asyncio.timeout(120):
                    async for message in queue:
                        assert message.offset not in done
                        if await message.ack():
                            again.add(message.offset)
                        if again == set(range(20)) - done:
                            break
            finally:
                cluster.restart(leader)
        found = await client.describe_consumer("safe", "mailers")
        assert (found.pending, found.ack_floor) == (0, 20)


@on_loop
async def test_nats_clients_and_our_own_share_one_consumer(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    await linked(hub)
    async with client_of(hub.url) as nats, AsyncClient(cluster.servers, timeout=60) as client:
        await asked(nats, "INFO", b"")
        manager = nats.jetstream(domain="log", timeout=60)
        for number in range(10):
            await published(nats, "mixed.x", b"%d" % number)
        subscription = await manager.pull_subscribe("mixed.>", durable="both")
        theirs = await fetched(subscription, 4)
        for each in theirs:
            await each.ack_sync(timeout=60)
        async with client.queue("mixed", "both", prefetch=3) as queue:
            ours = await taken(queue, 3)
            assert [offset for offset, _ in ours] == [4, 5, 6]
        rest = await fetched(subscription, 3)
        assert {each.data for each in rest} == {b"7", b"8", b"9"}
        for each in rest:
            await each.ack_sync(timeout=60)
        await client.create_consumer("mixed", "ours")
        bound = await manager.pull_subscribe_bind("ours", stream="mixed")
        assert {each.data for each in await fetched(bound, 10)} == {b"%d" % n for n in range(10)}
        names = [each.name for each in await client.list_consumers("mixed")]
        assert names == ["both", "ours"]
        assert set(names) <= {each.name for each in await client.list_consumers()}
