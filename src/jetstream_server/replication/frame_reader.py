"""Frames as they arrive on a non-blocking socket, one at a time or each to a handler.

The descriptor stays registered with the loop while frames are wanted: `sock_recv` registers and
removes it for each call, which are seven system calls beside the one that reads.

Bounds. Beyond the frame that is being received at most READ_BYTES are held; while nobody takes
frames, no more is read. A frame that began has STALL_SECONDS to be whole; one longer than
READ_BYTES, which only nodes send each other, has them for each piece of it. What is here and what
comes keeps the loop for TURN_BYTES or about TURN_SECONDS at a time: 64 KiB may name thousands of
streams.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import PREFIX_BYTES, Kind, Prefix

READ_BYTES = 64 * 1024
TURN_BYTES = 1024 * 1024
"""Taken in before other connections get a turn."""
TURN_SECONDS = 0.02
"""Spent on frames before other connections get a turn, and what a single one takes beyond."""
STALL_SECONDS = 30.0


class Frame(NamedTuple):
    """`tail` is b"" in every frame that carries no batches."""

    kind: int
    correlation: int
    head: bytes
    tail: bytes | memoryview


FrameHandler = Callable[[Frame], None]


class FrameReader:
    """One task waits in `frame` or in `each` at a time. `close` before the socket is closed.

    Errors: EOFError when the peer has left, InvalidRequestError for what is no frame or none that
    is wanted now, TimeoutError when the rest of one does not come, OSError.
    """

    def __init__(self, sock: socket.socket, frame_bytes_max: int) -> None:
        self.bytes_received = 0
        self._sock = sock
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._held = b""
        self._at = 0  # what lies before it in `_held` has been handed out
        self._large: bytearray | None = None  # head and tail of a long frame, `_filled` so far
        self._filled = 0
        self._prefix: Prefix | None = None  # of the frame that is being received
        self._wanted: tuple[Kind, ...] = ()
        self._handler: FrameHandler | None = None
        self._paused = False
        self._registered = False
        self._going_on: asyncio.Handle | None = None
        self._failure: Exception | None = None
        self._woken: asyncio.Future[None] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stall_mark = (0, 0)  # frames and bytes when the timer was started
        self._frames = 0

    async def frame(self, *kinds: Kind) -> Frame:
        """The next frame, of one of these kinds. Who waits for it may be cancelled."""
        self._wanted = kinds
        while (frame := self._next()) is None:
            await self._wait()
        return frame

    async def each(self, kind: Kind, handler: FrameHandler) -> None:
        """Call `handler` with each frame as it arrives, for as long as all goes well: it only ever
        ends by an error, the handler's included."""
        self._wanted, self._handler = (kind,), handler
        try:
            if not self._hand_out(handler, time.monotonic() + TURN_SECONDS):
                self._go_on_soon()
            while True:
                await self._wait()
        finally:
            self._handler = None

    def pause(self) -> None:
        """Hand out and read no more for now."""
        self._paused = True
        self._unregister()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._go_on_soon()

    def close(self) -> None:
        """Stop reading, before the descriptor is closed and its number used again."""
        self._fail(EOFError())

    async def _wait(self) -> None:
        """Until there is more; with a handler, which is given it, until an error."""
        if self._failure is not None:
            raise self._failure
        self._register()
        self._watch_stall()
        self._woken = self._loop.create_future()
        try:
            await self._woken
        finally:
            self._woken = None

    # On the loop.

    def _register(self) -> None:
        if not self._registered and not self._paused and self._failure is None:
            self._registered = True
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        if self._failure is not None or self._paused:
            return
        try:
            self._take_in()
        except Exception as error:  # noqa: BLE001  whoever waits raises it
            self._fail(error)

    def _take_in(self) -> None:
        """Read until the socket is empty, even where one short read says so: after a reset uvloop
        calls no second time."""
        ends = time.monotonic() + TURN_SECONDS
        for _ in range(TURN_BYTES // READ_BYTES):
            if self._handler is not None:
                if not self._hand_out(self._handler, ends):
                    break
            elif len(self._held) - self._at >= READ_BYTES:
                self._unregister()  # `_wait` registers it again.
                return
            if self._paused:
                return
            try:
                self._receive()
            except BlockingIOError:
                self._register()
                if self._handler is not None:
                    self._watch_stall()
                return
            if self._handler is None and self._woken is not None and not self._woken.done():
                self._woken.set_result(None)
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """After everybody else, and once: registered as well it would be called twice a turn."""
        self._unregister()
        if self._going_on is None:
            self._going_on = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = None
        self._readable()

    def _receive(self) -> None:
        if self._large is not None and self._filled < len(self._large):
            with memoryview(self._large) as whole:
                received = self._sock.recv_into(whole[self._filled :])
            self._filled += received
        else:
            chunk = self._sock.recv(READ_BYTES)
            received = len(chunk)
            self._held = self._held[self._at :] + chunk if self._at < len(self._held) else chunk
            self._at = 0
        if not received:
            raise EOFError
        self.bytes_received += received

    def _fail(self, error: Exception) -> None:
        """No frame comes any more: `error` is raised to who waits, now and later."""
        self._unregister()
        if self._failure is None:
            self._failure = error
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # Frames.

    def _hand_out(self, handler: FrameHandler, ends: float) -> bool:
        """Whether all frames that are here could be handed out before `ends`, or nobody wants
        more."""
        while not self._paused and (frame := self._next()) is not None:
            handler(frame)
            if time.monotonic() >= ends:
                return False
        return True

    def _next(self) -> Frame | None:
        """The next frame, if all of it is here."""
        if self._prefix is None:
            if len(self._held) - self._at < PREFIX_BYTES:
                return None
            self._prefix = self._begun()
        kind, correlation, head_length, tail_length = self._prefix
        length = head_length + tail_length
        if self._large is not None:
            if self._filled < length:
                return None
            view = memoryview(self._large)
            frame = Frame(kind, correlation, bytes(view[:head_length]), view[head_length:])
            self._large = None
        else:
            start = self._at
            if len(self._held) - start < length:
                return None
            middle, self._at = start + head_length, start + length
            tail = self._held[middle : self._at] if tail_length else b""
            frame = Frame(kind, correlation, self._held[start:middle], tail)
        self._prefix = None
        self._frames += 1
        return frame

    def _begun(self) -> Prefix:
        """The prefix of the frame that begins here; checked before more of it is awaited."""
        start = self._at
        self._at = start + PREFIX_BYTES
        prefix = frames.decode_prefix(self._held[start : self._at], self._frame_bytes_max)
        if prefix.kind not in self._wanted:
            raise InvalidRequestError(f"unexpected frame of kind {prefix.kind}")
        if prefix.tail_length and prefix.kind not in (Kind.RECORDS, Kind.FETCH_REPLY):
            raise InvalidRequestError(f"a frame of kind {prefix.kind} with a tail")
        length = prefix.head_length + prefix.tail_length
        if length > READ_BYTES:
            # Received in place from here on, not piece by piece into one growing buffer.
            held = self._held[self._at : self._at + length]
            self._at += len(held)
            self._large = bytearray(length)
            self._large[: len(held)] = held
            self._filled = len(held)
        return prefix

    # Frames that do not go on.

    def _watch_stall(self) -> None:
        """Have a timer exactly while a frame is incomplete."""
        if self._prefix is None and self._at == len(self._held):
            if self._stall_timer is not None:
                self._stall_timer.cancel()
                self._stall_timer = None
        elif self._stall_timer is None:
            self._stall_mark = (self._frames, self.bytes_received)
            self._stall_timer = self._loop.call_later(STALL_SECONDS, self._stalled)

    def _stalled(self) -> None:
        self._stall_timer = None
        if self._woken is None or self._paused:
            return  # Nobody waits for the rest now; who does later has it watched anew.
        frames_before, bytes_before = self._stall_mark
        goes_on = self._large is not None and self.bytes_received != bytes_before
        if goes_on or self._frames != frames_before:
            self._watch_stall()
        else:
            self._fail(TimeoutError())
