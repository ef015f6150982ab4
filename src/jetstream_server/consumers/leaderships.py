"""Takes over the durable consumers of the streams that this node begins to lead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from traceback import format_exc

import structlog

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.types import StreamId
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.manager import Consumers
from jetstream_server.metadata.state.changes import Change, StreamChanged, StreamDeleted
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

_PAUSE_SECONDS = 0.3
_PAUSE_MAX_SECONDS = 5.0
_SOON = 20
"""So many attempts follow each other quickly: others may be electing a leader. A leader of an older
version never knows the request."""

logger = structlog.get_logger("jetstream.consumers")


class Leaderships:
    """For the loop's thread only. Call `lead` once, `close` once."""

    def __init__(self, consumers: Consumers, replicas: ReplicaManager) -> None:
        self._consumers = consumers
        self._replicas = replicas
        self._loads: dict[StreamId, tuple[int, asyncio.Task[None]]] = {}
        """The leader epoch for which the durable consumers of a stream are taken over, and what
        does it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._gathered: list[Replica] = []
        self._gathering: asyncio.Task[None] | None = None
        self._is_closed = False
        self.took_over: Callable[[Replica], None] = lambda _: None
        """Called with each replica whose consumers were taken over."""

    def lead(self) -> None:
        """Take over the consumers of all streams that this node leads."""
        self._take_over(each for each in self._replicas if each.leadership is not None)

    def apply(self, change: Change) -> None:
        """Call it with each change of the metadata, after the replicas have taken it."""
        self._consumers.apply(change)
        if isinstance(change, StreamDeleted):
            self._loads.pop(change.stream.id, None)
        if not isinstance(change, StreamChanged):
            return
        stream = change.after
        replica = self._replicas.get(stream.id)
        if replica is None or replica.leadership is None:
            self._loads.pop(stream.id, None)
        elif not self._is_known(replica):
            self._take_over([replica])

    async def loaded(self, replica: Replica) -> None:
        """Wait until the durable consumers of a stream that this node leads are known. Raises
        NotLeaderError or UnavailableError if it leads it no more, or others have them: one that is
        not here may be there."""
        while not (self._is_closed or replica.stream.is_internal):
            if not self._is_known(replica):
                self._take_over([replica])
            await asyncio.wait([self._loads[replica.stream.id][1]])  # `close` cancels it.
            self._check_open()
            self._replicas.led_replica_of(replica.stream)
            if self._is_known(replica):
                self._consumers.check_has(replica)
                return
        self._check_open()

    def _check_open(self) -> None:
        """Raise UnavailableError if all consumers are being closed."""
        if self._is_closed:
            raise UnavailableError("this node ends; another one will lead the stream")

    async def all_loaded(self) -> None:
        """Wait until the durable consumers of all streams that this node leads are known. Raises
        UnavailableError."""
        while loads := {load for _, load in self._loads.values() if not load.done()}:
            await asyncio.wait(loads)
        self._check_open()

    async def add(
        self, replica: Replica, config: ConsumerConfig, position: int, selected: Iterable[int] = ()
    ) -> Consumer:
        """Add a consumer, or find one of that name that was added meanwhile. Raises
        QuotaExceededError, JetstreamError."""
        consumer = await self._consumers.create(replica, config, position, selected)
        if consumer is None:
            # Somebody was faster, or an earlier try was stored, whose answer was lost.
            await self._consumers.load([replica])
            consumer = self._consumers.find(replica.stream.id, config.name)
        self._replicas.led_replica_of(replica.stream)  # Else the next leader may not know of it.
        self._consumers.check_has(replica)
        if consumer is None:
            raise UnavailableError("the consumer is being created or deleted; try again")
        return consumer

    def _is_known(self, replica: Replica) -> bool:
        known = self._loads.get(replica.stream.id)
        return known is not None and known[0] == replica.stream.leader_epoch

    def _take_over(self, replicas: Iterable[Replica]) -> None:
        """Those of one turn of the loop share a request."""
        wanted = [each for each in replicas if not each.stream.is_internal]
        if not wanted or self._is_closed:
            return
        self._gathered += wanted
        if self._gathering is None:
            self._gathering = run_in_background(self._load(), "taking over consumers")
            self._tasks.add(self._gathering)
            self._gathering.add_done_callback(self._tasks.discard)
        for replica in wanted:
            self._loads[replica.stream.id] = replica.stream.leader_epoch, self._gathering

    async def _load(self) -> None:
        """Again until it is done, or others lead."""
        replicas, self._gathered, self._gathering = self._gathered, [], None
        attempts = 0
        while replicas:
            try:
                await self._consumers.load(replicas)
                break
            except Exception as error:  # noqa: BLE001  told; else they would be served by nobody
                attempts += 1
                if attempts in (1, _SOON):
                    reason = error.message if isinstance(error, JetstreamError) else format_exc()
                    logger.warning("consumers_not_loaded", count=len(replicas), reason=reason)
                await asyncio.sleep(_PAUSE_SECONDS if attempts < _SOON else _PAUSE_MAX_SECONDS)
                replicas = [each for each in replicas if each.leadership is not None]
        for replica in replicas:
            if replica.leadership is not None:  # Another node may lead it by now.
                self.took_over(replica)

    async def close(self) -> None:
        """End everything that this has begun, and every consumer."""
        self._is_closed = True
        await self._consumers.close()
        await end_tasks(*self._tasks)
