"""Requests over the data plane: which connection they use, and what follows a failure.

Batches of producers go to the leader, all of them over one connection, so that none overtakes
another; what follows a failure is decided by publishing/in_flight.py.

Reads may always be repeated: a fetch is tried on node after node, with back-off, until it is
answered or its time is up. routes.py decides which node to ask. By default it is the leader: a
follower hears of a commit a moment later, and a program that has just published wants to read its
record.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from jetstream_client._closing import ClientClosedError, end_tasks
from jetstream_client._log import logger
from jetstream_client.transport.connection_events import ConnectionEvents
from jetstream_client.transport.data_connection import DataConnection, Fetched
from jetstream_client.transport.follow import Follow, Following
from jetstream_client.transport.home import Home
from jetstream_client.transport.recent import STREAMS_MAX, Recent
from jetstream_client.transport.retries import next_step
from jetstream_client.transport.routes import Routes
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.types import ClusterInfo, ReadFrom, Stream
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    NotReplicaError,
    RecordsDamagedError,
    StreamNotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.frames import KEEP_ALIVE_SECONDS
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

PENDING_MAX = 32
"""Per connection: long polls of idle consumers must not fill the slots that a server serves at a
time on one connection (64), for then no other fetch on it would be read."""

WAIT_SECONDS = 5.0
"""Longest wait of one request in a cluster; a longer wait sends another one. This bounds how late a
client notices that a node is frozen, or that a replica is no longer in sync."""

_CONNECT_SHARE = 4
"""A node that swallows packets may take a quarter of the timeout; then another is tried."""

_CALL_GRACE_SHARE = 0.05
"""Calls of the control plane, which have the same timeout, are waited for so much longer: they say
which server does not answer."""

TAKING_SECONDS = 1.0
"""A node that takes nothing for so long is looked for elsewhere."""

_SHORT_SHARE = 4
"""An attempt that has less than this share of the timeout says nothing when its time is up: the one
before it does."""
_ANSWER_SHARE = 2
"""Share of the timeout that an answer may take beyond its wait; then another node is tried, if
there is one."""


class DataPlane:
    """Belongs to the event loop it is first used on. cluster, leader_of, registered: see Routes.
    has_met_one: whether any server has answered yet; until then asking again does not help, because
    the calls of Routes are repeated themselves."""

    def __init__(
        self,
        cluster: Callable[[], Awaitable[ClusterInfo]],
        leader_of: Callable[[common_pb2.StreamRef, float], Awaitable[int]],
        registered: Callable[[common_pb2.StreamRef, float], Awaitable[Stream]],
        has_met_one: Callable[[], bool],
        config: ClientConfig,
        events: ConnectionEvents,
    ) -> None:
        self._home = Home()
        self._has_met_one = has_met_one
        self._config = config
        self._events = events
        self._timeout = config.timeout
        self._routes = Routes(
            cluster, leader_of, registered, self._greet, config.timeout, config.rack
        )
        self._pools: dict[str, list[DataConnection]] = {}
        self._opening: dict[tuple[str, bool], asyncio.Task[DataConnection]] = {}
        """Keyed by address, and by whether the connection is for producing."""
        self._producing: dict[str, DataConnection] = {}
        self._served: Recent[int, str] = Recent(STREAMS_MAX)
        self._closed = False

    async def fetch(
        self,
        request: pb.DataFetchRequest,
        read_from: ReadFrom = "leader",
        timeout: float | None = None,
        following: Following | None = None,
    ) -> Fetched:
        """One answer, perhaps empty after `wait_ms_max`. following: of the reader, which goes on
        where an answer ends. Raises UnavailableError if no server answers
        within that plus the configured timeout, otherwise the answer's own error.
        """
        loop = self._home.here()
        wait_until = loop.time() + request.wait_ms_max / 1000
        deadline = wait_until + (self._timeout if timeout is None else timeout)
        attempt = moves = 0
        refusal: JetstreamError | None = None
        while True:
            attempt += 1
            left = deadline - loop.time()
            try:
                fetched = await self._ask(
                    request, read_from, wait_until, deadline, refusal, following
                )
            except JetstreamError as error:
                is_late = type(error) is UnavailableError and loop.time() >= deadline
                if refusal is not None and is_late and left < self._timeout / _SHORT_SHARE:
                    raise refusal from error
                refusal = error
                moves += 1
                if _may_not_know_it_yet(error, read_from) and moves < self._routes.node_count:
                    self._routes.is_behind(request.stream, read_from)
                    continue
                has_lost_it = isinstance(error, RecordsDamagedError) and error.retriable
                if has_lost_it:
                    request.refused = False  # Others have sent nothing yet.
                    self._routes.is_behind(request.stream, read_from)
                    if moves < self._routes.node_count:
                        continue
                step = next_step(error, attempt, random.random())
                hopeless = self._closed or not self._has_met_one()
                if step is None or hopeless or loop.time() + step.wait >= deadline:
                    raise
                if not has_lost_it:
                    self._reroute(request.stream, read_from, error)
                say = logger.warning if attempt == 1 else logger.debug
                say("reading: %s; trying again", error.message)
                if attempt == 1:
                    self._events.failed(error)
                await asyncio.sleep(step.wait)
                continue
            self._routes.is_known_as(request.stream, fetched.head.stream_id, read_from)
            self._served_by(fetched)
            if fetched.batches or fetched.head.HasField("next_offset"):
                return fetched  # With a filter there is progress without records.
            if read_from != "leader" and _is_behind(fetched.head, request.offset):
                if following is not None:
                    following.leave()
                self._routes.is_behind(request.stream, read_from)
                moves += 1
                if moves < self._routes.node_count:
                    continue  # There may be one that has it.
            if loop.time() >= wait_until:
                return fetched
            attempt = 0

    def _served_by(self, fetched: Fetched) -> None:
        stream_id = fetched.head.stream_id
        before = self._served.get(stream_id)
        if before is not None and fetched.address != before:
            say = "stream %d is read at %s now, before at %s"
            logger.info(say, stream_id, fetched.address, before)
        self._served.put(stream_id, fetched.address)

    async def _ask(
        self,
        request: pb.DataFetchRequest,
        read_from: ReadFrom,
        wait_until: float,
        deadline: float,
        refusal: JetstreamError | None,
        following: Following | None,
    ) -> Fetched:
        """Ask one node. Waits only so long that there is time left to ask another one. refusal: of
        the attempt before; it says more than that no time is left to find a replica."""
        loop = asyncio.get_running_loop()
        if following is not None and (follow := following.at(request)) is not None:
            fetched = await self._next(following, follow, wait_until - loop.time())
            if fetched is not None:
                return fetched
        left = deadline - loop.time()
        try:
            async with asyncio.timeout(left * (1 + _CALL_GRACE_SHARE)):
                address = await self._routes.address(request.stream, read_from)
        except TimeoutError as error:
            late = UnavailableError("no node answered in time which replica to read")
            raise refusal or late from error
        wait = max(0.0, wait_until - loop.time())
        patience = deadline - loop.time()
        if self._routes.node_count > 1:
            wait = min(wait, WAIT_SECONDS)
            patience = min(patience, wait + self._timeout / _ANSWER_SHARE)
        asked = pb.DataFetchRequest()
        asked.CopyFrom(request)
        asked.wait_ms_max = int(wait * 1000)
        while True:
            connection = await self._connection(address, deadline - loop.time())
            try:
                if following is not None and following.may_begin(connection, asked):
                    follow = following.begin(connection, asked)
                    left = deadline - loop.time()
                    if (found := await self._next(following, follow, wait, left)) is not None:
                        return found
                    return await self._ask(
                        request, read_from, wait_until, deadline, refusal, following
                    )
                fetched = await connection.fetch(asked, max(0.001, patience))
            except UnauthenticatedError:
                if not self._config.has_newer_token(connection.token):
                    raise
                await connection.close()  # Its token has ended. Another one is in its place.
            else:
                if following is not None:
                    following.fetched(fetched)
                return fetched

    async def _next(
        self, following: Following, follow: Follow, wait: float, left: float = math.inf
    ) -> Fetched | None:
        """What a follow brings; None: it has ended. left: how long its first answer may take."""
        patience = self._timeout
        if self._routes.node_count > 1:
            wait = min(wait, WAIT_SECONDS)
            patience = self._timeout / _ANSWER_SHARE
        try:
            fetched = await follow.next(wait, min(KEEP_ALIVE_SECONDS + patience, left))
        except JetstreamError:
            following.has_ended()
            raise
        if fetched is None:
            following.has_ended()
        else:
            following.fetched(fetched)
        return fetched

    @property
    def is_closed(self) -> bool:
        return self._closed

    # Producing.

    def producing_now(self, stream: common_pb2.StreamRef) -> DataConnection | None:
        """The connection for batches to the leader, if it is known, open and takes more."""
        address = self._routes.known_leader(stream)
        connection = None if address is None else self._producing.get(address)
        return connection if connection is not None and connection.is_writable else None

    async def producing(self, stream: common_pb2.StreamRef, timeout: float) -> DataConnection:
        """The connection for batches to the leader, once it takes more. Raises UnavailableError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                address = await self._routes.address(stream, "leader")
        except TimeoutError as error:
            raise UnavailableError("no node answered in time who leads the stream") from error
        connection = self._producing.get(address)
        if connection is None or connection.closed:
            connection = await self._open_connection(address, deadline, for_batches=True)
            if connection is None:
                raise ClientClosedError("the client is closed")
        await connection.writable(TAKING_SECONDS)
        return connection

    async def produce_bytes_max(self, stream_ids: Iterable[int], timeout: float) -> int:
        """Length of the longest batch that the leaders of all these streams take. Raises
        InvalidRequestError if one takes none, UnavailableError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        found = []
        for stream_id in stream_ids:
            connection = await self.producing(
                common_pb2.StreamRef(id=stream_id), deadline - loop.time()
            )
            check_takes_batches(connection)
            found.append(connection.produce_bytes_max)
        return min(found)

    def look_for_leader(self, stream: common_pb2.StreamRef) -> None:
        """Ask again who leads the stream, before the next batch is sent."""
        self._routes.failed(stream, "leader")

    def was_refused(
        self, stream: common_pb2.StreamRef, connection: DataConnection, error: JetstreamError
    ) -> JetstreamError:
        """A batch was refused, or its connection has ended. Looks for the leader, or says who the
        client is anew, where that may help. Returns what the batch's producer is to hear."""
        if isinstance(error, NotLeaderError | UnavailableError | UnknownOutcomeError):
            self._reroute(stream, "leader", error)
        elif isinstance(error, UnauthenticatedError) and self._config.has_newer_token(
            connection.token
        ):
            connection.abort("its token has ended")  # Another one is in its place.
            return UnavailableError(error.message)
        return error

    def _reroute(
        self, stream: common_pb2.StreamRef, read_from: ReadFrom, error: JetstreamError
    ) -> None:
        redirect = None
        if isinstance(error, NotLeaderError | NotReplicaError):
            redirect = error.redirect
        if redirect is not None and redirect.data:
            self._routes.redirected(stream, read_from, redirect.data)
        else:
            self._routes.failed(stream, read_from)

    async def _greet(self, address: str) -> None:
        await self._connection(address, self._timeout)

    async def _connection(self, address: str, timeout: float) -> DataConnection:
        """One with room for a request. All who wait for a new one share it, and its failure."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self._closed:
            for connection in self._pools.get(address, ()):
                if not connection.closed and connection.pending < PENDING_MAX:
                    return connection
            opened = await self._open_connection(address, deadline)
            if opened is not None and opened.pending < PENDING_MAX:
                return opened
        raise ClientClosedError("the client is closed")

    async def _open_connection(
        self, address: str, deadline: float, *, for_batches: bool = False
    ) -> DataConnection | None:
        """A new connection. All who wait for one share it, and its failure. None: the client is
        being closed."""
        opening = self._opening.get((address, for_batches))
        if opening is None:
            opening = self._begin_opening(address, for_batches)
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.wait([opening], timeout=max(0.001, left))
        if not opening.done():
            raise UnavailableError(f"{address} did not answer in time")
        return None if opening.cancelled() else opening.result()

    def _begin_opening(self, address: str, for_batches: bool) -> asyncio.Task[DataConnection]:
        key = address, for_batches

        def has_ended(opening: asyncio.Task[DataConnection]) -> None:
            del self._opening[key]
            if not opening.cancelled():
                opening.exception()  # There may be no caller left that waits for it.

        opening = asyncio.get_running_loop().create_task(self._open(address, for_batches))
        self._opening[key] = opening
        opening.add_done_callback(has_ended)
        return opening

    async def _open(self, address: str, for_batches: bool) -> DataConnection:
        patience = self._timeout / _CONNECT_SHARE
        token, tls = self._config.current_token(), self._config.tls
        connection = await DataConnection.open(address, patience, token, tls)
        self._forget_closed()
        if for_batches:
            self._producing[address] = connection
        else:
            self._pools.setdefault(address, []).append(connection)
        connection.on_lost = partial(self._events.lost, "data", address)
        self._events.connected("data", address)
        return connection

    def _forget_closed(self) -> None:
        """Drop closed connections, and the addresses of nodes that are gone."""
        pools, self._pools = self._pools, {}
        for address, pool in pools.items():
            if still_open := [connection for connection in pool if not connection.closed]:
                self._pools[address] = still_open
        self._producing = {at: each for at, each in self._producing.items() if not each.closed}

    async def close(self) -> None:
        """Fetches under way raise UnavailableError."""
        self._closed = True
        await end_tasks(*self._opening.values())
        for pool in self._pools.values():
            for connection in pool:
                await connection.close()
        self._pools.clear()
        for connection in list(self._producing.values()):
            await connection.close()


def check_takes_batches(connection: DataConnection) -> None:
    if not connection.produce_bytes_max:
        raise InvalidRequestError(
            f"the server at {connection.address} takes no batches from this client: it is of an "
            "earlier release, or the client does not say who it is; publish with via='nats', or "
            "give a token"
        )


def _may_not_know_it_yet(error: JetstreamError, read_from: ReadFrom) -> bool:
    """A follower hears of a new stream a moment later than its leader does."""
    return read_from != "leader" and isinstance(error, StreamNotFoundError)


def _is_behind(head: pb.DataFetchResponse, offset: int) -> bool:
    """Whether another replica may have records that this one lacks."""
    return head.out_of_sync or head.high_watermark < offset
