"""The leaf connection: keeps one leaf link to NATS, forever, and answers over it.

It dials, logs in and comes back as the connection of ingest does (ingest/nats/reconnector.py), with
another dialect. Nothing of ingest depends on it: a closed leaf link stops no message.

Invariants.
* **safety** Nothing is sent that NATS would close the link for: subjects that the link's user may
  not publish to, messages above the server's `max_payload`. They are dropped and counted.
* **safety** Answers go only where the node's `ack_subjects` allow, or to replies that NATS has made
  for other accounts: a client must not make this server publish what the client may not.
* What was announced is announced anew on each link. Nothing that NATS says is sent back to it.
* What waits to be written is bounded. Beyond the bound nothing is taken: see `has_room`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import structlog

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.ingest.nats.link import LinkEvents, NatsLink
from jetstream_server.ingest.nats.parser import Info
from jetstream_server.ingest.nats.reconnector import REPEAT_LOG_S, Reconnector, ReconnectorEvents
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.nats.server_pool import ServerPool
from jetstream_server.jetstream_api.leaf.handshake import LEAF_PORT_DEFAULT
from jetstream_server.jetstream_api.leaf.parser import LeafMessages
from jetstream_server.jetstream_api.leaf.permissions import (
    Permissions,
    is_literal,
    plain_reply,
)

logger = structlog.get_logger("jetstream.api")

WRITE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes that may wait for a server that does not read; more only while there is room: a message may
be as long as NATS takes. NATS slows its publishers down where a leaf node does not take what it
sends, so we go on reading, and take no requests."""

ROOM_BYTES: Final = 1024 * 1024
"""With less than this waiting, requests are taken, and the next part of a long answer written."""

WITHDRAW_SECONDS: Final = 1.0
_JUDGED_MAX: Final = 1000

_MAX_PAYLOAD_DEFAULT: Final = 1024 * 1024


OnMessages = Callable[[LeafMessages], None]


@dataclass(slots=True)
class LeafCounters:
    """Since the start. answers_dropped: not sent, because NATS would not let us, or nothing more
    could be written."""

    connects: int = 0
    messages: int = 0
    answers: int = 0
    answers_dropped: int = 0


class LeafConnection:
    """For the loop's thread only. Call `start` once, `close` once, and `withdraw` before it if
    requests on their way are to be answered."""

    def __init__(
        self,
        servers: Sequence[str],
        options: LinkOptions,
        announced: bytes,
        withdrawn: bytes,
        on_messages: OnMessages,
        policy: AckPolicy,
        random: Random | None = None,
    ) -> None:
        """announced, withdrawn: the LS+ lines of what is served, and the LS- lines. Raises
        InvalidRequestError for a server that is not a URL."""
        self.counters = LeafCounters()
        self._announced = announced
        self._withdrawn = withdrawn
        self._is_leaving = False
        self._listened: dict[bytes, None] = {}
        self.on_interest: Callable[[list[bytes]], None] = lambda _: None
        """Called with the subjects to which somebody has begun or ceased to listen; with none when
        the link is another one: all may have changed."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when there is no link any more."""
        self._on_messages = on_messages
        self._policy = policy
        self._pool = ServerPool(servers, random or Random(), LEAF_PORT_DEFAULT)
        self._reconnector = Reconnector(
            self._pool,
            options,
            LinkEvents(lambda: True, self._delivered, self._informed, _take_complaint),
            ReconnectorEvents(self._adopt, self._release, self._lost),
        )
        self._link: NatsLink | None = None
        self._permissions = Permissions()
        self._judged: dict[bytes, str] = {}
        """What `_why_not` says of the last inboxes, with these permissions."""
        self._max_payload = _MAX_PAYLOAD_DEFAULT
        self._dropped_logged_at = float("-inf")

    def start(self) -> None:
        """Begin to connect."""
        self._reconnector.start()

    async def withdraw(self) -> None:
        """Have NATS send no more requests. When this returns, those on their way have arrived, or
        the server does not answer."""
        self._is_leaving = True
        link = self._link
        if link is not None:
            link.write(self._withdrawn)
            for subject in self._listened:
                link.write(b"LS- %b\r\n" % subject)
            with contextlib.suppress(TimeoutError, JetstreamError):
                async with asyncio.timeout(WITHDRAW_SECONDS):
                    await link.ping()

    async def close(self) -> None:
        """Send what was written, then close the link for good."""
        self._link = None
        await self._reconnector.close()

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.takes_writes

    @property
    def last_failure(self) -> str:
        """Why the last attempt to connect failed, for people; "" before any."""
        return self._reconnector.last_failure

    @property
    def max_payload(self) -> int:
        """The longest message, headers included, that the server accepts."""
        return self._max_payload

    @property
    def has_room(self) -> bool:
        """Whether requests may be taken: their answers could be written."""
        link = self._link
        return link is not None and link.takes_writes and link.write_buffer_size < ROOM_BYTES

    def listen(self, pattern: bytes) -> bool:
        """Have NATS send what is published on a pattern, from now on and on each later link.
        Returns whether that is new."""
        if pattern in self._listened:
            return False
        self._listened[pattern] = None
        if self._link is not None and not self._is_leaving:
            self._link.write(b"LS+ %b\r\n" % pattern)
        return True

    def stop_listening(self, pattern: bytes) -> None:
        """Take that back."""
        if pattern in self._listened:
            del self._listened[pattern]
            if self._link is not None:
                self._link.write(b"LS- %b\r\n" % pattern)

    async def settled(self) -> None:
        """Wait until NATS knows what was announced. Raises UnavailableError without a link. The
        caller bounds the time."""
        if self._link is None:
            raise UnavailableError("NATS is not connected; try again")
        await self._link.ping()

    def is_heard(self, subject: bytes, queue: bytes = b"") -> bool:
        """Whether anybody listens to a subject; with a queue: in that queue group."""
        return self._link is not None and self._link.parser.interest.has(subject, queue)

    async def room(self) -> None:
        """Wait, if much is to be written, until NATS has read it. Raises UnavailableError when the
        link is lost meanwhile. The caller bounds the time."""
        if self._link is not None and not self.has_room:
            await self._link.ping()

    def may_answer(self, reply: bytes) -> bool:
        """Whether a request with that reply may be answered. Counts one that may not."""
        reason = self._why_not(reply)
        if reason:
            self._drop(reply, reason)
        return not reason

    def send(self, reply: bytes, payload: bytes, headers: bytes = b"") -> bool:
        """Send an answer. headers: a whole block. Returns False if it was dropped, and counted."""
        length = len(headers) + len(payload)
        if length > self._max_payload:
            self._drop(reply, f"longer than max_payload, {self._max_payload} bytes")
            return False
        link = self._link_for(reply, length)
        if link is None:
            return False
        if headers:
            link.write(
                b"HMSG %b %d %d\r\n%b%b\r\n" % (reply, len(headers), length, headers, payload)
            )
        else:
            link.write(b"LMSG %b %d\r\n%b\r\n" % (reply, length, payload))
        self.counters.answers += 1
        return True

    def refuse(self, reply: bytes, headers: bytes) -> None:
        """Send a status that refuses something, unless much waits to be written: whoever asks too
        much must not take the room of others."""
        if self._link is not None and self._link.write_buffer_size < ROOM_BYTES // 4:
            self.send(reply, b"", headers)

    def deliver(self, inbox: bytes, lines: bytes, count: int = 1) -> bool:
        """Send messages to one inbox: whole protocol lines, each within `max_payload`. Returns
        False if they were dropped, and counted."""
        link = self._link_for(inbox, len(lines))
        if link is None:
            return False
        link.write(lines)
        self.counters.answers += count
        return True

    def advise(self, subject: bytes, payload: bytes) -> None:
        """Tell whoever listens; nobody needs to. Dropped where the leaf user may not publish."""
        link = self._link
        if link is not None and self.has_room and self._permissions.may_send(subject):
            link.write(b"LMSG %b %d\r\n%b\r\n" % (subject, len(payload), payload))

    def _link_for(self, reply: bytes, length: int) -> NatsLink | None:
        """The link on which something of that length may be sent there; None: it is dropped."""
        link, reason = self._link, self._why_not(reply)
        if link is None or not link.takes_writes:
            reason = "not connected"
        elif link.write_buffer_size + length > WRITE_BYTES_MAX and not self.has_room:
            reason = "NATS takes answers too slowly"
        if not reason:
            return link
        self._drop(reply, reason)
        return None

    def _why_not(self, reply: bytes) -> str:
        """Why nothing may be sent there; "": it may. Clients use an inbox many times."""
        found = self._judged.get(reply)
        if found is None:
            if len(self._judged) >= _JUDGED_MAX:
                self._judged.clear()
            found = self._judged[reply] = self._judge(reply)
        return found

    def _judge(self, reply: bytes) -> str:
        if not is_literal(reply):
            return "no subject to publish to"
        plain = plain_reply(reply)
        if plain and not len(self._policy.select([plain])):
            return "not in ingest.ack_subjects"
        if not self._permissions.may_send(reply):
            return "the user of the leaf link may not publish there"
        return ""

    def _drop(self, reply: bytes, reason: str) -> None:
        self.counters.answers_dropped += 1
        now = asyncio.get_running_loop().time()
        if now - self._dropped_logged_at >= REPEAT_LOG_S:
            self._dropped_logged_at = now
            shown = reply[:100].decode("utf-8", "backslashreplace")
            logger.warning(
                "api_answer_dropped",
                reply=shown,
                reason=reason,
                dropped=self.counters.answers_dropped,
            )

    # Events of the reconnector and of links.

    async def _adopt(self, link: NatsLink) -> None:
        """Announce what is served on the new link, whose permissions came with the login."""
        if not self._is_leaving:
            link.write(self._announced)
            for pattern in self._listened:
                link.write(b"LS+ %b\r\n" % pattern)
        self._link = link
        self.counters.connects += 1
        logger.info("leaf_link_opened", server=link.address.url)
        link.parser.interest.recent.clear()
        self.on_interest([])

    async def _release(self, link: NatsLink) -> None:
        self._end()

    def _lost(self, link: NatsLink) -> None:
        self._end()
        logger.warning("leaf_link_lost", server=link.address.url, reason=link.lost.result())

    def _end(self) -> None:
        if self._link is not None:
            self._link = None
            self.on_lost()

    def _delivered(self, messages: LeafMessages) -> None:
        if messages:
            self.counters.messages += len(messages)
            self._on_messages(messages)
        elif self._link is not None:
            interest = self._link.parser.interest
            changed, interest.recent = interest.recent, []
            self.on_interest(changed)

    def _informed(self, link: NatsLink, info: Info) -> None:
        fields: dict[str, Any] = info.fields
        max_payload = fields.get("max_payload")
        if isinstance(max_payload, int):
            self._max_payload = max_payload
        urls = fields.get("leafnode_urls")
        if isinstance(urls, list):
            self._pool.learn(urls, link.address)
        if fields.get("connect_info") or "export" in fields:
            self._permissions = Permissions(fields.get("export"))
            self._judged.clear()


def _take_complaint(link: NatsLink, text: str) -> bool:
    """On a leaf link NATS closes the connection after each -ERR."""
    logger.error("leaf_link_refused", server=link.address.url, error=text)
    return False
