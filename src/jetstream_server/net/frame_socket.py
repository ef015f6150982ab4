"""Data-plane frames over a non-blocking socket, for both ends of a connection.

uvloop has no sendfile, so this module uses the socket directly: heads are written with MSG_MORE,
and batches go from the page cache to the socket by `os.sendfile`, at most TURN_BYTES before other
connections get a turn. With TLS they are read and encrypted in this process (tls_socket.py).

One task may read and one may write at a time. Errors: EOFError when the peer has closed,
InvalidRequestError for an invalid frame, TimeoutError when the peer reads nothing, or does not
complete a frame, for STALL_SECONDS, OSError otherwise. After any of them the connection is
unusable. An UnreadableSliceError is raised before the first byte of an answer: another answer may
be sent instead. Bytes in the middle of an answer that cannot be read are sent as zeros: only their
batch fails its CRC at the other end.
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
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self

from google.protobuf.message import DecodeError, Message

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.dial import dial as dial_host
from jetstream_server.net.file_slice import FileSlice, ResidentFiles
from jetstream_server.net.frame_connection import CONNECT_SECONDS, Head, UnreadableSliceError
from jetstream_server.net.frame_reader import STALL_SECONDS, FrameReader
from jetstream_server.net.page_cache import make_resident
from jetstream_server.net.receive_budget import ReceiveBudget
from jetstream_server.net.tls import PeerIdentity
from jetstream_server.net.tls_socket import StreamSocket, TlsSocket, handshake

TURN_BYTES = 1024 * 1024
COPIED_BYTES_MAX = 32 * 1024
"""Up to this size, one read and one send are cheaper than sendfile with its system calls."""


async def dial(address: tuple[str, int], certificates: Certificates | None = None) -> FrameSocket:
    """Connect to a node's data plane, at the first of its addresses that answers. Raises OSError,
    of which TimeoutError is one; with TLS also when the certificate is not a node's."""
    sock: StreamSocket = await dial_host(*address, CONNECT_SECONDS)
    try:
        if isinstance(sock, socket.socket) and certificates is not None:
            sock = await handshake(sock, certificates.dial, CONNECT_SECONDS, server_side=False)
            if sock.identity is None or sock.identity.node_id is None:
                raise ConnectionError("TLS: the certificate is not that of a node")
        return FrameSocket(sock, frames.RESPONSE_BYTES_MAX)
    except BaseException:
        sock.close()
        raise


class FrameSocket:
    """A FrameConnection, which says what its methods do; see the module. Owns the socket: `close`
    it."""

    def __init__(
        self,
        sock: StreamSocket,
        frame_bytes_max: int,
        files: ResidentFiles | None = None,
    ) -> None:
        """files: opens the files of slices; None: the connection sends no slices."""
        self.peer_identity: PeerIdentity | None = None
        if isinstance(sock, TlsSocket):
            self.peer_identity = sock.identity
        else:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._files = files
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(sock, frame_bytes_max)

    def close(self) -> None:
        self._reader.close()
        self._sock.close()

    def shut_down(self) -> None:
        """End the connection. Tasks that read or write get an error. The reader is failed directly,
        because a paused reader does not watch the socket."""
        self._reader.close()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It is closed already.

    @property
    def peer(self) -> str:
        return peer_of(self._sock)

    @property
    def peer_has_left(self) -> bool:
        events = select.poll()
        events.register(self._sock.fileno(), select.POLLRDHUP)
        return bool(events.poll(0))

    # Reading.

    @property
    def bytes_received(self) -> int:
        return self._reader.bytes_received

    async def read_any(self, *kinds: Kind) -> Frame:
        return await self._reader.frame(*kinds)

    async def read_frame(self, kind: Kind, cls: type[Head]) -> tuple[int, Head]:
        frame = await self._reader.frame(kind)
        return frame.correlation, decode_head(frame, cls)

    async def read_each(
        self, kind: Kind, cls: type[Head], handler: Callable[[Head, bytes | bytearray], None]
    ) -> None:
        await self._reader.each(lambda frame: handler(decode_head(frame, cls), frame.tail), kind)

    async def take_each(self, handler: Callable[[Frame], bool], *kinds: Kind) -> None:
        await self._reader.each(handler, *kinds)

    def budgeted(self, budget: ReceiveBudget, holder: str) -> None:
        self._reader.budgeted(budget, holder)

    def pause_reading(self) -> None:
        self._reader.pause()

    def resume_reading(self) -> None:
        self._reader.resume()

    # Writing.

    async def send(self, kind: Kind, correlation: int, head: Message) -> None:
        await self._write(frames.encode(kind, correlation, head.SerializeToString()), 0)

    async def send_slices(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[FileSlice]
    ) -> None:
        rest = self.start(kind, correlation, head, slices)
        if rest is not None:
            await rest

    async def send_tail(self, kind: Kind, correlation: int, head: Message, tail: bytes) -> None:
        data = frames.encode(kind, correlation, head.SerializeToString(), len(tail))
        await self._write(data, socket.MSG_MORE if tail else 0)
        await self._write(tail, 0)

    def start(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[FileSlice] = ()
    ) -> Coroutine[Any, Any, None] | None:
        return self.start_encoded(kind, correlation, head.SerializeToString(), slices)

    def start_encoded(
        self, kind: Kind, correlation: int, head: bytes, slices: Sequence[FileSlice] = ()
    ) -> Coroutine[Any, Any, None] | None:
        tail = self.read_short(slices)
        if tail is not None:
            return self.start_tail(kind, correlation, head, tail)
        length = _length(slices)
        data = frames.encode(kind, correlation, head, length)
        if length > COPIED_BYTES_MAX:
            return self._send_files(data, slices)
        return self._send_read(data, slices)

    def start_tail(
        self, kind: Kind, correlation: int, head: bytes, tail: bytes | bytearray
    ) -> Coroutine[Any, Any, None] | None:
        return self.start_frame(frames.encode(kind, correlation, head, len(tail)) + tail)

    def start_frame(self, data: bytes) -> Coroutine[Any, Any, None] | None:
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        return None if sent == len(data) else self._write(data[sent:], 0)

    def read_short(self, slices: Sequence[FileSlice]) -> bytes | bytearray | None:
        """The bytes of the slices; None if they are longer than COPIED_BYTES_MAX, or reading them
        would have to wait for the disk. Raises UnreadableSliceError."""
        if not slices:
            return b""
        if _length(slices) > COPIED_BYTES_MAX:
            return None
        assert self._files is not None, "a connection without files sends no slices"
        tails = []
        for slice_ in slices:
            try:
                tail = self._files.read_resident(slice_.path, slice_.position, slice_.length)
                slice_.check_is_there()
            except OSError as error:
                raise UnreadableSliceError(slice_, error) from error
            if tail is None:
                return None
            tails.append(tail)
        return tails[0] if len(tails) == 1 else b"".join(tails)

    async def _send_read(self, data: bytes, slices: Sequence[FileSlice]) -> None:
        """Send short slices of which a part is not in the page cache."""
        tails = []
        with _SliceFiles() as files:
            for slice_ in slices:
                fd = await files.open(slice_)
                try:
                    tails.append(os.pread(fd, slice_.length, slice_.position))
                    if len(tails[-1]) < slice_.length:
                        raise _short_file_error()
                except OSError as error:
                    raise UnreadableSliceError(slice_, error) from error
        await self._write(b"".join((data, *tails)), 0)

    async def _send_files(self, data: bytes, slices: Sequence[FileSlice]) -> None:
        with _SliceFiles() as files:
            opened = [await files.open(slice_) for slice_ in slices]
            for slice_ in slices:
                _check_uncut(slice_)  # Again: the files of the slices after it were waited for.
            await self._write(data, socket.MSG_MORE)
            for fd, slice_ in zip(opened, slices, strict=True):
                await self._send_file(fd, slice_)

    async def _write(self, data: bytes, flags: int) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view, flags) :]
            except BlockingIOError:
                await self._writable()

    async def _send_file(self, fd: int, slice_: FileSlice) -> None:
        """Send a slice of an open file. `_SliceFiles` has read the pages of the first turn into the
        page cache."""
        position, end = slice_.position, slice_.position + slice_.length
        while True:
            turn_end = min(position + TURN_BYTES, end)
            while position < turn_end:
                if slice_.is_cut:  # The log may have grown anew, with other batches.
                    return await self._send_zeros(end - position)
                try:
                    sent = self._sendfile(fd, position, turn_end - position)
                except BlockingIOError:
                    await self._writable()
                    continue
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    sent = 0
                if sent == 0:
                    return await self._send_zeros(end - position)
                position += sent
            if position == end:
                return None
            await asyncio.sleep(0)
            try:
                # Repeat this before each turn: while a slow peer took the last one, the pages may
                # have left the page cache.
                await make_resident(fd, position, min(TURN_BYTES, end - position))
            except OSError:
                return await self._send_zeros(end - position)

    def _sendfile(self, fd: int, position: int, length: int) -> int:
        if isinstance(self._sock, TlsSocket):
            return self._sock.sendfile(fd, position, length)
        return os.sendfile(self._sock.fileno(), fd, position, length)

    async def _send_zeros(self, length: int) -> None:
        """Send zeros instead of unreadable bytes: the frame's length was sent already."""
        for start in range(0, length, TURN_BYTES):
            await self._write(bytes(min(TURN_BYTES, length - start)), 0)

    async def _writable(self) -> None:
        """Wait until the socket accepts more. Raises TimeoutError when the peer reads nothing."""
        unsent = self._unsent()
        while True:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await self._woken_to_write()
                return
            except TimeoutError:
                # A socket accepts more only once a third of its buffer is free, which is megabytes.
                before, unsent = unsent, self._unsent()
                if unsent >= before:
                    raise

    async def _woken_to_write(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        fd = self._sock.fileno()

        def wake() -> None:
            # At once: after a reset, uvloop has closed its handle for the descriptor, and the next
            # reader would get that handle.
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


def _length(slices: Sequence[FileSlice]) -> int:
    return sum([slice_.length for slice_ in slices])


def peer_of(sock: StreamSocket) -> str:
    """The other end's host; "" when it has gone."""
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


class _SliceFiles:
    """The open files of an answer's slices: one descriptor for each, however many slices it has. A
    context manager, which closes them.

    They are not the disk's cached ones: the segments may be deleted meanwhile, and a slow reader
    must not hold those. A file is known by the slices' source, too: compaction and a log that
    begins anew put another file in its place, of which later slices have another source.
    """

    def __init__(self) -> None:
        self._opened: dict[tuple[str, object], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for fd in self._opened.values():
            os.close(fd)

    async def open(self, slice_: FileSlice) -> int:
        """A descriptor of the slice's file, with the beginning of the slice in the page cache.
        Raises UnreadableSliceError."""
        try:
            fd = self._fd(slice_)
            await make_resident(fd, slice_.position, min(slice_.length, TURN_BYTES))
            if os.fstat(fd).st_size < slice_.position + slice_.length:
                raise _short_file_error()
        except OSError as error:
            raise UnreadableSliceError(slice_, error) from error
        _check_uncut(slice_)
        return fd

    def _fd(self, slice_: FileSlice) -> int:
        key = slice_.path, slice_.source
        fd = self._opened.get(key)
        if fd is None:
            fd = self._opened[key] = os.open(slice_.path, os.O_RDONLY | os.O_CLOEXEC)
            slice_.check_is_there()
        return fd


def _check_uncut(slice_: FileSlice) -> None:
    if slice_.is_cut:
        cut = FileNotFoundError(errno.ENOENT, "cut meanwhile", slice_.path)
        raise UnreadableSliceError(slice_, cut) from cut


def _short_file_error() -> OSError:
    return OSError(errno.EIO, "the file ends early")


def decode_head(frame: Frame, cls: type[Head]) -> Head:
    """Decode the head of a frame. Raises InvalidRequestError for an invalid head."""
    try:
        return cls.FromString(frame.head)
    except DecodeError as error:
        raise InvalidRequestError(f"undecodable frame of kind {frame.kind}") from error
