"""A connection of the data plane in memory: what FrameSocket is over TCP (frame_connection.py)."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import Message

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import PREFIX_BYTES, RESPONSE_BYTES_MAX, Kind, decode_prefix
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.net.frame_connection import Head, UnreadableSliceError
from jetstream_server.net.frame_reader import Frame
from jetstream_server.net.frame_socket import decode_head
from jetstream_server.net.receive_budget import ReceiveBudget
from jetstream_server.net.tls import PeerIdentity
from tests.simulation.network import Pipe

if TYPE_CHECKING:
    from tests.simulation.process import Process

Arrival = Frame | Exception


class Outgoing(Protocol):
    """Carries what is sent, in order."""

    def send(self, item: Arrival, /) -> None: ...


class End(Protocol):
    def arrived(self, item: Arrival, /) -> None: ...


class SimulatedConnection:
    """One end of it, a process's. `connect` joins two."""

    def __init__(self, process: Process, peer: int) -> None:
        self.process = process
        self.peer_id = peer
        self._loop = process.loop
        self._inbox: deque[Arrival] = deque()
        self._is_waking = False
        self._paused = False
        self._wanted: tuple[Kind, ...] = ()
        self._handler: Callable[[Frame], None] | None = None
        self._failure: Exception | None = None
        self._woken: asyncio.Future[None] | None = None
        self._is_shut = False
        self._is_closed = False
        self._out: Outgoing | None = None
        self.bytes_received = 0
        self.peer_identity: PeerIdentity | None = None
        process.connections[self] = None

    def join(self, other: SimulatedConnection, kind: str) -> None:
        """What is written here arrives there; the traffic is of that kind."""
        network = self.process.cluster.network
        pipe = Pipe(network, self.process.node_id, other.process.node_id, kind, other.arrived)
        self.carried_by(pipe, other)

    def carried_by(self, out: Outgoing, other: End) -> None:
        """What is written here goes there, on its way to the other end."""
        self._out, self._other = out, other

    # The other end, and what carries.

    def arrived(self, item: Arrival) -> None:
        """It is in the kernel's buffer, and the process hears of it when it runs."""
        loop = self._loop
        if self._is_closed or not loop.alive:
            return
        self._inbox.append(item)
        if not self._is_waking:
            self._is_waking = True
            world = loop.world
            if loop.paused_until > world.now:
                world.at(loop.paused_until, loop, loop.enter, self._wake)
            else:
                loop.enter(self._wake)

    def vanish(self, *, silently: bool) -> None:
        """The process has died. silently: with its machine, so that nobody tells the other end
        before it asks."""
        self._is_closed = True
        if self._out is None:
            return
        if silently:
            world = self._loop.world
            reset = ConnectionResetError(errno.ECONNRESET, "reset by peer")
            world.later(world.between(300_000, 3_000_000), None, self._other.arrived, reset)
        elif not self._is_shut:
            self._out.send(EOFError())

    def close(self) -> None:
        self.process.connections.pop(self, None)
        self.shut_down()
        self._is_closed = True

    def shut_down(self) -> None:
        self._fail(EOFError())
        if not self._is_shut:
            self._is_shut = True
            if self._out is not None and self._loop.alive:
                self._out.send(EOFError())

    @property
    def peer(self) -> str:
        return f"node-{self.peer_id}"

    @property
    def peer_has_left(self) -> bool:
        return any(isinstance(item, Exception) for item in self._inbox)

    # Reading.

    async def read_any(self, *kinds: Kind) -> Frame:
        self._wanted = kinds
        while (frame := self._next()) is None:
            await self._wait()
        return frame

    async def read_frame(self, kind: Kind, cls: type[Head]) -> tuple[int, Head]:
        frame = await self.read_any(kind)
        return frame.correlation, decode_head(frame, cls)

    async def read_each(
        self, kind: Kind, cls: type[Head], handler: Callable[[Head, bytes | memoryview], None]
    ) -> None:
        self._wanted = (kind,)
        self._handler = lambda frame: handler(decode_head(frame, cls), frame.tail)
        try:
            self._wake()
            while True:
                await self._wait()
        finally:
            self._handler = None

    async def take_each(self, handler: Callable[[Frame], bool], *kinds: Kind) -> None:
        self._wanted = kinds

        def take(frame: Frame) -> None:
            if handler(frame):
                self._handler = None
                if self._woken is not None and not self._woken.done():
                    self._woken.set_result(None)

        self._handler = take
        try:
            self._wake()
            while self._handler is not None:
                await self._wait()
        finally:
            self._handler = None

    def budgeted(self, budget: ReceiveBudget, holder: str) -> None:
        pass  # Frames arrive whole.

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._wake)

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._woken = self._loop.create_future()
        try:
            await self._woken
        finally:
            self._woken = None

    def _wake(self) -> None:
        self._is_waking = False
        handler = self._handler
        try:
            while handler is not None and not self._paused:
                frame = self._next()
                if frame is None:
                    return
                handler(frame)
                handler = self._handler
        except Exception as error:  # noqa: BLE001  whoever waits raises it
            self._fail(error)
            return
        if self._inbox and self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _next(self) -> Frame | None:
        if self._failure is not None:
            raise self._failure
        if not self._inbox or self._paused:
            return None
        item = self._inbox.popleft()
        if isinstance(item, Exception):
            self._fail(item)
            raise item
        if item.kind not in self._wanted:
            raise InvalidRequestError(f"unexpected frame of kind {item.kind}")
        self.bytes_received += len(item.head) + len(item.tail)
        return item

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # Writing.

    async def send(self, kind: Kind, correlation: int, head: Message) -> None:
        rest = self.start(kind, correlation, head)
        if rest is not None:
            await rest

    async def send_slices(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[LogSlice]
    ) -> None:
        rest = self.start(kind, correlation, head, slices)
        if rest is not None:
            await rest

    async def send_tail(self, kind: Kind, correlation: int, head: Message, tail: bytes) -> None:
        self._check_open()
        self._transmit(Frame(kind, correlation, head.SerializeToString(), tail))

    def start(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[LogSlice] = ()
    ) -> Coroutine[Any, Any, None] | None:
        return self.start_encoded(kind, correlation, head.SerializeToString(), slices)

    def start_frame(self, data: bytes) -> Coroutine[Any, Any, None] | None:
        self._check_open()
        prefix = decode_prefix(data, RESPONSE_BYTES_MAX)
        middle = PREFIX_BYTES + prefix.head_length
        head, tail = data[PREFIX_BYTES:middle], data[middle:]
        self._transmit(Frame(prefix.kind, prefix.correlation, head, tail))
        return None

    def start_encoded(
        self, kind: Kind, correlation: int, data: bytes, slices: Sequence[LogSlice] = ()
    ) -> Coroutine[Any, Any, None] | None:
        self._check_open()
        if not slices:
            self._transmit(Frame(kind, correlation, data, b""))
            return None
        delay = self.process.send_delay_us(self.peer_id, slices)
        if delay:
            return self._send_late(kind, correlation, data, slices, delay)
        disk, tails = self.process.disk, []
        for slice_ in slices:
            try:
                if slice_.is_gone:
                    raise _gone()
                tail = disk.pread(slice_.path, slice_.position, slice_.length)
                if len(tail) < slice_.length:
                    raise OSError(errno.EIO, "the file ends early")
            except OSError as error:
                raise UnreadableSliceError(slice_, error) from error
            tails.append(tail)
        self._transmit(Frame(kind, correlation, data, b"".join(tails)))
        return None

    def read_short(self, slices: Sequence[LogSlice]) -> bytes | None:
        return None if slices else b""

    def start_tail(
        self, kind: Kind, correlation: int, head: bytes, tail: bytes | bytearray
    ) -> Coroutine[Any, Any, None] | None:
        self._check_open()
        self._transmit(Frame(kind, correlation, head, bytes(tail)))
        return None

    async def _send_late(
        self, kind: Kind, correlation: int, data: bytes, slices: Sequence[LogSlice], delay_us: int
    ) -> None:
        """Zero-copy: the bytes are read when the socket has room, not when they were chosen; from
        files that may have been removed meanwhile."""
        files = []
        for slice_ in slices:
            try:
                if slice_.is_gone:
                    raise _gone()
                files.append(self.process.disk.file(slice_.path))
            except OSError as error:
                raise UnreadableSliceError(slice_, error) from error
        await asyncio.sleep(delay_us / 1e6)
        tails = [
            _whole(bytes(file.data[slice_.position : slice_.position + slice_.length]), slice_)
            for file, slice_ in zip(files, slices, strict=True)
        ]
        self._check_open()
        self._transmit(Frame(kind, correlation, data, b"".join(tails)))

    def _check_open(self) -> None:
        if self._is_shut or self._out is None:
            raise BrokenPipeError(errno.EPIPE, "the connection has ended")

    def _transmit(self, frame: Frame) -> None:
        assert self._out is not None
        world = self._loop.world
        if frame.kind == Kind.NODE_HELLO and (self.process.node_id + self.peer_id) % 3 == 0:
            # These two are as before the fixed layout, so that both layouts are simulated.
            earlier = pb.NodeHello.FromString(frame.head)
            earlier.fixed_layout = False
            frame = frame._replace(head=earlier.SerializeToString())
        if frame.tail and world.random.random() < 0.01:
            frame = frame._replace(tail=_damaged(bytes(frame.tail), world.random.random()))
        self._out.send(frame)


def _whole(tail: bytes, slice_: LogSlice) -> bytes:
    if len(tail) < slice_.length:
        raise EOFError("the segment was truncated while it was sent")
    return tail


def _damaged(data: bytes, where: float) -> bytes:
    """One bit on its way from the disk to the other end."""
    damaged = bytearray(data)
    damaged[int(where * len(data))] ^= 0x10
    return bytes(damaged)


def _gone() -> OSError:
    return FileNotFoundError(errno.ENOENT, "removed or compacted meanwhile")
