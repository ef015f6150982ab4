"""Who has created a stream may use it at any node: by another client, or by HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.peers import FORWARDED, Peers
from jetstream_server.serving.grpc.streams_service import StreamsService
from tests.support.access import open_to_all
from tests.support.virtual_time import on_virtual_loop
from tests.unit.metadata.cluster import Cluster

HERE, LEADER, SLOW = 0, 1, 2


class Others:
    """The other nodes, of which one hears of the stream when the test says so."""

    def __init__(self) -> None:
        self.hears = asyncio.Event()
        self.asked: list[int] = []

    async def ask(self, node_id: int, _: object) -> None:
        assert node_id == LEADER

    async def reach_epoch(self, node_id: int, *_: int) -> None:
        self.asked.append(node_id)
        await self.hears.wait()


def create(
    others: Others, *headers: tuple[str, str], leader: int = LEADER
) -> asyncio.Task[pb.CreateStreamResponse]:
    cluster = Cluster(3)
    stream = cluster.create("orders", "orders", (leader, SLOW))
    assert stream.leader == leader

    async def created(*_: object, **__: object) -> tuple[object, bool]:
        return stream, True

    async def confirm(_: object) -> None:
        pass

    given: dict[str, Any] = {
        "metadata": SimpleNamespace(registry=cluster.registry),
        "replicas": SimpleNamespace(full_reason="", log_config=SimpleNamespace(keys=None)),
        "access": SimpleNamespace(control=open_to_all(), check_new=lambda *_: 0),
        "streams": SimpleNamespace(create=created, check_room=lambda *_: None),
        "peers": cast(Peers, others),
        "confirm": confirm,
        "node_id": HERE,
    }
    unused = ("changes", "drained", "wall_clock", "visit", "produces", "lakes", "consumers")
    service = StreamsService(**given, **dict.fromkeys(unused, cast(Any, None)))
    context = SimpleNamespace(
        peer=lambda: "ipv4:10.0.0.1:5",
        auth_context=dict,
        invocation_metadata=lambda: headers,
        time_remaining=lambda: None,
    )
    request = pb.CreateStreamRequest(name="orders", subject="orders")
    return asyncio.ensure_future(service.CreateStream(request, Call(cast(Any, context))))


@on_virtual_loop
async def test_a_stream_is_created_once_the_other_nodes_have_heard_of_it() -> None:
    """One that was a moment behind answered that there is no such stream."""
    others = Others()
    creating = create(others)
    await asyncio.wait([creating], timeout=0.5)
    assert (creating.done(), others.asked) == (False, [SLOW])
    others.hears.set()
    assert (await creating).created


@on_virtual_loop
async def test_a_node_that_does_not_answer_holds_a_creation_up_for_a_moment() -> None:
    async with asyncio.timeout(2):
        assert (await create(Others())).created


@on_virtual_loop
async def test_a_leader_that_creates_for_another_node_waits_for_nobody() -> None:
    """That node does."""
    others = Others()
    assert (await create(others, (FORWARDED, "1"), leader=HERE)).created
    assert others.asked == []
