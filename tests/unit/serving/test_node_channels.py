"""A node that was away is asked again as soon as it is back; and answers may be long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from grpc import aio

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop
from jetstream_server.serving.grpc.node_channels import NodeChannels
from jetstream_server.serving.grpc.server import handlers_of
from tests.support.lateness import Lateness
from tests.support.loops import on_loop

FAILED_TRIES = 7
"""After so many a channel waits as long as it ever does. With gRPC's own options they take half a
minute, and the next one comes as much later."""
BACK_SECONDS = 15.0
"""It takes one, and with gRPC's own options more than twenty."""


class Reads:
    async def Fetch(self, request: pb.FetchRequest, context: object) -> pb.FetchResponse:
        return pb.FetchResponse(next_offset=request.offset, batches=b"." * request.bytes_max)


async def ask(channels: NodeChannels, address: str) -> None:
    request = pb.FetchRequest(offset=1)
    await channels.call(address, request, metadata=(), seconds=0.5, node="node 1")


async def answers(channels: NodeChannels, address: str) -> bool:
    try:
        await ask(channels, address)
    except UnavailableError:
        return False
    return True


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[GrpcLoop, NodeChannels]]:
    grpc_loop = GrpcLoop()
    grpc_loop.start()
    channels = NodeChannels(grpc_loop, None)
    try:
        yield grpc_loop, channels
    finally:
        await channels.close()
        await grpc_loop.stop()


@on_loop
async def test_a_peer_is_found_soon_after_it_is_back_however_often_it_was_asked_meanwhile(
    lateness: Lateness,
) -> None:
    tries = 0

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.close()

    async def listen() -> aio.Server:
        server = aio.server()
        server.add_generic_rpc_handlers([handlers_of("Reads", Reads())])
        server.add_insecure_port(address)
        await server.start()
        return server

    async with opened() as (grpc_loop, channels):
        absent = await asyncio.start_server(refuse, "127.0.0.1", 0)
        host, port = absent.sockets[0].getsockname()
        address = f"{host}:{port}"
        while tries < FAILED_TRIES:
            with suppress(UnavailableError):
                await ask(channels, address)
            await asyncio.sleep(0.05)
        absent.close()
        await absent.wait_closed()
        server, back_at = await grpc_loop.run(listen()), time.monotonic()
        try:
            while not await answers(channels, address):
                assert time.monotonic() < back_at + BACK_SECONDS + lateness.since(back_at)
                await asyncio.sleep(0.05)
        finally:
            await grpc_loop.run(server.stop(0.5))


@on_loop
async def test_an_answer_may_be_as_long_as_the_states_of_many_consumers() -> None:
    async def listen() -> tuple[aio.Server, int]:
        server = aio.server()
        server.add_generic_rpc_handlers([handlers_of("Reads", Reads())])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async with opened() as (grpc_loop, channels):
        server, port = await grpc_loop.run(listen())
        try:
            length = 8 * 1024 * 1024
            found = await channels.call(
                f"127.0.0.1:{port}", pb.FetchRequest(bytes_max=length), metadata=(), seconds=30,
                node="node 1",
            )  # fmt: skip
            assert len(found.batches) == length
        finally:
            await grpc_loop.run(server.stop(0))
