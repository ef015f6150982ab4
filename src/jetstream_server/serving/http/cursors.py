"""Cursors below `/v1/`: list, show, set and delete the positions of readers."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from google.protobuf.json_format import ParseDict, ParseError

from jetstream_protocol.descriptions import cursor_fields
from jetstream_protocol.errors import (
    InvalidRequestError,
    NotFoundError,
    from_proto,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, cursors_pb2
from jetstream_protocol.types import WallUs
from jetstream_server.clocks import WallClock
from jetstream_server.serving.http.cursor_listing import (
    CursorListing,
    is_current,
    state_of,
    words_of,
)
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender, sender_of
from jetstream_server.serving.http.http_requests import body_of, optional, ref_of
from jetstream_server.serving.http.openapi_schemas import POSITION, TEXT, ref, whole
from jetstream_server.serving.http.operations import JSON, Operation, Parameter
from jetstream_server.serving.http.server import Route
from jetstream_server.serving.http.start_offsets import Place, StartOffsets
from jetstream_server.serving.http.streams import LIMIT, START, json_response, page_of
from jetstream_server.serving.lag import Lag

_STREAM = Parameter("stream", "Only those in this stream.", TEXT, "orders")
_NAME = Parameter("name", "Only those of this name.", TEXT, "billing")
_MATCH = Parameter("match", "Only those whose name or stream has this in it.", TEXT, "bill")
_REVISION = Parameter("expected_revision", "Only if the cursor has this revision.", whole(), "7")
_FIELDS = tuple(POSITION["properties"])
_SAY = (
    'say "offset" (the next record to read), or "to": "earliest", "latest", "-10", "1h" (ago) or '
    "a time"
)


class CursorsApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway, wall_clock: WallClock) -> None:
        self._gateway = gateway
        self._wall_clock = wall_clock
        self._listing = CursorListing(gateway, wall_clock)
        self._starts = StartOffsets(gateway)

    def routes(self) -> list[Route]:
        several = "/v1/streams/{stream}/cursors"
        one = f"{several}/{{cursor}}"
        cursors = {JSON: ref("Cursors")}
        return [
            Route(
                "/v1/cursors",
                self._all,
                operation=Operation(
                    "listCursors",
                    "List the cursors, by name and stream.",
                    cursors,
                    (_NAME, _STREAM, _MATCH, START, LIMIT),
                ),
            ),
            Route(
                several,
                self._of_stream,
                operation=Operation(
                    "listCursorsOfStream",
                    "List the cursors in a stream.",
                    cursors,
                    (_MATCH, START, LIMIT),
                ),
            ),
            Route(
                one,
                self._show,
                operation=Operation(
                    "describeCursor", "Describe a cursor.", {JSON: ref("CursorDescription")}
                ),
            ),
            Route(
                one,
                self._set,
                "PUT",
                Operation(
                    "setCursor",
                    "Set a cursor, and create it if there is none.",
                    {JSON: ref("Cursor")},
                    body={JSON: ref("Position")},
                ),
            ),
            Route(
                one,
                self._delete,
                "DELETE",
                Operation("deleteCursor", "Delete a cursor.", parameters=(_REVISION,), status=204),
            ),
        ]

    # Reading.

    async def _all(self, request: web.Request) -> web.Response:
        asked = cursors_pb2.ListCursorsRequest(name=request.query.get("name", ""))
        if "stream" in request.query:
            asked.stream.CopyFrom(ref_of(request.query["stream"]))
        return await self._page(request, asked)

    async def _of_stream(self, request: web.Request) -> web.Response:
        ref = ref_of(request.match_info["stream"])
        return await self._page(request, cursors_pb2.ListCursorsRequest(stream=ref))

    async def _page(
        self, request: web.Request, asked: cursors_pb2.ListCursorsRequest
    ) -> web.Response:
        start, limit = page_of(request)
        match = request.query.get("match", "").lower()
        everything, is_all = await self._listing.listed(asked, request)
        found = [each for each in everything if match in words_of(each)]
        page = await self._described(found[start : start + limit], sender_of(request))
        return json_response({"cursors": page, "total": len(found), "is_all": is_all})

    async def _show(self, request: web.Request) -> web.Response:
        name, ref = request.match_info["cursor"], ref_of(request.match_info["stream"])
        asked = cursors_pb2.ListCursorsRequest(name=name, stream=ref)
        found, _ = await self._listing.listed(asked, request)
        if not found:
            raise NotFoundError(
                f"there is no cursor {name[:100]!r} on stream {request.match_info['stream']!r}"
            )
        return json_response((await self._described(found[:1], sender_of(request)))[0])

    async def _described(
        self, cursors: list[cursors_pb2.Cursor], who: Sender
    ) -> list[dict[str, Any]]:
        lags = await self._listing.lags(
            {(each.stream_id, each.offset) for each in cursors if is_current(each)}, who
        )
        return [_described(each, lags.get((each.stream_id, each.offset))) for each in cursors]

    # Changing.

    async def _set(self, request: web.Request) -> web.Response:
        """Answers once the position is committed."""
        ref, who = ref_of(request.match_info["stream"]), sender_of(request)
        commit, place = _commit_of(await body_of(request), self._wall_clock())
        if place is not None:
            asked = pb.DescribeStreamRequest(stream=ref, registry_only=True)
            known = await self._gateway.call(asked, who)
            # Not another stream of that name.
            ref = common_pb2.StreamRef(id=known.description.stream.id)
            commit.offset = await self._starts.held(ref, who, place)
        commit.name = request.match_info["cursor"]
        commit.stream.CopyFrom(ref)
        answer = await self._gateway.call(cursors_pb2.CommitCursorsRequest(commits=[commit]), who)
        (result,) = answer.results
        if result.HasField("error"):
            raise from_proto(result.error)
        return json_response(cursor_fields(result.cursor))

    async def _delete(self, request: web.Request) -> web.Response:
        asked = cursors_pb2.DeleteCursorRequest(
            name=request.match_info["cursor"],
            stream=ref_of(request.match_info["stream"]),
            expected_revision=optional(request, "expected_revision"),
        )
        await self._gateway.call(asked, sender_of(request))
        return web.Response(status=204)


def _commit_of(
    body: dict[str, Any], now_us: WallUs
) -> tuple[cursors_pb2.CommitCursorsRequest.Commit, Place | None]:
    """The commit without name and stream; and where to, if the body does not say it as an offset.
    Raises InvalidRequestError."""
    unknown = sorted(set(body) - set(_FIELDS))
    if unknown:
        raise InvalidRequestError(
            f"unknown field {unknown[0][:50]!r}: there are {', '.join(_FIELDS)}"
        )
    to = body.pop("to", None)
    if (to is None) is (body.get("offset") is None) or not isinstance(to, str | None):
        raise InvalidRequestError(_SAY)
    try:
        commit = ParseDict(body, cursors_pb2.CommitCursorsRequest.Commit())
    except (ParseError, ValueError) as error:
        raise InvalidRequestError(f"the body cannot be read: {str(error)[:200]}") from error
    return commit, None if to is None else Place.of("to", to, now_us)


def _described(cursor: cursors_pb2.Cursor, lag: Lag | None) -> dict[str, Any]:
    """A cursor and its lag; None: unknown."""
    return {
        **cursor_fields(cursor),
        "state": state_of(cursor, lag),
        "log_start_offset": None if lag is None else lag.log_start_offset,
        "high_watermark": None if lag is None else lag.high_watermark,
        "lag": None if lag is None else lag.records,
        "lag_seconds": None if lag is None else lag.seconds,
    }
