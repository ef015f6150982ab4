"""Limits the connections to the gRPC port. Those without a signed-in caller go first.

gRPC itself closes connections above a limit at once, whoever they are, and does not report one
without a call. So its limit is twice ours, and this module looks at the sockets of the process, on
its own thread. It closes

    those over which no call was made for STRANGER_SECONDS,
    of strangers above a quarter of the limit, the oldest of the origin that has most,
    of one origin above its limit, strangers, then the newest,
    of all above the limit, strangers, then the newest of clients: never those of nodes.

A stranger is a connection without a signed-in caller (with security off: made a call of our
services). An origin is an IPv4 address, or the /64 of an IPv6 address.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from enum import IntEnum

import structlog

from jetstream_server.log_throttle import LogThrottle
from jetstream_server.origins import Strangers, origin_of
from jetstream_server.serving.grpc.close_peer import (
    Address,
    address_of,
    close_addresses,
    descriptors,
    each_connection,
)

CONNECTIONS_MAX = 4096
"""Upper bound for the port, apart from those that came after the last look."""
STRANGER_SECONDS = 6.0
"""With the time that a look may take, this stays below ten seconds."""
FEW = 64
"""Up to so many descriptors besides those of files, nothing is looked at: strangers do no harm."""
_LOOK_SECONDS = 2.0
_COUNT_SECONDS = 0.25
"""How often descriptors are counted: if there are many more, there is a look at once."""

logger = structlog.get_logger("jetstream.api")


class Standing(IntEnum):
    NOTHING = 0
    CALLED = 1
    SIGNED_IN = 2
    NODE = 3


class ConnectionLimiter:
    """port: our own. connections_per_address: of one origin. connections_max: in all."""

    def __init__(
        self,
        port: int,
        connections_per_address: int,
        refused: Counter[str] | None = None,
        files_open: Callable[[], int] = lambda: 0,
        *,
        connections_max: int = CONNECTIONS_MAX,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """refused: counts the closed connections. files_open: how many descriptors of the process
        belong to files. seconds: a monotonic clock."""
        self._refused = Counter() if refused is None else refused
        self._files_open = files_open
        self._port = port
        self._per_origin = connections_per_address
        self.connections_max = connections_max
        self._seconds = seconds
        self._throttle = LogThrottle()
        self._standing: dict[str, Standing] = {}  # by peer
        self._since: dict[Address, float] = {}
        self._looked_at = 0.0
        self._others = 0  # Descriptors besides those of files, at the last look.

    def called(self, peer: str) -> None:
        """Note that a call was made over the connection of a peer. On any thread."""
        if peer not in self._standing:
            self._standing[peer] = Standing.CALLED

    def signed_in(self, peer: str, is_node: bool = False) -> None:
        """Note that somebody who is known has made a call. On any thread."""
        standing = Standing.NODE if is_node else Standing.SIGNED_IN
        if self._standing.get(peer, Standing.NOTHING) < standing:
            self._standing[peer] = standing

    def is_known(self, peer: str) -> bool:
        """Whether somebody who is known has made a call over the connection of a peer."""
        return self._standing.get(peer, Standing.NOTHING) >= Standing.SIGNED_IN

    def is_due(self) -> bool:
        """Whether to look again: some time has passed, or there are many more descriptors."""
        is_late = self._seconds() - self._looked_at >= _LOOK_SECONDS
        return is_late or self._count() > self._others + FEW

    def _count(self) -> int:
        files = self._files_open()  # Asked first: files that are opened meanwhile count as more.
        return len(descriptors()) - files

    def look(self) -> None:
        """Close the connections above the limits. Raises OSError if there is no descriptor left to
        look with."""
        others = self._others = self._count()
        self._looked_at = self._seconds()
        is_quiet = others <= min(FEW, self._per_origin)
        if is_quiet and len(self._standing) <= self.connections_max:
            return  # Else those that have ended are forgotten: one after another, they are many.
        noted = list(self._standing.items())
        found: list[Address] = []
        each_connection(self._port, lambda address, _: found.append(address))
        closed = self._excess(found, self._standings(noted, found), others > self._per_origin)
        if closed:
            self._refused["grpc"] += close_addresses(closed, self._port)
            self._others -= len(closed)

    def _standings(
        self, noted: Iterable[tuple[str, Standing]], found: Iterable[Address]
    ) -> dict[Address, Standing]:
        """The standing of each open connection. Forgets those that have ended."""
        open_now = set(found)
        standings = dict.fromkeys(open_now, Standing.NOTHING)
        for peer, standing in noted:
            address = address_of(peer)
            if address in open_now:
                standings[address] = standing
            else:
                self._standing.pop(peer, None)
        return standings

    def _excess(
        self, found: list[Address], standings: dict[Address, Standing], are_many: bool
    ) -> set[Address]:
        """The connections to close. found: by descriptor, so that the newest usually come last."""
        now = self._seconds()
        self._since = {address: self._since.get(address, now) for address in found}
        closed = {
            address
            for address, standing in standings.items()
            if standing is Standing.NOTHING and now - self._since[address] >= STRANGER_SECONDS
        }
        if are_many:
            closed |= self._excess_of_origins([a for a in found if a not in closed], standings)
        left = [address for address in found if address not in closed]
        strangers: Strangers[Address] = Strangers()
        for address in sorted(left, key=lambda each: self._since[each]):
            if standings[address] < Standing.SIGNED_IN:
                strangers.add(address, origin_of(address[0]))
        excess = max(len(strangers) - self.connections_max // 4, len(left) - self.connections_max)
        while excess > 0 and (first := strangers.pop()) is not None:
            closed.add(first)
            excess -= 1
        clients = [a for a in left if standings[a] is Standing.SIGNED_IN]
        room = len(left) - len(closed.intersection(left)) - self.connections_max
        return closed.union(clients[len(clients) - room :] if room > 0 else ())

    def _excess_of_origins(
        self, found: list[Address], standings: dict[Address, Standing]
    ) -> set[Address]:
        by_origin: defaultdict[str, list[Address]] = defaultdict(list)
        for address in found:
            by_origin[origin_of(address[0])].append(address)
        closed: set[Address] = set()
        for origin, addresses in by_origin.items():
            if len(addresses) <= self._per_origin:
                continue
            if self._throttle.is_due("too_many_connections", origin):
                logger.warning(
                    "too_many_connections", peer=origin, connections_per_address=self._per_origin
                )
            best_first = sorted(addresses, key=lambda each: -standings[each])
            closed.update(best_first[self._per_origin :])
        return closed

    async def watch(self) -> None:
        """Look again and again. Without a descriptor to look with, the next look may have one."""
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            try:
                # Few descriptors are counted faster than a thread is woken.
                is_few = self._others <= FEW
                if self.is_due() if is_few else await asyncio.to_thread(self.is_due):
                    await asyncio.to_thread(self.look)
            except OSError as error:
                if self._throttle.is_due("connections_not_limited"):
                    logger.warning("connections_not_limited", reason=str(error))
