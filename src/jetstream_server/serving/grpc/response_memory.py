"""Limits the memory of answers that gRPC clients have not read yet, and how long they hold it.

gRPC takes an answer as one piece of memory, makes four copies of it, and keeps them until the
client has read it. A client that requests much and reads nothing would use all memory. So an answer
waits for room: in its connection's share, in its principal's share (without one, its origin's),
which may be half, and in total, in order. While answers wait, a connection that has read none for
STALL_SECONDS is closed, if that makes room for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import structlog

from jetstream_protocol.errors import UnavailableError

ANSWER_BYTES_MAX = 1024 * 1024
"""Upper bound on the batches in one answer, unless the first batch is longer."""
PEER_BYTES_MAX = 2 * ANSWER_BYTES_MAX
BYTES_MAX = 32 * 1024 * 1024
ROOM_SECONDS = 10.0
"""How long an answer waits for room before its call is refused."""
STALL_SECONDS = 2.0
"""A reader must read half a megabyte per second while another one waits."""
_LOOK_SECONDS = 0.1

logger = structlog.get_logger("jetstream.api")


@dataclass(slots=True, eq=False)
class Reservation:
    """Room for one answer, which can be read from `since` on; inf: it is not made yet. principal:
    "" for a caller without a limit."""

    peer: str
    count: int
    since: float
    principal: str = ""


@dataclass(slots=True)
class _Share:
    """Of one connection, or of one principal: the bytes that it holds, and how many of its answers
    hold or wait. turn: one of these waits for room at a time."""

    bytes: int = 0
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ResponseMemoryLimiter:
    """See the module. close_connection: closes a peer's connection, whose calls then release their
    room."""

    def __init__(
        self, close_connection: Callable[[str], object], bytes_max: int = BYTES_MAX
    ) -> None:
        self.bytes = 0
        self._close_connection = close_connection
        self._bytes_max = bytes_max
        self._held: dict[Reservation, None] = {}  # oldest first
        self._peers: dict[str, _Share] = {}
        self._principals: dict[str, _Share] = {}
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    async def reserve(
        self,
        peer_name: str,
        count: int,
        seconds: float | None = ROOM_SECONDS,
        *,
        principal: str = "",
        is_made: bool = True,
    ) -> Reservation:
        """Wait for room for `count` bytes. If nothing is held, any answer has room. principal: its
        connections share a limit, and wait in order; "": there is none. is_made: False: nobody can
        read it before `renew`.

        Raises UnavailableError after `seconds`; None: waits without a limit.
        """
        shares = self._enter(peer_name, principal)
        try:
            async with asyncio.timeout(seconds):
                await self._wait_for_room(shares, peer_name, count, principal)
        except TimeoutError as error:
            self._leave(peer_name, principal)
            raise UnavailableError(
                f"{self.bytes} bytes of answers wait to be read by clients; try again, or read "
                "from the data plane"
            ) from error
        except asyncio.CancelledError:
            self._leave(peer_name, principal)
            raise
        since = asyncio.get_running_loop().time() if is_made else math.inf
        reservation = Reservation(peer_name, count, since, principal)
        self._held[reservation] = None
        self._count(shares, count)
        return reservation

    async def _wait_for_room(
        self, shares: tuple[_Share, _Share | None], peer_name: str, count: int, principal: str
    ) -> None:
        """In the connection's share, then in the principal's, then in total. So one answer of each
        principal waits in total, and they take turns."""
        peer, holder = shares
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(peer.turn)
            while peer.bytes and peer.bytes + count > PEER_BYTES_MAX:
                await self._wait(lambda held: held.peer == peer_name)
            if holder is not None:
                await stack.enter_async_context(holder.turn)
                while holder.bytes and holder.bytes + count > self._bytes_max // 2:
                    await self._wait(lambda held: held.principal == principal)
            await stack.enter_async_context(self._turn)
            while self.bytes and self.bytes + count > self._bytes_max:
                await self._wait(lambda held: True)

    def _enter(self, peer_name: str, principal: str) -> tuple[_Share, _Share | None]:
        peer = self._peers.setdefault(peer_name, _Share())
        peer.users += 1
        if not principal:
            return peer, None
        holder = self._principals.setdefault(principal, _Share())
        holder.users += 1
        return peer, holder

    def _count(self, shares: tuple[_Share, _Share | None], count: int) -> None:
        self.bytes += count
        for share in shares:
            if share is not None:
                share.bytes += count

    def release(self, reservation: Reservation) -> None:
        """Release the room: the answer was sent, or its call has ended."""
        del self._held[reservation]
        self._count(self._shares_of(reservation), -reservation.count)
        self._leave(reservation.peer, reservation.principal)
        self._room.set()

    def _shares_of(self, reservation: Reservation) -> tuple[_Share, _Share | None]:
        principal = reservation.principal
        return self._peers[reservation.peer], self._principals[principal] if principal else None

    def renew(self, reservation: Reservation, count: int | None = None) -> None:
        """Note that its answer can be read from now on only. count: its bytes, if they are not as
        many as were reserved."""
        del self._held[reservation]
        if count is not None:
            self._count(self._shares_of(reservation), count - reservation.count)
            reservation.count = count
            self._room.set()
        reservation.since = asyncio.get_running_loop().time()
        self._held[reservation] = None

    def _leave(self, peer_name: str, principal: str) -> None:
        for table, name in ((self._peers, peer_name), (self._principals, principal)):
            share = table.get(name)
            if share is not None:
                share.users -= 1
                if not share.users:
                    del table[name]

    async def _wait(self, helps: Callable[[Reservation], bool]) -> None:
        """Wait until something is released, or until the next check. helps: whether the waiting
        answer would have the room of another one."""
        self._end_stalled(helps)
        self._room.clear()
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._room.wait()
        except TimeoutError:
            pass  # The caller checks again.

    def _end_stalled(self, helps: Callable[[Reservation], bool]) -> None:
        """Close the connection that has left such an answer unread longest, if that is too long."""
        now = asyncio.get_running_loop().time()
        stalled = (each for each in self._held if now - each.since >= STALL_SECONDS)
        oldest = next(filter(helps, stalled), None)
        if oldest is None:
            return
        logger.warning("reader_hung_up_on", peer=oldest.peer, bytes=oldest.count)
        # One is enough: gRPC needs a moment to notice. Then the next connection follows.
        del self._held[oldest]
        oldest.since = now
        self._held[oldest] = None
        try:
            self._close_connection(oldest.peer)
        except OSError as error:  # There is no descriptor left to look with.
            logger.warning("connections_not_closed", peer=oldest.peer, reason=str(error))
