"""One connection to one NATS server, from INFO to its end. Reconnecting is the job of
reconnector.py.

    connect → INFO → (TLS) → CONNECT + PING → PONG: open → … → lost

With `tls_handshake_first` TLS comes before INFO. Reads are large, because one read becomes one
record batch per stream. The first write of a loop iteration is sent at once; later ones are
coalesced.

Invariants.
* Before a read is parsed, and before more of it is delivered in a later turn, `before_feed` is
  called. If it returns False, the bytes have no effect and the connection is closed.
* Credentials are never sent before TLS is up, if we or the server require TLS.
* Nothing is delivered before the login, and bytes received before the TLS handshake are never
  treated as received after it: an attacker on the network cannot insert messages.
* `lost` is set exactly once, and no event follows it. What was received before the connection ended
  is delivered first, in turns like everything else.
* Reading and delivering hold the loop for about `TURN_SECONDS` at a time, whatever publishers send.
  libuv would read up to 32 times in a row, and some bytes take a thousand times the work of others.
  Readers and operators must not wait for a flood. What a turn has not delivered waits for the
  next one; nothing is read meanwhile, and `before_feed` is asked again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from jetstream_protocol.errors import JetstreamError, UnauthenticatedError, UnavailableError
from jetstream_server.ingest.nats.handshake import LinkOptions, upgrades_to_tls
from jetstream_server.ingest.nats.parser import (
    CONTROL_EVENTS,
    ControlEvent,
    Info,
    NatsProtocolError,
    Ping,
    Pong,
    ServerError,
)
from jetstream_server.ingest.nats.server_pool import ServerAddress

READ_BYTES_MAX: Final = 256 * 1024
"""About 1,300 small messages. Measured from 64 KiB to 1 MiB with parsing, encoding and writing:
a smaller size makes small batches, a larger one exceeds the processor's cache and blocks the
loop."""

READ_BYTES_OF_MANY_MAX: Final = 4 * 1024 * 1024
"""While reads are full and bring messages to MANY_SUBSCRIPTIONS, but less than MESSAGES_EACH_MIN to
each. An append takes its time, however few messages it has: a node that falls behind on a thousand
subjects needs larger batches, not smaller reads."""

MANY_SUBSCRIPTIONS: Final = 64
MESSAGES_EACH_MIN: Final = 16

READ_BYTES_MIN: Final = 16 * 1024
"""The least to read at a time, when storing is slow."""

TURN_SECONDS: Final = 0.02
"""A read of plain messages takes a tenth of this."""

PROBE_SECONDS: Final = 0.4
"""Interval of PINGs to an idle server. A missing answer has no effect here (`heard_within`): a
server that is busy for seconds is kept."""

PINGS_UNANSWERED_MAX: Final = 2
"""As in the other NATS clients. Any received byte counts as an answer."""

# Texts of -ERR about credentials, in lower case.
_AUTHENTICATION_WORDS: Final = ("authorization", "authentication")


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Events of a link for its connection. Called on the loop; must not block.

    before_feed: returns whether bytes that were read may have an effect. complained: called with an
    -ERR; returns whether it concerns subjects only, so that the connection stays open.
    """

    before_feed: Callable[[], bool]
    delivered: Callable[[Any], None]
    informed: Callable[[NatsLink, Info], None]
    complained: Callable[[NatsLink, str], bool]


@dataclass(slots=True)
class Load:
    """What a read brought, for the size of the next one.

    is_full: it took as much as it might, so more was waiting. events, messages: numbers. longest:
    seconds of its longest step, which nothing can interrupt: parsing it, or one delivery.
    """

    is_full: bool = False
    events: int = 0
    messages: int = 0
    longest: float = 0.0

    def is_usual(self, before: int) -> bool:
        """Whether `read_bytes` would be the same as before, as after every short read."""
        return not self.is_full and before == READ_BYTES_MAX and self.longest < TURN_SECONDS / 2

    def read_bytes(self, before: int) -> int:
        """How much to read next. before: what this read might take."""
        brings_each_little = (
            self.events >= MANY_SUBSCRIPTIONS and self.messages < MESSAGES_EACH_MIN * self.events
        )
        if self.longest > 2 * TURN_SECONDS:
            return max(READ_BYTES_MIN, before // 2)
        if before > READ_BYTES_MAX and self.is_full and not brings_each_little:
            return max(before // 2, READ_BYTES_MAX)
        if self.longest >= TURN_SECONDS / 2:
            return before
        if before < READ_BYTES_MAX:
            return before * 2
        if self.is_full and brings_each_little:
            return min(before * 2, READ_BYTES_OF_MANY_MAX)
        return before


class NatsLink(asyncio.BufferedProtocol):
    """Call `open` once. Then it is for the loop's thread only, until `lost`."""

    def __init__(self, events: LinkEvents, address: ServerAddress, options: LinkOptions) -> None:
        self.address = address
        self.info: dict[str, Any] = {}
        self.pings_sent = 0
        self.pongs_received = 0
        self._events = events
        self._options = options
        self._seconds = options.seconds
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.lame_duck: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._parser = options.spoken.parser()
        self._view = memoryview(bytearray(READ_BYTES_MAX))
        self._read_bytes = READ_BYTES_MAX
        self._undelivered: deque[Any] = deque()
        self._load = Load()
        self._turn_ends = 0.0  # monotonic; 0: the loop has not been reading since its last turn
        self._is_paused = False
        self._informed: asyncio.Future[None] = self._loop.create_future()
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._pings_unanswered = 0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._gathering = False
        self._accepted = False
        self._reason = ""
        self._complaint = ""
        self._has_ended = False  # the transport; `lost` follows when everything is delivered
        self._why_ended = ""

    async def open(self) -> None:
        """Connect and log in. Raises OSError (also for TLS), NatsProtocolError, UnavailableError or
        UnauthenticatedError; the link is lost then."""
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await self._connect()
                line = await asyncio.to_thread(
                    self._options.spoken.connect_line, self._options, self.address, self.info
                )
                self.write(line)
                await self.ping()
            self._accepted = True
        except TimeoutError as error:
            raise UnavailableError(f"{self.address.url} does not answer in time") from error
        finally:
            if not self._accepted:
                self.abort("not opened")
        self._ping_timer = self._loop.call_later(self._options.ping_interval_s, self._keep_alive)
        self._probe_timer = self._loop.call_later(PROBE_SECONDS, self._probe)

    async def _connect(self) -> None:
        options, address = self._options, self.address
        first = options.tls_handshake_first
        await self._loop.create_connection(
            lambda: self,
            sock=await options.dial(address.host, address.port, options.connect_timeout_s),
            ssl=options.tls_context() if first else None,
            server_hostname=address.tls_name if first else None,
        )
        await self._informed
        if first:
            self._allow_large_reads(self._transport)
        if first or not upgrades_to_tls(options, address, self.info):
            return
        assert self._transport is not None
        if self._parser.held_bytes:
            raise NatsProtocolError("the server sent unencrypted bytes where TLS must begin")
        transport = await self._loop.start_tls(
            self._transport, self, options.tls_context(), server_hostname=address.tls_name
        )
        if transport is None:
            raise UnavailableError(f"{address.url} closed during the TLS handshake")
        self._transport = transport
        self._allow_large_reads(transport)

    @staticmethod
    def _allow_large_reads(tls_transport: Any) -> None:
        """A TLS transport would stop to receive above 256 KiB while reading is paused."""
        tls_transport.set_read_buffer_limits(high=READ_BYTES_OF_MANY_MAX)

    @property
    def parser(self) -> Any:
        """What reads the bytes of this link."""
        return self._parser

    @property
    def takes_writes(self) -> bool:
        """Whether the connection stands: what is written otherwise is dropped."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send whole protocol lines. They are dropped if the connection has ended."""
        if self._gathering:
            self._outgoing.append(data)
            self._outgoing_bytes += len(data)
            return
        self._gathering = True
        if not self._turn_ends:  # Otherwise the end of the turn is the end of the tick.
            self._loop.call_soon(self._end_of_tick)
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def _end_of_tick(self) -> None:
        self._gathering = False
        if self._outgoing:
            self._write_out()

    def _write_out(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if data and self.takes_writes:
            assert self._transport is not None
            self._transport.write(data)

    @property
    def write_buffer_size(self) -> int:
        """Bytes the kernel has not taken yet."""
        held = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._outgoing_bytes + held

    def unsent(self) -> int:
        """`write_buffer_size`; -1 if the connection does not stand, so that writes are dropped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return -1
        return self._outgoing_bytes + transport.get_write_buffer_size()

    def ping(self) -> asyncio.Future[None]:
        """Send a PING. The result is done when the server has processed everything written before,
        and everything that it sent before has been delivered. It fails with UnavailableError or
        UnauthenticatedError if the connection ends first."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        if self.lost.done():
            self._fail_waiters()
        else:
            self.pings_sent += 1
            self.write(b"PING\r\n")
        return pong

    def close(self, reason: str) -> None:
        """Send what was written, then end the connection. Nothing more is received."""
        self._reason = self._reason or reason
        self._write_out()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection at once; unsent bytes are dropped."""
        self._reason = self._reason or reason
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self._transport is not None:
            self._transport.abort()
        else:
            self._end()

    def heard_within(self, seconds: float) -> bool:
        """Whether the server has sent anything in the last `seconds`, or what it sent is still
        being delivered: nothing is read meanwhile."""
        if self._is_paused or self._undelivered:
            return True
        return self._loop.time() - self._heard_at <= seconds

    def _probe(self) -> None:
        if not self._pongs and not self.heard_within(PROBE_SECONDS):
            self.ping()
        self._probe_timer = self._loop.call_later(PROBE_SECONDS, self._probe)

    def _keep_alive(self) -> None:
        if self._pings_unanswered >= PINGS_UNANSWERED_MAX:
            self.abort("stale: the server answers no PING")
            return
        self._pings_unanswered += 1
        self.ping()
        self._ping_timer = self._loop.call_later(self._options.ping_interval_s, self._keep_alive)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self._view) < self._read_bytes:
            self._view = memoryview(bytearray(READ_BYTES_OF_MANY_MAX))
        return self._view[: self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        begun = self._seconds()
        self._heard_at = self._loop.time()
        self._begin_turn(begun)
        if not self._may_feed():
            return
        self._pings_unanswered = 0
        try:
            events = self._parser.feed(bytes(self._view[:nbytes]))
        except NatsProtocolError as error:
            self.abort(f"protocol error: {error}")
            return
        self._undelivered.extend(events)
        load, parsed = self._load, self._seconds()
        load.is_full, load.events, load.messages = nbytes == self._read_bytes, len(events), 0
        load.longest = parsed - begun
        self._deliver(parsed)

    def _begin_turn(self, now: float) -> None:
        if not self._turn_ends:
            self._turn_ends = now + TURN_SECONDS
            self._loop.call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._turn_ends = 0.0
        if self._gathering:
            self._end_of_tick()
        if self._undelivered:
            self._begin_turn(self._seconds())
            if self._may_feed():
                self._deliver_or_end()
        elif self._has_ended:
            self._end()
        elif self._is_paused:
            self._is_paused = False
            self._heard_at = self._loop.time()
            assert self._transport is not None
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _deliver_or_end(self) -> None:
        """In a later turn. In the first one, asyncio closes the connection if a delivery fails."""
        try:
            self._deliver(self._seconds())
        except Exception as error:  # noqa: BLE001  reported to the loop, and ends the link
            self._why_ended = self._why_ended or f"{type(error).__name__}: {error}"
            context = {"message": "a delivery failed", "exception": error, "protocol": self}
            self._loop.call_exception_handler(context)
            assert self._transport is not None
            self._transport.abort()

    def _may_feed(self) -> bool:
        if self._events.before_feed():
            return True
        self.abort("not allowed to receive any more")
        self._undelivered.clear()
        return False

    def _deliver(self, begun: float) -> None:
        """Until the turn ends. Before the login all at once: nothing of then is left for later."""
        load, undelivered, seconds = self._load, self._undelivered, self._seconds
        while undelivered:
            if self._reason:  # The link is lost, perhaps because of the previous event.
                undelivered.clear()
                return
            event = undelivered.popleft()
            if type(event) in CONTROL_EVENTS:
                self._handle(event)
            elif self._accepted:
                load.messages += len(event)
                self._events.delivered(event)
            elif len(event):
                self.abort("protocol error: a message before the login")
            ended = seconds()
            if ended - begun > load.longest:
                load.longest = ended - begun
            begun = ended
            if ended >= self._turn_ends:
                self._pause()
                if self._accepted:
                    break
        if not undelivered and not load.is_usual(self._read_bytes):
            self._read_bytes = load.read_bytes(self._read_bytes)

    def _pause(self) -> None:
        """Stop reading until the loop has served everybody else."""
        if self._accepted and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        if exc is not None:
            self._why_ended = self._why_ended or f"{type(exc).__name__}: {exc}"
        if not self._undelivered or self._reason:
            self._end()  # Else the last turn does it.

    def _end(self) -> None:
        # If the server closes after an -ERR, the -ERR is the reason.
        ended = self._why_ended or "closed by the server"
        self._reason = self._reason or self._complaint or ended
        for timer in (self._ping_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        if not self.lost.done():
            self.lost.set_result(self._reason)
        self._fail_waiters()

    def _fail_waiters(self) -> None:
        for waiter in (self._informed, *self._pongs):
            if not waiter.done():
                waiter.set_exception(self._loss_error())
                waiter.exception()  # Mark it as retrieved: perhaps nothing waits for it any more.
        self._pongs.clear()

    def _loss_error(self) -> JetstreamError:
        text = f"lost {self.address.url}: {self._reason}"
        if any(word in self._complaint.lower() for word in _AUTHENTICATION_WORDS):
            return UnauthenticatedError(text)
        return UnavailableError(text)

    def _handle(self, event: ControlEvent) -> None:
        if isinstance(event, Ping):
            self.write(b"PONG\r\n")
        elif isinstance(event, Pong):
            self._pong()
        elif isinstance(event, Info):
            self.info.update(event.fields)
            if not self._informed.done():
                self._informed.set_result(None)
            if event.fields.get("ldm") and not self.lame_duck.done():
                self.lame_duck.set_result(None)
            self._events.informed(self, event)
        elif isinstance(event, ServerError) and not self._events.complained(self, event.text):
            self._complaint = event.text

    def _pong(self) -> None:
        if not self._pongs:
            self.abort("protocol error: an unexpected PONG")
            return
        self.pongs_received += 1
        waiter = self._pongs.popleft()
        if not waiter.done():
            waiter.set_result(None)
