"""A transport over a plain socket: how it reads, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jetstream_server.net.socket_transport import (
    FIRST_BYTES,
    LINGERING_MAX,
    READ_BYTES,
    Lingering,
    SocketTransport,
)
from tests.support.loops import eventually, on_loop


class Pieces(asyncio.Protocol):
    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.has_ended = False

    def data_received(self, data: bytes) -> None:
        self.lengths.append(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True


@asynccontextmanager
async def connected(
    lingering: Lingering,
) -> AsyncIterator[tuple[SocketTransport, Pieces, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    near.setblocking(False)
    far.setblocking(False)
    protocol = Pieces()
    transport = SocketTransport(near, protocol, lingering)
    try:
        yield transport, protocol, far
    finally:
        transport.abort()
        lingering.close()
        far.close()


@on_loop
async def test_however_much_has_come_others_have_their_turn_after_a_piece() -> None:
    async with connected(Lingering()) as (_, protocol, far):
        sent = far.send(bytes(1 << 20))
        turns = 0
        while sum(protocol.lengths) < sent:
            await asyncio.sleep(0)
            turns += 1
        assert max(protocol.lengths) <= READ_BYTES
        assert turns >= sent / READ_BYTES


@on_loop
async def test_of_a_stranger_little_is_taken_at_first() -> None:
    """A parser that cannot read it may work on all of it: garbage ends with the first piece."""
    async with connected(Lingering()) as (_, protocol, far):
        sent = far.send(bytes(3 * READ_BYTES))
        await eventually(lambda: sum(protocol.lengths) == sent)
        for place, length in enumerate(protocol.lengths):
            assert length <= FIRST_BYTES << place


@on_loop
async def test_who_still_sends_reads_the_answer_and_what_he_sends_goes_nowhere() -> None:
    async with connected(Lingering()) as (transport, protocol, far):
        far.send(bytes(READ_BYTES))
        await eventually(lambda: bool(protocol.lengths))
        transport.write(b"refused")
        transport.close()
        for _ in range(10):
            far.send(bytes(READ_BYTES))
            await asyncio.sleep(0)
        assert sum(protocol.lengths) <= READ_BYTES
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(far, 100) == b"refused"
        assert await loop.sock_recv(far, 100) == b""
        far.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("length", [7, 3 * READ_BYTES, 5 * READ_BYTES])
@on_loop
async def test_a_reset_behind_a_request_is_noticed(length: int) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with connected(Lingering()) as (_, protocol, far):
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sent = far.send(bytes(length))
        far.close()
        await eventually(lambda: protocol.has_ended)
        assert sum(protocol.lengths) == sent == length
    assert errors == []


@on_loop
async def test_few_sockets_linger_at_a_time() -> None:
    lingering = Lingering()
    async with connected(lingering) as (first, _, far):
        first.close()
        others = [socket.socketpair() for _ in range(LINGERING_MAX)]
        for near, _ in others:
            lingering.take(near)
        await asyncio.sleep(0)
        assert all(near.fileno() >= 0 for near, _ in others)
        await eventually(lambda: _is_reset(far))  # Nobody is there any more.
        for _, other in others:
            other.close()


def _is_reset(sock: socket.socket) -> bool:
    try:
        sock.send(b"x")
    except ConnectionError:
        return True
    return False
