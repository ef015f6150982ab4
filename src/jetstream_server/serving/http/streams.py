"""`/v1/streams` and `/v1/cluster`: what there is, with the fields of the command line's JSON."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from jetstream_protocol.descriptions import (
    cluster_fields,
    description_fields,
    json_value,
    state_without_answer,
    undescribed_fields,
)
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of
from jetstream_server.serving.http.http_requests import number, ref_of
from jetstream_server.serving.http.openapi_schemas import TEXT, ref, whole
from jetstream_server.serving.http.operations import JSON, Operation, Parameter
from jetstream_server.serving.http.server import Route
from jetstream_server.serving.http.stream_listing import (
    PAGE,
    PAGE_MAX,
    SORTS,
    STATES,
    StreamListing,
    Wanted,
)

START = Parameter("start", "How many to leave out, for the next page.", whole(), "0")
LIMIT = Parameter(
    "limit", f"How many at most; {PAGE} by default.", whole(1, PAGE_MAX), str(PAGE_MAX)
)
_STATE = Parameter(
    "state",
    "Only streams without a leader, with fewer replicas in sync than their minimum, or with fewer "
    "than they have.",
    {"type": "string", "enum": list(STATES)},
    "under-replicated",
)
_SORT = Parameter(
    "sort",
    "What to sort by; with `-` before it the largest first. `name` by default.",
    {"type": "string", "enum": [f"{sign}{name}" for name in SORTS for sign in ("", "-")]},
    "-size",
)
_MATCH = Parameter("match", "Only streams whose name or subject has this in it.", TEXT, "orders")


class StreamsApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._listing = StreamListing(gateway)

    def routes(self) -> list[Route]:
        return [
            Route(
                "/v1/cluster",
                self._cluster,
                operation=Operation(
                    "describeCluster", "Describe the cluster.", {JSON: ref("Cluster")}
                ),
            ),
            Route(
                "/v1/streams",
                self._streams,
                operation=Operation(
                    "listStreams",
                    "List the streams that you may know of.",
                    {JSON: ref("Streams")},
                    (_MATCH, _STATE, _SORT, START, LIMIT),
                ),
            ),
            Route(
                "/v1/streams/{stream}",
                self._stream,
                operation=Operation("describeStream", "Describe a stream.", {JSON: ref("Stream")}),
            ),
        ]

    async def _cluster(self, request: web.Request) -> web.Response:
        asked = pb.DescribeClusterRequest(readiness=True)
        answer = await self._gateway.call(asked, sender_of(request))
        return json_response(cluster_fields(answer))

    async def _streams(self, request: web.Request) -> web.Response:
        """Those whose leaders do not answer have only what this node knows."""
        start, limit = page_of(request)
        page, total = await self._listing.page(request, _wanted(request), start, limit)
        return json_response({"streams": list(map(_fields_of, page)), "total": total})

    async def _stream(self, request: web.Request) -> web.Response:
        ref, who = ref_of(request.match_info["stream"]), sender_of(request)
        asked = pb.DescribeStreamRequest(stream=ref)
        try:
            answer = await self._gateway.call(asked, who)
        except JetstreamError as error:
            if not error.retriable:
                raise
            asked.registry_only = True
            answer = await self._gateway.call(asked, who)
            answer.description.state = ""
        return json_response(_fields_of(answer.description))


def page_of(request: web.Request) -> tuple[int, int]:
    """Where a page begins, and how long it is at most. Raises InvalidRequestError."""
    return number(request, "start", 0), number(request, "limit", PAGE, least=1, most=PAGE_MAX)


def _wanted(request: web.Request) -> Wanted:
    """Raises InvalidRequestError."""
    state, sort = request.query.get("state", ""), request.query.get("sort", "name")
    if state and state not in STATES:
        raise InvalidRequestError(f"state is {', '.join(STATES)}, not {state[:50]!r}")
    if sort.removeprefix("-") not in SORTS:
        raise InvalidRequestError(f"sort is {', '.join(SORTS)}, not {sort[:50]!r}")
    match = request.query.get("match", "")
    return Wanted(match, state, sort.removeprefix("-"), sort.startswith("-"))


def json_response(fields: Any) -> web.Response:
    text = json.dumps(fields, default=json_value, ensure_ascii=False, separators=(",", ":"))
    # Text of others may have half of a surrogate pair, which no encoding has.
    body = text.encode("utf-8", "replace")
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def _fields_of(described: pb.StreamDescription) -> dict[str, Any]:
    if described.state:
        return description_fields(described)
    return undescribed_fields(described.stream, state_without_answer(described.stream))
