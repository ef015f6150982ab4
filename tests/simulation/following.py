"""Readers at the head in the simulation of clients (client_work.py): the shipped `DataPlane`,
`Following` and `Follow`, over connections that are slow, fall silent, are lost, and bring damaged
bytes; and servers that end a follow as the shipped one does (serving/dataplane/follows.py).

What a follow may not do is what no reader may: the checkers of the members and the readers with a
cursor see it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from jetstream_client.transport.connection_events import ConnectionEvents
from jetstream_client.transport.data_connection import Fetched, FollowSink
from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    UnavailableError,
    from_proto,
)
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.client_ground import SimulatedStream
    from tests.simulation.client_process import ClientProcess
    from tests.simulation.client_work import Clients

SHARE = 0.4
"""Of the seeds. Drawn apart, so that the others stay as they were."""
TIMEOUT_SECONDS = 2.0
KEEP_ALIVE_US = 2_000_000
DAMAGED_SHARE = 0.02


class Followed:
    """Of one seed: whether its readers follow."""

    def __init__(self, clients: Clients) -> None:
        self.random = Random(f"following of {clients.world.seed}")
        self.is_there = self.random.random() < SHARE


class FollowingData(DataPlane):
    """In place of the client's `DataPlane`, of one process. Each node leads every stream."""

    def __init__(self, process: ClientProcess) -> None:
        unused: Any = None
        super().__init__(
            unused, unused, unused, lambda: True,
            ClientConfig(timeout=TIMEOUT_SECONDS), ConnectionEvents(),
        )  # fmt: skip
        routes: Any = SimulatedRoutes()
        self._routes = routes
        self.process = process
        self._connections: dict[str, SimulatedConnection] = {}

    async def _connection(self, address: str, timeout: float) -> Any:
        found = self._connections.get(address)
        if found is None or found.closed:
            found = self._connections[address] = SimulatedConnection(self.process, address)
        return found

    async def close(self) -> None:
        self._closed = True
        for connection in self._connections.values():
            connection.abort("the client closes it")


class SimulatedRoutes:
    """`Routes` that take the next node when one fails."""

    node_count = 3
    number = 0

    async def address(self, stream: common_pb2.StreamRef, read_from: str) -> str:
        return f"node-{self.number}:2"

    def failed(self, *_: Any) -> None:
        self.number = (self.number + 1) % self.node_count

    redirected = is_behind = failed

    def is_known_as(self, *_: Any) -> None: ...


class SimulatedConnection:
    """`DataConnection`: what it carries comes in order, or it is lost, at once or in silence."""

    follows = True
    token = ""

    def __init__(self, process: ClientProcess, address: str) -> None:
        self.process = process
        self.address = address
        self.world = process.clients.world
        self.ground = process.clients.ground
        self.closed = False
        self._is_silent = False
        self._sinks: weakref.WeakValueDictionary[int, FollowSink] = weakref.WeakValueDictionary()
        self._waiting: set[asyncio.Future[Fetched]] = set()
        self._served: dict[int, ServedFollow] = {}
        self._correlation = 0
        self._sent_at = self._answered_at = 0

    # What the client calls.

    async def fetch(self, request: pb.DataFetchRequest, timeout: float) -> Fetched:
        self._check_open()
        answer: asyncio.Future[Fetched] = self.process.loop.create_future()
        self._waiting.add(answer)
        until = self.world.now + request.wait_ms_max * 1000
        number, offset = request.stream.id, request.offset
        self._say(lambda: self.ground.fetched(number, offset, until, self._replier(answer)))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            self.abort("no answer in time")
            raise UnavailableError(f"{self.address} did not answer in time") from None
        finally:
            self._waiting.discard(answer)

    def _replier(self, answer: asyncio.Future[Fetched]) -> Callable[[Any], None]:
        def arrive(found: Any) -> None:
            if answer.done():
                return
            if isinstance(found, JetstreamError):
                answer.set_exception(from_proto(found.to_proto()))
            else:
                answer.set_result(found)

        return lambda found: self.answer(lambda: arrive(found))

    def begin_follow(self, request: pb.FollowRequest, sink: FollowSink) -> int:
        self._check_open()
        self._correlation += 1
        correlation = self._correlation
        self._sinks[correlation] = sink
        asked = pb.FollowRequest.FromString(request.SerializeToString())

        def begin() -> None:
            self._served[correlation] = ServedFollow(self, correlation, asked)

        self._say(begin)
        self.world.count("follow begun")
        return correlation

    def credit(self, correlation: int, count: int) -> None:
        self._say(lambda: self._served[correlation].credited(count))

    def end_follow(self, correlation: int) -> None:
        self._sinks.pop(correlation, None)
        if not self.closed:
            self._say(lambda: self._served[correlation].ends())

    def abort(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(UnavailableError(f"lost {self.address}: {reason}"))
        for sink in list(self._sinks.values()):
            sink.lost()
        self._sinks.clear()

    def _check_open(self) -> None:
        if self.closed:
            raise UnavailableError(f"not connected to {self.address}")

    def _say(self, arrive: Callable[[], None]) -> None:
        """Have it arrive at the node, after what was said before."""
        if self.process.is_cut_off or self._is_silent:
            return
        network = self.process.clients.network
        self._sent_at = max(self._sent_at + 1, self.world.now + network.delay_us())
        self.world.at(self._sent_at, None, arrive)

    # What the node calls.

    def answer(self, arrive: Callable[[], None]) -> None:
        """Have it arrive at the client, after what was answered before."""
        network, draw = self.process.clients.network, self.process.clients.following.random
        if self.closed or self.process.is_cut_off or self._is_silent:
            return
        loop = self.process.loop
        self._answered_at = max(self._answered_at + 1, self.world.now + network.delay_us())
        if draw.random() < network.loss:
            self._is_silent = True
            if draw.random() < 0.5:
                self.world.at(self._answered_at, loop, loop.enter, self.abort, "it is lost")
            return
        self.world.at(self._answered_at, loop, loop.enter, self._arrives, arrive)

    def _arrives(self, arrive: Callable[[], None]) -> None:
        if not (self.closed or self.process.is_cut_off):
            arrive()

    def followed(self, correlation: int, head: pb.DataFetchResponse, tail: bytes) -> None:
        draw = self.process.clients.following.random
        if tail and not self.process.clients.is_healed and draw.random() < DAMAGED_SHARE:
            at = draw.randrange(len(tail))
            tail = tail[:at] + bytes([tail[at] ^ 1]) + tail[at + 1 :]
        frame = Frame(Kind.FOLLOWED, correlation, head.SerializeToString(), tail)

        def arrive() -> None:
            sink = self._sinks.get(correlation)
            if sink is not None:
                self.world.count("followed")
                sink.came(frame)

        self.answer(arrive)


class ServedFollow:
    """A follow at the node: see serving/dataplane/follows.py."""

    def __init__(self, connection: SimulatedConnection, number: int, asked: pb.FollowRequest):
        self.connection = connection
        self.number = number
        self.world = connection.world
        request = getattr(asked, "from")
        self.stream: SimulatedStream = connection.ground.streams[request.stream.id]
        self.epoch = self.stream.epoch
        self.offset = request.offset
        self.credit_left = asked.credit
        self._end_before = 0
        self._is_due = True
        self._was_answered = False
        self._is_over = False
        self._waits = False
        self._look()
        self._tick()

    def credited(self, count: int) -> None:
        self.credit_left += count

    def ends(self) -> None:
        self._is_over = True

    def _tick(self) -> None:
        if not self._is_over and self.connection.process.loop.alive:
            if not self._was_answered:
                self._is_due = True
                self._look()
            self._was_answered = False
            self.world.later(KEEP_ALIVE_US, None, self._tick)

    def _look(self) -> None:
        stream = self.stream
        if self._is_over or not self.connection.process.loop.alive:
            return
        start, end = stream.log_start_offset, stream.end_offset
        if stream.is_deleted:
            self._refuse(StreamNotFoundError(f"stream {stream.id} was deleted"))
        elif stream.epoch != self.epoch:
            self._refuse(NotLeaderError("another node leads it now"))
        elif not start <= self.offset <= end:
            self._refuse(OffsetOutOfRangeError("not there", start, end))
        elif self.offset < end or self._is_due:
            self._send(end)
        if not (self._is_over or self._waits):
            self._waits = True
            stream.has_more.append(self._woken)

    def _woken(self) -> None:
        self._waits = False
        self._look()

    def _send(self, end: int) -> None:
        draw = self.connection.process.clients.following.random
        data, self.offset = self.stream.piece(self.offset, draw.randint(1, 6))
        head = self._head(high_watermark=end)
        self._is_over = self.offset < self._end_before or len(data) >= self.credit_left
        head.has_ended = self._is_over
        self._end_before = end
        self.credit_left -= len(data)
        self._is_due, self._was_answered = False, True
        self.connection.followed(self.number, head, data)
        if not self._is_over and self.offset < self.stream.end_offset:
            self._send(end)

    def _head(self, **more: Any) -> pb.DataFetchResponse:
        return pb.DataFetchResponse(
            stream_id=self.stream.id,
            log_start_offset=self.stream.log_start_offset,
            leader_epoch=self.stream.epoch,
            **more,
        )

    def _refuse(self, error: JetstreamError) -> None:
        self._is_over = True
        self.connection.followed(self.number, self._head(error=error.to_proto()), b"")
