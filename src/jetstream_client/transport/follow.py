"""A reader at the head: the server sends it what is committed, without being asked each time.

`Follow` is what one connection brings of it. `Following` belongs to a reader, and knows where the
follow stands: the data plane takes its answers in place of those of fetches while they continue
what the reader asks for. A follow that ends, for whatever reason, is no failure: the reader fetches
again, and hears the reason then. Once it is at the head it follows anew.
"""

from __future__ import annotations

import asyncio

from jetstream_client.transport.data_connection import DataConnection, Fetched
from jetstream_protocol.batch import decode_header
from jetstream_protocol.errors import CorruptBatchError, UnavailableError, from_proto
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import KEEP_ALIVE_SECONDS
from jetstream_protocol.generated import dataplane_pb2 as pb

CREDIT_BYTES = 1024 * 1024
"""What may have been sent and not been taken by the reader."""


class Follow:
    """Answers of one server, back to back from `end` on. The connection holds it weakly: it is
    ended once it has no user any more."""

    def __init__(self, connection: DataConnection, request: pb.DataFetchRequest) -> None:
        """Begins it. Raises UnavailableError."""
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._window = min(CREDIT_BYTES, request.bytes_max or CREDIT_BYTES)
        self.end: int | None = request.offset
        """The offset after what was taken; None: it is not known."""
        self.has_ended = False
        self._refusal: pb.DataFetchResponse | None = None
        self._head: pb.DataFetchResponse | None = None
        self._tails: list[bytes | bytearray] = []
        self._next: tuple[int, int] | None = None  # with a filter: where to go on
        self._taken = 0  # of the credit, and not given back yet
        self._woken: asyncio.Future[None] | None = None
        self._heard = self._credited_at = self._loop.time()
        asked = pb.FollowRequest(credit=self._window)
        beginning = getattr(asked, "from")
        beginning.CopyFrom(request)
        beginning.ClearField("wait_ms_max")
        self._correlation = connection.begin_follow(asked, self)

    # What the connection calls.

    def came(self, frame: Frame) -> None:
        """Raises DecodeError."""
        head = pb.DataFetchResponse.FromString(frame.head)
        self._heard = self._loop.time()
        if head.HasField("error"):
            self._refusal, self.has_ended = head, True
        else:
            self._head = head
            self.has_ended = head.has_ended
            if frame.tail:
                self._tails.append(frame.tail)
            if head.HasField("next_offset"):
                self._next = head.next_offset, head.last_epoch
            if self._heard - self._credited_at >= KEEP_ALIVE_SECONDS:
                self._say()
        self._wake()

    def lost(self) -> None:
        """The connection has ended."""
        self.has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # What the reader calls.

    async def next(self, wait: float, patience: float) -> Fetched | None:
        """All that has come, together; empty if nothing comes for `wait` seconds; None: it has
        ended.

        patience: how long the server may be silent. Raises UnavailableError if it is silent for
        longer, and the server's error if that was its first answer.
        """
        until = self._loop.time() + wait
        while not self._tails and self._next is None:
            if self._head is None and self._refusal is not None:
                raise from_proto(self._refusal.error)
            if self.has_ended:
                return None
            now = self._loop.time()
            silent_at = self._heard + patience
            if self._head is not None and now >= until:
                return Fetched(self._head, b"", self._connection.address)
            if now >= silent_at:
                # The server may be dead: fail what else waits for it, too.
                self._connection.abort("no answer in time")
                raise UnavailableError(f"{self._connection.address} did not answer in time")
            await self._news(silent_at if self._head is None else min(until, silent_at))
        return self._take()

    async def _news(self, until: float) -> None:
        self._woken = self._loop.create_future()
        timer = self._loop.call_at(until, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken = None

    def _take(self) -> Fetched:
        assert self._head is not None
        tails, self._tails = self._tails, []
        tail = tails[0] if len(tails) == 1 else b"".join(tails)
        head = self._head
        if self._next is not None:
            head = pb.DataFetchResponse()
            head.CopyFrom(self._head)
            head.next_offset, head.last_epoch = self._next
            self.end, self._next = self._next[0], None
        else:
            self.end = _end_of(tail)
        self._taken += len(tail)
        if not self.has_ended and 2 * self._taken >= self._window:
            self._say()
        return Fetched(head, tail, self._connection.address)

    def _say(self) -> None:
        """Give credit back, which also tells the server that the reader is alive."""
        self._credited_at = self._loop.time()
        taken, self._taken = self._taken, 0
        self._connection.credit(self._correlation, taken)

    def leave(self) -> None:
        """Nothing more is wanted."""
        if not self.has_ended:
            self.has_ended = True
            self._connection.end_follow(self._correlation)


class Following:
    """The follow of one reader, used while it asks for what comes next."""

    def __init__(self) -> None:
        self._follow: Follow | None = None
        self._high_watermark = 0
        self._must_fetch = False

    def at(self, request: pb.DataFetchRequest) -> Follow | None:
        """The follow that brings what is requested."""
        follow = self._follow
        if follow is not None and (request.refused or follow.end != request.offset):
            self.leave()
        return self._follow

    def may_begin(self, connection: DataConnection, request: pb.DataFetchRequest) -> bool:
        """Whether to follow from there on: nothing is known to be there."""
        if self._must_fetch or request.refused or not request.wait_ms_max:
            return False
        return connection.follows and request.offset >= self._high_watermark

    def begin(self, connection: DataConnection, request: pb.DataFetchRequest) -> Follow:
        """Raises UnavailableError."""
        self._follow = Follow(connection, request)
        return self._follow

    def fetched(self, fetched: Fetched) -> None:
        """An answer came. At the head it is followed by others without a question."""
        self._high_watermark = fetched.head.high_watermark
        self._must_fetch = False

    def has_ended(self) -> None:
        """The follow ended: what is next is fetched."""
        self._follow = None
        self._must_fetch = True

    def leave(self) -> None:
        """The reader goes elsewhere, or is closed."""
        follow, self._follow = self._follow, None
        if follow is not None:
            follow.leave()


def _end_of(batches: bytes | bytearray) -> int | None:
    """The offset after them; None: they are damaged."""
    position, end = 0, None
    try:
        while position < len(batches):
            header = decode_header(batches, position)
            position, end = position + header.length, header.next_offset
    except CorruptBatchError:
        return None
    return end
