"""Which node a reader asks: by preference, rack, greeting and earlier failures."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from typing import cast

import pytest

from jetstream_client.transport import routes as routes_module
from jetstream_client.transport.routes import Routes, check_read_from
from jetstream_client.values.types import ClusterInfo, Node, ReadFrom, Stream
from jetstream_protocol.errors import (
    InvalidRequestError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.generated import common_pb2
from tests.support.virtual_time import on_virtual_loop

REF = common_pb2.StreamRef(name="orders")
NOW = ContextVar("NOW", default=100.0)
"""In seconds. Each task has its own: greetings that run at the same time take what they take."""


class Clock:
    def monotonic(self) -> float:
        return NOW.get()


def let_pass(seconds: float) -> None:
    NOW.set(NOW.get() + seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "time", Clock())


class Registered:
    """What is read of a stream."""

    isr: tuple[int, ...] = (0, 1, 2)
    replicas: tuple[int, ...] = (0, 1, 2)
    observers: tuple[int, ...] = ()
    leader = 0


def node(node_id: int, rack: str = "", *, fenced: bool = False) -> Node:
    return Node(node_id, f"g{node_id}:1", f"d{node_id}:1", "", rack, 1, fenced, False)


class Cluster:
    def __init__(self, *racks: str) -> None:
        self.nodes = [node(node_id, rack) for node_id, rack in enumerate(racks or ("",) * 3)]
        self.leader = 0
        self.stream = Registered()
        self.error: Exception | None = None
        self.seconds = {"d0:1": 0.02, "d1:1": 0.0, "d2:1": 0.04}
        self.greeted: list[str] = []
        self.looked: list[float] = []

    async def info(self) -> ClusterInfo:
        return ClusterInfo("c", 0, tuple(self.nodes), (), "", 0)

    async def leader_of(self, stream: common_pb2.StreamRef, timeout: float) -> int:
        self.looked.append(timeout)
        return self.leader

    async def registered(self, stream: common_pb2.StreamRef, timeout: float) -> Stream:
        if self.error is not None:
            raise self.error
        return cast(Stream, self.stream)

    async def greet(self, address: str) -> None:
        self.greeted.append(address)
        if address not in self.seconds:
            raise UnavailableError("dead")
        let_pass(self.seconds[address])

    def routes(self, rack: str = "") -> Routes:
        return Routes(self.info, self.leader_of, self.registered, self.greet, 4.0, rack)


@pytest.mark.parametrize("wrong", ["", "follower", "LEADER"])
def test_another_preference_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_read_from(wrong)


@on_virtual_loop
async def test_the_leader_is_asked_and_where_it_is_not_found_another_in_sync() -> None:
    cluster = Cluster()
    assert await cluster.routes().address(REF, "leader") == "d0:1"
    cluster.leader = -1  # The registry still names node 0.
    drawn = {await cluster.routes().address(REF, "leader") for _ in range(60)}
    assert drawn == {"d1:1", "d2:1"}
    cluster.stream.isr = (0, 2)
    assert {await cluster.routes().address(REF, "leader") for _ in range(30)} == {"d2:1"}


@on_virtual_loop
async def test_without_a_leader_each_replica_is_tried_and_the_leader_looked_for_once() -> None:
    cluster = Cluster()
    cluster.leader = -1
    routes = cluster.routes()
    tried = []
    for _ in range(4):
        tried.append(await routes.address(REF, "leader"))
        routes.failed(REF, "leader")
        let_pass(0.01)
    assert sorted(tried[:2]) == ["d1:1", "d2:1"]
    assert tried[2:] == ["d0:1", tried[0]], "then the one left alone first"
    assert cluster.looked == [1.0]


@on_virtual_loop
async def test_a_stand_in_is_left_for_the_leader_once_there_is_one() -> None:
    cluster = Cluster()
    cluster.leader = -1
    routes = cluster.routes()
    stand_in = await routes.address(REF, "leader")
    let_pass(1.1 * routes_module.AVOID_SECONDS)
    assert await routes.address(REF, "leader") == stand_in, "there still is none"
    assert cluster.looked == [1.0, 0.2], "a glance"
    cluster.leader = 0
    let_pass(1.1 * routes_module.AVOID_SECONDS)
    assert await routes.address(REF, "leader") == "d0:1"
    assert await routes.address(REF, "leader") == "d0:1"
    assert len(cluster.looked) == 3


@on_virtual_loop
async def test_a_leader_that_is_a_new_node_is_found_with_the_next_look() -> None:
    cluster = Cluster()
    routes = cluster.routes()
    assert await routes.address(common_pb2.StreamRef(name="other"), "leader") == "d0:1"
    cluster.nodes.append(node(3))
    cluster.leader = 3
    assert await routes.address(REF, "leader") in ("d1:1", "d2:1")
    let_pass(1.1 * routes_module.AVOID_SECONDS)
    assert await routes.address(REF, "leader") == "d3:1"


@on_virtual_loop
async def test_a_reader_stays_with_its_replica_once_the_streams_id_is_known() -> None:
    cluster = Cluster()
    cluster.leader = -1
    for read_from in ("any", "leader"):
        routes = cluster.routes()
        chosen = await routes.address(REF, read_from)
        routes.is_known_as(REF, 7, read_from)
        assert await routes.address(common_pb2.StreamRef(id=7), read_from) == chosen


@on_virtual_loop
async def test_any_is_one_in_sync_and_spreads() -> None:
    cluster = Cluster()
    cluster.stream.isr = (0, 2)
    drawn = {await cluster.routes().address(REF, "any") for _ in range(60)}
    assert drawn == {"d0:1", "d2:1"}


@on_virtual_loop
async def test_a_reader_stays_with_its_choice() -> None:
    routes = Cluster().routes()
    first = await routes.address(REF, "any")
    assert {await routes.address(REF, "any") for _ in range(30)} == {first}


@on_virtual_loop
async def test_nearest_is_in_the_own_rack_and_else_who_greets_quickest() -> None:
    cluster = Cluster("east", "west", "east")
    assert await cluster.routes("east").address(REF, "nearest") == "d0:1"
    assert await cluster.routes("west").address(REF, "nearest") == "d1:1"
    assert await cluster.routes("moon").address(REF, "nearest") == "d1:1"
    assert await cluster.routes().address(REF, "nearest") == "d1:1"


@on_virtual_loop
async def test_a_node_is_measured_once() -> None:
    cluster = Cluster()
    routes = cluster.routes()
    await routes.address(REF, "nearest")
    await routes.address(common_pb2.StreamRef(name="other"), "nearest")
    assert sorted(cluster.greeted) == ["d0:1", "d1:1", "d2:1"]


@on_virtual_loop
async def test_who_does_not_greet_is_not_the_nearest() -> None:
    cluster = Cluster()
    del cluster.seconds["d1:1"]
    assert await cluster.routes().address(REF, "nearest") == "d0:1"


@on_virtual_loop
async def test_who_failed_or_is_behind_is_left_alone_for_a_while() -> None:
    cluster = Cluster()
    routes = cluster.routes()
    preference: ReadFrom = "nearest"
    assert await routes.address(REF, preference) == "d1:1"
    routes.failed(REF, preference)
    assert await routes.address(REF, preference) == "d0:1"
    routes.is_behind(REF, preference)
    assert await routes.address(REF, preference) == "d2:1"
    # Behind for one stream, failed for all of them.
    assert await routes.address(common_pb2.StreamRef(name="other"), preference) == "d0:1"
    routes.failed(REF, preference)
    let_pass(1.1 * routes_module.AVOID_SECONDS)
    assert await routes.address(REF, preference) == "d1:1", "the while is over"


@on_virtual_loop
async def test_where_all_are_to_be_avoided_somebody_is_asked_all_the_same() -> None:
    cluster = Cluster()
    routes = cluster.routes()
    for _ in range(4):
        await routes.address(REF, "any")
        routes.failed(REF, "any")
    assert await routes.address(REF, "any") in ("d0:1", "d1:1", "d2:1")


@on_virtual_loop
async def test_fenced_nodes_are_not_asked() -> None:
    cluster = Cluster()
    cluster.nodes[1] = replace(cluster.nodes[1], fenced=True)
    drawn = {await cluster.routes().address(REF, "any") for _ in range(40)}
    assert drawn == {"d0:1", "d2:1"}


@on_virtual_loop
async def test_replicas_out_of_sync_are_better_than_nobody() -> None:
    cluster = Cluster()
    cluster.stream.isr, cluster.stream.replicas = (), (2,)
    assert await cluster.routes().address(REF, "any") == "d2:1"


@on_virtual_loop
async def test_when_nobody_tells_the_replicas_any_node_is_tried_but_not_for_a_wrong_name() -> None:
    cluster = Cluster()
    cluster.error = UnavailableError("no node answers")
    assert await cluster.routes().address(REF, "any") in ("d0:1", "d1:1", "d2:1")
    cluster.error = StreamNotFoundError("no such stream")
    with pytest.raises(StreamNotFoundError):
        await cluster.routes().address(REF, "any")


@on_virtual_loop
async def test_a_redirect_is_followed() -> None:
    routes = Cluster().routes()
    await routes.address(REF, "any")
    routes.redirected(REF, "any", "d9:1")
    assert await routes.address(REF, "any") == "d9:1"


@on_virtual_loop
async def test_a_cluster_of_one_is_asked_nothing_further() -> None:
    cluster = Cluster("east")
    cluster.error = StreamNotFoundError("not asked")
    assert await cluster.routes().address(REF, "nearest") == "d0:1"


@on_virtual_loop
async def test_the_nearest_may_be_an_observer_and_others_are_asked_only_as_a_last_resort() -> None:
    cluster = Cluster("east", "east", "west", "west")
    cluster.stream.isr = cluster.stream.replicas = (0, 1)
    cluster.stream.observers = (3,)
    routes = cluster.routes("west")
    assert await routes.address(REF, "nearest") == "d3:1"
    assert {await cluster.routes("west").address(REF, "any") for _ in range(30)} == {
        "d0:1",
        "d1:1",
    }
    routes.is_behind(REF, "nearest")
    assert await routes.address(REF, "nearest") in ("d0:1", "d1:1"), "it was behind"
    others = cluster.routes()
    for _ in range(2):
        assert await others.address(REF, "any") in ("d0:1", "d1:1")
        others.failed(REF, "any")
    assert await others.address(REF, "any") == "d3:1"
