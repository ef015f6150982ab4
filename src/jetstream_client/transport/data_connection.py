"""One connection to a node's data plane: HELLO, then fetches or batches, many at a time.

Answers come in any order and are matched by correlation id. A fetch that is cancelled or times out
keeps its id until the answer has come, because the server still works on it and counts it as one of
those it serves at a time. Any failure ends the connection and fails all fetches that wait on it;
the pool (data_plane.py) makes a new one.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, cast

from google.protobuf.message import DecodeError

from jetstream_client.values.tls import TlsConfig
from jetstream_protocol import frames
from jetstream_protocol.errors import (
    InternalError,
    JetstreamError,
    UnavailableError,
    UnknownOutcomeError,
    from_proto,
)
from jetstream_protocol.frame_decoder import Frame, FrameDecoder
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.host_names import impossible_host_error
from jetstream_protocol.version import VERSION

WAKE_BYTES = 256 * 1024
SCRATCH_BYTES = 64 * 1024
TLS_RECORD_BYTES = 16 * 1024
"""TLS gives a record out when all of it is there."""


class Fetched(NamedTuple):
    """The head of an answer, and whole batches, back to back. address: the node that sent it."""

    head: pb.DataFetchResponse
    batches: bytearray | bytes
    address: str = ""


class Produced(NamedTuple):
    """Where a batch is stored. duplicate: it was there already."""

    base_offset: int
    record_count: int
    duplicate: bool


class FollowSink(Protocol):
    """Takes the answers of a follow. The connection holds it weakly."""

    def came(self, frame: Frame) -> None:
        """Raises DecodeError."""

    def lost(self) -> None:
        """The connection has ended."""


class DataConnection(asyncio.BufferedProtocol):
    """`await open(…)`, then `fetch` until `closed`."""

    def __init__(self, address: str, *, over_tls: bool = False, token: str = "") -> None:
        self.address = address
        self.token = token
        """The token with which it was opened. The server closes it when the token expires."""
        self._slack = TLS_RECORD_BYTES if over_tls else 0
        self.closed = False
        self.on_lost: Callable[[str], None] | None = None
        """Called with the reason if it ends without being closed."""
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(frames.RESPONSE_BYTES_MAX)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._correlation = 0
        self._wakes_after = 1
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        self._follows: weakref.WeakValueDictionary[int, FollowSink] = weakref.WeakValueDictionary()
        self.follows = False
        """Whether the server takes follows."""
        self.produce_bytes_max = 0
        """Length of the longest batch that the server takes from this client; 0: it takes none."""

    @classmethod
    async def open(
        cls, address: str, timeout: float, token: str = "", tls: TlsConfig | None = None
    ) -> DataConnection:
        """Connect and greet. Raises UnavailableError, or the error with which the server
        refuses."""
        context = None if tls is None else tls.ssl_context()
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        connection = cls(address, over_tls=tls is not None, token=token)
        try:
            async with asyncio.timeout(timeout):
                try:
                    await loop.create_connection(
                        lambda: connection, host.strip("[]"), int(port), ssl=context
                    )
                except UnicodeError as error:
                    raise impossible_host_error(host) from error
                await connection._greet()
        except TimeoutError as error:
            connection.abort("no greeting in time")
            raise UnavailableError(f"{address} did not answer in time") from error
        except OSError as error:
            raise UnavailableError(f"cannot reach the data plane at {address}: {error}") from error
        except BaseException:
            connection.abort("the greeting failed")
            raise
        return connection

    async def _greet(self) -> None:
        client = f"jetstream-log/{VERSION}"
        hello = pb.Hello(version=frames.PROTOCOL_VERSION, client=client, token=self.token)
        frame = await self._ask(Kind.HELLO, hello.SerializeToString())
        reply = pb.HelloReply.FromString(self._head_of(frame, Kind.HELLO_REPLY))
        if reply.HasField("error"):
            raise from_proto(reply.error)
        self.produce_bytes_max = reply.produce_bytes_max
        self.follows = reply.follows

    async def fetch(self, request: pb.DataFetchRequest, timeout: float) -> Fetched:
        """Raises the answer's own error, or UnavailableError when none comes in `timeout`."""
        try:
            async with asyncio.timeout(timeout):
                frame = await self._ask(Kind.FETCH, request.SerializeToString())
        except TimeoutError as error:
            # The peer may be dead: fail the other waiting fetches, too.
            self.abort("no answer in time")
            raise UnavailableError(f"{self.address} did not answer in time") from error
        try:
            head = pb.DataFetchResponse.FromString(self._head_of(frame, Kind.FETCH_REPLY))
        except DecodeError as error:
            self.abort("an undecodable answer")
            raise InternalError(f"{self.address} sent an undecodable answer") from error
        if head.HasField("error"):
            raise from_proto(head.error)
        return Fetched(head, frame.tail, self.address)

    def produce(
        self, request: pb.ProduceRequest, *batch: bytes | bytearray
    ) -> asyncio.Future[Produced]:
        """Send a producer's batch. The answer raises the server's error, or UnknownOutcomeError if
        the connection ends before it comes. Raises UnavailableError if nothing was sent."""
        answer: asyncio.Future[Produced] = self._loop.create_future()
        frame = self._ask(Kind.PRODUCE, request.SerializeToString(), *batch)
        frame.add_done_callback(lambda frame: self._answer(answer, frame))
        return answer

    def _answer(self, answer: asyncio.Future[Produced], frame: asyncio.Future[Frame]) -> None:
        if answer.done():  # Whoever asked has left.
            frame.exception()
            return
        try:
            head = pb.ProduceResponse.FromString(self._head_of(frame.result(), Kind.PRODUCE_REPLY))
        except UnavailableError as error:
            answer.set_exception(UnknownOutcomeError(error.message))
        except DecodeError:
            self.abort("an undecodable answer")
            answer.set_exception(UnknownOutcomeError(f"{self.address} sent an undecodable answer"))
        except JetstreamError as error:
            answer.set_exception(UnknownOutcomeError(error.message))
        else:
            if head.HasField("error"):
                answer.set_exception(from_proto(head.error))
            else:
                answer.set_result(Produced(head.base_offset, head.record_count, head.duplicate))

    @property
    def is_writable(self) -> bool:
        """Whether the server takes what was sent, and the connection is not closed."""
        return self._writable is None and not self.closed

    async def writable(self, timeout: float) -> None:
        """Return once the server takes what was sent. If it does not, the connection ends, and
        UnavailableError is raised."""
        if self._writable is None:
            return
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._writable)
        except TimeoutError as error:
            self.abort("it takes nothing more")
            raise UnavailableError(f"{self.address} takes nothing more") from error

    @property
    def pending(self) -> int:
        """How many requests the server still has to answer."""
        return len(self._waiting) + len(self._follows)

    # Follows.

    def begin_follow(self, request: pb.FollowRequest, sink: FollowSink) -> int:
        """From now on the sink gets the answers. Returns what the follow is called. Raises
        UnavailableError."""
        transport = self._connect()
        correlation = self._next_correlation()
        self._follows[correlation] = sink
        transport.write(frames.encode(Kind.FOLLOW, correlation, request.SerializeToString()))
        return correlation

    def credit(self, correlation: int, count: int) -> None:
        """The reader of a follow is there, and has taken so many bytes."""
        self._say(correlation, pb.Credit(bytes=count))

    def end_follow(self, correlation: int) -> None:
        self._follows.pop(correlation, None)
        self._say(correlation, pb.Credit(ends=True))

    def _say(self, correlation: int, credit: pb.Credit) -> None:
        if self._transport is not None and not self.closed:
            self._transport.write(
                frames.encode(Kind.CREDIT, correlation, credit.SerializeToString())
            )

    def _followed(self, frame: Frame) -> None:
        """Raises DecodeError."""
        sink = self._follows.get(frame.correlation)
        if sink is not None:
            sink.came(frame)
            return
        head = pb.DataFetchResponse.FromString(frame.head)
        if not (head.has_ended or head.HasField("error")):
            self.end_follow(frame.correlation)  # Its reader was forgotten.

    # Requests.

    def _ask(self, kind: Kind, head: bytes, *tail: bytes | bytearray) -> asyncio.Future[Frame]:
        transport = self._connect()
        correlation = self._next_correlation()
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[correlation] = answer
        length = sum(map(len, tail))
        data = frames.encode(kind, correlation, head, length)
        if tail:
            transport.writelines((data, *tail))
        else:
            transport.write(data)
        return answer

    def _connect(self) -> asyncio.Transport:
        if self._transport is None or self.closed:
            raise UnavailableError(f"not connected to {self.address}")
        return self._transport

    def _next_correlation(self) -> int:
        """One that nothing open has: a follow may be open for very long."""
        while True:
            self._correlation = (self._correlation + 1) & 0xFFFF_FFFF
            if self._correlation not in self._waiting and self._correlation not in self._follows:
                return self._correlation

    def _head_of(self, frame: Frame, kind: Kind) -> bytes:
        if frame.kind != kind:
            self.abort("an answer of the wrong kind")
            raise InternalError(f"{self.address} answered with a frame of kind {frame.kind}")
        return frame.head

    def abort(self, reason: str) -> None:
        """End the connection and fail the requests that wait. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self.on_lost is not None:
            self.on_lost(reason)
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(
                    UnavailableError(f"lost the connection to {self.address}: {reason}")
                )
        for sink in list(self._follows.values()):
            sink.lost()
        self._follows.clear()
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Returns when the socket is closed."""
        self.on_lost = None
        self.abort("the client closes it")
        if self._transport is not None:
            await asyncio.shield(self._lost)

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's, so there is no asking.
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:  # Aborted while the connection was being made.
            self._transport.abort()

    def pause_writing(self) -> None:
        if self._writable is None and not self.closed:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room() or self._scratch

    def buffer_updated(self, count: int) -> None:
        decoder = self._decoder
        if decoder.missing:
            decoder.filled(count)
        else:
            decoder.feed(bytes(self._scratch[:count]))
        try:
            while (frame := decoder.next()) is not None:
                if frame.kind == Kind.FOLLOWED:
                    self._followed(frame)
                    continue
                answer = self._waiting.pop(frame.correlation, None)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
        except JetstreamError as error:
            self.abort(error.message)
        except DecodeError:
            self.abort("an undecodable answer")
        else:
            self._wake_after(decoder.missing)

    def _wake_after(self, missing: int) -> None:
        """A large answer comes in hundreds of segments; the loop need not wake up for each. Some
        systems make less room than they were asked for, so only a part of the room that they have
        is used."""
        if self._transport is None or (not missing and self._wakes_after == 1):
            return
        sock = self._transport.get_extra_info("socket")
        with suppress(OSError):  # Where there is no such option, it turns more often.
            room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 4
            # Up to a record's worth of what is missing may have left the socket already.
            count = max(1, min(missing - self._slack, WAKE_BYTES, room))
            if count != self._wakes_after:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
                self._wakes_after = count

    def connection_lost(self, error: Exception | None) -> None:
        self.abort(str(error) if error else "the server closed it")
        if not self._lost.done():
            self._lost.set_result(None)
