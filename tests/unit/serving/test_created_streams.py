"""Who has created, altered or deleted a stream finds it so at any node: by another client, or by
HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_server.metadata.state.commands import SCHEMA_LEVEL
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
        if node_id == SLOW:
            await self.hears.wait()


def call(
    request: Message, others: Others, *headers: tuple[str, str], leader: int = LEADER
) -> asyncio.Task[Any]:
    """Call the method that takes the request."""
    cluster = Cluster.at_level(3, SCHEMA_LEVEL)
    stream = cluster.create("orders", "orders", (leader, SLOW))
    assert stream.leader == leader

    async def created(*_: object, **__: object) -> tuple[object, bool]:
        return stream, True

    async def altered(*_: object) -> object:
        return stream

    async def proposed(*_: object, **__: object) -> dict[str, int]:
        return {"schema_version": 1}

    async def confirm(_: object) -> None:
        pass

    given: dict[str, Any] = {
        "metadata": SimpleNamespace(registry=cluster.registry, propose=proposed),
        "replicas": SimpleNamespace(full_reason="", log_config=SimpleNamespace(keys=None)),
        "access": SimpleNamespace(control=open_to_all(), check_new=lambda *_: 0),
        "streams": SimpleNamespace(create=created, alter=altered, check_room=lambda *_: None),
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
    method = getattr(service, type(request).__name__.removesuffix("Request"))
    return asyncio.ensure_future(method(request, Call(cast(Any, context))))


CREATE = pb.CreateStreamRequest(name="orders", subject="orders")
ORDERS = common_pb2.StreamRef(name="orders")
CHANGES = [
    CREATE,
    pb.AlterStreamRequest(stream=ORDERS),
    pb.SetSchemaRequest(stream=ORDERS),
    pb.DeleteStreamRequest(stream=ORDERS),
]
of_each_kind = pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)


@of_each_kind
@on_virtual_loop
async def test_a_change_is_made_once_the_other_nodes_have_heard_of_it(change: Message) -> None:
    """One that was a moment behind answered that there is no such stream, or with old settings."""
    others = Others()
    changing = call(change, others)
    await asyncio.wait([changing], timeout=0.5)
    assert not changing.done()
    assert SLOW in others.asked
    others.hears.set()
    await changing


@of_each_kind
@on_virtual_loop
async def test_a_node_that_does_not_answer_holds_a_change_up_for_a_moment(change: Message) -> None:
    async with asyncio.timeout(2):
        await call(change, Others())


@on_virtual_loop
async def test_a_leader_that_creates_for_another_node_waits_for_nobody() -> None:
    """That node does."""
    others = Others()
    assert (await call(CREATE, others, (FORWARDED, "1"), leader=HERE)).created
    assert others.asked == []
