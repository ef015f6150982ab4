"""`/api/v1/cursors` and `/api/v1/groups`: readers, their lag, and moving cursors.

Like the rest of the API, each request becomes gRPC calls in the name of the caller (api.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from jetstream_protocol.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    from_proto,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, cursors_pb2, groups_pb2
from jetstream_server.clocks import WallClock
from jetstream_server.serving.http.api import to_dict
from jetstream_server.serving.http.cursor_listing import (
    CursorListing,
    is_current,
    state_of,
    words_of,
)
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender, sender_of
from jetstream_server.serving.http.http_requests import body_of, number, ref_of
from jetstream_server.serving.http.server import Route
from jetstream_server.serving.http.stream_listing import PAGE, PAGE_MAX
from jetstream_server.serving.lag import Lag, Place

_Query = pb.ListOffsetsRequest.Query


class ConsumersApi:
    """Cursors and groups."""

    def __init__(self, gateway: Gateway, wall_clock: WallClock) -> None:
        self._gateway = gateway
        self._listing = CursorListing(gateway, wall_clock)

    def routes(self) -> list[Route]:
        cursor = "/api/v1/cursors/{cursor}/{stream}"
        return [
            Route("/api/v1/cursors", self._cursors),
            Route("/api/v1/groups", self._groups),
            Route(f"{cursor}/seek", self._seek, method="POST"),
            Route(f"{cursor}/delete", self._delete, method="POST"),
        ]

    # Reading.

    async def _cursors(self, request: web.Request) -> web.Response:
        """List cursors. Query: cursor, stream (whole names), match (part of a cursor's or stream's
        name), start, limit."""
        start, limit = number(request, "start", 0), number(request, "limit", PAGE)
        match = request.query.get("match", "").lower()
        asked = cursors_pb2.ListCursorsRequest(name=request.query.get("cursor", ""))
        if "stream" in request.query:
            asked.stream.CopyFrom(ref_of(request.query["stream"]))
        everything, is_all = await self._listing.listed(asked, request)
        found = [each for each in everything if match in words_of(each)]
        page = found[start : start + min(limit, PAGE_MAX)]
        lags = await self._listing.lags(
            {(each.stream_id, each.offset) for each in page if is_current(each)},
            sender_of(request),
        )
        return web.json_response(
            {
                "cursors": [
                    _cursor(each, lags.get((each.stream_id, each.offset))) for each in page
                ],
                "total": len(found),
                "is_all": is_all,
            }
        )

    async def _groups(self, request: web.Request) -> web.Response:
        """List groups. Query: group (the whole name). Shares have stream name, position and lag."""
        who = sender_of(request)
        asked = groups_pb2.ListGroupsRequest(name=request.query.get("group", ""))
        groups = (await self._gateway.call("Groups", "ListGroups", asked, who)).groups
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

    # Changing.

    async def _seek(self, request: web.Request) -> web.Response:
        """Move a cursor. The body gives the position as a query of ListOffsets does (`earliest`,
        `latest` or `timestamp_us`), or by `offset`."""
        who, body = sender_of(request), await body_of(request)
        ref = ref_of(request.match_info["stream"])
        asked = pb.DescribeStreamRequest(stream=ref, registry_only=True)
        described = await self._gateway.call("Streams", "DescribeStream", asked, who)
        stream = described.description.stream
        offset = await self._offset(stream, body, who)
        commit = cursors_pb2.CommitCursorsRequest.Commit(
            name=request.match_info["cursor"],
            stream=common_pb2.StreamRef(id=stream.id),
            offset=offset,
        )
        answer = await self._gateway.call(
            "Cursors", "CommitCursors", cursors_pb2.CommitCursorsRequest(commits=[commit]), who
        )
        (result,) = answer.results
        if result.HasField("error"):
            raise from_proto(result.error)
        return web.json_response(to_dict(result.cursor))

    async def _offset(self, stream: pb.Stream, body: dict[str, Any], who: Sender) -> int:
        """Resolve. Raises InvalidRequestError, OffsetOutOfRangeError, UnavailableError."""
        wanted = _wanted(body)
        if isinstance(wanted, int):
            queries = [_Query(earliest=True), _Query(latest=True)]
        else:
            queries = [wanted]
        for query in queries:
            query.stream.CopyFrom(common_pb2.StreamRef(id=stream.id))
        leader = self._gateway.leader_of(stream.id)
        answer = await self._gateway.call(
            "Reads", "ListOffsets", pb.ListOffsetsRequest(queries=queries), who, node_id=leader
        )
        for result in answer.results:
            if result.HasField("error"):
                raise from_proto(result.error)
        if not isinstance(wanted, int):
            return int(answer.results[0].offset)
        start, end = (int(result.offset) for result in answer.results)
        if not start <= wanted <= end:
            raise OffsetOutOfRangeError(
                f"{stream.name} holds the offsets {start} to {end}, and not {wanted}", start, end
            )
        return wanted

    async def _delete(self, request: web.Request) -> web.Response:
        await body_of(request)
        asked = cursors_pb2.DeleteCursorRequest(
            name=request.match_info["cursor"], stream=ref_of(request.match_info["stream"])
        )
        await self._gateway.call("Cursors", "DeleteCursor", asked, sender_of(request))
        return web.json_response({})


def _wanted(body: dict[str, Any]) -> int | _Query:
    """An offset, or the query that finds it. Raises InvalidRequestError."""
    match body:
        case {"earliest": True}:
            return _Query(earliest=True)
        case {"latest": True}:
            return _Query(latest=True)
        case {"offset": int(offset)} if type(offset) is int and 0 <= offset < 2**62:
            return offset
        case {"timestamp_us": int(us)} if type(us) is int and 0 <= us < 2**62:
            return _Query(timestamp_us=us)
    raise InvalidRequestError(
        'say where to: {"earliest": true}, {"latest": true}, {"offset": N} or {"timestamp_us": N}'
    )


def _offset_of(cursor: cursors_pb2.Cursor | None) -> int:
    """The offset at which a share's member continues."""
    return 0 if cursor is None else cursor.offset


def _cursor(cursor: cursors_pb2.Cursor, lag: Lag | None) -> dict[str, Any]:
    return {**to_dict(cursor), **_lag_values(lag), "state": state_of(cursor, lag)}


def _lag_values(lag: Lag | None) -> dict[str, Any]:
    """The lag as JSON; null: unknown."""
    if lag is None:
        return {"lag": None, "lag_seconds": None}
    return {"lag": lag.records, "lag_seconds": lag.seconds}
