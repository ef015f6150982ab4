"""A node that cannot serve publishers has others lead, if they can; nothing comes back at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import MonotonicUs, NodeId, StreamId
from jetstream_server import log_throttle
from jetstream_server.metadata.state.commands import DrainNode, TransferLeader
from jetstream_server.replication.core.fitness_to_lead import PATIENCE_US, STEADY_US, Fitness
from jetstream_server.replication.drivers import resignation as resigning_module
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.replication.drivers.resignation import Resignation
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop

DEAF = "NATS is not heard"


def test_who_cannot_serve_for_a_moment_does_not_resign() -> None:
    fitness = Fitness()
    assert fitness.look(DEAF, 0)
    assert not fitness.must_resign(PATIENCE_US - 1)
    assert fitness.look("", PATIENCE_US - 1)
    assert not fitness.must_resign(10 * PATIENCE_US)
    assert fitness.look(DEAF, 10 * PATIENCE_US)
    assert not fitness.look(DEAF, 11 * PATIENCE_US), "nothing has changed"
    assert fitness.must_resign(11 * PATIENCE_US)


def test_who_could_not_serve_is_given_nothing_before_it_has_been_able_to_for_a_while() -> None:
    fitness = Fitness()
    assert fitness.is_steady(0), "nothing is known against it"
    fitness.look(DEAF, 0)
    assert not fitness.is_steady(2 * STEADY_US)
    fitness.look("", 2 * STEADY_US)
    assert not fitness.is_steady(3 * STEADY_US - 1)
    assert fitness.is_steady(3 * STEADY_US)


class HandingOver:
    """Notes who is given what; some nodes refuse."""

    def __init__(self, node: Node, *refusing: int) -> None:
        self.fitness = Fitness()
        self.asked: list[tuple[int, int]] = []
        self._node = node
        self._refusing = refusing

    async def hand_over(self, stream_id: StreamId, target: NodeId, *, urgent: bool) -> None:
        assert urgent
        self.asked.append((stream_id, target))
        await asyncio.sleep(0)
        if target in self._refusing:
            raise UnavailableError("this node could not serve it")
        self._node.cluster.do(TransferLeader(stream_id=stream_id, leader=target))
        self._node.apply()


class Bench:
    """Node 0 of three. It leads `streams` streams and hears no NATS from the start."""

    def __init__(self, tmp_path: Path, *refusing: int, streams: int) -> None:
        self.node = Node(tmp_path / "streams", nodes=3)
        self.node.start()
        self.streams = []
        for index in range(streams):
            stream = self.node.create(f"s{index}", f"s{index}", (0, 1, 2)).stream
            self.node.cluster.do(TransferLeader(stream_id=stream.id, leader=0))
            self.node.apply()
            self.streams.append(stream.id)
        self.hand_overs = HandingOver(self.node, *refusing)
        self.problem = DEAF
        self.now_us = MonotonicUs(0)

    def leaders(self) -> list[int]:
        return [self.node.cluster.registry.streams[each].leader for each in self.streams]

    @asynccontextmanager
    async def resigning(self) -> AsyncIterator[None]:
        def clock() -> MonotonicUs:
            self.now_us = MonotonicUs(self.now_us + PATIENCE_US)
            return self.now_us

        resigning = Resignation(
            self.node.replicas,
            self.node.cluster.registry,
            cast(HandOver, self.hand_overs),
            lambda: self.problem,
            node_id=0,
            monotonic_clock=clock,
        )
        resigning.start()
        try:
            yield
        finally:
            await resigning.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resigning_module, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(resigning_module, "ROUND_SECONDS", 0.01)


@on_virtual_loop
async def test_all_leaderships_go_to_those_who_can(tmp_path: Path) -> None:
    bench = Bench(tmp_path, streams=40)
    async with bench.resigning():
        await eventually(lambda: 0 not in bench.leaders())
    assert bench.leaders().count(1) == bench.leaders().count(2) == 20


@on_virtual_loop
async def test_who_refuses_is_asked_no_more_in_that_round(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1, streams=100)
    async with bench.resigning():
        await eventually(lambda: 0 not in bench.leaders())
    refused = sum(target == 1 for _, target in bench.hand_overs.asked)
    assert 0 < refused <= resigning_module.AT_A_TIME


@on_virtual_loop
async def test_where_nobody_can_it_goes_on_leading_and_asks_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1, 2, streams=1)
    async with bench.resigning():
        await eventually(lambda: len(bench.hand_overs.asked) > 3)
        assert bench.leaders() == [0]
        bench.problem = ""
        await eventually(lambda: not bench.hand_overs.fitness.problem)
        asked = len(bench.hand_overs.asked)
        await asyncio.sleep(0.05)
        assert len(bench.hand_overs.asked) == asked


@on_virtual_loop
async def test_who_drains_is_not_asked_and_why_others_refuse_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_throttle, "REPEAT_SECONDS", math.inf)
    bench = Bench(tmp_path, 2, streams=4)
    bench.node.cluster.do(DrainNode(node_id=NodeId(1)))
    with capture_logs() as logs:
        async with bench.resigning():
            await eventually(lambda: len(bench.hand_overs.asked) > 20)
    assert bench.leaders() == [0] * 4
    assert {target for _, target in bench.hand_overs.asked} == {2}
    said = [(each["target"], each["reason"]) for each in logs if "target" in each]
    assert said == [(1, "it is draining"), (2, "this node could not serve it")]
