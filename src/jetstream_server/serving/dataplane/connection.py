"""One client of the data plane: fetches in, batches out, or batches in and acknowledgements out,
until either side closes.

A fetch is served without a task as long as that is possible: until it is answered, for most. It
needs one while an answer before it is being sent, when its own cannot be sent without waiting, and
when finding the records takes more than a look at the log.

Producers' batches are handed on in the order in which they arrive.

Bounds: a frame is at most frames.REQUEST_BYTES_MAX, or frames.PRODUCE_FRAME_BYTES_MAX with a batch;
while PENDING_MAX requests are being served, or batches of PRODUCED_BYTES_MAX are not answered yet,
nothing more is read. A client is dropped if it sends no HELLO within HELLO_SECONDS, if it does not
identify itself although security is on, or if it reads nothing of an answer for some time
(frame_socket.py). A malformed frame ends the connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog
from google.protobuf.message import Message

from jetstream_protocol import frames
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    TooManyRequestsError,
    UnavailableError,
)
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import KEEP_ALIVE_SECONDS, Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import MonotonicUs
from jetstream_server.clocks import MonotonicClock
from jetstream_server.disk_errors import lacks_descriptors
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net.error_limits import bounded
from jetstream_server.net.frame_connection import (
    FrameConnection,
    UnreadableSliceError,
)
from jetstream_server.net.frame_socket import decode_head
from jetstream_server.net.receive_budget import ReceiveBudget
from jetstream_server.origins import origin_of
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.serving.caller_certificate import shown_by
from jetstream_server.serving.dataplane.fetches import Fetches, Found
from jetstream_server.serving.dataplane.follower_nodes import Followers
from jetstream_server.serving.dataplane.follows import FOLLOWS_MAX, Follow
from jetstream_server.serving.dataplane.guard import admit, rule_of
from jetstream_server.serving.dataplane.requests import Fetch, Request
from jetstream_server.serving.dataplane.sending_turn import SendingTurn
from jetstream_server.serving.produces import Produces

PENDING_MAX = 64
STRANGER_FRAMES_MAX = 64
"""Frames of who has not identified himself. All but a node's proof are refused."""
STRAY_CREDITS_MAX = 1024
"""Frames in a row for follows that are not there: those of a follow that ended are on their way."""
PRODUCED_BYTES_MAX = 32 * 1024 * 1024
PORT = "data"
"""The port for which requests are counted."""
HELLO_SECONDS = 10.0
NODE_SECONDS = 2.0
"""For a whole greeting where only nodes are served: others must not keep them out for long."""
LOOK_SECONDS = 1.0
"""How soon the server notices that a client with all its long polls open has left."""
NONCE_BYTES = 32

TAKEN = (Kind.FETCH, Kind.FOLLOW, Kind.CREDIT, Kind.NODE_HELLO)
"""Frames that are read of everybody."""

logger = structlog.get_logger("jetstream.dataplane")


class Connection:
    """Serves one accepted connection. Call `run`."""

    def __init__(
        self,
        socket: FrameConnection,
        hello: pb.HelloReply,
        fetches: Fetches,
        followers: Followers,
        throttle: LogThrottle,
        monotonic_clock: MonotonicClock,
        access: AccessControl,
        *,
        nodes_only: bool = False,
        identified: Callable[[bool], None] = lambda is_node: None,
        produces: Produces | None = None,
        budget: ReceiveBudget | None = None,
    ) -> None:
        """nodes_only: the connection ends unless the client proves that it is a node. identified:
        called once the client is known, with whether it is a node. produces: None: producers'
        batches are not taken. budget: for long frames of clients."""
        self._identified = identified
        self._nodes_only = nodes_only
        self._times = fetches.times
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
        self._fetches = fetches
        self._produces = produces
        self._produced_bytes = 0  # of batches that are not answered yet
        self._budget = budget
        self._delayed: asyncio.TimerHandle | None = None  # set while a quota is exceeded
        self._followers = followers
        self._node_hello: Frame | None = None
        self._loop = asyncio.get_running_loop()
        self._sending = SendingTurn()
        self._open: dict[Request, None] = {}
        self._tasks: dict[asyncio.Task[None], Request] = {}
        self._looking: asyncio.TimerHandle | None = None  # set while nothing is read
        self._follows: dict[int, Follow] = {}  # by correlation
        self._ticking: asyncio.TimerHandle | None = None  # set while there are any
        self._stranger_frames = self._stray_credits = 0

    async def run(self) -> None:
        """Serve until the client leaves or violates the protocol. Always closes the socket."""
        try:
            seconds = NODE_SECONDS if self._nodes_only else HELLO_SECONDS
            async with asyncio.timeout(seconds) as patience:
                await self._greet()
                if not (self._nodes_only or self._access.is_stranger(self._identity)):
                    patience.reschedule(None)
                    self._identified(False)
                await self._serve_requests(patience)
        except (ConnectionError, EOFError, TimeoutError):
            pass  # The client left, or was too slow.
        except InvalidRequestError as error:
            if self._throttle.is_due("client_dropped", self._socket.peer):
                logger.info("client_dropped", peer=self._socket.peer, reason=str(error))
        finally:
            for fetch in self._open:
                fetch.is_over = True
                fetch.leave()
            for task in self._tasks:
                task.cancel()
            try:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            finally:
                for fetch in list(self._open):
                    self._ended(fetch)
                if self._delayed is not None:
                    self._delayed.cancel()
                if self._ticking is not None:
                    self._ticking.cancel()
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
        if self._nodes_only and not hello.is_node:
            raise EOFError("there is no room for clients")
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
        if self._may_produce:
            assert self._produces is not None
            self._hello.produce_bytes_max = self._produces.bytes_max
            if self._budget is not None:
                holder = self._access.quota_holder(identity) or origin_of(self._socket.peer)
                self._socket.budgeted(self._budget, holder)
        await self._socket.send(Kind.HELLO_REPLY, correlation, self._hello)

    @property
    def _may_produce(self) -> bool:
        """Whether frames with a producer's batch are read at all. **safety** Those of strangers are
        not: they would cost memory before they are refused."""
        if self._produces is None or self._nodes_only or self._identity.is_node:
            return False
        return not self._access.is_stranger(self._identity)

    async def _serve_requests(self, patience: asyncio.Timeout) -> None:
        """patience: how long an unidentified peer has to prove that it is a node."""
        while True:
            produce = (Kind.PRODUCE,) if self._may_produce else ()
            await self._socket.take_each(self._take, *TAKEN, *produce)
            frame = self._node_hello
            assert frame is not None
            hello = decode_head(frame, pb.NodeHello)
            patience.reschedule(None)  # Without the proof the connection ends.
            node = await self._followers.serve(
                self._socket, frame.correlation, hello, self._nonce, partial(self._identified, True)
            )
            if node is None:
                return
            self._identity = node
            self._requests = self._access.requests_of(node, PORT)

    def _take(self, frame: Frame) -> bool:
        """Begin to serve a request. Returns True for the hello of a node: it is kept, and nothing
        more is taken."""
        rule_of(frame.kind)  # A frame without a rule ends the connection.
        if self._access.is_stranger(self._identity):
            self._stranger_frames += 1
            if self._stranger_frames > STRANGER_FRAMES_MAX:
                raise InvalidRequestError("more frames of a stranger than are answered")
        if frame.kind == Kind.NODE_HELLO:
            if self._open:
                raise InvalidRequestError(f"unexpected frame of kind {frame.kind}")
            self._node_hello = frame
            return True
        if self._nodes_only and not self._identity.is_node:
            raise EOFError("it claimed to be a node")
        if frame.kind == Kind.PRODUCE:
            self._produce(frame)
        elif frame.kind == Kind.FOLLOW:
            self._follow(frame)
        elif frame.kind == Kind.CREDIT:
            self._credit(frame)
        else:
            request = decode_head(frame, pb.DataFetchRequest)
            fetch = Fetch(frame.correlation, self._clock(), request=request)
            self._open[fetch] = None
            try:
                self._serve(fetch)
            except Exception as error:  # noqa: BLE001  becomes the answer, or ends the connection
                self.refuse(fetch, error)
        if self._is_full and self._looking is None:
            self._socket.pause_reading()
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        return False

    @property
    def _is_full(self) -> bool:
        """Whether nothing more may be read for now."""
        if len(self._open) >= PENDING_MAX or self._produced_bytes >= PRODUCED_BYTES_MAX:
            return True
        return self._delayed is not None

    def _look(self) -> None:
        """Notice that the client has left while nothing is read, which would tell it."""
        if self._socket.peer_has_left:
            self._socket.shut_down()
        else:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _ended(self, fetch: Request) -> None:
        """An answer was sent; of a follow perhaps not the last one."""
        if fetch.goes_on():
            return
        if isinstance(fetch, Follow):
            del self._follows[fetch.correlation]
        fetch.leave()
        if fetch.rest is not None:
            fetch.rest.close()  # It may never have begun.
        self._forget(fetch)

    def _forget(self, request: Request) -> None:
        """It is not open any more, and makes room for others."""
        del self._open[request]
        self._produced_bytes -= request.length
        if request.is_counted:
            self._requests.end()
        if self._looking is not None:
            self._go_on()

    def _go_on(self) -> None:
        """Read again, if nothing forbids it any more."""
        if self._looking is not None and not self._is_full:
            self._looking.cancel()
            self._looking = None
            self._socket.resume_reading()

    # Without a task.

    def _count(self, request: Request) -> None:
        """Count it among the open requests of its principal. Raises TooManyRequestsError."""
        try:
            self._requests.begin()
        except TooManyRequestsError as error:
            raise self._access.too_many_requests_error(self._identity, PORT, error) from None
        request.is_counted = True

    def _serve(self, fetch: Fetch) -> None:
        self._count(fetch)
        answer, refuse = partial(self.answer, fetch), partial(self.refuse, fetch)
        poll = self._fetches.begin(fetch.request, self._identity, answer, refuse)
        if poll is None:
            self.find(fetch)
        elif fetch in self._open:  # It waits, or has got a task already.
            fetch.poll = poll

    def answer(self, fetch: Fetch, found: Found) -> None:
        if not self._sending.take():
            self._run(fetch, self._serve_in_task(fetch, found))
            return
        begun_us = self._clock()
        try:
            fetch.rest = self._start(fetch, found)
        except UnreadableSliceError:
            self._sending.give()
            self._run(fetch, self._serve_in_task(fetch, found))  # Fails again, or not.
        except Exception as error:  # noqa: BLE001  ends the connection
            self._sending.give()
            fetch.is_over = True
            self._ended(fetch)
            self._broken(error)
        else:
            if fetch.rest is None:
                self._sending.give()
                self._times.sent(found.length, 0, self._clock() - begun_us)
                self._ended(fetch)
            else:
                self._run(fetch, self._finish(fetch, found, fetch.rest, begun_us))

    def _start(self, fetch: Fetch, found: Found) -> Coroutine[Any, Any, None] | None:
        """Send an answer as far as possible without waiting. Otherwise returns the rest."""
        head = fetch.head_of(found)
        if found.tail is None:
            found.tail = self._socket.read_short(found.slices)
            if found.tail is None:
                return self._socket.start(fetch.KIND, fetch.correlation, head, found.slices)
        if head is not found.head:
            encoded = head.SerializeToString()
        elif found.encoded is None:
            encoded = found.encoded = head.SerializeToString()
        else:
            encoded = found.encoded
        return self._socket.start_tail(fetch.KIND, fetch.correlation, encoded, found.tail)

    def find(self, fetch: Fetch) -> None:
        self._run(fetch, self._serve_in_task(fetch))

    def refuse(self, fetch: Fetch, error: Exception) -> None:
        fetch.is_over = True
        if isinstance(error, JetstreamError):
            self._run(fetch, self._send_refusal(fetch, error))
        else:
            self._ended(fetch)
            self._broken(error)

    def _broken(self, error: BaseException) -> None:
        """End the connection: a frame may be half sent, so no other frame can follow. That wakes
        the reader."""
        if isinstance(error, OSError | EOFError):
            if not isinstance(error, ConnectionError | TimeoutError):
                logger.warning("answer_cut_off", reason=str(error))
        else:
            logger.error("request_failed", method="data plane", exc_info=error)
        self._socket.shut_down()

    # Follows.

    @property
    def identity(self) -> Identity:
        return self._identity

    def _follow(self, frame: Frame) -> None:
        request = decode_head(frame, pb.FollowRequest)
        if frame.correlation in self._follows:
            raise InvalidRequestError(f"follow {frame.correlation} was begun already")
        follow = Follow(frame.correlation, request, self, self._fetches)
        self._stray_credits = 0
        self._open[follow] = None
        self._follows[frame.correlation] = follow
        if self._ticking is None:
            self._ticking = self._loop.call_later(KEEP_ALIVE_SECONDS, self._tick)
        try:
            admit(self._access, self._identity, Kind.FOLLOW)
            self._count(follow)
            if len(self._follows) > FOLLOWS_MAX:
                raise UnavailableError(f"a connection may follow {FOLLOWS_MAX} streams at a time")
        except JetstreamError as error:
            self.refuse(follow, error)
        else:
            follow.look()

    def _credit(self, frame: Frame) -> None:
        credit = decode_head(frame, pb.Credit)
        follow = self._follows.get(frame.correlation)  # It may have ended a moment ago.
        if follow is None:
            self._stray_credits += 1
            if self._stray_credits > STRAY_CREDITS_MAX:
                raise InvalidRequestError("credit for no follow, again and again")
        elif follow.credited(credit):
            self._ended(follow)

    def _tick(self) -> None:
        self._ticking = None
        for follow in list(self._follows.values()):
            follow.tick()
        if self._follows:
            self._ticking = self._loop.call_later(KEEP_ALIVE_SECONDS, self._tick)

    # Producers' batches.

    def _produce(self, frame: Frame) -> None:
        """Hand a batch on at once: the next one must not overtake it."""
        assert self._produces is not None
        request = decode_head(frame, pb.ProduceRequest)
        length = len(frame.tail)
        batch = Request(frame.correlation, self._clock(), length=length)
        self._open[batch] = None
        self._produced_bytes += length
        stored, refuse = partial(self._stored, batch), partial(self._not_stored, batch)
        try:
            self._count(batch)
            admit(self._access, self._identity, Kind.PRODUCE)
            self._produces.begin(request, frame.tail, self._identity, stored, refuse)
        except JetstreamError as error:
            refuse(error)
            return
        if not self._access.enabled:
            return
        delay_us = self._access.write_delay_us(self._identity, length)
        if delay_us and self._delayed is None:
            self._delayed = self._loop.call_later(delay_us / 1e6, self._delay_is_over)

    def _delay_is_over(self) -> None:
        self._delayed = None
        self._go_on()

    def _stored(
        self, batch: Request, base_offset: int, record_count: int, is_duplicate: bool
    ) -> None:
        self._reply(
            batch,
            pb.ProduceResponse(
                base_offset=base_offset, record_count=record_count, duplicate=is_duplicate
            ),
        )

    def _not_stored(self, batch: Request, error: JetstreamError) -> None:
        self._reply(batch, pb.ProduceResponse(error=bounded(error)))

    def _reply(self, batch: Request, reply: pb.ProduceResponse) -> None:
        """Send the answer, without waiting if that is possible. Never raises: it is called by what
        has committed the batch."""
        if batch not in self._open:
            return  # The connection has ended.
        head = reply.SerializeToString()
        if not self._sending.take():
            self._run(batch, self._send_head(Kind.PRODUCE_REPLY, batch.correlation, reply))
            return
        try:
            frame = frames.encode(Kind.PRODUCE_REPLY, batch.correlation, head)
            batch.rest = self._socket.start_frame(frame)
        except Exception as error:  # noqa: BLE001  ends the connection
            self._sending.give()
            self._ended(batch)
            self._broken(error)
            return
        if batch.rest is not None:
            self._run(batch, self._finish_reply(batch.rest))
            return
        self._sending.give()
        self._forget(batch)

    async def _finish_reply(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except Exception:
            self._socket.shut_down()  # Before the turn is given: see `_turn`.
            raise
        finally:
            self._sending.give()

    # In a task.

    def _run(self, fetch: Request, serving: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(serving)
        self._tasks[task] = fetch
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        fetch = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        fetch.is_over = fetch.is_over or task.cancelled() or error is not None
        self._ended(fetch)
        if error is not None:
            self._broken(error)

    async def _finish(
        self, fetch: Fetch, found: Found, rest: Coroutine[Any, Any, None], begun_us: MonotonicUs
    ) -> None:
        """Send the rest of an answer. Its sender has the turn."""
        try:
            await rest
            self._times.sent(found.length, 0, self._clock() - begun_us)
            return
        except UnreadableSliceError:
            pass  # Nothing was sent.
        except Exception:
            self._socket.shut_down()  # Before the turn is given: see `_turn`.
            raise
        finally:
            self._sending.give()
        await self._serve_in_task(fetch, found)

    async def _serve_in_task(self, fetch: Fetch, found: Found | None = None) -> None:
        """found: the answer, if it is known already."""
        queue_us = self._clock() - fetch.asked_us if found is None else 0
        try:
            try:
                await self._answer_in_turn(fetch, found, queue_us)
            except UnreadableSliceError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # Deleted while the answer waited for its turn: the next request gets the reason.
                await self._answer_in_turn(fetch, None, queue_us)
        except UnreadableSliceError as error:
            done = "" if lacks_descriptors(error.__cause__) else "the file is inspected, "
            again = UnavailableError(f"{error.message}; {done}try again")
            await self._send_refusal(fetch, again)
        except JetstreamError as error:
            await self._send_refusal(fetch, error)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Around sending an answer. An error ends the connection before another answer gets the
        turn: it would be sent in the middle of a frame. A JetstreamError does not, because nothing
        was sent."""
        async with self._sending:
            try:
                yield
            except JetstreamError:
                raise
            except Exception:
                self._socket.shut_down()
                raise

    async def _send_refusal(self, fetch: Fetch, error: JetstreamError) -> None:
        fetch.is_over = True
        refusal = pb.DataFetchResponse(error=bounded(error))
        await self._send_head(fetch.KIND, fetch.correlation, refusal)

    async def _send_head(self, kind: Kind, correlation: int, head: Message) -> None:
        """Send an answer without batches, in its turn."""
        async with self._turn():
            await self._socket.send(kind, correlation, head)

    async def _answer_in_turn(self, fetch: Fetch, found: Found | None, queue_us: int) -> None:
        if found is None:
            found = await self._fetches.fetch(fetch.now(), self._identity)
            if fetch.is_over:
                return
        found_us = self._clock()
        try:
            async with self._turn():
                begun_us = self._clock()
                sent_bytes = await self._send(fetch, found)
                queue_us += begun_us - found_us
                self._times.sent(sent_bytes, queue_us, self._clock() - begun_us)
        except UnreadableSliceError as error:
            for each in found.slices:
                if each is error.slice and not each.is_gone:
                    self._fetches.unreadable(found.head.stream_id, each.base_offset, error)
            raise

    async def _send(self, fetch: Fetch, found: Found) -> int:
        """Send an answer, and return the length of its batches. Decrypted batches are in memory
        until they are sent, for one answer of a connection at a time."""
        kind, correlation = fetch.KIND, fetch.correlation
        if found.decrypt is None:
            head = fetch.head_of(found)
            await self._socket.send_slices(kind, correlation, head, found.slices)
            return found.length
        tail = await asyncio.to_thread(found.decrypt)
        await self._socket.send_tail(kind, correlation, fetch.head_of(found, tail), tail)
        return len(tail)
