"""Consumers of NATS clients, with a real NATS server: nats-py, and requests by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from jetstream_client import Client
from tests.support.jetstream_api import api_server
from tests.support.leaf import LeafServer, answer, asked, asking, client_of
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess
from tests.support.stages import hub_stage

COUNT = 30


hub = hub_stage()


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a stream `orders` of 30 records on three subjects, and `jobs`, which tests fill."""
    with api_server(tmp_path_factory.mktemp("consumers") / "data", hub) as running:
        with Client(running.grpc, timeout=60) as client:
            client.create_stream("orders", "orders.>")
            client.create_stream("jobs", "jobs.>")
        asyncio.run(_publish(hub.url))
        yield running


async def _publish(url: str) -> None:
    async with client_of(url) as client:
        for number in range(COUNT):
            headers = {"Number": str(number)} if number % 2 else None
            subject = f"orders.{'abc'[number % 3]}"
            await client.request(subject, b"%d" % number, headers=headers, timeout=60)
        await asked(client, "INFO", b"")


async def create(client: NatsClient, stream: str, name: str, **config: object) -> dict[str, Any]:
    body = {"stream_name": stream, "config": {"name": name, "ack_policy": "none", **config}}
    return await answer(client, f"CONSUMER.CREATE.{stream}.{name}", body)


def status(message: Msg) -> str:
    """Code and text; "" for a message."""
    headers = message.headers or {}
    if "Status" not in headers:
        return ""
    return f"{headers['Status']} {headers.get('Description', '')}".strip()


async def pulled(client: NatsClient, stream: str, name: str, body: object) -> list[Msg]:
    """What a pull brings, up to the status that ends it, or its last message."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    payload = json.dumps(body).encode()
    await client.publish(f"$JS.log.API.CONSUMER.MSG.NEXT.{stream}.{name}", payload, reply=inbox)
    found: list[Msg] = []
    batch = body.get("batch", 1) if isinstance(body, dict) else 1
    while len(found) < batch and not (found and status(found[-1])):
        found.append(await subscription.next_msg(60))
    await subscription.unsubscribe()
    return found


@on_loop
async def test_a_library_reads_in_order_by_pushes(server: ServerProcess, hub: LeafServer) -> None:
    async with asking(hub.url) as client:
        manager = client.jetstream(domain="log", timeout=60)
        subscription = await manager.subscribe("orders.>", ordered_consumer=True)
        for number in range(COUNT):
            message = await subscription.next_msg(60)
            assert message.data == b"%d" % number
            assert message.subject == f"orders.{'abc'[number % 3]}"
            assert message.metadata.num_pending == COUNT - 1 - number
        await subscription.unsubscribe()


@on_loop
async def test_pulls_bring_messages_and_end_by_a_status(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        info = await create(client, "orders", "puller")
        assert "error" not in info, info
        assert info["num_pending"] == COUNT
        first = await pulled(client, "orders", "puller", {"batch": 5, "expires": 10**10})
        assert [each.data for each in first] == [b"%d" % number for number in range(5)]
        assert first[1].headers == {"Number": "1"}
        rest = await pulled(client, "orders", "puller", {"batch": 50, "no_wait": True})
        assert len(rest) == COUNT - 5 + 1
        assert status(rest[-1]) == "404 No Messages"
        ended = await pulled(client, "orders", "puller", {"batch": 3, "expires": 10**8})
        assert status(ended[-1]) == "408 Request Timeout"
        assert ended[-1].headers["Nats-Pending-Messages"] == "3"
        deleted = await answer(client, "CONSUMER.DELETE.orders.puller")
        assert deleted["success"]
        gone = await pulled(client, "orders", "puller", {"batch": 1})
        assert status(gone[-1]) == "503"


# Acknowledgements.


async def published(client: NatsClient, kind: str, count: int) -> None:
    for number in range(count):
        await client.request(f"jobs.{kind}", b"%d" % number, timeout=60)


@on_loop
async def test_a_library_acknowledges_each_message(server: ServerProcess, hub: LeafServer) -> None:
    async with asking(hub.url) as client:
        manager = client.jetstream(domain="log", timeout=60)
        await published(client, "acks", 6)
        subscription = await manager.pull_subscribe("jobs.acks", durable="acks")
        first, second, third = await subscription.fetch(3, timeout=60)
        assert [each.data for each in (first, second, third)] == [b"0", b"1", b"2"]
        await first.ack_sync(timeout=60)
        await second.nak()
        await third.term()
        again = await subscription.fetch(4, timeout=60)
        assert [each.data for each in again] == [b"1", b"3", b"4", b"5"]
        assert again[0].metadata.num_delivered == 2
        for message in again:
            await message.ack_sync(timeout=60)
        info = await manager.consumer_info("jobs", "acks")
        assert (info.num_ack_pending, info.num_pending, info.num_redelivered) == (0, 0, 0)
        assert info.ack_floor is not None
        assert info.ack_floor.consumer_seq == 7
        await manager.delete_consumer("jobs", "acks")


@on_loop
async def test_what_is_not_acknowledged_in_time_comes_again(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        manager = client.jetstream(domain="log", timeout=60)
        await published(client, "wait", 2)
        config = ConsumerConfig(ack_wait=0.3, max_deliver=2, max_ack_pending=1)
        advised = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.jobs.wait")
        subscription = await manager.pull_subscribe("jobs.wait", durable="wait", config=config)
        (message,) = await subscription.fetch(1, timeout=60)
        (again,) = await subscription.fetch(1, timeout=60)
        assert (message.data, again.data) == (b"0", b"0")
        assert again.metadata.num_delivered == 2
        (other,) = await subscription.fetch(1, timeout=60)
        assert other.data == b"1"
        told = json.loads((await advised.next_msg(60)).data)
        assert told["deliveries"] == 2
        assert told["type"] == "io.nats.jetstream.advisory.v1.max_deliver"
        await other.in_progress()
        await other.ack_sync(timeout=60)
        await manager.delete_consumer("jobs", "wait")


@on_loop
async def test_a_durable_consumer_outlives_its_server(
    hub: LeafServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        LeafServer() as own_hub,
        api_server(tmp_path_factory.mktemp("kept") / "data", own_hub) as one,
    ):
        with Client(one.grpc, timeout=60) as own:
            own.create_stream("jobs", "jobs.>")
        async with asking(own_hub.url) as client:
            manager = client.jetstream(domain="log", timeout=60)
            await published(client, "kept", 10)
            subscription = await manager.pull_subscribe("jobs.>", durable="kept")
            messages = await subscription.fetch(6, timeout=60)
            for number in (0, 2, 3):
                await messages[number].ack_sync(timeout=60)
            await asyncio.to_thread(one.kill)
            await asyncio.to_thread(one.start)
            await asked(client, "INFO", b"")
            await asked(client, "CONSUMER.INFO.jobs.kept", b"")
            found = await subscription.fetch(7, timeout=60)
            assert [each.data for each in found] == [b"1", b"4", b"5", b"6", b"7", b"8", b"9"]


@on_loop
async def test_members_of_a_group_share_what_is_pushed(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        manager = client.jetstream(domain="log", timeout=60)
        found: list[bytes] = []

        async def handle(message: Msg) -> None:
            found.append(message.data)
            await message.ack()

        members = [
            await manager.subscribe(
                "jobs.shared", queue="workers", durable="workers", cb=handle, manual_ack=True
            )
            for _ in range(2)
        ]
        await published(client, "shared", 10)
        await eventually(lambda: len(found) == 10)
        assert sorted(found) == [b"%d" % number for number in range(10)]
        await eventually_done(client, "workers")
        for each in members:
            await each.unsubscribe()


async def eventually_done(client: NatsClient, name: str) -> None:
    """Return once nothing of a consumer is open or to come."""
    async with asyncio.timeout(60):
        while True:
            info = await answer(client, f"CONSUMER.INFO.jobs.{name}")
            if not info["num_ack_pending"] and not info["num_pending"]:
                return
            await asyncio.sleep(0.02)


@on_loop
async def test_a_paused_consumer_delivers_nothing_until_it_is_resumed(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        await create(client, "orders", "paused", inactive_threshold=60 * 10**9)
        until = {"pause_until": "2100-01-01T00:00:00Z"}
        told = await answer(client, "CONSUMER.PAUSE.orders.paused", until)
        assert told["paused"]
        assert told["pause_remaining"] > 10**15
        waited = await pulled(client, "orders", "paused", {"batch": 1, "expires": 3 * 10**8})
        assert status(waited[0]) == "408 Request Timeout"
        assert not (await answer(client, "CONSUMER.PAUSE.orders.paused"))["paused"]
        (message,) = await pulled(client, "orders", "paused", {"batch": 1, "expires": 10**10})
        assert message.data == b"0"
        await answer(client, "CONSUMER.DELETE.orders.paused")


@on_loop
async def test_a_list_has_as_many_consumers_as_a_message_holds(
    server: ServerProcess, hub: LeafServer
) -> None:
    """On a stream of its own: pages are by number, and other consumers come and go."""
    with Client(server.grpc, timeout=60) as sdk:
        sdk.create_stream("listed", "listed")
    names = [f"large-{number:02}" for number in range(70)]
    config = {"metadata": {"label": "x" * 16_000}, "inactive_threshold": 60 * 10**9}
    async with asking(hub.url) as client:
        await asyncio.gather(*(create(client, "listed", each, **config) for each in names))
        found, total = list[str](), 1
        while len(found) < total:
            page = await answer(client, "CONSUMER.LIST.listed", {"offset": len(found)})
            assert page["consumers"], page
            found, total = [*found, *(each["name"] for each in page["consumers"])], page["total"]
        assert sorted(found) == names
        await asyncio.gather(*(answer(client, f"CONSUMER.DELETE.listed.{each}") for each in names))


@on_loop
async def test_of_streams_that_share_a_name_none_is_pulled_from(
    server: ServerProcess, hub: LeafServer
) -> None:
    """The leader of each hears the pull, and may have a consumer of that name."""
    asked_for = {"batch": 1, "expires": 10**10}
    with Client(server.grpc, timeout=60) as sdk:
        sdk.create_stream("twin", "twin.a")
        sdk.publish("twin.a", b"1")
        async with asking(hub.url) as client:
            await create(client, "twin", "c", inactive_threshold=60 * 10**9)
            (message,) = await pulled(client, "twin", "c", asked_for)
            assert message.data == b"1"
            sdk.create_stream("twin", "twin.b", allow_same_name=True)
            (refused,) = await pulled(client, "twin", "c", asked_for)
            assert status(refused) == "400 Bad Request - several streams have that name"
        sdk.delete_stream("twin@twin.b")
        sdk.delete_stream("twin")


@on_loop
async def test_deliver_policies_begin_where_they_say(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        subject = "orders.b"
        for name, config, first in (
            ("all", {"deliver_policy": "all"}, b"1"),
            ("last", {"deliver_policy": "last"}, b"28"),
            ("seq", {"deliver_policy": "by_start_sequence", "opt_start_seq": 10}, b"10"),
            ("per", {"deliver_policy": "last_per_subject"}, b"28"),
        ):
            info = await create(client, "orders", name, filter_subject=subject, **config)
            assert "error" not in info, info
            (message,) = await pulled(client, "orders", name, {"batch": 1, "expires": 10**10})
            assert (message.data, message.subject) == (first, subject)
        new = await create(client, "orders", "new", deliver_policy="new")
        assert (new["num_pending"], new["delivered"]["stream_seq"]) == (0, COUNT)
        each = await create(
            client, "orders", "each", deliver_policy="last_per_subject", filter_subject="orders.*"
        )
        assert each["num_pending"] == 3
        found = await pulled(client, "orders", "each", {"batch": 5, "no_wait": True})
        assert [one.data for one in found[:-1]] == [b"27", b"28", b"29"]


@on_loop
async def test_clients_that_ask_too_much_cost_nobody_else_anything(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client, asking(hub.url) as other:
        reader = await other.jetstream(domain="log", timeout=60).subscribe(
            "jobs.flood", ordered_consumer=True
        )
        await create(client, "orders", "flooded", deliver_policy="new", max_waiting=16)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        to = "$JS.log.API.CONSUMER.MSG.NEXT.orders.flooded"
        bodies = (b"", b"7", b"{", b"[1]", b'{"batch":-1}', b'{"batch":1e9}', b"\xff" * 100)
        for number in range(5_000):
            await client.publish(to, bodies[number % len(bodies)], reply=inbox)
        for reply in ("", "orders.a", "$SYS.REQ.x", "_INBOX.nobody.listens"):
            await client.publish(to, b'{"batch":1000000}', reply=reply)
        for subject in ("$JS.ACK.log.x.orders.flooded.1", "$JS.FC.orders.flooded.1"):
            await client.publish(subject, b"-NAK {", reply=inbox)
        await client.flush()
        await published(other, "flood", 10)
        for number in range(10):
            assert (await reader.next_msg(60)).data == b"%d" % number
        await reader.unsubscribe()
        refused = {status(await subscription.next_msg(60)) for _ in range(100)}
        assert "409 Exceeded MaxWaiting" in refused
        info = await answer(other, "CONSUMER.INFO.orders.flooded")
        assert info["num_waiting"] <= 16
        await answer(other, "CONSUMER.DELETE.orders.flooded")
        assert hub.log.count("LS+ $JS.log.API.STREAM.>") == 1, "the link was closed"
