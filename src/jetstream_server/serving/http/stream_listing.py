"""Lists streams with what their leaders know, a page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of

PAGE_MAX = 1000
"""Streams, or cursors, in one answer. There are more pages."""
PAGE = 200


_Described = pb.StreamDescription

STATES: Mapping[str, Callable[[pb.Stream], bool]] = {
    "leaderless": lambda s: s.leader < 0,
    "below-minimum": lambda s: len(s.isr) < s.config.min_insync_replicas,
    "under-replicated": lambda s: len(s.isr) < len(s.replicas),
}
"""What may be wrong with a stream. A stream may be in several of these states."""

SORTS: Mapping[str, Callable[[_Described], Any]] = {
    "name": lambda d: d.stream.name,
    "subject": lambda d: d.stream.subject,
    "leader": lambda d: d.stream.leader,
    "in_sync": lambda d: len(d.stream.isr) - len(d.stream.replicas),
    "records": lambda d: d.high_watermark - d.log_start_offset if d.state else -1,
    "size": lambda d: d.size_bytes if d.state else -1,
    "lag": lambda d: _lag(d) if d.state else -1,
}
"""What a list can be sorted by; with a "-" before it, the largest first."""
_OF_LEADERS = ("records", "size", "lag")
"""These need what the leaders of all streams know."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """match: in the name or subject. state: of STATES; "": all. sort: of SORTS."""

    match: str = ""
    state: str = ""
    sort: str = "name"
    descends: bool = False

    def takes(self, stream: pb.Stream) -> bool:
        is_in_state = not self.state or STATES[self.state](stream)
        return is_in_state and self.match.lower() in f"{stream.name}@{stream.subject}".lower()

    def ordered(self, streams: Iterable[_Described]) -> list[_Described]:
        """Streams of which nothing is known count as the least; equal ones are sorted by name."""
        by_name = sorted(streams, key=lambda d: (d.stream.name, d.stream.subject))
        return sorted(by_name, key=SORTS[self.sort], reverse=self.descends)


def states_of(streams: Iterable[pb.Stream]) -> dict[str, int]:
    """How many there are, and how many in each state."""
    found = list(streams)
    counts = {name: sum(map(holds, found)) for name, holds in STATES.items()}
    return {"all": len(found), **{name.replace("-", "_"): n for name, n in counts.items()}}


def _lag(described: _Described) -> int:
    """Of the replica that is furthest behind."""
    replicas = set(described.stream.replicas)
    offsets = [each.offset for each in described.progress if each.node_id in replicas]
    return max((described.log_end_offset - max(0, each) for each in offsets), default=0)


class StreamListing:
    """Of the streams that a sender may know of."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def page(
        self, request: web.Request, wanted: Wanted, start: int, limit: int
    ) -> tuple[list[_Described], int]:
        """Some of the streams that are wanted, and how many there are. The `state` of one whose
        leader has not reported is "": then only `stream` means something."""
        asked = pb.ListStreamsRequest(describe_led=True)
        listed = await self._gateway.call(asked, sender_of(request))
        await claim(request)
        streams = list(filter(wanted.takes, listed.streams))
        if wanted.sort not in _OF_LEADERS:
            found = wanted.ordered(_Described(stream=each) for each in streams)
            page = [each.stream for each in found[start : start + limit]]
            return await self._described(request, page, listed.led), len(streams)
        described = await self._described(request, streams, listed.led)
        return wanted.ordered(described)[start : start + limit], len(streams)

    async def _described(
        self, request: web.Request, streams: list[pb.Stream], led_here: Iterable[_Described]
    ) -> list[_Described]:
        """The streams with what their leaders know; each leader is asked once."""
        found = {each.stream.id: each for each in led_here}
        elsewhere = {s.leader for s in streams if s.id not in found and s.leader >= 0}
        asking = (self._led(request, node) for node in sorted(elsewhere))
        for led in await asyncio.gather(*asking):
            found |= {each.stream.id: each for each in led}
        return [found.get(s.id) or _Described(stream=s) for s in streams]

    async def _led(self, request: web.Request, node: int) -> list[_Described]:
        asked = pb.ListStreamsRequest(describe_led=True)
        try:
            answer = await self._gateway.call(asked, sender_of(request), node_id=node)
        except JetstreamError:
            return []  # Their descriptions are what this node knows.
        return list(answer.led)
