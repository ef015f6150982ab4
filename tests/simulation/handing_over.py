"""Planned hand-overs in simulated time: the shipped `HandOvers` and `StandBy`.

HandOvers is written for an event loop. Here its coroutines are driven by the world's events, one
step after the other: what they wait for is an `Event`, and for as long as a cluster runs the
module's clock and its sleep are the world's (`simulated_time`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.ingest.ingest import STAND_BY_SECONDS
from jetstream_server.ingest.stand_by import StandBy
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication import hand_over
from jetstream_server.replication.hand_over import HandOvers
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas
from tests.simulation.producers import DELIVERY_US
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.process import Process

ANSWER_US = 1_000_000
"""After so long without an answer the other node is given up."""
POLL_SECONDS = 0.01


class Event:
    """Happens once, with a result or an error, for the one that waits for it."""

    def __init__(self) -> None:
        self._happened = False
        self._result: Any = None
        self._error: JetstreamError | None = None
        self.then: Any = None

    def happen(self, result: Any = None, error: JetstreamError | None = None) -> None:
        if self._happened:
            return
        self._happened, self._result, self._error = True, result, error
        if self.then is not None:
            self.then()

    def __await__(self) -> Generator[Event, None, Any]:
        if not self._happened:
            yield self
        if self._error is not None:
            raise self._error
        return self._result


def begin(process: Process, coroutine: Coroutine[Event, None, Any], ended: Any) -> None:
    """Run it as the process's, then `ended(result, error)`; it is left where it is if that dies."""

    under_way = process.cluster.under_way
    under_way[coroutine] = None

    def step() -> None:
        try:
            event = coroutine.send(None)
        except StopIteration as stop:
            del under_way[coroutine]
            ended(stop.value, None)
        except JetstreamError as error:
            del under_way[coroutine]
            ended(None, error)
        else:
            event.then = lambda: process.world.later(0, process, step)

    step()


def end(under_way: dict[Coroutine[Event, None, Any], None]) -> None:
    """The cluster has run: what is still under way ends here, and nobody hears of it."""
    for coroutine in list(under_way):
        coroutine.close()


@contextmanager
def simulated_time(world: World) -> Iterator[None]:
    """The clock and the sleep of hand_over.py are the world's."""

    def sleep(seconds: float) -> Event:
        event = Event()
        world.later(round(seconds * 1e6), None, event.happen)
        return event

    with (
        patch.object(hand_over, "asyncio", SimpleNamespace(sleep=sleep)),
        patch.object(hand_over, "POLL_SECONDS", POLL_SECONDS),
        patch.object(hand_over, "logger", SimpleNamespace(info=_silent)),
    ):
        yield


class HandingOver:
    """Both ends of a process's hand-overs: everything around the shipped ones is this object."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._asked: dict[int, Event] = {}
        self._next = 0
        self._hand_overs = HandOvers(
            self, cast(Replicas, self), self, self, now_us=lambda: self._world.now
        )
        self.is_quiet = False
        """The stream is being handed over, and NATS has been told that nobody listens."""
        self.stand_by_of: StandBy | None = None
        self.sid = 0
        """The subscription by which this node stands by, or last did."""
        self.has_subscribed = False
        """NATS has heard that this node stands by."""
        self.asked_to_stand_by: dict[int, None] = {}
        """Who may be doing so: it was asked, and was not called off."""
        self._heard: dict[int, int] = {}
        """By node: the last question of it, for a connection keeps their order."""

    def give(self, target: int, ended: Any) -> None:
        """Hand the leadership to that node; `ended(result, error)` tells."""
        stream_id = self._process.cluster.stream_id
        begin(self._process, self._hand_overs.give(stream_id, NodeId(target)), ended)

    # Replicas

    def led(self, stream_id: StreamId) -> Replica:
        replica = self._process.replica
        if replica is None or replica.leadership is None:
            raise NotLeaderError("not led here")
        return replica

    def get(self, stream_id: StreamId) -> Replica | None:
        return self._process.replica

    # Publishers

    @property
    def listens(self) -> bool:
        return self._process.machine.hears_nats and self._process.leading.speaks()

    async def quiet(self, stream_id: int) -> None:
        """NATS hears of it, then delivers what it has not yet, then says so."""
        self.led(StreamId(stream_id))
        await self._pause(self._world.between(50, 500))
        self.is_quiet = True
        longer_us = self._process.cluster.publishers.on_the_way_until - self._world.now
        await self._pause(max(DELIVERY_US, longer_us) + self._world.between(50, 500))

    def resume(self, stream_id: int) -> None:
        if self._process.alive:
            self._world.count("hand-over given up")
        self.is_quiet = False

    def pending(self, stream_id: int) -> int:
        return self._process.leading.pending_count

    async def stand_by(self, *arguments: Any) -> int:
        """Asked of another node, or here by one."""
        if isinstance(arguments[0], StreamMetadata):
            return await self._stand_by(*arguments[1:])
        target, _, leader_epoch, end_offset, silent_us = arguments
        self.asked_to_stand_by[target] = None
        gap_us = int(await self._ask(target, "stand_by", leader_epoch, end_offset, silent_us))
        if end_offset == hand_over.NEVER:
            self.asked_to_stand_by.pop(target, None)
        return gap_us

    async def _stand_by(self, leader_epoch: int, end_offset: int, silent_us: int) -> int:
        """As ingest.py does, whose connection this stands for."""
        asked_at_us = self._world.now
        self.stand_by_of = stand_by = StandBy(leader_epoch, end_offset)
        self.sid = self._process.next_sid()
        self.has_subscribed = False
        self._world.later(round(STAND_BY_SECONDS * 1e6), self._process, self._end, stand_by)
        await self._pause(self._world.between(50, 1_000))
        self.has_subscribed = self.stand_by_of is stand_by
        await self._pause(self._world.between(50, 1_000))
        return silent_us + self._world.now - asked_at_us

    def stand_down(self, stream_id: int, leader_epoch: int) -> None:
        if self.stand_by_of is not None and self.stand_by_of.leader_epoch == leader_epoch:
            self.stand_by_of = None

    def _end(self, stand_by: StandBy) -> None:
        if self.stand_by_of is stand_by:
            self.stand_by_of = None

    def silence(self) -> None:
        """The session may have ended."""
        self.stand_by_of = None

    def take_stand_by(self) -> StandBy | None:
        """This node leads now."""
        stand_by, self.stand_by_of = self.stand_by_of, None
        return stand_by

    @property
    def stands_by(self) -> bool:
        """Whether NATS delivers to this node although it does not lead."""
        return self.stand_by_of is not None and self.has_subscribed and self.listens

    # Successors

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None:
        await self._ask(node_id, "prepare")

    async def _ask(self, node_id: NodeId, what: str, *arguments: Any) -> Any:
        if self._process.cluster.has_ended:
            raise UnavailableError("the cluster has run")
        event = Event()
        self._next += 1
        number, self._asked[self._next] = self._next, event
        process = self._process
        process.cluster.network.send(
            process.node_id, node_id, "on_hand_over", process.node_id, number, what, arguments
        )
        late = UnavailableError(f"node {node_id} does not answer")
        self._world.later(ANSWER_US, None, event.happen, None, late)
        return await event

    def on_hand_over(self, source: int, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        """The old leader asks."""
        process = self._process
        if number <= self._heard.get(source, 0):
            return
        self._heard[source] = number

        def ended(result: Any, error: JetstreamError | None) -> None:
            reason = None if error is None else error.message
            process.cluster.network.send(
                process.node_id, source, "on_handed_over", number, result, reason
            )

        begin(process, self._answer(what, *arguments), ended)

    async def _answer(self, what: str, *arguments: Any) -> Any:
        stream_id = self._process.cluster.stream_id
        if what == "prepare":
            return self._hand_overs.prepare(stream_id)
        return await self._hand_overs.stand_by(stream_id, *arguments)

    def on_handed_over(self, number: int, result: Any, reason: str | None) -> None:
        event = self._asked.pop(number, None)
        if event is not None:
            event.happen(result, None if reason is None else UnavailableError(reason))

    # Metadata

    async def propose(self, command: dict[str, Any], *, patience: float) -> dict[str, Any]:
        event = Event()

        def settled(code: str, result: dict[str, Any]) -> None:
            error: JetstreamError | None = None
            if code:
                kind = UnknownOutcomeError if code == "lost" else PreconditionFailedError
                error = kind(code)
            event.happen(result, error)

        self._process.propose(command, settled)
        result: dict[str, Any] = await event
        return result

    async def _pause(self, duration_us: int) -> None:
        event = Event()
        self._world.later(duration_us, self._process, event.happen)
        await event


def _silent(event: str, **values: object) -> None:
    """The trace tells the story."""
