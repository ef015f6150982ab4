"""A stream of bytes on the loop that servers use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from jetstream_server.net.byte_stream import CHUNKS_MAX, ByteStream
from tests.support.loops import eventually


@asynccontextmanager
async def stream_and_peer() -> AsyncIterator[tuple[ByteStream, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    stream = ByteStream(own)
    try:
        yield stream, peer
    finally:
        stream.close()
        peer.close()


def test_bytes_that_no_task_waits_for_wake_the_loop_once() -> None:
    async def main() -> None:
        async with stream_and_peer() as (stream, peer):
            woken = 0
            came = stream._bytes_came

            def count() -> None:
                nonlocal woken
                woken += 1
                came()

            stream._bytes_came = count  # type: ignore[method-assign]
            peer.send(b"first")
            assert await stream.read_exactly(5) == b"first"
            reading = asyncio.create_task(stream.read_exactly(6))
            await asyncio.sleep(0.01)
            peer.send(b"second")
            assert await reading == b"second"
            woken = 0
            peer.send(b"third")
            await eventually(lambda: woken > 0)
            await asyncio.sleep(0.05)
            assert woken == 1
            assert await stream.read_exactly(5) == b"third"
            reading = asyncio.create_task(stream.read_exactly(6))
            await asyncio.sleep(0.01)
            peer.send(b"fourth")
            assert await reading == b"fourth"

    uvloop.run(main())


def test_the_socket_stays_watched_from_one_read_to_the_next() -> None:
    async def main() -> None:
        async with stream_and_peer() as (stream, peer):
            for number in range(20):
                reading = asyncio.create_task(stream.read_exactly(1))
                await asyncio.sleep(0.001)
                peer.send(bytes([number]))
                assert await reading == bytes([number])
                assert stream._is_watched

    uvloop.run(main())


def test_others_get_a_turn_while_there_is_more_to_read() -> None:
    async def main() -> None:
        async with stream_and_peer() as (stream, peer):
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            beside = asyncio.create_task(other())
            reads = 40
            for number in range(reads):
                peer.send(bytes([number]))
                assert await stream.read_exactly(1) == bytes([number])
            assert turns >= reads // CHUNKS_MAX - 1
            beside.cancel()

    uvloop.run(main())
