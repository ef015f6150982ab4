"""A process with one shipped client in the simulation of clients (client_work.py), and how that is
connected: calls, the data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message as Proto

from jetstream_client import AsyncClient
from jetstream_client.reading.membership import LEAVE_SECONDS
from jetstream_client.transport.data_connection import Fetched
from jetstream_client.transport.follow import Following
from jetstream_client.transport.grpc_calls import LostCallError
from jetstream_protocol.errors import JetstreamError, UnavailableError, from_proto
from jetstream_protocol.generated import dataplane_pb2 as data_pb
from tests.simulation.following import FollowingData
from tests.simulation.loop import SimulatedLoop
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.client_work import Clients

SERVERS = ["node-0:1", "node-1:1", "node-2:1"]
TIMEOUT_SECONDS = 2.0
FETCH_GRACE_SECONDS = 2.0
CLOSE_US = int((1.05 * TIMEOUT_SECONDS + 2 * LEAVE_SECONDS + 0.2) * 1e6)
"""So long may closing take without a server: a call for commits, and a word that a member leaves.
Then the client closes those whose joining has failed, which may be members, too."""


class HandlerError(Exception):
    """The program's own."""


class ClientProcess:
    """A run of a program, until it dies or closes its client. Call `begins` in the end of the
    constructor."""

    def __init__(self, clients: Clients, name: str) -> None:
        self.clients = clients
        self.name = name
        self.loop = SimulatedLoop(clients.world, name, lambda _: None)
        self.is_cut_off = False
        """Nothing that it sends or is sent arrives."""
        self.closes_since: int | None = None
        self.was_frozen = False

    def __repr__(self) -> str:
        return self.name

    @property
    def lives(self) -> bool:
        """And goes on doing so."""
        return self.loop.alive and self.closes_since is None

    async def _run(self, client: AsyncClient) -> None:
        raise NotImplementedError

    def begins(self) -> None:
        self.loop.enter(self._begin)

    def _begin(self) -> None:
        """Within its loop."""
        self._running = self.loop.create_task(self._live())
        self._running.add_done_callback(self._has_ended)

    async def _live(self) -> None:
        client = AsyncClient(SERVERS, timeout=TIMEOUT_SECONDS)
        client._control._attempt = SimulatedCalls(self).attempt  # type: ignore[method-assign]
        client._reader._data = self._data()
        self.clients.publishing.join(client, self)
        try:
            await self._run(client)
        finally:
            if self.closes_since is not None:
                with suppress(JetstreamError):  # Refused, as by a group that it is no member of.
                    await client.aclose()

    def _data(self) -> Any:
        clients = self.clients
        return FollowingData(self) if clients.following.is_there else SimulatedData(self)

    def _has_ended(self, running: asyncio.Task[None]) -> None:
        error = None if running.cancelled() else running.exception()
        world = self.clients.world
        if isinstance(error, Exception):
            world.broken(f"{self}: {error!r}", error)
        if self.closes_since is not None:
            world.count("closed")
            took = world.now - self.closes_since
            if self.is_cut_off and not self.was_frozen and took > CLOSE_US:
                raise Violation(f"{self} has closed its client in {took / 1e6:.3f} s")
            world.later(0, None, self.die)

    def freezes(self, callbacks: int, until: int) -> None:
        self.was_frozen = True
        self.loop.sleep_after = callbacks, until

    def closes(self) -> None:
        """Ctrl-C: its program ends in good order."""
        self.clients.world.later(0, self.loop, self.loop.enter, self._closes)

    def _closes(self) -> None:
        is_late = self.clients.is_healed or self.closes_since is not None
        if not is_late and not self._running.done():
            self.closes_since = self.clients.world.now
            self._running.cancel()

    def die(self) -> None:
        self.clients.graveyard.extend(self.loop.end())


class SimulatedCalls:
    """`ControlPlane._attempt` of one process."""

    def __init__(self, process: ClientProcess) -> None:
        self.process = process
        self._last: Proto | None = None

    async def attempt(self, request: Proto, address: str, share: float, *_: object) -> Any:
        name = type(request).__name__.removesuffix("Request")
        if name == "GroupHeartbeat" and request is not self._last:
            self._last = request  # What it repeats may have been true before.
            self.process.clients.checker.heartbeat(self.process, request)
        asked = type(request)()
        asked.CopyFrom(request)
        network, ground = self.process.clients.network, self.process.clients.ground
        answer = self.process.loop.create_future()

        def arrive() -> None:
            ground.called(name, asked, lambda found: network.answer(self.process, answer, found))

        network.ask(self.process, arrive)
        try:
            async with asyncio.timeout(share):
                return await answer
        except TimeoutError:
            raise LostCallError(f"{address} did not answer in time") from None


class SimulatedData:
    """In place of `DataPlane`, of one process."""

    def __init__(self, process: ClientProcess) -> None:
        self.process = process

    async def fetch(
        self,
        request: data_pb.DataFetchRequest,
        read_from: str = "leader",
        timeout: float | None = None,
        following: Following | None = None,
    ) -> Fetched:
        """These servers know nothing of follows: it is an earlier release that is fetched from."""
        clients, loop = self.process.clients, self.process.loop
        wait = request.wait_ms_max / 1000
        stream_id, offset = request.stream.id, request.offset
        answer = loop.create_future()
        until = clients.world.now + int(wait * 1e6)

        def reply(found: Any) -> None:
            clients.network.answer(self.process, answer, found)

        clients.network.ask(
            self.process,
            lambda: clients.ground.fetched(stream_id, offset, until, reply),
            is_whole=True,
        )
        try:
            async with asyncio.timeout(wait + FETCH_GRACE_SECONDS):
                found = await answer
        except TimeoutError:
            raise UnavailableError("no node answered in time") from None
        assert isinstance(found, Fetched)
        return found

    async def close(self) -> None: ...


class Network:
    """Between clients and the cluster. A lost message never comes; some come twice."""

    def __init__(self, clients: Clients) -> None:
        self.world = clients.world
        self.loss = 0.0
        self.copies = 0.0
        self.slow = 0.0

    def delay_us(self) -> int:
        world = self.world
        delay = world.between(200, 3_000)
        if world.chance(self.slow):
            delay += world.between(10_000, 1_500_000)
        return delay

    def ask(
        self, process: ClientProcess, arrive: Callable[[], None], *, is_whole: bool = False
    ) -> None:
        """is_whole: as over a connection that carries one copy."""
        world = self.world
        if process.is_cut_off:
            return
        if not world.chance(self.loss):
            world.later(self.delay_us(), None, arrive)
        if not is_whole and world.chance(self.copies):
            world.later(world.between(5_000, 6_000_000), None, arrive)

    def answer(self, process: ClientProcess, future: asyncio.Future[Any], found: Any) -> None:
        world, loop = self.world, process.loop
        if process.is_cut_off:
            return
        if not world.chance(self.loss):
            world.later(self.delay_us(), loop, loop.enter, _arrives, process, future, found)


def _arrives(process: ClientProcess, future: asyncio.Future[Any], found: Any) -> None:
    if future.done() or process.is_cut_off:
        return
    if isinstance(found, JetstreamError):
        future.set_exception(from_proto(found.to_proto()))
    else:
        future.set_result(found)
