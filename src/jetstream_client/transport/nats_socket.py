"""The TCP connection under nats-py, and how what nats-py does in the background is ended.

nats-py takes a server that hangs up instead of answering for one that has let it in, waits without
bound for a connection to close, and may ignore that it is cancelled: so does `asyncio.wait_for`
before Python 3.12. Here a server that hangs up is an error, and every end has a bound.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import ParseResult

from nats.aio.client import Client
from nats.aio.transport import TcpTransport

CLOSE_SECONDS = 1.0
"""How long a connection that closes may send nothing of the rest, or wait for TLS's goodbye."""
_AGAIN_SECONDS = 0.05
"""After so long, a task that goes on though it was cancelled is cancelled again."""


class _TlsReaderProtocol(asyncio.StreamReaderProtocol):
    def eof_received(self) -> bool:
        """TLS cannot stay half open, and asyncio would warn the user of a wish for that."""
        super().eof_received()
        return False


class NatsSocket(TcpTransport):
    """Used for one connection after the other."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: bytearray | None = None

    def __bool__(self) -> bool:
        return True  # nats-py replaces one that is false by its own.

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self.abort()
        self._held = None
        await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(buffer_size)
        protocol = _TlsReaderProtocol(reader)
        host = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(
                self._writer.transport, protocol, ssl_context, server_hostname=host
            )
        if transport is None:  # Lost between the handshake and here.
            raise reader.exception() or _hung_up_error()
        # TLS 1.3 refuses a client after the handshake. What is written in one piece leaves the
        # refusal readable; a second piece would fail, and hide it.
        self._held = bytearray()
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    def write(self, payload: bytes) -> None:
        if self._held is None:
            self._writer.write(payload)
        else:
            self._held += payload

    async def readline(self) -> bytes:
        held, self._held = self._held, None
        if held:
            self._writer.write(held)
        assert self._io_reader is not None
        line = await self._io_reader.readline()
        if not line:
            raise _hung_up_error()
        return line

    def close(self) -> None:
        if self._io_writer is not None and not self._io_writer.transport.is_closing():
            self._io_writer.close()

    async def wait_closed(self) -> None:
        if self._io_writer is None:
            return
        closed = asyncio.ensure_future(self._writer.wait_closed())
        try:
            await self.while_it_sends(closed)
            if closed.done():
                closed.result()  # Raises what has ended the connection.
        finally:
            self.abort()
            await end([closed])

    async def while_it_sends(self, closing: asyncio.Future[Any]) -> None:
        """Return when `closing` is done, or when NATS has taken nothing for CLOSE_SECONDS."""
        unsent = self._unsent + 1
        while not closing.done() and self._unsent < unsent:
            unsent = self._unsent
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)

    @property
    def _writer(self) -> asyncio.StreamWriter:
        assert self._io_writer is not None
        return self._io_writer

    @property
    def _unsent(self) -> int:
        """Bytes."""
        writers = {self._bare_io_writer, self._io_writer}
        return sum(each.transport.get_write_buffer_size() for each in writers if each is not None)

    def abort(self) -> None:
        """Drop the connection, and what it has not sent."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


def _hung_up_error() -> ConnectionResetError:
    return ConnectionResetError("the server closed the connection")


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, as often as it takes, until they are done. What they raise is ignored."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)
        await asyncio.gather(*done, return_exceptions=True)


def tasks_of(*owners: object) -> list[asyncio.Task[Any]]:
    """What goes on in the background for these objects of nats-py."""
    values = [value for owner in owners for value in vars(owner).values()]
    return [each for each in values if isinstance(each, asyncio.Task) and not each.done()]


async def close(client: Client, socket: NatsSocket, *others: object) -> None:
    """Close the client, whose socket this is, within a bound, and end what it and the others do in
    the background. Ignores what fails."""
    closing = asyncio.ensure_future(client.close())
    try:
        await socket.while_it_sends(closing)
    finally:
        await end([closing])
        while tasks := tasks_of(client, *others):
            await end(tasks)
        socket.abort()
