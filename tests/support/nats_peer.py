"""A peer on the other end of a NATS connection that follows a script: for what a real nats-server
never does, or not when asked to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
INFO = b'INFO {"max_payload":1048576} \r\n'


@asynccontextmanager
async def peer(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A TCP server that follows the script with each connection; its URL. tls: from the first byte
    on."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(reader, writer)
            await reader.read()  # until the link goes
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Take a client as nats-server does; its CONNECT line. Raises ConnectionError if it leaves."""
    writer.write(INFO)
    connect = await reader.readline()
    ping = await reader.readline()
    if not ping:
        raise ConnectionResetError("the client left before it was taken")
    assert ping == b"PING\r\n"
    writer.write(b"PONG\r\n")
    return connect
