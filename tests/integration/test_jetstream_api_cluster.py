"""The JetStream API of a cluster: whichever node gets a request answers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from jetstream_client import Client
from tests.support.jetstream_api import ApiCluster, api_cluster
from tests.support.leaf import LeafServer, asked, client_of
from tests.support.loops import eventually, on_loop
from tests.support.stages import hub_stage

STREAMS = ("one", "two", "three")
REQUESTS = 40
"""Of one kind: the chance that one of three nodes gets none of them is nil."""


hub = hub_stage()


@pytest.fixture(scope="module")
def cluster(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCluster]:
    """Three streams, each led by another node, and with one replica there only."""
    with api_cluster(tmp_path_factory.mktemp("api"), hub) as running:
        with Client(running.servers, timeout=60) as client:
            for name in STREAMS:
                client.create_stream(name, f"{name}.>", replicas=1)
            client.create_stream("safe", "safe.>", replicas=3)
            client.create_stream("kept", "kept.>", replicas=3, key="subject", compact=True)
        yield running


async def linked(hub: LeafServer) -> None:
    """Return once all three nodes have announced what they serve."""
    await eventually(lambda: hub.log.count("LS+ $JS.log.API.STREAM.>") >= 3)


async def get(client: NatsClient, stream: str, sequence: int, seconds: float = 60.0) -> Msg:
    body = json.dumps({"seq": sequence}).encode()
    return await client.request(f"$JS.log.API.DIRECT.GET.{stream}", body, timeout=seconds)


@on_loop
async def test_every_node_answers_for_every_stream(cluster: ApiCluster, hub: LeafServer) -> None:
    await linked(hub)
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        for name in STREAMS:
            for number in range(3):
                await client.request(f"{name}.x", b"%d" % number, timeout=60)
        for _ in range(REQUESTS):
            for name in STREAMS:
                found = json.loads(await asked(client, f"STREAM.INFO.{name}", b""))
                assert found["state"]["last_seq"] == 3
                assert (await get(client, name, 2)).data == b"1"
            listed = json.loads(await asked(client, "STREAM.LIST", b""))
            assert [each["config"]["name"] for each in listed["streams"]] == sorted(
                (*STREAMS, "kept", "safe")
            )
            assert "missing" not in listed


@on_loop
async def test_what_was_acknowledged_is_read_at_once_at_whichever_node(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    await linked(hub)
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        for number in range(REQUESTS):
            ack = json.loads((await client.request("safe.x", b"%d" % number, timeout=60)).data)
            assert (await get(client, "safe", ack["seq"])).data == b"%d" % number


@on_loop
async def test_a_node_that_is_stopped_costs_no_request(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    await linked(hub)
    node = 2
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        stopping = asyncio.create_task(asyncio.to_thread(cluster.stop, node))
        try:
            while not stopping.done():
                found = await client.request("$JS.log.API.STREAM.NAMES", b"", timeout=60)
                assert len(json.loads(found.data)["streams"]) == len(STREAMS) + 2
        finally:
            await stopping
            cluster.restart(node)


@on_loop
async def test_every_leader_holds_publishers_to_the_same_last_sequence(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    """Leaderships go round while publishers count: none is lost, and none is taken twice."""
    await linked(hub)
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        taken: list[int] = []
        last = 0
        for turn in range(6):
            for _ in range(3):
                wrong = await expecting(client, last + 1)
                assert wrong["error"]["description"] == f"wrong last sequence: {last}"
                last = (await expecting(client, last))["seq"]
                taken.append(last)
            found = await client.request("$JS.log.API.DIRECT.GET.kept.kept.x", b"", timeout=60)
            assert int((found.headers or {})["Nats-Sequence"]) == last
            await asyncio.to_thread(cluster.hand_over, "kept", turn % 3)
        assert taken == list(range(1, 19))


async def expecting(client: NatsClient, sequence: int) -> dict[str, Any]:
    """The answer to a publisher. A new leader may have to read its log first."""
    headers = {"Nats-Expected-Last-Subject-Sequence": str(sequence)}
    while True:
        try:
            reply = await client.request("kept.x", b"v", headers=headers, timeout=60)
        except NoRespondersError:
            continue
        found: dict[str, Any] = json.loads(reply.data)
        if found.get("error", {}).get("code") != 503:
            return found


@on_loop
async def test_a_bucket_is_served_by_whichever_node_leads(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    """What is put on the domain's own subjects reaches the leader over its leaf link."""
    await linked(hub)
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        kept = await client.jetstream(domain="log").create_key_value(bucket="all", replicas=3)
        for turn in range(6):
            ack = await put(client, b"%d" % turn)
            entry = await kept.get("k")
            assert (entry.value, entry.revision) == (b"%d" % turn, ack["seq"])
            assert await kept.keys() == ["k"]
            await asyncio.to_thread(cluster.hand_over, "KV_all", turn % 3)
        for sequence in (2, 4, 6):  # Whichever node is asked, the leader purges.
            body = json.dumps({"seq": sequence}).encode()
            purged = json.loads(await asked(client, "STREAM.PURGE.KV_all", body))
            assert (purged.get("success"), purged.get("purged", 0) > 0) == (True, True), purged
        assert await client.jetstream(domain="log").delete_key_value("all")


async def put(client: NatsClient, value: bytes) -> dict[str, Any]:
    """The answer to a put. While a leadership moves, nobody may be there to answer."""
    while True:
        try:
            reply = await client.request("$JS.log.API.$KV.all.k", value, timeout=3)
        except (NoRespondersError, TimeoutError):
            continue
        found: dict[str, Any] = json.loads(reply.data)
        if "error" not in found:
            return found


@on_loop
async def test_a_lost_leader_is_replaced_and_the_others_answer(
    cluster: ApiCluster, hub: LeafServer
) -> None:
    await linked(hub)
    leader = cluster.settled("safe").stream.leader
    async with client_of(hub.url) as client:
        ack = json.loads((await client.request("safe.x", b"before", timeout=60)).data)
        cluster.kill(leader)
        try:
            async with asyncio.timeout(60):
                while await answered(client, ack["seq"]) != b"before":
                    pass
        finally:
            cluster.restart(leader)


async def answered(client: NatsClient, sequence: int) -> bytes:
    """What a request brings; b"" if it was on its way to the killed node and is lost, as with any
    NATS service, or if no leader is elected yet."""
    try:
        return bytes((await get(client, "safe", sequence, 6.0)).data)
    except (TimeoutError, NoRespondersError):
        return b""
