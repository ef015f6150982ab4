"""`/api/v1/groups`: consumer groups, what their members read, and how far they are behind.

Like the rest of the API, each request becomes gRPC calls in the name of the caller (api.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from jetstream_protocol.generated import cursors_pb2, groups_pb2
from jetstream_server.clocks import WallClock
from jetstream_server.serving.http.api import to_dict
from jetstream_server.serving.http.cursor_listing import CursorListing
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of
from jetstream_server.serving.http.server import Route
from jetstream_server.serving.lag import Lag, Place


class GroupsApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway, wall_clock: WallClock) -> None:
        self._gateway = gateway
        self._listing = CursorListing(gateway, wall_clock)

    def routes(self) -> list[Route]:
        return [Route("/api/v1/groups", self._groups)]

    async def _groups(self, request: web.Request) -> web.Response:
        """List groups. Query: group (the whole name). Shares have stream name, position and lag."""
        who = sender_of(request)
        asked = groups_pb2.ListGroupsRequest(name=request.query.get("group", ""))
        groups = (await self._gateway.call(asked, who)).groups
        if not groups:
            return web.json_response({"groups": []})
        wanted = cursors_pb2.ListCursorsRequest(name=groups[0].name if len(groups) == 1 else "")
        cursors, _ = await self._listing.listed(wanted, request)
        shared = {(group.name, share.stream_id) for group in groups for share in group.shares}
        positions = {
            (each.name, each.stream_id): each
            for each in cursors
            if (each.name, each.stream_id) in shared
        }
        places = {
            (stream_id, _offset_of(positions.get((name, stream_id)))) for name, stream_id in shared
        }
        lags = await self._listing.lags(places, who)
        return web.json_response(
            {"groups": [self._group(each, positions, lags) for each in groups]}
        )

    def _group(
        self,
        group: groups_pb2.ConsumerGroup,
        positions: Mapping[tuple[str, int], cursors_pb2.Cursor],
        lags: Mapping[Place, Lag],
    ) -> dict[str, Any]:
        found = to_dict(group)
        for share, described in zip(group.shares, found["shares"], strict=True):
            cursor = positions.get((group.name, share.stream_id))
            lag = lags.get((share.stream_id, _offset_of(cursor)))
            described["stream"] = self._gateway.stream_name(share.stream_id)
            described["offset"] = None if cursor is None else cursor.offset
            described |= _lag_values(lag)
        return found


def _offset_of(cursor: cursors_pb2.Cursor | None) -> int:
    """The offset at which a share's member continues."""
    return 0 if cursor is None else cursor.offset


def _lag_values(lag: Lag | None) -> dict[str, Any]:
    """The lag as JSON; null: unknown."""
    if lag is None:
        return {"lag": None, "lag_seconds": None}
    return {"lag": lag.records, "lag_seconds": lag.seconds}
