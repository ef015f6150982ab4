"""One client of the data plane: fetches in, batches out, until either side closes.

Bounds: a frame is at most frames.REQUEST_BYTES_MAX; PENDING_MAX requests are served at a time, then
nothing more is read; a client that says nothing before its HELLO for HELLO_SECONDS, or takes no
byte of an answer for some time (frame_socket.py), is dropped. Any malformed frame ends the
connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import structlog

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.complaints import Complaints
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.refusals import bounded
from jetstream_server.replication.frame_connection import FrameConnection, UnreadableSliceError
from jetstream_server.replication.frame_socket import decode_head

PENDING_MAX = 64
HELLO_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How soon a client is missed that leaves with as many long polls as it may have."""
NONCE_BYTES = 32

logger = structlog.get_logger("jetstream.dataplane")

FetchHandler = Callable[
    [pb.DataFetchRequest], Awaitable[tuple[pb.DataFetchResponse, LogSlice | None]]
]
NodeHandler = Callable[[FrameConnection, int, pb.NodeHello, bytes], Awaitable[bool]]
"""(socket, correlation, hello, our nonce): serves a follower until it leaves; True when it is a
node that fetches, as clients do."""
Unreadable = Callable[[int, int], None]
"""(stream id, offset): the records there could not be read."""


class Connection:
    """Serves one accepted connection: `await connection.run()`."""

    def __init__(
        self,
        socket: FrameConnection,
        hello: pb.HelloReply,
        fetch: FetchHandler,
        node: NodeHandler,
        unreadable: Unreadable,
        complaints: Complaints,
    ) -> None:
        self._complaints = complaints
        self._socket = socket
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._hello = pb.HelloReply()
        self._hello.CopyFrom(hello)
        self._hello.nonce = self._nonce
        self._fetch = fetch
        self._node = node
        self._unreadable = unreadable
        self._sending = asyncio.Lock()
        self._slots = asyncio.Semaphore(PENDING_MAX)
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Serve until the client leaves or misbehaves; always closes the socket."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._greet()
            await self._serve_requests()
        except (ConnectionError, EOFError, TimeoutError):
            pass  # The client left, or was too slow to be one.
        except InvalidRequestError as error:
            if self._complaints.is_due("client_dropped", self._socket.peer):
                logger.info("client_dropped", peer=self._socket.peer, reason=str(error))
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
            await self._slot()
            wanted = (Kind.FETCH,) if self._tasks else (Kind.FETCH, Kind.NODE_HELLO)
            frame = await self._socket.read_any(*wanted)
            if frame.kind == Kind.NODE_HELLO:
                hello = decode_head(frame, pb.NodeHello)
                if not await self._node(self._socket, frame.correlation, hello, self._nonce):
                    return
                self._slots.release()
                continue
            request = decode_head(frame, pb.DataFetchRequest)
            serving = self._serve(frame.correlation, request)
            task = asyncio.get_running_loop().create_task(serving)
            self._tasks[task] = None
            task.add_done_callback(self._served)

    async def _slot(self) -> None:
        """Wait until another request may be served. Raises EOFError when the client leaves."""
        while True:
            try:
                async with asyncio.timeout(None if not self._slots.locked() else LOOK_SECONDS):
                    await self._slots.acquire()
                return
            except TimeoutError:
                # Nothing is read meanwhile, so nobody else would notice.
                if self._socket.peer_has_left:
                    raise EOFError from None

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task)
        self._slots.release()
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(error, OSError | EOFError):
            if not isinstance(error, ConnectionError | TimeoutError):
                logger.warning("answer_cut_off", reason=str(error))
        else:
            logger.error("request_failed", method="data plane", exc_info=error)
        # Its frame may be half sent, so no other can follow. Closing wakes the reader.
        self._socket.shut_down()

    async def _serve(self, correlation: int, request: pb.DataFetchRequest) -> None:
        try:
            try:
                await self._answer(correlation, request)
            except UnreadableSliceError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # Deleted while the answer waited for its turn: asking again tells why.
                await self._answer(correlation, request)
        except UnreadableSliceError as error:
            again = UnavailableError(f"{error.message}; the file is looked at, try again")
            await self._refuse(correlation, again)
        except JetstreamError as error:
            await self._refuse(correlation, error)

    async def _refuse(self, correlation: int, error: JetstreamError) -> None:
        refusal = pb.DataFetchResponse(error=bounded(error))
        async with self._sending:
            await self._socket.send(Kind.FETCH_REPLY, correlation, refusal)

    async def _answer(self, correlation: int, request: pb.DataFetchRequest) -> None:
        response, found = await self._fetch(request)
        slices = [] if found is None else [found]
        try:
            async with self._sending:
                await self._socket.send_slices(Kind.FETCH_REPLY, correlation, response, slices)
        except UnreadableSliceError as error:
            if not error.slice.is_gone:
                self._unreadable(response.stream_id, error.slice.base_offset)
            raise
