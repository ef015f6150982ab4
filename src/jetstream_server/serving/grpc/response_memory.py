"""Limits the memory of answers that gRPC clients have not read yet, and how long they hold it.

gRPC takes an answer as one piece of memory, makes four copies of it, and keeps them until the
client has read it. A client that requests much and reads nothing would use all memory. So an answer
waits for room: in its connection's share, in its principal's share, which may be half, and in
total, in order. While answers wait, a connection that has read none for STALL_SECONDS is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
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
    """Room for one answer, from `since` on. principal: "" for a caller without a limit."""

    peer: str
    count: int
    since: float
    principal: str = ""


@dataclass(slots=True)
class _Peer:
    """One connection: the bytes that it holds, and how many of its answers hold or wait."""

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
        self._peers: dict[str, _Peer] = {}
        self._by_principal: Counter[str] = Counter()
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    async def reserve(
        self,
        peer_name: str,
        count: int,
        seconds: float | None = ROOM_SECONDS,
        *,
        principal: str = "",
    ) -> Reservation:
        """Wait for room for `count` bytes. If nothing is held, any answer has room. principal: its
        connections share a limit; "": there is none.

        Raises UnavailableError after `seconds`; None: waits without a limit.
        """
        peer = self._peers.setdefault(peer_name, _Peer())
        peer.users += 1
        try:
            async with asyncio.timeout(seconds), peer.turn:
                while peer.bytes and peer.bytes + count > PEER_BYTES_MAX:
                    await self._wait()
                while principal and self._is_too_much(principal, count):
                    await self._wait()
                async with self._turn:
                    while self.bytes and self.bytes + count > self._bytes_max:
                        await self._wait()
        except TimeoutError as error:
            self._leave(peer_name, peer)
            raise UnavailableError(
                f"{self.bytes} bytes of answers wait to be read by clients; try again, or read "
                "from the data plane"
            ) from error
        except asyncio.CancelledError:
            self._leave(peer_name, peer)
            raise
        since = asyncio.get_running_loop().time()
        reservation = Reservation(peer_name, count, since, principal)
        self._held[reservation] = None
        if principal:
            self._by_principal[principal] += count
        peer.bytes += count
        self.bytes += count
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Release the room: the answer was sent, or its call has ended."""
        del self._held[reservation]
        if reservation.principal:
            self._by_principal[reservation.principal] -= reservation.count
            if not self._by_principal[reservation.principal]:
                del self._by_principal[reservation.principal]
        peer = self._peers[reservation.peer]
        peer.bytes -= reservation.count
        self.bytes -= reservation.count
        self._leave(reservation.peer, peer)
        self._room.set()

    def _is_too_much(self, principal: str, count: int) -> bool:
        held = self._by_principal[principal]
        return bool(held) and held + count > self._bytes_max // 2

    def _leave(self, name: str, peer: _Peer) -> None:
        peer.users -= 1
        if not peer.users:
            del self._peers[name]

    async def _wait(self) -> None:
        """Wait until something is released, or until the next check."""
        self._end_stalled()
        self._room.clear()
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._room.wait()
        except TimeoutError:
            pass  # The caller checks again.

    def _end_stalled(self) -> None:
        """Close the connection that has left an answer unread longest, if that is too long."""
        oldest = next(iter(self._held), None)
        now = asyncio.get_running_loop().time()
        if oldest is None or now - oldest.since < STALL_SECONDS:
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
