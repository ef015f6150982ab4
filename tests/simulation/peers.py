"""Calls between nodes (serving/grpc/peers.py) in simulated time: one answer, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.serving.grpc.peers import STAND_BY_SECONDS

if TYPE_CHECKING:
    from tests.simulation.process import Process

KIND = "hand_over"
Question = Callable[["Process"], Awaitable[Any]]


class SimulatedPeers:
    """One process's."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._asked_to_stand_by: dict[tuple[StreamId, int], None] = {}
        """Who may be doing so: it was asked, and that was not cancelled."""
        process.peers = self

    def has_asked_to_stand_by(self, stream_id: StreamId) -> bool:
        """Whether anybody may be standing by for that stream."""
        return any(asked == stream_id for asked, _ in self._asked_to_stand_by)

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None:
        async def ask(there: Process) -> None:
            there.node.hand_overs.prepare(stream_id, urgent=urgent)

        await self._ask(node_id, ask)

    async def stand_by(
        self,
        node_id: NodeId,
        stream_id: StreamId,
        leader_epoch: int,
        end_offset: int,
        silent_us: int,
    ) -> int:
        async def ask(there: Process) -> int:
            return await there.node.hand_overs.stand_by(
                stream_id, leader_epoch, end_offset, silent_us
            )

        cluster = self._process.cluster
        if stream_id == cluster.stream_id:
            cluster.faults.scenario.asks_to_stand_by(self._process, node_id)
        self._asked_to_stand_by[stream_id, node_id] = None
        return int(await self._ask(node_id, ask))

    async def cancel_stand_by(
        self, node_id: NodeId, stream_id: StreamId, leader_epoch: int
    ) -> None:
        async def ask(there: Process) -> None:
            there.node.hand_overs.cancel_stand_by(stream_id, leader_epoch)

        await self._ask(node_id, ask)
        self.called_off(stream_id, node_id)

    def called_off(self, stream_id: StreamId, node_id: NodeId) -> None:
        """That node stands by no longer, as far as its leader knows."""
        self._asked_to_stand_by.pop((stream_id, node_id), None)

    async def transfer_leader(
        self, leader: NodeId, stream_id: StreamId, target: NodeId, *, urgent: bool
    ) -> None:
        async def ask(there: Process) -> None:
            stream = there.node.replicas.led_replica(stream_id).stream
            await there.node.transfers.transfer(stream, target, forward=False, urgent=urgent)

        await self._ask(leader, ask, seconds=10.0)

    async def _ask(
        self, node_id: NodeId, question: Question, seconds: float = STAND_BY_SECONDS
    ) -> Any:
        process = self._process
        answer: asyncio.Future[Any] = process.loop.create_future()
        process.cluster.network.tell(
            process.node_id, node_id, KIND, self._arrived, node_id, question, answer
        )
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise UnavailableError(f"node {node_id} does not answer; try again") from None

    def _arrived(self, node_id: int, question: Question, answer: asyncio.Future[Any]) -> None:
        there = self._process.cluster.members[node_id]
        if there is None or not there.serves:
            return
        there.run(self._answer, there, question, answer)

    async def _answer(
        self, there: Process, question: Question, answer: asyncio.Future[Any]
    ) -> None:
        result, failure = None, None
        try:
            result = await question(there)
        except JetstreamError as error:
            failure = error
        network = self._process.cluster.network
        network.tell(
            there.node_id, self._process.node_id, KIND, self._answered, answer, result, failure
        )

    def _answered(
        self, answer: asyncio.Future[Any], result: Any, failure: JetstreamError | None
    ) -> None:
        loop, world = self._process.loop, self._process.world
        world.at(max(world.now, loop.paused_until), loop, loop.enter, _end, answer, result, failure)


def _end(answer: asyncio.Future[Any], result: Any, failure: JetstreamError | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(result)
    else:
        answer.set_exception(failure)
