"""`/api/v1/cursors` and `/api/v1/groups`: readers, their lag, and moving cursors.

Like the rest of the API, each request becomes gRPC calls in the name of the caller (api.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    OffsetOutOfRangeError,
    from_proto,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, cursors_pb2, groups_pb2
from jetstream_server.serving.http.api import (
    STREAMS_DEFAULT,
    STREAMS_MAX,
    authorization,
    body_of,
    number,
    ref_of,
    to_dict,
)
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.server import Route

LOOKED_AT_MAX = 20_000
"""Cursors of one answer, before any are left out."""
_Query = pb.ListOffsetsRequest.Query
_Range = tuple[int, int]


class ConsumersApi:
    """Cursors and groups. Ranges below are log start and high watermark, of the stream's leader."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

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
        """Query: cursor, stream (all of the name), match (part of a cursor's or stream's name),
        start, limit."""
        start, limit = number(request, "start", 0), number(request, "limit", STREAMS_DEFAULT)
        match = request.query.get("match", "").lower()
        asked = cursors_pb2.ListCursorsRequest(name=request.query.get("cursor", ""))
        if "stream" in request.query:
            asked.stream.CopyFrom(ref_of(request.query["stream"]))
        everything, is_all = await self._listed(asked, authorization(request))
        found = [each for each in everything if match in _words_of(each)]
        page = found[start : start + min(limit, STREAMS_MAX)]
        ranges = await self._ranges(
            (each.stream_id for each in page if _is_current(each)), authorization(request)
        )
        return web.json_response(
            {
                "cursors": [_cursor(each, ranges.get(each.stream_id)) for each in page],
                "total": len(found),
                "is_all": is_all,
            }
        )

    async def _listed(
        self, asked: cursors_pb2.ListCursorsRequest, who: str
    ) -> tuple[list[cursors_pb2.Cursor], bool]:
        """The cursors, and whether there are no more."""
        found: list[cursors_pb2.Cursor] = []
        while True:
            answer = await self._gateway.call("Cursors", "ListCursors", asked, who)
            found += answer.cursors
            asked.page = answer.next_page
            if not asked.page or len(found) >= LOOKED_AT_MAX:
                return found, not asked.page

    async def _groups(self, request: web.Request) -> web.Response:
        """Query: group (the whole name). Each share has its stream's name, its position and lag."""
        who = authorization(request)
        asked = groups_pb2.ListGroupsRequest(name=request.query.get("group", ""))
        groups = (await self._gateway.call("Groups", "ListGroups", asked, who)).groups
        if not groups:
            return web.json_response({"groups": []})
        wanted = cursors_pb2.ListCursorsRequest(name=groups[0].name if len(groups) == 1 else "")
        cursors, _ = await self._listed(wanted, who)
        shared = {(group.name, share.stream_id) for group in groups for share in group.shares}
        positions = {
            (each.name, each.stream_id): each
            for each in cursors
            if (each.name, each.stream_id) in shared
        }
        ranges = await self._ranges({stream_id for _, stream_id in shared}, who)
        return web.json_response(
            {"groups": [self._group(each, positions, ranges) for each in groups]}
        )

    def _group(
        self,
        group: groups_pb2.ConsumerGroup,
        positions: Mapping[tuple[str, int], cursors_pb2.Cursor],
        ranges: Mapping[int, _Range],
    ) -> dict[str, Any]:
        found = to_dict(group)
        for share, told in zip(group.shares, found["shares"], strict=True):
            cursor = positions.get((group.name, share.stream_id))
            offset = 0 if cursor is None else cursor.offset
            told["stream"] = self._gateway.stream_name(share.stream_id)
            told["offset"] = None if cursor is None else cursor.offset
            told["lag"] = _lag(offset, ranges.get(share.stream_id))
        return found

    async def _ranges(self, ids: Iterable[int], who: str) -> dict[int, _Range]:
        """Without the streams of leaders that do not answer."""
        by_leader: dict[int, list[int]] = {}
        for stream_id in sorted(set(ids)):
            leader = self._gateway.leader_of(stream_id)
            if leader is not None:
                by_leader.setdefault(leader, []).append(stream_id)
        asked = (self._ranges_at(node, each, who) for node, each in by_leader.items())
        found: dict[int, _Range] = {}
        for ranges in await asyncio.gather(*asked):
            found |= ranges
        return found

    async def _ranges_at(self, node_id: int, ids: list[int], who: str) -> dict[int, _Range]:
        refs = [common_pb2.StreamRef(id=each) for each in ids]
        asked = pb.ListOffsetsRequest(
            queries=[
                *(_Query(stream=ref, earliest=True) for ref in refs),
                *(_Query(stream=ref, latest=True) for ref in refs),
            ]
        )
        try:
            answer = await self._gateway.call("Reads", "ListOffsets", asked, who, node_id=node_id)
        except JetstreamError:
            return {}  # Their lag is shown as unknown.
        starts, ends = answer.results[: len(ids)], answer.results[len(ids) :]
        return {
            each: (start.offset, end.offset)
            for each, start, end in zip(ids, starts, ends, strict=True)
            if not start.HasField("error") and not end.HasField("error")
        }

    # Changing.

    async def _seek(self, request: web.Request) -> web.Response:
        """The body says where to, as a query of ListOffsets does (`earliest`, `latest` or
        `timestamp_us`), or by `offset`."""
        who, body = authorization(request), await body_of(request)
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

    async def _offset(self, stream: pb.Stream, body: dict[str, Any], who: str) -> int:
        """Raises InvalidRequestError, OffsetOutOfRangeError, UnavailableError."""
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
        await self._gateway.call("Cursors", "DeleteCursor", asked, authorization(request))
        return web.json_response({})


def _wanted(body: dict[str, Any]) -> int | _Query:
    """An offset, or what to ask for it. Raises InvalidRequestError."""
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


def _words_of(cursor: cursors_pb2.Cursor) -> str:
    return f"{cursor.name} {cursor.stream_name}@{cursor.stream_subject}".lower()


def _is_current(cursor: cursors_pb2.Cursor) -> bool:
    return bool(cursor.stream_id == cursor.stream_id_now)


def _cursor(cursor: cursors_pb2.Cursor, known: _Range | None) -> dict[str, Any]:
    found = to_dict(cursor)
    found["lag"] = _lag(cursor.offset, known)
    if not _is_current(cursor):
        found["state"] = "stream re-created" if cursor.stream_id_now else "stream deleted"
    else:
        is_lost = known is not None and not known[0] <= cursor.offset <= known[1]
        found["state"] = "truncated" if is_lost else "current"
    return found


def _lag(offset: int, known: _Range | None) -> int | None:
    return None if known is None else max(0, known[1] - max(known[0], offset))
