"""Data-plane frames over a raw non-blocking socket, for both ends of every connection.

uvloop has no sendfile, so the socket is ours: heads are written with MSG_MORE, batches go from the
page cache to the socket by `os.sendfile`, at most TURN_BYTES before other connections get a turn.

One task may read and one may write at a time. Errors: EOFError when the peer has left,
InvalidRequestError for what is no frame, TimeoutError when the peer takes no byte, or has not sent
the rest of a frame it began, for STALL_SECONDS, OSError for the rest; after any of them the
connection is of no use. A StorageError comes before the first byte of an answer: another one may
be sent instead.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import socket
import sys
import termios
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import Kind, Prefix
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.disk import storage_error
from jetstream_server.replication.residency import make_resident

TURN_BYTES = 1024 * 1024
COPIED_BYTES_MAX = 32 * 1024
"""Up to here one read and one send are cheaper than sendfile and the system calls around it."""
STALL_SECONDS = 30.0
_READ_BYTES = 64 * 1024

Head = TypeVar("Head", bound=Message)


class FrameSocket:
    """See the module. Owns the socket: `close` it."""

    def __init__(self, sock: socket.socket, frame_bytes_max: int) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self.bytes_received = 0

    def close(self) -> None:
        self._sock.close()

    def shut_down(self) -> None:
        """Wake whoever reads or writes: the connection has ended."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It has ended already.

    @property
    def peer(self) -> str:
        """The other end's host; "" when it has gone."""
        try:
            return str(self._sock.getpeername()[0])
        except OSError:
            return ""

    @property
    def peer_has_left(self) -> bool:
        """Whether the peer has closed its end, however much of what it sent is still unread."""
        events = select.poll()
        events.register(self._sock.fileno(), select.POLLRDHUP)
        return bool(events.poll(0))

    # Reading.

    async def read_prefix(self) -> Prefix:
        """The next frame's prefix; its head and tail must be read next."""
        if not self._received:
            # The peer may be silent for as long as it likes between two frames, not within one.
            self._received += await self._receive()
        data = await self._read_promptly(frames.PREFIX_BYTES)
        return frames.decode_prefix(data, self._frame_bytes_max)

    async def _read_promptly(self, count: int) -> bytearray:
        """As `read_exactly`; TimeoutError when the peer stops in the middle."""
        if len(self._received) >= count:
            return await self.read_exactly(count)  # The usual case is spared the timer.
        async with asyncio.timeout(STALL_SECONDS):
            return await self.read_exactly(count)

    async def _receive(self) -> bytes:
        chunk: bytes = await self._loop.sock_recv(self._sock, _READ_BYTES)
        if not chunk:
            raise EOFError
        self.bytes_received += len(chunk)
        return chunk

    async def read_head(self, prefix: Prefix, kind: Kind, cls: type[Head]) -> Head:
        """The head that belongs to `prefix`, which must be of that kind."""
        if prefix.kind != kind:
            raise InvalidRequestError(f"unexpected frame of kind {prefix.kind}")
        data = await self._read_promptly(prefix.head_length)
        try:
            return cls.FromString(bytes(data))
        except DecodeError as error:
            raise InvalidRequestError(f"undecodable frame of kind {prefix.kind}") from error

    async def read_frame(self, kind: Kind, cls: type[Head]) -> tuple[int, Head]:
        """A frame without tail: its correlation and head."""
        prefix = await self.read_prefix()
        if prefix.kind != kind or prefix.tail_length:
            raise InvalidRequestError(f"unexpected frame of kind {prefix.kind}")
        return prefix.correlation, await self.read_head(prefix, kind, cls)

    async def read_exactly(self, count: int) -> bytearray:
        """The next `count` bytes. What lies beyond the buffered ones is received in place."""
        if count - len(self._received) > _READ_BYTES:
            data, held = bytearray(count), len(self._received)
            data[:held] = self._received
            self._received.clear()
            with memoryview(data) as view:
                await self._fill(view[held:])
            return data
        data = self._received[:count]
        del self._received[:count]
        while len(data) < count:
            chunk = await self._receive()
            missing = count - len(data)
            data += chunk[:missing]
            self._received += chunk[missing:]
        return data

    async def _fill(self, view: memoryview) -> None:
        while view:
            received = await self._loop.sock_recv_into(self._sock, view)
            if not received:
                raise EOFError
            self.bytes_received += received
            view = view[received:]

    # Writing.

    async def send(self, kind: Kind, correlation: int, head: Message) -> None:
        """Send a frame without tail."""
        await self._write(frames.encode(kind, correlation, head.SerializeToString()), 0)

    async def send_slices(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[LogSlice]
    ) -> None:
        """Send a frame whose tail is the slices, back to back, straight from their files.

        Raises StorageError, and has sent nothing, when one of them cannot be read.
        """
        length = sum(slice_.length for slice_ in slices)
        data = frames.encode(kind, correlation, head.SerializeToString(), length)
        if length <= COPIED_BYTES_MAX:
            tails = [await _copy(slice_) for slice_ in slices]
            await self._write(b"".join((data, *tails)), 0)
            return
        # Descriptors of its own: a segment may be deleted, or fall out of a cache, meanwhile.
        opened: list[int] = []
        try:
            for slice_ in slices:
                opened.append(await _open(slice_))
            await self._write(data, socket.MSG_MORE)
            for fd, slice_ in zip(opened, slices, strict=True):
                await self._send_file(fd, slice_.position, slice_.length)
        finally:
            for fd in opened:
                os.close(fd)

    async def _write(self, data: bytes, flags: int) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view, flags) :]
            except BlockingIOError:
                await self._writable()

    async def _send_file(self, fd: int, position: int, length: int) -> None:
        """`_open` has seen to the first turn's pages."""
        end = position + length
        while True:
            turn_end = min(position + TURN_BYTES, end)
            while position < turn_end:
                try:
                    sent = os.sendfile(self._sock.fileno(), fd, position, turn_end - position)
                except BlockingIOError:
                    await self._writable()
                    continue
                if sent == 0:
                    raise EOFError("the segment was truncated while it was sent")
                position += sent
            if position == end:
                return
            await asyncio.sleep(0)
            # Again before each turn: while a slow peer took the last one, this may have gone cold.
            await make_resident(fd, position, min(TURN_BYTES, end - position))

    async def _writable(self) -> None:
        """Wait until the socket takes more. Raises TimeoutError when the peer takes nothing."""
        unsent = self._unsent()
        while True:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await self._woken_to_write()
                return
            except TimeoutError:
                # A socket takes more only once a third of its buffer is free, which is megabytes.
                before, unsent = unsent, self._unsent()
                if unsent >= before:
                    raise

    async def _woken_to_write(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        fd = self._sock.fileno()

        def wake() -> None:
            # At once: after a reset uvloop has closed its handle for the descriptor, and whoever
            # reads next would be given that one.
            self._loop.remove_writer(fd)
            if not writable.done():
                writable.set_result(None)

        self._loop.add_writer(fd, wake)
        try:
            await writable
        finally:
            self._loop.remove_writer(fd)

    def _unsent(self) -> int:
        """Bytes in the socket's buffer that the peer has not acknowledged."""
        answer = fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(answer, sys.byteorder)


async def _open(slice_: LogSlice) -> int:
    """A descriptor for the slice's file, the beginning of the slice in the page cache."""
    try:
        fd = os.open(slice_.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await make_resident(fd, slice_.position, min(slice_.length, TURN_BYTES))
            if slice_.is_gone:
                raise FileNotFoundError(errno.ENOENT, "removed or compacted meanwhile")
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise storage_error(error, f"reading {slice_.path}") from error
    return fd


async def _copy(slice_: LogSlice) -> bytes:
    """The bytes of a short slice."""
    fd = await _open(slice_)
    try:
        data = os.pread(fd, slice_.length, slice_.position)
    except OSError as error:
        raise storage_error(error, f"reading {slice_.path}") from error
    finally:
        os.close(fd)
    if len(data) < slice_.length:
        raise EOFError("the segment was truncated while it was sent")
    return data
