"""One client of the data plane: fetches in, batches out, until either side closes.

Bounds: a frame is at most frames.REQUEST_BYTES_MAX; PENDING_MAX requests are served at a time, then
nothing more is read; a client that says nothing before its HELLO for HELLO_SECONDS, or takes no
byte of an answer for some time (frame_socket.py), is dropped. Any malformed frame ends the
connection.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable

import structlog

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.frame_socket import FrameSocket

PENDING_MAX = 64
HELLO_SECONDS = 10.0
NONCE_BYTES = 32

logger = structlog.get_logger("jetstream.dataplane")

FetchHandler = Callable[
    [pb.DataFetchRequest], Awaitable[tuple[pb.DataFetchResponse, LogSlice | None]]
]
NodeHandler = Callable[[FrameSocket, int, pb.NodeHello, bytes], Awaitable[None]]
"""(socket, correlation, hello, our nonce): serves a follower until it leaves."""


class Connection:
    """Serves one accepted socket: `await connection.run()`."""

    def __init__(
        self, sock: socket.socket, hello: pb.HelloReply, fetch: FetchHandler, node: NodeHandler
    ) -> None:
        self._socket = FrameSocket(sock, frames.REQUEST_BYTES_MAX)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._hello = pb.HelloReply()
        self._hello.CopyFrom(hello)
        self._hello.nonce = self._nonce
        self._fetch = fetch
        self._node = node
        self._sending = asyncio.Lock()
        self._slots = asyncio.Semaphore(PENDING_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the client leaves or misbehaves; always closes the socket."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._greet()
            await self._serve_requests()
        except (ConnectionError, EOFError, TimeoutError):
            pass  # The client left, or was too slow to be one.
        except InvalidRequestError as error:
            logger.info("client_dropped", reason=str(error))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._socket.close()

    async def _greet(self) -> None:
        correlation, hello = await self._socket.read_frame(Kind.HELLO, pb.Hello)
        if hello.version != frames.PROTOCOL_VERSION:
            refusal = InvalidRequestError(
                f"data-plane protocol version {hello.version} is not spoken here; "
                f"this server speaks {frames.PROTOCOL_VERSION}"
            )
            reply = pb.HelloReply(error=refusal.to_proto())
            await self._socket.send(Kind.HELLO_REPLY, correlation, reply)
            raise refusal
        await self._socket.send(Kind.HELLO_REPLY, correlation, self._hello)

    async def _serve_requests(self) -> None:
        while True:
            await self._slots.acquire()
            prefix = await self._socket.read_prefix()
            if prefix.tail_length:
                raise InvalidRequestError("a request with a tail")
            if prefix.kind == Kind.NODE_HELLO and not self._tasks:
                hello = await self._socket.read_head(prefix, Kind.NODE_HELLO, pb.NodeHello)
                await self._node(self._socket, prefix.correlation, hello, self._nonce)
                return
            request = await self._socket.read_head(prefix, Kind.FETCH, pb.DataFetchRequest)
            serving = self._serve(prefix.correlation, request)
            task = asyncio.get_running_loop().create_task(serving)
            self._tasks.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            # Its frame may be half sent, so no other can follow. Closing wakes the reader.
            self._socket.shut_down()

    async def _serve(self, correlation: int, request: pb.DataFetchRequest) -> None:
        try:
            response, found = await self._fetch(request)
        except JetstreamError as error:
            response, found = pb.DataFetchResponse(error=error.to_proto()), None
        slices = [] if found is None else [found]
        async with self._sending:
            await self._socket.send_slices(Kind.FETCH_REPLY, correlation, response, slices)
