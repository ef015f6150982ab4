"""Hands this node's leaderships over while it cannot serve publishers and other nodes can.

fitness.py decides when. Each follower is first asked whether it can lead at once (hand_over.py). A
follower that cannot is not asked again in the same round. If none can, this node keeps leading and
asks again later: it serves readers, and publishers get the reason in their errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.metadata.state.placement import Election
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.core.replica import Replica
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.replication.replica_manager import ReplicaManager

LOOK_SECONDS = 0.1
ROUND_SECONDS = 0.5
"""Pause between two rounds: other nodes may have recovered by then."""
AT_A_TIME = 16
"""Hand-overs at a time, as for a drain: each takes about ten milliseconds, mostly waiting."""

logger = structlog.get_logger("jetstream.replication")


class Resignation:
    """Call `start`, then `close`. problem: why this node cannot serve publishers; "" when it
    can."""

    def __init__(
        self,
        replicas: ReplicaManager,
        tables: Tables,
        hand_overs: HandOver,
        problem: Callable[[], str],
        *,
        node_id: int,
        monotonic_clock: MonotonicClock,
    ) -> None:
        self._replicas = replicas
        self._tables = tables
        self._hand_overs = hand_overs
        self._problem = problem
        self._node_id = NodeId(node_id)
        self._monotonic_clock = monotonic_clock
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._working = run_in_background(self._work(), "resigning")

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    async def _work(self) -> None:
        fitness = self._hand_overs.fitness
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if fitness.look(self._problem(), self._monotonic_clock()):
                if fitness.problem:
                    logger.warning("node_cannot_serve", reason=fitness.problem)
                else:
                    logger.info("node_can_serve_again")
            if fitness.must_resign(self._monotonic_clock()):
                await self._round()
                await asyncio.sleep(ROUND_SECONDS)

    async def _round(self) -> None:
        """Try every stream once, several at a time."""
        slots = asyncio.Semaphore(AT_A_TIME)
        election = Election(self._tables.nodes, self._tables.leaderships)
        refusing: dict[NodeId, str] = {}

        async def resign(replica: Replica) -> None:
            async with slots:
                while (target := self._target(replica, election, refusing)) != NO_NODE:
                    if await self._give(replica, target, refusing):
                        return

        async with asyncio.TaskGroup() as tasks:
            for replica in self._replicas:
                if replica.leadership is not None and len(replica.stream.isr) > 1:
                    tasks.create_task(resign(replica))

    def _target(self, replica: Replica, election: Election, refusing: dict[NodeId, str]) -> NodeId:
        leadership = replica.leadership
        if leadership is None:
            return NO_NODE
        others = (member for member in leadership.isr if member != self._node_id)
        return election.choose(member for member in others if member not in refusing)

    async def _give(self, replica: Replica, target: NodeId, refusing: dict[NodeId, str]) -> bool:
        """Try one target. Returns False if another node should be tried."""
        try:
            await self._hand_overs.hand_over(replica.stream.id, target, urgent=True)
        except UnavailableError as error:
            refusing[target] = error.message
            return False
        except JetstreamError as error:
            logger.info(
                "leadership_not_handed_over",
                stream=replica.stream.full_name,
                reason=error.message,
            )
        return True
