"""One client of the data plane: fetches in, batches out, until either side closes.

Bounds: a frame is at most frames.REQUEST_BYTES_MAX; while PENDING_MAX requests are being served,
nothing more is read. A client is dropped if it sends no HELLO within HELLO_SECONDS, if it does not
identify itself although security is on, or if it reads nothing of an answer for some time
(frame_socket.py). A malformed frame ends the connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from jetstream_protocol import frames
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    TooManyRequestsError,
    UnavailableError,
)
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import MonotonicUs
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net.error_limits import bounded
from jetstream_server.net.frame_connection import FrameConnection, UnreadableSliceError
from jetstream_server.net.frame_socket import decode_head
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.serving.certificates import shown_by
from jetstream_server.serving.dataplane.guard import admit, rule_of
from jetstream_server.serving.long_poll import FetchTimes

PENDING_MAX = 64
PORT = "data"
"""The port for which requests are counted."""
HELLO_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How soon the server notices that a client with all its long polls open has left."""
NONCE_BYTES = 32

logger = structlog.get_logger("jetstream.dataplane")


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a fetch: its head, and its batches. decrypt: reads the slices, and returns the
    bytes to send in their place; blocks. None: the slices are sent from their files."""

    head: pb.DataFetchResponse
    slices: Sequence[LogSlice]
    decrypt: Callable[[], bytes] | None = None


FetchHandler = Callable[[pb.DataFetchRequest, Identity], Awaitable[Found]]
NodeHandler = Callable[[FrameConnection, int, pb.NodeHello, bytes], Awaitable[Identity | None]]
"""(socket, correlation, hello, our nonce): serves a follower until it leaves, and returns None. If
the node wants to fetch like a client, returns the node's identity."""
Unreadable = Callable[[int, int], None]
"""(stream id, offset): the records there could not be read."""


class Connection:
    """Serves one accepted connection. Call `run`."""

    def __init__(
        self,
        socket: FrameConnection,
        hello: pb.HelloReply,
        fetch: FetchHandler,
        node: NodeHandler,
        unreadable: Unreadable,
        throttle: LogThrottle,
        times: FetchTimes,
        monotonic_clock: MonotonicClock,
        access: AccessControl,
    ) -> None:
        """times: counts the time that fetches take."""
        self._times = times
        self._clock = monotonic_clock
        self._access = access
        self._identity = self._counted = ANONYMOUS
        self._requests = access.requests_of(ANONYMOUS, PORT)
        self._throttle = throttle
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
        """Serve until the client leaves or violates the protocol. Always closes the socket."""
        try:
            async with asyncio.timeout(HELLO_SECONDS) as patience:
                await self._greet()
                if not self._access.is_stranger(self._identity):
                    patience.reschedule(None)
                await self._serve_requests(patience)
        except (ConnectionError, EOFError, TimeoutError):
            pass  # The client left, or was too slow.
        except InvalidRequestError as error:
            if self._throttle.is_due("client_dropped", self._socket.peer):
                logger.info("client_dropped", peer=self._socket.peer, reason=str(error))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._access.disconnected(self._counted)
            self._socket.close()

    def end_if_revoked(self) -> None:
        """End the connection if its token is not valid any more."""
        if self._access.has_ended(self._identity):
            self._socket.shut_down()

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
        try:
            identity = await self._access.identify_token(
                hello.token,
                method="Hello",
                shown=shown_by(self._socket.peer_identity, self._socket.peer),
            )
            admit(self._access, identity, Kind.HELLO)
            self._access.connected(identity)
        except JetstreamError as error:
            reply = pb.HelloReply(error=bounded(error))
            await self._socket.send(Kind.HELLO_REPLY, correlation, reply)
            raise EOFError from error
        self._identity = self._counted = identity
        self._requests = self._access.requests_of(identity, PORT)
        await self._socket.send(Kind.HELLO_REPLY, correlation, self._hello)

    async def _serve_requests(self, patience: asyncio.Timeout) -> None:
        """patience: how long an unidentified peer has to prove that it is a node."""
        while True:
            await self._slot()
            wanted = (Kind.FETCH,) if self._tasks else (Kind.FETCH, Kind.NODE_HELLO)
            frame = await self._socket.read_any(*wanted)
            rule_of(frame.kind)  # A frame without a rule ends the connection.
            if frame.kind == Kind.NODE_HELLO:
                hello = decode_head(frame, pb.NodeHello)
                patience.reschedule(None)  # Without the proof the connection ends.
                node = await self._node(self._socket, frame.correlation, hello, self._nonce)
                if node is None:
                    return
                self._identity = node
                self._requests = self._access.requests_of(node, PORT)
                self._slots.release()
                continue
            request = decode_head(frame, pb.DataFetchRequest)
            serving = self._serve(frame.correlation, request, self._clock())
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
                # Nothing is read meanwhile, so nothing else would notice that.
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
        # Its frame may be half sent, so no other frame can follow. Closing the connection wakes the
        # reader.
        self._socket.shut_down()

    async def _serve(
        self, correlation: int, request: pb.DataFetchRequest, asked_us: MonotonicUs
    ) -> None:
        queue_us = self._clock() - asked_us
        requests = self._requests
        try:
            requests.begin()
        except TooManyRequestsError as error:
            refusal = self._access.too_many_requests(self._identity, PORT, error)
            await self._refuse(correlation, refusal)
            return
        try:
            try:
                await self._answer(correlation, request, queue_us)
            except UnreadableSliceError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # Deleted while the answer waited for its turn: the next request gets the reason.
                await self._answer(correlation, request, queue_us)
        except UnreadableSliceError as error:
            again = UnavailableError(f"{error.message}; the file is inspected, try again")
            await self._refuse(correlation, again)
        except JetstreamError as error:
            await self._refuse(correlation, error)
        finally:
            requests.end()

    async def _refuse(self, correlation: int, error: JetstreamError) -> None:
        refusal = pb.DataFetchResponse(error=bounded(error))
        async with self._sending:
            await self._socket.send(Kind.FETCH_REPLY, correlation, refusal)

    async def _answer(self, correlation: int, request: pb.DataFetchRequest, queue_us: int) -> None:
        found = await self._fetch(request, self._identity)
        found_us = self._clock()
        try:
            async with self._sending:
                begun_us = self._clock()
                sent_bytes = await self._send(correlation, found)
                queue_us += begun_us - found_us
                self._times.sent(sent_bytes, queue_us, self._clock() - begun_us)
        except UnreadableSliceError as error:
            if not error.slice.is_gone:
                self._unreadable(found.head.stream_id, error.slice.base_offset)
            raise

    async def _send(self, correlation: int, found: Found) -> int:
        """Send an answer, and return the length of its batches. Decrypted batches are in memory
        until they are sent, for one answer of a connection at a time."""
        if found.decrypt is None:
            await self._socket.send_slices(Kind.FETCH_REPLY, correlation, found.head, found.slices)
            return sum(each.length for each in found.slices)
        tail = await asyncio.to_thread(found.decrypt)
        await self._socket.send_tail(Kind.FETCH_REPLY, correlation, found.head, tail)
        return len(tail)
