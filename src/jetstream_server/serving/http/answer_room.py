"""Bounds the memory of large answers: those that are being made, and those that are not read yet.

A handler of large answers claims room once it knows that the caller may have one, and before it
makes it. The server releases the room when the answer is sent. The limits are those of gRPC's
answers (grpc/response_memory.py), with origins in place of principals: one may have half of the
room, and who reads nothing is hung up on while others wait.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from jetstream_protocol.errors import UnavailableError
from jetstream_server.origins import origin_of
from jetstream_server.serving.grpc.response_memory import Reservation, ResponseMemoryLimiter

CLAIM_BYTES = 4 * 1024 * 1024
"""What a large answer counts as. Eight have room, four of one origin."""
_HELD = web.RequestKey("held", Reservation)


class AnswerRoom:
    """The room of all connections."""

    def __init__(self) -> None:
        self._limiter = ResponseMemoryLimiter(self._hang_up_on)
        self._transports: dict[str, asyncio.Transport] = {}  # of those that hold room

    async def claim(self, request: web.Request, more: int = 0) -> None:
        """Wait for room, for so many bytes more than is usual. Does nothing if the request has
        room. Raises UnavailableError."""
        if self.is_held(request):
            return
        transport = request.transport
        if transport is None:
            raise UnavailableError("the client has left")
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        peer = f"{host}:{port}"
        count = CLAIM_BYTES + more
        held = await self._limiter.reserve(peer, count, principal=origin_of(host))
        request[_HELD] = held
        self._transports[peer] = transport

    def is_held(self, request: web.Request) -> bool:
        return _HELD in request

    def is_made(self, request: web.Request) -> None:
        """Note that the answer is sent from now on, as fast as the client reads."""
        self._limiter.renew(request[_HELD])

    def release(self, request: web.Request) -> None:
        """Note that the answer was sent, or is not awaited any more."""
        held: Reservation | None = request.pop(_HELD, None)
        if held is not None:
            self._transports.pop(held.peer, None)
            self._limiter.release(held)

    def _hang_up_on(self, peer: str) -> None:
        transport = self._transports.get(peer)
        if transport is not None:
            transport.abort()


ROOM = web.AppKey("room", AnswerRoom)


async def claim(request: web.Request, more: int = 0) -> None:
    """Wait for room for a large answer to the request, of so many bytes more than is usual. Raises
    UnavailableError."""
    await request.app[ROOM].claim(request, more)
