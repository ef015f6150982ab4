"""A node that has not applied yet what another node has told the caller."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc import aio

from jetstream_protocol.channels import REVISION_KEY
from jetstream_protocol.errors import InvalidRequestError, StreamNotFoundError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.client.raft_metadata_log import REACH_SECONDS, RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.member.member import Member, MemberListener
from jetstream_server.metadata.member.member_loop import News
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.serving.grpc.grpc_loop import Call, GrpcLoop
from jetstream_server.serving.grpc.guard import CLUSTER, Guarded
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from jetstream_server.serving.grpc.server import handlers_of
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender
from tests.support.access import open_to_all
from tests.support.loops import on_loop
from tests.support.virtual_time import on_virtual_loop
from tests.unit.metadata.cluster import Cluster

LEADER = NodeId(1)
CONFIG = MemberConfig("", NodeId(0), {NodeId(0): "", LEADER: ""}, "")


class Follower:
    """Hears of changes when the test says so."""

    def __init__(self, config: MemberConfig, listener: MemberListener) -> None:
        voters = tuple(config.voters)
        self.status = replace(MetadataStatus.absent(config.node_id, voters), leader=LEADER)
        self._listener = listener

    def start(self) -> None:
        self._listener.member_started(None)
        self._listener.member_status(self.status)

    def change_leader(self, leader: NodeId) -> None:
        self._listener.member_status(replace(self.status, leader=leader))

    def apply(self, revision: int) -> None:
        self._listener.member_news(News([], revision, []))


class Node:
    """Answers with the revision at which it does."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def ListStreams(self, request: object, call: object) -> pb.ListStreamsResponse:
        return pb.ListStreamsResponse(revision=self._registry.revision)


async def started() -> tuple[RaftMetadataLog, Follower]:
    log = RaftMetadataLog(
        CONFIG, "session", make_member=lambda *given: cast(Member, Follower(*given))
    )
    await log.start()
    await asyncio.sleep(0.1)
    return log, cast(Follower, log._member)


def ask(log: RaftMetadataLog, known: str, service: str = "jetstream.v1.Streams") -> Any:
    guarded = Guarded(
        Node(log.registry),
        service,
        cast(Any, SimpleNamespace(control=open_to_all())),
        cast(Any, SimpleNamespace(called=lambda peer, identity: None)),
        ResponseMemoryLimiter(lambda _: None),
        log.reach,
    )
    context = SimpleNamespace(
        peer=lambda: "ipv4:10.0.0.1:5",
        auth_context=dict,
        invocation_metadata=lambda: ((REVISION_KEY, known),) if known else (),
        time_remaining=lambda: None,
    )
    call = Call(cast(Any, context))
    return asyncio.ensure_future(guarded.ListStreams(pb.ListStreamsRequest(), call))


@on_virtual_loop
async def test_it_answers_once_it_knows_as_much() -> None:
    log, member = await started()
    member.apply(3)
    asking = ask(log, "5")
    await asyncio.sleep(0.1)
    member.apply(4)
    await asyncio.sleep(0.1)
    assert not asking.done()
    member.apply(5)
    assert (await asking).revision == 5


@pytest.mark.parametrize("known", ["", "3", "2"])
@on_virtual_loop
async def test_it_answers_who_knows_no_more_at_once(known: str) -> None:
    log, member = await started()
    member.apply(3)
    await asyncio.sleep(0)
    begun = asyncio.get_running_loop().time()
    assert (await ask(log, known)).revision == 3
    assert asyncio.get_running_loop().time() == begun


@on_virtual_loop
async def test_it_waits_no_longer_than_callers_do() -> None:
    log, member = await started()
    member.apply(3)
    begun = asyncio.get_running_loop().time()
    assert (await ask(log, "9" * 18)).revision == 3
    assert asyncio.get_running_loop().time() - begun == pytest.approx(REACH_SECONDS)
    assert not log._reaching


@on_virtual_loop
async def test_without_a_leader_and_about_the_cluster_it_answers_at_once() -> None:
    log, member = await started()
    begun = asyncio.get_running_loop().time()
    await ask(log, "5", CLUSTER)
    member.change_leader(NO_NODE)
    await asyncio.sleep(0)
    await ask(log, "5")
    assert asyncio.get_running_loop().time() == begun


@on_virtual_loop
async def test_what_is_no_revision_is_refused() -> None:
    log, _ = await started()
    with pytest.raises(InvalidRequestError, match="jetstream-revision is 'many'"):
        await ask(log, "many")


def test_a_stream_of_a_later_revision_is_not_said_to_be_gone() -> None:
    cluster = Cluster(1)
    stream = cluster.create("orders", "orders", (0,))
    registry = cluster.registry
    assert registry.stream_of(common_pb2.StreamRef(id=stream.id)) == stream
    with pytest.raises(UnavailableError, match="has not heard of stream"):
        registry.stream_of(common_pb2.StreamRef(id=registry.revision + 1))
    with pytest.raises(StreamNotFoundError, match="was it deleted"):
        registry.stream_of(common_pb2.StreamRef(id=stream.id - 1))


class Told:
    """Another node, which answers with the revision that its caller has named."""

    async def ListStreams(self, _: object, context: Any) -> pb.ListStreamsResponse:
        told = dict(context.invocation_metadata())
        context.set_trailing_metadata(((REVISION_KEY, "9"),))
        return pb.ListStreamsResponse(revision=int(told.get(REVISION_KEY, "0")))


@on_loop
async def test_what_http_asks_of_another_node_names_the_revision_of_its_own() -> None:
    async def listen() -> tuple[aio.Server, int]:
        server = aio.server()
        server.add_generic_rpc_handlers([handlers_of("Streams", Told())])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    grpc_loop = GrpcLoop()
    grpc_loop.start()
    server, port = await grpc_loop.run(listen())
    addresses = SimpleNamespace(grpc=f"127.0.0.1:{port}")
    registry = SimpleNamespace(revision=7, nodes={1: SimpleNamespace(addresses=addresses)})
    reached = list[int]()

    async def reach(revision: int) -> None:
        reached.append(revision)

    gateway = Gateway(cast(Registry, registry), grpc_loop, 0, reach=reach, requires_token=False)
    try:
        sender = Sender("", "10.0.0.1:5")
        found = await gateway.call(pb.ListStreamsRequest(), sender, node_id=1, seconds=60)
        assert found.revision == 7
        await gateway.caught_up()
        assert reached == [9]
    finally:
        await gateway.close()
        await grpc_loop.run(server.stop(0))
        await grpc_loop.stop()
