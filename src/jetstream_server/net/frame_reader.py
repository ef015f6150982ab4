"""Reads frames from a non-blocking socket, one at a time or each for a handler.

The descriptor stays registered with the loop while frames are wanted. `sock_recv` registers and
removes it for each call, which costs seven system calls in addition to the read.

Bounds. At most READ_BYTES are held beyond the current frame. While no task takes frames, nothing is
read. A frame must be complete within STALL_SECONDS of its beginning. A frame whose tail is received
in place has that time for each piece, or for the bytes that `budgeted` asks for. Such a tail of a
client is read once there is room for it in the node's budget. Reading holds the loop for TURN_BYTES
or about TURN_SECONDS at a time: 64 KiB may name thousands of streams. **safety** All readers of a
loop share a longer time, and beyond it each has LEAST_SECONDS: a thousand connections of one client
must not keep the loop from everybody else for a thousand turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

from jetstream_protocol.frame_decoder import Frame, FrameDecoder
from jetstream_protocol.frames import Kind
from jetstream_server.net.receive_budget import ReceiveBudget
from jetstream_server.net.tls_socket import StreamSocket, TlsSocket

READ_BYTES = 64 * 1024
TURN_BYTES = 1024 * 1024
"""Bytes read before other connections get a turn."""
TURN_SECONDS = 0.02
"""Time spent on frames before other connections get a turn. A single frame may exceed it."""
SHARED_SECONDS, LEAST_SECONDS = 0.1, 0.0005
"""For all connections in one iteration of the loop; and what each has all the same."""
LOOK_SECONDS = 0.1
"""How long after a read that took everything the socket is read once more, to see whether its bytes
were followed by a reset."""
STALL_SECONDS = 30.0
STALL_BYTES = 1024 * 1024
"""What a client must send of a long frame in that time: meanwhile it takes others' room."""

FrameHandler = Callable[[Frame], object]
"""Takes a frame. True: it wants no more."""


class _Iteration:
    """Of one loop: when the time of its readers is over."""

    __slots__ = ("__weakref__", "_ends", "_is_open", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._is_open = False
        self._ends = 0.0

    def turn_ends(self) -> float:
        """When a turn that begins now ends."""
        now = time.monotonic()
        loop = self._loop()
        if not self._is_open and loop is not None:
            self._is_open = True
            self._ends = now + SHARED_SECONDS
            loop.call_soon(self._over)
        return min(now + TURN_SECONDS, max(self._ends, now + LEAST_SECONDS))

    def _over(self) -> None:
        self._is_open = False


_iterations: WeakKeyDictionary[asyncio.AbstractEventLoop, _Iteration] = WeakKeyDictionary()


def _iteration_of(loop: asyncio.AbstractEventLoop) -> _Iteration:
    found = _iterations.get(loop)
    if found is None:
        found = _iterations[loop] = _Iteration(loop)
    return found


class FrameReader:
    """One task waits in `frame` or in `each` at a time. Call `close` before the socket is closed.

    Errors: EOFError when the peer has closed, InvalidRequestError for an invalid or unexpected
    frame, TimeoutError when the rest of a frame does not arrive, OSError.
    """

    def __init__(self, sock: StreamSocket, frame_bytes_max: int) -> None:
        self.bytes_received = 0
        self._sock = sock
        self._pending = sock.pending if isinstance(sock, TlsSocket) else lambda: 0
        self._is_plain = not isinstance(sock, TlsSocket)
        self._decoder = FrameDecoder(frame_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._iteration = _iteration_of(self._loop)
        self._handler: FrameHandler | None = None
        self._paused = False
        self._registered = False
        self._going_on: asyncio.Handle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._woken: asyncio.Future[None] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stall_mark = (0, 0)  # frames and bytes when the timer was started
        self._frames = 0
        self._budget: ReceiveBudget | None = None
        self._holder = ""
        self._taken = 0  # of the budget, for the tail that is being received
        self._lacks_room = False

    def budgeted(self, budget: ReceiveBudget, holder: str) -> None:
        """From now on count long tails in that budget, as those of `holder`."""
        self._budget, self._holder = budget, holder

    async def frame(self, *kinds: Kind) -> Frame:
        """The next frame, which must be of one of these kinds. The wait may be cancelled."""
        self._decoder.wanted = kinds
        while (frame := self._next()) is None:
            await self._wait()
        return frame

    async def each(self, handler: FrameHandler, *kinds: Kind) -> None:
        """Call `handler` with each frame of these kinds as it arrives, until it returns True. Other
        frames are an error, and so is what the handler raises."""
        self._decoder.wanted, self._handler = kinds, handler
        try:
            if not self._hand_out(handler, self._iteration.turn_ends()):
                self._go_on_soon()
            while self._handler is not None:
                await self._wait()
        finally:
            self._handler = None

    def pause(self) -> None:
        """Stop reading and passing on frames for now."""
        self._paused = True
        self._unregister()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._go_on_soon()

    def close(self) -> None:
        """Stop reading. Call it before the descriptor is closed and its number reused."""
        self._fail(EOFError())

    async def _wait(self) -> None:
        """Wait for more frames; with a handler, until an error."""
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
        is_idle = self._paused or self._lacks_room or self._failure is not None
        if not self._registered and not is_idle:
            if self._pending():
                self._go_on_soon()
                return
            self._registered = True
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        if self._failure is not None or self._paused or self._lacks_room:
            return
        try:
            self._take_in()
        except Exception as error:  # noqa: BLE001  the waiting task raises it
            self._fail(error)

    def _take_in(self) -> None:
        """Read what is there. A short read has emptied the socket: no second one is made only to
        find nothing."""
        decoder, ends = self._decoder, self._iteration.turn_ends()
        handler = None if decoder.is_empty else self._handler
        if handler is not None and not self._hand_out(handler, ends):
            self._go_on_soon()
            return
        for _ in range(TURN_BYTES // READ_BYTES):
            if self._handler is None and decoder.held >= READ_BYTES:
                self._unregister()  # `_wait` registers it again.
                return
            if self._paused or not (decoder.is_empty or self._has_room()):
                return
            try:
                has_emptied = self._receive()
            except BlockingIOError:
                self._await_more()
                return
            if self._handler is not None:
                if not self._hand_out(self._handler, ends):
                    break
            elif self._woken is not None and not self._woken.done():
                self._woken.set_result(None)
            if has_emptied:
                if self._looking is None:
                    self._look_later()
                self._await_more()
                return
        self._go_on_soon()

    def _await_more(self) -> None:
        if not self._registered:
            self._register()
        if self._handler is not None and not (self._decoder.is_empty and self._stall_timer is None):
            self._watch_stall()

    def _look_later(self) -> None:
        """Read once more in a while. After a reset uvloop calls once, and not again: if the call
        took the bytes before the reset, nothing else would tell it."""
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        self._readable()

    def _go_on_soon(self) -> None:
        """Continue once, after the other connections. The descriptor must not be registered then:
        it would be called twice."""
        self._unregister()
        if self._going_on is None:
            self._going_on = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = None
        self._readable()

    def _has_room(self) -> bool:
        """Whether the next bytes may be read. If not, reading goes on once they may."""
        if self._budget is None or self._taken:
            return True
        missing = self._decoder.missing
        if not missing:
            return True
        if self._budget.take(self._holder, missing, self._room_is_back):
            self._taken = missing
            return True
        self._lacks_room = True
        self._unregister()
        return False

    def _room_is_back(self) -> None:
        self._lacks_room = False
        if self._failure is None and not self._paused:
            self._go_on_soon()

    def _give_back(self) -> None:
        if self._budget is not None and self._taken:
            self._budget.give(self._holder, self._taken)
            self._taken = 0

    def _receive(self) -> bool:
        """Read once. Returns whether that has emptied the socket; False: unknown."""
        room = None if self._decoder.is_empty else self._decoder.room()
        if room is None:
            asked = READ_BYTES
            chunk = self._sock.recv(READ_BYTES)
            received = len(chunk)
            self._decoder.feed(chunk)
        else:
            with room:
                asked = len(room)
                received = self._sock.recv_into(room)
            self._decoder.filled(received)
        if not received:
            raise EOFError
        self.bytes_received += received
        return received < asked and self._is_plain

    def _fail(self, error: Exception) -> None:
        """End: raise `error` to the waiting task, and to every later one."""
        self._unregister()
        if self._failure is None:
            self._failure = error
        if self._budget is not None:
            self._budget.leave(self._room_is_back)
        self._give_back()
        for timer in (self._stall_timer, self._looking):
            if timer is not None:
                timer.cancel()
        self._stall_timer = self._looking = None
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # Frames.

    def _hand_out(self, handler: FrameHandler, ends: float) -> bool:
        """Pass on complete frames. Returns whether all were passed on before `ends`, or no task
        wants more."""
        decoder = self._decoder
        while not self._paused and (frame := decoder.next()) is not None:
            self._frames += 1
            wants_no_more = handler(frame) is True
            if self._taken:
                self._give_back()
            if wants_no_more:
                self._handler = None
                if self._woken is not None and not self._woken.done():
                    self._woken.set_result(None)
                return True
            if decoder.is_empty:
                return True
            if time.monotonic() >= ends:
                return False
        return True

    def _next(self) -> Frame | None:
        """The next frame, if it is complete."""
        frame = self._decoder.next()
        if frame is not None:
            self._frames += 1
        return frame

    # Incomplete frames.

    def _watch_stall(self) -> None:
        """Keep a timer running exactly while a frame is incomplete."""
        if self._decoder.is_empty:
            if self._stall_timer is not None:
                self._stall_timer.cancel()
                self._stall_timer = None
        elif self._stall_timer is None:
            self._stall_mark = (self._frames, self.bytes_received)
            self._stall_timer = self._loop.call_later(STALL_SECONDS, self._stalled)

    def _stalled(self) -> None:
        self._stall_timer = None
        if self._woken is None or self._paused or self._lacks_room:
            return  # No task waits for the rest. The next wait starts a new timer.
        frames_before, bytes_before = self._stall_mark
        least = 1 if self._budget is None else STALL_BYTES
        goes_on = self._decoder.missing and self.bytes_received - bytes_before >= least
        if goes_on or self._frames != frames_before:
            self._watch_stall()
        else:
            self._fail(TimeoutError())
