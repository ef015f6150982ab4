"""Hands this node's leaderships over while it cannot serve publishers and other nodes can: all of
them, or only those of streams that must be encrypted, while it has no key.

fitness_to_lead.py decides when. Each follower that does not drain is first asked whether it can
lead at once (hand_over.py). One that cannot is not asked again in the same round. If none can, this
node keeps leading and asks again later: it serves readers, and publishers get the reason in errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.types import NO_NODE, MonotonicUs, NodeId
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.metadata.state.placement import Election
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.core.log_config import why_no_appends
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

LOOK_SECONDS = 0.1
ROUND_SECONDS = 0.5
"""Pause between two rounds: other nodes may have recovered by then."""
KEYS_US = 1_000_000
"""µs between two looks for streams that need a key: it takes a millisecond for many streams."""
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
        self._complaints = LogThrottle(lambda: monotonic_clock() / 1e6)
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._working = run_in_background(self._work(), "resigning")

    async def close(self) -> None:
        await end_tasks(self._working)

    async def _work(self) -> None:
        fitness = self._hand_overs.fitness
        keys_due_us = MonotonicUs(0)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if fitness.look(self._problem(), self._monotonic_clock()):
                if fitness.problem:
                    logger.warning("node_cannot_serve", reason=fitness.problem)
                else:
                    logger.info("node_can_serve_again")
            now_us = self._monotonic_clock()
            if fitness.must_resign(now_us):
                await self._round([each for each in self._replicas if each.leadership is not None])
                await asyncio.sleep(ROUND_SECONDS)
            elif now_us >= keys_due_us:
                keys_due_us = MonotonicUs(now_us + KEYS_US)
                if unfit := self._without_key():
                    await self._round(unfit)

    def _without_key(self) -> list[Replica]:
        """The led streams that must be encrypted, if this node has no key."""
        keys = self._replicas.log_config.keys
        if keys is not None and keys.can_encrypt:
            return []
        led = [each for each in self._replicas if each.leadership is not None]
        return [each for each in led if self._lacks_key(each)]

    def _lacks_key(self, replica: Replica) -> bool:
        """Whether this node cannot store the stream, which must be encrypted. Logs it."""
        settings, log = replica.stream.config, replica.log
        if not settings.is_encrypted or log.offline_reason:
            return False
        reason = why_no_appends(settings, log)
        if reason and self._complaints.is_due("no_key", replica.stream.full_name):
            logger.error("stream_refused", stream=replica.stream.full_name, reason=reason)
        return bool(reason)

    async def _round(self, led: Sequence[Replica]) -> None:
        """Try every stream once, several at a time."""
        slots = asyncio.Semaphore(AT_A_TIME)
        election = Election(self._tables.nodes, self._tables.leaderships)
        refusing: set[NodeId] = set()

        async def resign(replica: Replica) -> None:
            async with slots:
                while (target := self._target(replica, election, refusing)) != NO_NODE:
                    if await self._give(replica, target, refusing):
                        return

        async with asyncio.TaskGroup() as tasks:
            for replica in led:
                if len(replica.stream.isr) > 1:
                    tasks.create_task(resign(replica))

    def _target(self, replica: Replica, election: Election, refusing: set[NodeId]) -> NodeId:
        leadership = replica.leadership
        if leadership is None:
            return NO_NODE
        others = [member for member in leadership.isr if member != self._node_id]
        for member in others:
            if not self._tables.may_be_given_leaderships(member) and member not in refusing:
                refusing.add(member)
                self._not_handed_over(replica, member, "it is draining")
        return election.choose(member for member in others if member not in refusing)

    async def _give(self, replica: Replica, target: NodeId, refusing: set[NodeId]) -> bool:
        """Try one target. Returns False if another node should be tried."""
        try:
            await self._hand_overs.hand_over(replica.stream.id, target, urgent=True)
        except UnavailableError as error:
            refusing.add(target)
            self._not_handed_over(replica, target, error.message)
            return False
        except JetstreamError as error:
            self._not_handed_over(replica, target, error.message)
        return True

    def _not_handed_over(self, replica: Replica, target: NodeId, reason: str) -> None:
        """Log it, once for all streams of which the same is true."""
        if self._complaints.is_due("not_handed_over", target, reason):
            name = replica.stream.full_name
            logger.info("leadership_not_handed_over", stream=name, target=target, reason=reason)
