"""Pulls of NATS clients whose leaf link is lost: the clients are told once it is back."""

from __future__ import annotations

from pathlib import Path

from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription

from jetstream_client import Client
from tests.integration.test_consumers_cluster import published
from tests.support.gate import Gate
from tests.support.gated_leaf import gated_cluster
from tests.support.jetstream_api import api_server
from tests.support.leaf import LeafServer, asked, asking
from tests.support.loops import eventually, on_loop

PULL = b'{"batch":7,"expires":600000000000}'
NEXT = "$JS.log.API.CONSUMER.MSG.NEXT"


class GatedHub(LeafServer):
    """A NATS server that nodes reach through a gate."""

    gate: Gate

    @property
    def leaf_url(self) -> str:
        return f"nats://127.0.0.1:{self.gate.port}"


async def waiting(client: NatsClient, stream: str, name: str) -> Subscription:
    """The inbox of a pull that waits."""
    inbox = client.new_inbox()
    found = await client.subscribe(inbox)
    await client.publish(f"{NEXT}.{stream}.{name}", PULL, reply=inbox)
    return found


async def until_it_waits(client: NatsClient, stream: str, name: str) -> None:
    async def waits() -> bool:
        return b'"num_waiting":1' in await asked(client, f"CONSUMER.INFO.{stream}.{name}", b"")

    while not await waits():
        pass


async def until_told(inbox: Subscription) -> None:
    told = await inbox.next_msg(60)
    assert told.headers["Status"] == "408"
    assert told.headers["Nats-Pending-Messages"] == "7"


@on_loop
async def test_a_pull_that_waited_is_ended_once_the_link_is_back(tmp_path: Path) -> None:
    with GatedHub() as hub, Gate(hub.leaf_port) as gate:
        hub.gate = gate
        with api_server(tmp_path / "data", hub) as server:
            with Client(server.grpc, timeout=60) as client:
                client.create_stream("jobs", "jobs.>")
            async with asking(hub.url) as app:
                manager = app.jetstream(domain="log", timeout=60)
                await manager.pull_subscribe("jobs.>", durable="worker")
                inbox = await waiting(app, "jobs", "worker")
                await until_it_waits(app, "jobs", "worker")
                gate.close()
                gate.open()
                await until_told(inbox)
                again = await waiting(app, "jobs", "worker")
                await until_it_waits(app, "jobs", "worker")
                await app.request("jobs.x", b"after", timeout=60)
                assert (await again.next_msg(60)).data == b"after"


@on_loop
async def test_what_was_asked_for_while_the_leader_had_no_link_is_ended_once_it_has_one(
    tmp_path: Path,
) -> None:
    """The other nodes hear it, and nobody answers."""
    with gated_cluster(tmp_path) as (cluster, hub, gates):
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream("jobs", "jobs.>", replicas=3)
        async with asking(hub.url) as app:
            manager = app.jetstream(domain="log", timeout=60)
            await manager.pull_subscribe("jobs.>", durable="worker")
            heard = f"<<- [LS+ {NEXT}.jobs.*"
            await eventually(lambda: hub.log.count(heard) >= 3)
            gate = gates[cluster.settled("jobs").stream.leader]
            before = await waiting(app, "jobs", "worker")
            await until_it_waits(app, "jobs", "worker")
            gate.close()
            await eventually(lambda: "Leafnode connection closed" in hub.log, 60)
            meanwhile = await waiting(app, "jobs", "worker")
            await app.flush(60)
            gate.open()
            await until_told(before)
            # Should another node lead by now, it serves the pull.
            await published(app, "jobs.x", b"served")
            answer = await meanwhile.next_msg(60)
            assert answer.data == b"served" or answer.headers["Status"] == "408"
