"""Lists streams with what their leaders know, a page at a time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of

PAGE_MAX = 1000
"""Streams, or cursors, in one answer. There are more pages."""
PAGE = 200


class StreamListing:
    """Of the streams that a sender may know of."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def page(
        self, request: web.Request, match: str, start: int, limit: int
    ) -> tuple[list[pb.StreamDescription], int]:
        """Some of the streams whose name or subject has `match` in it, and how many there are. The
        `state` of one whose leader has not reported is "": then only `stream` means something."""
        asked = pb.ListStreamsRequest(describe_led=True)
        listed = await self._gateway.call("Streams", "ListStreams", asked, sender_of(request))
        await claim(request)
        match = match.lower()
        streams = [s for s in listed.streams if match in f"{s.name}@{s.subject}".lower()]
        page = streams[start : start + limit]
        found = {each.stream.id: each for each in listed.led}
        elsewhere = {s.leader for s in page if s.id not in found and s.leader >= 0}
        asking = (self._led(request, node) for node in sorted(elsewhere))
        for led in await asyncio.gather(*asking):
            found |= {each.stream.id: each for each in led}
        return [found.get(s.id) or pb.StreamDescription(stream=s) for s in page], len(streams)

    async def _led(self, request: web.Request, node: int) -> list[pb.StreamDescription]:
        asked = pb.ListStreamsRequest(describe_led=True)
        try:
            answer = await self._gateway.call(
                "Streams", "ListStreams", asked, sender_of(request), node_id=node
            )
        except JetstreamError:
            return []  # Their descriptions are what this node knows.
        return list(answer.led)
