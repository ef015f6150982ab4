"""Keeps one open link to NATS at all times: finds a server, stays with it, moves to another one.

    dial (round after round over the list) → adopt → lost, or lame duck: open the next, release → …

The owner uses the link: it subscribes in `adopt` and unsubscribes in `release`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    PreconditionFailedError,
    UnauthenticatedError,
)
from jetstream_server.background import run_in_background
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.ingest.nats.link import LinkEvents, NatsLink
from jetstream_server.ingest.nats.parser import NatsProtocolError
from jetstream_server.ingest.nats.server_pool import ServerAddress, ServerPool

logger = structlog.get_logger("jetstream.ingest")

LINK_LIFE_S_MIN: Final = 1.0
"""A link with a shorter life counts as a failed attempt. Otherwise a server that accepts the
connection and then closes it would be tried without a pause."""

LAME_DUCK_RETRY_S: Final = 1.0
"""A server in lame-duck mode stays up for two minutes by default: there is time to try the others
again."""

CLOSE_TIMEOUT_S: Final = 2.0
"""Time for a server to receive the bytes that are still to be sent."""

REPEAT_LOG_S: Final = 30.0
"""How often the same failure of the same server is logged."""


@dataclass(frozen=True, slots=True)
class ReconnectorEvents:
    """Events for the owner.

    adopt: use this link from now on. release: receive messages in flight; the link will be closed
    in favour of another one. lost: the link has ended; `link.lost` holds the reason.
    """

    adopt: Callable[[NatsLink], Awaitable[None]]
    release: Callable[[NatsLink], Awaitable[None]]
    lost: Callable[[NatsLink], None]


class Reconnector:
    """Call `start` once and `close` once. `last_failure` is for people."""

    def __init__(
        self, pool: ServerPool, options: LinkOptions, links: LinkEvents, events: ReconnectorEvents
    ) -> None:
        self.last_failure = ""
        self._pool = pool
        self._options = options
        self._links = links
        self._events = events
        self._link: NatsLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed_rounds = 0
        self._logged: dict[tuple[str, str], float] = {}

    def start(self) -> None:
        """Begin to connect. Idempotent."""
        if self._task is None:
            self._task = run_in_background(self._keep(), "NATS connection")

    async def close(self) -> None:
        """Open no more links, and close the current one once everything written is sent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._link is not None:
            await _end(self._link, "closed by us")

    async def _keep(self) -> None:
        link = await self._dial(None)
        while True:
            self._link = link
            opened_at = _now()
            await self._events.adopt(link)
            successor = await self._until_over(link)
            self._link = None
            self._events.lost(link)
            if _now() - opened_at >= LINK_LIFE_S_MIN:
                self._failed_rounds = 0
            elif successor is None:
                await self._pause()
            link = successor or await self._dial(link.address)

    async def _until_over(self, link: NatsLink) -> NatsLink | None:
        """Wait until the link is lost, or until another one has replaced it; return that one
        then."""
        ends: list[asyncio.Future[Any]] = [link.lost, link.lame_duck]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not link.lost.done():
            logger.warning("nats_lame_duck", server=link.address.url)
        while not link.lost.done():
            elsewhere = [
                each for each in self._pool.next_round() if each.place != link.address.place
            ]
            successor = await self._round(elsewhere)
            if successor is None:
                await asyncio.wait([link.lost], timeout=LAME_DUCK_RETRY_S)
                continue
            try:
                await self._events.release(link)
                await _end(link, "lame duck")
            except asyncio.CancelledError:
                successor.abort("closed by us")
                raise
            return successor
        return None

    async def _dial(self, avoid: ServerAddress | None) -> NatsLink:
        """Open a link, to a server other than `avoid` if possible. Never gives up."""
        while True:
            link = await self._round(self._pool.next_round(avoid))
            if link is not None:
                return link
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._pool.pause_s(self._failed_rounds))
        self._failed_rounds += 1

    async def _round(self, addresses: list[ServerAddress]) -> NatsLink | None:
        for address in addresses:
            link = NatsLink(self._links, address, self._options)
            try:
                await link.open()
            except (OSError, NatsProtocolError, JetstreamError) as error:
                self._failed(address, error)
                continue
            self._logged.clear()
            return link
        return None

    def _failed(self, address: ServerAddress, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self.last_failure = f"{address.url}: {reason}"
        now = _now()
        if now - self._logged.get((address.url, reason), float("-inf")) < REPEAT_LOG_S:
            return
        self._logged[(address.url, reason)] = now
        if isinstance(error, UnauthenticatedError):
            logger.error("nats_login_refused", server=address.url, reason=reason)
        elif isinstance(error, PreconditionFailedError):
            logger.error("nats_not_usable", server=address.url, reason=reason)
        else:
            logger.warning("nats_unreachable", server=address.url, reason=reason)


async def _end(link: NatsLink, reason: str) -> None:
    link.close(reason)
    done, _ = await asyncio.wait([link.lost], timeout=CLOSE_TIMEOUT_S)
    if not done:
        link.abort(reason)
        await link.lost


def _now() -> float:
    return asyncio.get_running_loop().time()
