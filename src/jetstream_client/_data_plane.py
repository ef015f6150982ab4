"""Fetches over the data plane: which node to ask, over which connection, and what to do when it
fails.

Reads may always be repeated: a fetch goes on, node by node and with back-off, until it is answered
or its time is up. Nodes and their data ports come from DescribeCluster, anew after each failure.
The leader is asked by preference: a follower hears of a commit a moment later, and whoever has just
published wants to read it. Where nobody leads, or the leader is not reached, any replica will do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from jetstream_client._control import next_step
from jetstream_client._data_connection import DataConnection, Fetched
from jetstream_client._types import ClusterInfo
from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    NotReplicaError,
    UnavailableError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

PENDING_MAX = 32
"""Per connection: long polls of idle consumers must not fill the slots that a server serves at a
time on one connection (64), for then no other fetch on it would be read."""

_CONNECT_SHARE = 4
"""A node that swallows packets may take a quarter of the timeout; then another is tried."""

_LOOKING_SHARE = 4
"""The same for the search of a leader, during an election for instance."""

_Key = tuple[int, str, str]


def _key(ref: common_pb2.StreamRef) -> _Key:
    return ref.id, ref.name, ref.subject


class DataPlane:
    """Belongs to the event loop it is first used on.

    cluster: asks for the nodes. leader_of(stream, timeout): asks who leads it, -1 for nobody.
    """

    def __init__(
        self,
        cluster: Callable[[], Awaitable[ClusterInfo]],
        leader_of: Callable[[common_pb2.StreamRef, float], Awaitable[int]],
        timeout: float,
    ) -> None:
        self._cluster = cluster
        self._leader_of = leader_of
        self._timeout = timeout
        self._nodes: dict[int, str] = {}  # where the data plane of each node is
        self._routes: dict[_Key, str] = {}
        self._pools: dict[str, list[DataConnection]] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._closed = False

    async def fetch(self, request: pb.DataFetchRequest) -> Fetched:
        """One answer, perhaps empty after `wait_ms_max`.

        Raises UnavailableError when nobody answers within that and the timeout, else the
        answer's own error.
        """
        loop = asyncio.get_running_loop()
        wait = request.wait_ms_max / 1000
        deadline = loop.time() + wait + self._timeout
        attempt = 0
        while True:
            attempt += 1
            try:
                connection = await self._connection(request.stream, deadline - loop.time())
                return await connection.fetch(request, max(0.001, deadline - loop.time()))
            except JetstreamError as error:
                step = next_step(error, attempt, random.random())
                if step is None or self._closed or loop.time() + step.wait >= deadline:
                    raise
                self._reroute(request.stream, error)
                await asyncio.sleep(step.wait)

    def _reroute(self, stream: common_pb2.StreamRef, error: JetstreamError) -> None:
        redirect = None
        if isinstance(error, NotLeaderError | NotReplicaError):
            redirect = error.redirect
        if redirect is not None and redirect.data:
            self._routes[_key(stream)] = redirect.data
        else:
            self._routes.pop(_key(stream), None)
            self._nodes = {}

    async def _connection(self, stream: common_pb2.StreamRef, timeout: float) -> DataConnection:
        address = self._routes.get(_key(stream))
        if address is None:
            address = self._routes[_key(stream)] = await self._node_for(stream)
        async with self._opening.setdefault(address, asyncio.Lock()):
            pool = self._pools.setdefault(address, [])
            pool[:] = [connection for connection in pool if not connection.closed]
            for connection in pool:
                if connection.pending < PENDING_MAX:
                    return connection
            patience = max(0.001, min(timeout, self._timeout / _CONNECT_SHARE))
            connection = await DataConnection.open(address, patience)
            if self._closed:
                await connection.close()
                raise UnavailableError("the client is closed")
            pool.append(connection)
        return connection

    async def _node_for(self, stream: common_pb2.StreamRef) -> str:
        if not self._nodes:
            cluster = await self._cluster()
            self._nodes = {n.id: n.data for n in cluster.nodes if n.data and not n.fenced}
        if not self._nodes:
            raise UnavailableError("the cluster names no node with a data plane")
        if len(self._nodes) > 1:
            leader = await self._leader_of(stream, self._timeout / _LOOKING_SHARE)
            if leader in self._nodes:
                return self._nodes[leader]
        return random.choice(list(self._nodes.values()))

    async def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            for connection in pool:
                await connection.close()
        self._pools.clear()
