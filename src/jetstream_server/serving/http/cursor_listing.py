"""Lists cursors with how far they are behind their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aiohttp import web

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import cursors_pb2
from jetstream_server.clocks import WallClock
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender, sender_of
from jetstream_server.serving.lag import Lag, Place, lags_in, request_for

LOOKED_AT_MAX = 20_000
"""Upper bound on the cursors of one answer, before any are left out."""


class CursorListing:
    """Of the cursors that a sender may know of."""

    def __init__(self, gateway: Gateway, wall_clock: WallClock) -> None:
        self._gateway = gateway
        self._clock = wall_clock

    async def listed(
        self, asked: cursors_pb2.ListCursorsRequest, request: web.Request
    ) -> tuple[list[cursors_pb2.Cursor], bool]:
        """The cursors, and whether there are no more."""
        found: list[cursors_pb2.Cursor] = []
        while True:
            answer = await self._gateway.call(asked, sender_of(request))
            await claim(request)
            found += answer.cursors
            asked.page = answer.next_page
            if not asked.page or len(found) >= LOOKED_AT_MAX:
                return found, not asked.page

    async def lags(self, places: Collection[Place], who: Sender) -> dict[Place, Lag]:
        """The lags of the places, except in streams whose leaders do not answer."""
        by_leader: dict[int, list[Place]] = {}
        for place in sorted(places):
            leader = self._gateway.leader_of(place[0])
            if leader is not None:
                by_leader.setdefault(leader, []).append(place)
        asked = (self._lags_at(node, each, who) for node, each in by_leader.items())
        found: dict[Place, Lag] = {}
        for lags in await asyncio.gather(*asked):
            found |= lags
        return found

    async def _lags_at(self, node_id: int, places: list[Place], who: Sender) -> dict[Place, Lag]:
        try:
            answer = await self._gateway.call(request_for(places), who, node_id=node_id)
        except JetstreamError:
            return {}  # Their lag is shown as unknown.
        return lags_in(places, answer, self._clock())


def is_current(cursor: cursors_pb2.Cursor) -> bool:
    """Whether the stream is still the one that was read."""
    return bool(cursor.stream_id == cursor.stream_id_now)


def state_of(cursor: cursors_pb2.Cursor, lag: Lag | None) -> str:
    if not is_current(cursor):
        return "stream re-created" if cursor.stream_id_now else "stream deleted"
    is_held = lag is None or lag.log_start_offset <= cursor.offset <= lag.high_watermark
    return "current" if is_held else "truncated"


def words_of(cursor: cursors_pb2.Cursor) -> str:
    """What a search looks in."""
    return f"{cursor.name} {cursor.stream_name}@{cursor.stream_subject}".lower()
