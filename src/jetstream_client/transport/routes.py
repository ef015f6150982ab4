"""Chooses the replica of a stream that a reader asks, and for how long the reader stays with it.

    leader    the leader. If it has no leader, or it cannot be reached, another replica, if possible
              one in sync; the leader is looked for again every AVOID_SECONDS
    nearest   a replica in sync, or an observer, in the client's `rack`; if there is none, or no
              rack is given, the one whose data plane greets most quickly
    any       a replica in sync, chosen at random: readers spread over the cluster

A reader stays with its copy while that serves it. A copy that failed, is out of sync, or is behind
what the reader has read is avoided for AVOID_SECONDS. If all are avoided, other replicas are asked,
then observers, then the one that was avoided first. Any node knows which replicas are in sync:
reading needs no leader.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from jetstream_client.transport.recent import ADDRESSES_MAX, STREAMS_MAX, Recent
from jetstream_client.values.types import ClusterInfo, Node, ReadFrom, Stream
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError
from jetstream_protocol.generated import common_pb2

AVOID_SECONDS = 5.0
"""After about that time a node is back, or out of the ISR."""

_LOOKING_SHARE = 4
"""The search for a leader, for example during an election, may take a quarter of the timeout."""
_GLANCE_SHARE = 20
"""A leader that was not found is looked for again in less: readers wait meanwhile."""

_Key = tuple[int, str, str]
_Route = tuple[_Key, ReadFrom]


def _key(ref: common_pb2.StreamRef) -> _Key:
    return ref.id, ref.name, ref.subject


def check_read_from(read_from: str) -> None:
    if read_from not in ("leader", "nearest", "any"):
        raise InvalidRequestError(f"invalid read_from {read_from!r}: say leader, nearest or any")


class Routes:
    """The data-plane address to ask, by stream and preference.

    cluster: returns the nodes. leader_of(stream, timeout): returns the leader, -1 for none.
    registered(stream, timeout): the stream as any node knows it. greet(address): returns when that
    data plane has greeted; raises a JetstreamError.
    """

    def __init__(
        self,
        cluster: Callable[[], Awaitable[ClusterInfo]],
        leader_of: Callable[[common_pb2.StreamRef, float], Awaitable[int]],
        registered: Callable[[common_pb2.StreamRef, float], Awaitable[Stream]],
        greet: Callable[[str], Awaitable[None]],
        timeout: float,
        rack: str = "",
    ) -> None:
        self._cluster = cluster
        self._leader_of = leader_of
        self._registered = registered
        self._greet = greet
        self._patience = timeout / _LOOKING_SHARE
        self._glance = timeout / _GLANCE_SHARE
        self._rack = rack
        self._nodes: dict[int, Node] = {}
        self._chosen: Recent[_Route, str] = Recent(STREAMS_MAX)
        self._avoided: dict[tuple[_Key | None, str], float] = {}
        # Not found; until when it is not looked for.
        self._leaderless: Recent[_Key, float] = Recent(STREAMS_MAX)
        self._greeted_in: Recent[str, float] = Recent(ADDRESSES_MAX)

    @property
    def node_count(self) -> int:
        """The number of nodes that are known."""
        return len(self._nodes)

    async def address(self, stream: common_pb2.StreamRef, read_from: ReadFrom) -> str:
        route = key, _ = _key(stream), read_from
        address = self._chosen.get(route)
        if address is None:
            address = await self._choose(stream, read_from)
        elif read_from == "leader":
            not_before = self._leaderless.get(key)
            if not_before is not None and not_before <= time.monotonic():
                address = await self._leader(stream, await self._alive()) or address
        self._chosen.put(route, address)
        return address

    def known_leader(self, stream: common_pb2.StreamRef) -> str | None:
        """The leader's address, if it is cached."""
        key = _key(stream)
        return None if key in self._leaderless else self._chosen.get((key, "leader"))

    def is_known_as(
        self, stream: common_pb2.StreamRef, stream_id: int, read_from: ReadFrom
    ) -> None:
        """A reader that has learned the stream's id stays where it reads."""
        key, pinned = _key(stream), (stream_id, "", "")
        if key == pinned:
            return
        address, not_before = self._chosen.get((key, read_from)), self._leaderless.get(key)
        if address is not None:
            self._chosen.put((pinned, read_from), address)
        if not_before is not None:
            self._leaderless.put(pinned, not_before)

    def redirected(self, stream: common_pb2.StreamRef, read_from: ReadFrom, address: str) -> None:
        """A node has named a better one."""
        self._chosen.put((_key(stream), read_from), address)

    def failed(self, stream: common_pb2.StreamRef, read_from: ReadFrom) -> None:
        """The chosen node did not answer as expected: perhaps the nodes have changed."""
        address = self._chosen.pop((_key(stream), read_from))
        if address is not None:
            self._avoid(None, address)
        self._nodes = {}

    def is_behind(self, stream: common_pb2.StreamRef, read_from: ReadFrom) -> None:
        """The chosen replica has less than the reader has read, or gets no new records."""
        key = _key(stream)
        address = self._chosen.pop((key, read_from))
        if address is not None:
            self._avoid(key, address)

    def _avoid(self, key: _Key | None, address: str) -> None:
        now = time.monotonic()
        self._avoided = {each: until for each, until in self._avoided.items() if until > now}
        self._avoided[key, address] = now + AVOID_SECONDS

    def _avoided_until(self, key: _Key, address: str) -> float:
        """0: it is not avoided."""
        until = max(self._avoided.get((each, address), 0.0) for each in (key, None))
        return until if until > time.monotonic() else 0.0

    async def _alive(self) -> Mapping[int, Node]:
        """The nodes that are not fenced."""
        if not self._nodes:
            cluster = await self._cluster()
            self._nodes = {n.id: n for n in cluster.nodes if n.data and not n.fenced}
        if not self._nodes:
            raise UnavailableError("the cluster names no node with a data plane")
        return self._nodes

    async def _choose(self, stream: common_pb2.StreamRef, read_from: ReadFrom) -> str:
        nodes = await self._alive()
        if len(nodes) == 1:
            return next(iter(nodes.values())).data
        if read_from == "leader":
            leader = await self._leader(stream, nodes)
            if leader is not None:
                return leader
        replicas = await self._replicas(stream, nodes, read_from)
        if read_from != "nearest":
            return random.choice(replicas).data
        near = [node for node in replicas if self._rack and node.rack == self._rack]
        return await self._quickest([node.data for node in near or replicas])

    async def _leader(self, stream: common_pb2.StreamRef, nodes: Mapping[int, Node]) -> str | None:
        """None: there is none, or it was not found a moment ago."""
        key = _key(stream)
        not_before = self._leaderless.get(key)
        if not_before is not None and not_before > time.monotonic():
            return None
        patience = self._patience if not_before is None else self._glance
        leader = await self._leader_of(stream, patience)
        if leader in nodes:
            self._leaderless.pop(key)
            return nodes[leader].data
        if leader >= 0:
            self._nodes = {}  # It was not among them when they were asked for.
        self._leaderless.put(key, time.monotonic() + AVOID_SECONDS)
        return None

    async def _replicas(
        self, stream: common_pb2.StreamRef, nodes: Mapping[int, Node], read_from: ReadFrom
    ) -> Sequence[Node]:
        """Those in sync that are not avoided, for "nearest" also observers; else other replicas;
        else observers; else anybody."""
        key = _key(stream)
        wanted: list[Sequence[int]] = []
        try:
            known = await self._registered(stream, self._patience)
        except JetstreamError as error:
            if not error.retriable:
                raise
        else:
            first = (*known.isr, *known.observers) if read_from == "nearest" else known.isr
            wanted = [first, known.replicas, (*known.replicas, *known.observers)]
            leader = nodes.get(known.leader) if read_from == "leader" else None
            if leader is not None and not self._avoided_until(key, leader.data):
                self._avoid(key, leader.data)  # It was looked for in vain.
        asked = [[nodes[each] for each in some if each in nodes] for some in wanted]
        asked = [some for some in asked if some] or [list(nodes.values())]
        for some in asked:
            served = [node for node in some if not self._avoided_until(key, node.data)]
            if served:
                return served
        return [min(asked[-1], key=lambda node: self._avoided_until(key, node.data))]

    async def _quickest(self, addresses: list[str]) -> str:
        """The address that answered a greeting first. Each address is asked once."""
        unknown = [address for address in addresses if address not in self._greeted_in]
        if len(addresses) > 1 and unknown:
            await asyncio.gather(*map(self._measure, unknown))
        greeted_in = {each: self._greeted_in.get(each) for each in addresses}
        return min(addresses, key=lambda each: (greeted_in[each] is None, greeted_in[each] or 0.0))

    async def _measure(self, address: str) -> None:
        began = time.monotonic()
        try:
            await self._greet(address)
        except JetstreamError:
            self._avoid(None, address)
        else:
            self._greeted_in.put(address, time.monotonic() - began)
