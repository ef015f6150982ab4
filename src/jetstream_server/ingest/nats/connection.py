"""The NATS connection of ingest. Its subscriptions survive a change of server.

It keeps one `NatsLink` to one server of a list, forever. When the link is lost, it opens another
one, restores all subscriptions and reports it. Deliveries are passed on per socket read, not per
message.

Invariants.
* A link that ends while there are subscriptions causes a *suspected gap*: core NATS stores nothing,
  so messages of that time may be missing. The gap is counted, logged and reported by
  `on_disconnect`.
* There are never two links with subscriptions: messages would be delivered and stored twice. To
  leave a server in lame-duck mode, it opens the next link, unsubscribes here, and subscribes there.
* A subscription that NATS refuses is asked for again, after pauses that grow, until NATS accepts it
  or it ends; the owner hears of both.
* **safety** `before_feed` is called before the bytes of a read are parsed. If it returns False, the
  bytes, the subscriptions, everything not yet sent and the link are dropped.
* All memory is bounded: writes beyond a limit are refused and counted, not queued.

Not here: the meaning of messages (ingest.py), and publishing again after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import structlog

from jetstream_protocol.errors import JetstreamError, PermissionDeniedError, UnavailableError
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.ingest.nats.link import LinkEvents, NatsLink
from jetstream_server.ingest.nats.parser import Info
from jetstream_server.ingest.nats.reconnector import REPEAT_LOG_S, Reconnector, ReconnectorEvents
from jetstream_server.ingest.nats.server_pool import ServerPool
from jetstream_server.ingest.nats.subscriptions import (
    OnDelivery,
    OnRefusal,
    Subscription,
    Subscriptions,
    parse_permissions_violation,
    unsub_lines,
)
from jetstream_server.retries import Retries, RetryTimer

logger = structlog.get_logger("jetstream.ingest")

WRITE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that may wait for a server that does not read. nats-server drops slow consumers at the same
size."""

HELD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes kept while no server is connected: acks that publishers wait for, of some seconds."""

DRAIN_TIMEOUT_S: Final = 2.0

RETRY_S_FIRST: Final = 1.0
RETRY_S_MAX: Final = 30.0
"""Pauses before a refused subscription is asked for again, the first and the longest. NATS logs
each refusal, too."""

LINE_TOO_LONG: Final = "maximum control line exceeded"
LONG_LINE_BYTES: Final = 256
"""A line below this length is not what a server found too long; its limit is 4 KiB by default."""

HEARD_SECONDS: Final = 1.0
"""More than twice the interval of a link's PINGs (link.py)."""


@dataclass(frozen=True, slots=True)
class ConnectionCounters:
    """Counts since the connection object was made.

    messages_dropped: messages for a subscription that had just ended. writes_refused: writes
    dropped because too much was waiting. gap_ms: total time, until the last reconnection, during
    which there were subscriptions but no server that had confirmed them.
    """

    messages: int = 0
    messages_dropped: int = 0
    writes_refused: int = 0
    connects: int = 0
    disconnects: int = 0
    reconnects: int = 0
    suspected_gaps: int = 0
    gap_ms: int = 0
    subscriptions_refused: int = 0
    publishes_refused: int = 0


class NatsConnection:
    """For the loop's thread only. Call `connect` once and `close` once."""

    def __init__(
        self,
        servers: Sequence[str],
        options: LinkOptions | None = None,
        *,
        before_feed: Callable[[], bool] | None = None,
        on_disconnect: Callable[[str], None] | None = None,
        random: Random | None = None,
    ) -> None:
        """before_feed: returns whether received bytes may be parsed. on_disconnect: called with the
        reason. Raises InvalidRequestError for a server that is not a URL."""
        self.before_feed = before_feed
        self.on_disconnect = on_disconnect
        random = random or Random()
        self._pool = ServerPool(servers, random)
        self._reconnector = Reconnector(
            self._pool,
            options or LinkOptions(),
            LinkEvents(
                self._may_feed,
                self._delivered,
                self._informed,
                self._take_complaint,
            ),
            ReconnectorEvents(self._adopt, self._release, self._lost),
        )
        self._subscriptions = Subscriptions()
        self._retries: Retries[int] = Retries(RETRY_S_MAX, random)  # of sids
        self._retry_timer: RetryTimer[int] | None = None
        self._line_bytes_max: dict[str, int] = {}  # by the server's id, where it is known
        self._link: NatsLink | None = None
        self._listening = asyncio.Event()  # connected, with every subscription confirmed
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._max_payload = 0
        self._gap_since: float | None = None
        self._publish_refused_logged_at = float("-inf")
        self._counts = dict.fromkeys(ConnectionCounters.__dataclass_fields__, 0)

    # Connecting and closing.

    async def connect(self, timeout_s: float | None = None) -> None:
        """Connect, and wait until the connection is established.

        Raises UnavailableError with the latest failure after `timeout_s`. The attempts continue
        then, and `connect` may be awaited again.
        """
        self._reconnector.start()
        await self._until_listening(timeout_s)

    async def _until_listening(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._listening.wait()
        except TimeoutError as error:
            why = self._reconnector.last_failure or "no server has answered yet"
            raise UnavailableError(f"not connected to NATS: {why}") from error

    async def close(self) -> None:
        """Send what was written, then close the connection for good. Idempotent."""
        self._listening.clear()
        self._link = None
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        await self._reconnector.close()

    # Receiving.

    def subscribe(
        self,
        subject: str,
        queue_group: str,
        on_delivery: OnDelivery,
        on_refusal: OnRefusal | None = None,
        prefix: str = "",
    ) -> int:
        """Subscribe on the current and every later server. Returns the sid.

        queue_group: "" for none. prefix: also subscribe to the subject after this prefix; see
        Subscription. on_delivery: receives the messages of one read; an exception from it closes
        the link. on_refusal: see OnRefusal. `flush` waits until the server has the subscription.
        """
        subscription = self._subscriptions.add(
            subject, queue_group, on_delivery, on_refusal, prefix
        )
        if self._link is not None:
            self._ask(self._link, [subscription])
        return subscription.sid

    def unsubscribe(self, sid: int) -> None:
        """Deliver nothing more for `sid`, not even messages in flight."""
        subscription = self._subscriptions.remove(sid)
        self._retries.forget(sid)
        if subscription is not None and not subscription.draining and self._link is not None:
            self._link.write(subscription.unsub_line())

    async def drain_subscriptions(
        self, sids: Iterable[int] | None = None, timeout_s: float = DRAIN_TIMEOUT_S
    ) -> None:
        """Unsubscribe, and return when all messages in flight have been delivered.

        sids: all by default. Without a connection nothing is in flight. Raises UnavailableError
        if the connection ends first or it takes too long; the subscriptions have ended even then.
        """
        wanted = {each.sid for each in self._subscriptions.all()} if sids is None else set(sids)
        draining = [each for each in self._subscriptions.active() if each.sid in wanted]
        for each in draining:
            each.draining = True
        try:
            if draining and self._link is not None:
                self._link.write(unsub_lines(draining))
                await self.flush(timeout_s)
        finally:
            for each in draining:
                self._subscriptions.remove(each.sid)
                self._retries.forget(each.sid)

    # Sending.

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Wait until the server has processed everything written and subscribed before, and until
        everything that it sent by then has been delivered. Waits for a connection first.

        Raises UnavailableError after `timeout_s` or when the connection is lost meanwhile.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_listening(None)
                if self._link is None:
                    raise UnavailableError("not connected to NATS")
                await self._link.ping()
        except TimeoutError as error:
            raise UnavailableError(f"NATS did not confirm within {timeout_s} s") from error

    def write(self, data: bytes) -> bool:
        """Send whole PUB or HPUB lines; writes of one loop iteration are sent together.

        Without a server they are kept for the next one. Returns False if they were dropped and
        counted because too much waits already (`write_buffer_size`).
        """
        link, waiting = self._link, self._held_bytes + len(data)
        unsent = -1 if link is None else link.unsent()  # Negative, too, if it has just ended.
        if waiting + max(unsent, 0) > (HELD_BYTES_MAX if unsent < 0 else WRITE_BYTES_MAX):
            self._counts["writes_refused"] += 1
            return False
        if link is not None and unsent >= 0:
            link.write(data)
        else:
            self._held.append(data)
            self._held_bytes = waiting
        return True

    @property
    def write_buffer_size(self) -> int:
        """Bytes written but not taken by the kernel yet."""
        return self._held_bytes + (0 if self._link is None else self._link.write_buffer_size)

    # Asking for subscriptions.

    def _ask(self, link: NatsLink, wanted: Iterable[Subscription]) -> asyncio.Future[None] | None:
        """Send SUBs. Returns the PONG that comes after all their answers; None if none was sent.

        A PING follows each of them, because NATS does not always say which one it refuses: it is
        the one whose PONG comes next."""
        pong = None
        line_bytes_max = self._line_bytes_max.get(_server_id(link))
        for each in wanted:
            if line_bytes_max is not None and each.longest_line > line_bytes_max:
                # Later: its owner does not know the sid yet.
                asyncio.get_running_loop().call_soon(self._leave_out, each)
                continue
            each.ping_number, each.is_asked = link.pings_sent, True
            link.write(each.sub_line())
            pong = link.ping()
            pong.add_done_callback(partial(self._answered, link, each, each.ping_number))
        return pong

    def _answered(
        self, link: NatsLink, each: Subscription, number: int, pong: asyncio.Future[None]
    ) -> None:
        """Note that NATS has accepted the subscription, unless it has refused it meanwhile."""
        is_over = pong.cancelled() or pong.exception() is not None or self._link is not link
        if is_over or not each.is_asked or each.ping_number != number:
            return
        self._retries.forget(each.sid)
        if each.refusal is not None:
            logger.info("nats_subscription_accepted", subject=each.subject, sid=each.sid)
            self._withdraw(each)

    def _leave_out(self, each: Subscription) -> None:
        if self._subscriptions.get(each.sid) is each:
            self._refuse(each, LINE_TOO_LONG, again=False)

    def _refuse(self, each: Subscription, text: str, *, again: bool) -> None:
        """Note a refusal. Only a new one is reported: it is repeated at each retry.

        again: ask for it again later. A line that is too long would end the connection again: only
        another server is asked, or the same one after its restart."""
        each.is_asked = False
        if again:
            if self._retry_timer is None:
                loop = asyncio.get_running_loop()
                self._retry_timer = RetryTimer(loop, self._retries, self._retry)
            self._retry_timer.refused(each.sid, RETRY_S_FIRST)
        error = PermissionDeniedError(f"NATS refuses: {text}")
        if each.refusal is not None and each.refusal.message == error.message:
            return
        each.refusal = error
        self._counts["subscriptions_refused"] += 1
        logger.error("nats_subscription_refused", subject=each.subject, sid=each.sid, error=text)
        if each.on_refusal is not None:
            each.on_refusal(each.sid, error)

    def _withdraw(self, each: Subscription) -> None:
        """Tell the owner that the refusal does not hold any more."""
        each.refusal = None
        if each.on_refusal is not None:
            each.on_refusal(each.sid, None)

    def _retry(self, sids: list[int]) -> None:
        if self._link is not None:
            found = [self._subscriptions.get(sid) for sid in sids]
            self._ask(self._link, [each for each in found if each and not each.draining])

    def _forget_answers(self) -> None:
        """The link is gone, and what its server has answered counts no more."""
        self._retries.clear()
        for each in self._subscriptions.all():
            each.is_asked = False
            if each.refusal is not None:
                self._withdraw(each)

    def _line_is_too_long(self, link: NatsLink) -> None:
        """The server ends the connection because of a line: the longest that it has not answered.
        Without it the other streams are heard again."""
        asked = [
            each
            for each in self._subscriptions.all()
            if each.is_asked and each.ping_number >= link.pongs_received
        ]
        longest = max(asked, key=lambda each: each.longest_line, default=None)
        if longest is not None and longest.longest_line >= LONG_LINE_BYTES:
            self._line_bytes_max[_server_id(link)] = longest.longest_line - 1

    # State.

    @property
    def is_connected(self) -> bool:
        return self._listening.is_set()

    @property
    def is_responsive(self) -> bool:
        """Whether it is connected and the server has sent something within HEARD_SECONDS; PINGs
        make it answer. TCP alone would notice a cut network much later."""
        link = self._link
        return self._listening.is_set() and link is not None and link.heard_within(HEARD_SECONDS)

    @property
    def subscriptions_refused(self) -> int:
        """How many subscriptions NATS refuses now."""
        return sum(each.refusal is not None for each in self._subscriptions.all())

    @property
    def urls(self) -> tuple[str, ...]:
        """All known servers, configured and discovered, without credentials."""
        return self._pool.urls

    @property
    def max_payload(self) -> int:
        """The largest message that the last server accepts; 0 before the first connection."""
        return self._max_payload

    @property
    def counters(self) -> ConnectionCounters:
        return ConnectionCounters(**self._counts)

    # Events of the reconnector.

    async def _adopt(self, link: NatsLink) -> None:
        """Subscribe everything on the new link. Reports it once the server has confirmed."""
        self._link = link
        pong = self._ask(link, self._subscriptions.active())
        for data in self._held:
            link.write(data)
        self._held.clear()
        self._held_bytes = 0
        try:
            await (pong or link.ping())
        except JetstreamError:
            return  # The link was lost again; the caller notices too.
        self._listening.set()
        again = self._counts["connects"] > 0
        gap_ms = self._end_gap()
        self._counts["connects"] += 1
        logger.info(
            "nats_connected",
            server=link.address.url,
            subscriptions=len(self._subscriptions),
            again=again,
            gap_ms=gap_ms,
        )
        if again:
            self._counts["reconnects"] += 1

    def _end_gap(self) -> int:
        """End the gap, and return its length in ms; 0 if there was none."""
        if self._gap_since is None:
            return 0
        gap_ms = round(1000 * (asyncio.get_running_loop().time() - self._gap_since))
        self._gap_since = None
        self._counts["gap_ms"] += gap_ms
        return gap_ms

    async def _release(self, link: NatsLink) -> None:
        """Receive messages in flight, then stop writing to this link."""
        link.write(unsub_lines(self._subscriptions.active()))
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await link.ping()
        except (TimeoutError, JetstreamError) as error:
            logger.warning("nats_left_undrained", server=link.address.url, reason=str(error))
        self._link = None
        self._forget_answers()

    def _lost(self, link: NatsLink) -> None:
        """Begin a gap. If the link was lost before its subscriptions were confirmed, the earlier
        gap continues."""
        self._link = None
        self._forget_answers()
        if not self._listening.is_set():
            return
        self._listening.clear()
        reason = link.lost.result()
        gap = len(self._subscriptions) > 0
        if gap:
            self._gap_since = asyncio.get_running_loop().time()
            self._counts["suspected_gaps"] += 1
        self._counts["disconnects"] += 1
        logger.warning(
            "nats_disconnected",
            server=link.address.url,
            reason=reason,
            subscriptions=len(self._subscriptions),
            suspected_gap=gap,
        )
        if self.on_disconnect is not None:
            self.on_disconnect(reason)

    # Events of links.

    def _may_feed(self) -> bool:
        if self.before_feed is None or not self._subscriptions or self.before_feed():
            return True
        self._subscriptions.clear()
        self._retries.clear()
        self._held.clear()
        self._held_bytes = 0
        return False

    def _delivered(self, delivery: Delivery) -> None:
        subscription = self._subscriptions.get(delivery.sid)
        if subscription is None:
            self._counts["messages_dropped"] += len(delivery)
            return
        self._counts["messages"] += len(delivery)
        subscription.deliver(delivery)

    def _informed(self, link: NatsLink, info: Info) -> None:
        max_payload = info.fields.get("max_payload")
        if isinstance(max_payload, int):
            self._max_payload = max_payload
        connect_urls = info.fields.get("connect_urls")
        if isinstance(connect_urls, list):
            self._pool.learn(connect_urls, link.address)

    def _take_complaint(self, link: NatsLink, text: str) -> bool:
        complaint = parse_permissions_violation(text)
        if complaint is None:
            logger.error("nats_error", server=link.address.url, error=text)
            if text.lower().startswith(LINE_TOO_LONG):
                self._line_is_too_long(link)
            return False
        if not complaint.subscription:
            self._publish_refused(link, text)
            return True
        for each in self._subscriptions.concerned_by(complaint, link.pongs_received):
            if each.is_asked and not each.draining:
                self._refuse(each, text, again=True)
        return True

    def _publish_refused(self, link: NatsLink, text: str) -> None:
        """Log a refused publish, rarely: NATS reports it for each message, which may be every
        ack."""
        self._counts["publishes_refused"] += 1
        now = asyncio.get_running_loop().time()
        if now - self._publish_refused_logged_at >= REPEAT_LOG_S:
            self._publish_refused_logged_at = now
            total = self._counts["publishes_refused"]
            logger.warning(
                "nats_publish_refused", server=link.address.url, error=text, refused=total
            )


def _server_id(link: NatsLink) -> str:
    """Which run of which server: a restarted one may have other limits."""
    return str(link.info.get("server_id", link.address.url))
