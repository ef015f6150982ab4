"""One client of the data plane: frames in, frames and files out, over a raw non-blocking socket.

uvloop has no sendfile, so the socket is ours: heads are written with MSG_MORE, batches go from the
page cache to the socket by `os.sendfile`, at most TURN_BYTES before other connections get a turn.

Bounds: a frame is at most frames.REQUEST_BYTES_MAX; PENDING_MAX requests are served at a time, then
nothing more is read; a client that takes no byte for STALL_SECONDS, or says nothing before its
HELLO for HELLO_SECONDS, is dropped. Any malformed frame ends the connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError, Message

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.residency import make_resident

PENDING_MAX = 64
TURN_BYTES = 1024 * 1024
STALL_SECONDS = 30.0
HELLO_SECONDS = 10.0

logger = structlog.get_logger("jetstream.dataplane")

_Head = TypeVar("_Head", bound=Message)
FetchHandler = Callable[
    [pb.DataFetchRequest], Awaitable[tuple[pb.DataFetchResponse, LogSlice | None]]
]


class Connection:
    """Serves one accepted socket until either side closes it: `await connection.run()`."""

    def __init__(self, sock: socket.socket, hello: pb.HelloReply, fetch: FetchHandler) -> None:
        self._sock = sock
        self._hello = hello
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._slots = asyncio.Semaphore(PENDING_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._received = bytearray()

    async def run(self) -> None:
        """Serve until the client leaves or misbehaves; always closes the socket."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._greet()
            while True:
                await self._slots.acquire()
                await self._next_request()
        except (ConnectionError, EOFError, TimeoutError):
            pass  # The client left, or was too slow to be one.
        except InvalidRequestError as error:
            logger.info("client_dropped", reason=str(error))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._sock.close()

    async def _greet(self) -> None:
        correlation, hello = await self._read_frame(Kind.HELLO, pb.Hello)
        if hello.version != frames.PROTOCOL_VERSION:
            refusal = InvalidRequestError(
                f"data-plane protocol version {hello.version} is not spoken here; "
                f"this server speaks {frames.PROTOCOL_VERSION}"
            )
            await self._send(Kind.HELLO_REPLY, correlation, pb.HelloReply(error=refusal.to_proto()))
            raise refusal
        await self._send(Kind.HELLO_REPLY, correlation, self._hello)

    async def _next_request(self) -> None:
        correlation, request = await self._read_frame(Kind.FETCH, pb.DataFetchRequest)
        task = self._loop.create_task(self._serve(correlation, request))
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            # Its frame may be half sent, so no other can follow. Closing wakes the reader.
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It is closed already.

    async def _serve(self, correlation: int, request: pb.DataFetchRequest) -> None:
        try:
            response, found = await self._fetch(request)
        except JetstreamError as error:
            response, found = pb.DataFetchResponse(error=error.to_proto()), None
        if found is None:
            await self._send(Kind.FETCH_REPLY, correlation, response)
        else:
            await self._send_slice(correlation, response, found)

    async def _read_frame(self, kind: Kind, cls: type[_Head]) -> tuple[int, _Head]:
        data = await self._read_exactly(frames.PREFIX_BYTES)
        prefix = frames.decode_prefix(data, frames.REQUEST_BYTES_MAX)
        if prefix.kind != kind or prefix.tail_length:
            raise InvalidRequestError(f"unexpected frame of kind {prefix.kind}")
        head = await self._read_exactly(prefix.head_length)
        try:
            return prefix.correlation, cls.FromString(head)
        except DecodeError as error:
            raise InvalidRequestError(f"undecodable frame of kind {prefix.kind}") from error

    async def _read_exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            chunk = await self._loop.sock_recv(self._sock, frames.REQUEST_BYTES_MAX)
            if not chunk:
                raise EOFError
            self._received += chunk
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    async def _send(self, kind: Kind, correlation: int, head: Message) -> None:
        data = frames.encode(kind, correlation, head.SerializeToString())
        async with self._sending:
            await self._write(data, 0)

    async def _send_slice(
        self, correlation: int, response: pb.DataFetchResponse, found: LogSlice
    ) -> None:
        data = frames.encode(
            Kind.FETCH_REPLY, correlation, response.SerializeToString(), found.length
        )
        # A descriptor of its own: the segment may be deleted, or pushed out of a cache, meanwhile.
        fd = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await make_resident(fd, found.position, found.length)
            async with self._sending:
                await self._write(data, socket.MSG_MORE)
                await self._send_file(fd, found.position, found.length)
        finally:
            os.close(fd)

    async def _write(self, data: bytes, flags: int) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view, flags) :]
            except BlockingIOError:
                await self._writable()

    async def _send_file(self, fd: int, position: int, length: int) -> None:
        end = position + length
        turn = TURN_BYTES
        while position < end:
            try:
                sent = os.sendfile(self._sock.fileno(), fd, position, min(end - position, turn))
            except BlockingIOError:
                await self._writable()
                turn = TURN_BYTES
                continue
            if sent == 0:
                raise EOFError("the segment was truncated while it was sent")
            position += sent
            turn -= sent
            if turn == 0:
                await asyncio.sleep(0)
                turn = TURN_BYTES

    async def _writable(self) -> None:
        """Wait until the socket takes bytes again. Raises TimeoutError after STALL_SECONDS."""
        writable: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not writable.done():
                writable.set_result(None)

        self._loop.add_writer(self._sock.fileno(), wake)
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await writable
        finally:
            self._loop.remove_writer(self._sock.fileno())
