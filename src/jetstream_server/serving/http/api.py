"""`/api/v1/`: the part of the gRPC API that the console needs, as JSON (docs/protocol.md, "HTTP").

A request becomes one or a few gRPC calls in the name of its sender (gateway.py). The answer is
gRPC's message in protobuf's JSON. A change needs the Content-Type of JSON. A browser's request must
come from a page of this server: other pages cannot change anything, and there are no cookies.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from aiohttp import web
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from jetstream_protocol.errors import InvalidRequestError, JetstreamError, PermissionDeniedError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of
from jetstream_server.serving.http.messages import MessagePages
from jetstream_server.serving.http.server import Route

_Message = TypeVar("_Message", bound=Message)

STREAMS_MAX = 1000
"""Streams in one answer. There are more pages."""
STREAMS_DEFAULT = 200
BODY_SECONDS = 10.0
_NODE_ID_MAX = 2**31 - 1
"""Of an int32, as node ids are in gRPC's messages."""


class Api:
    """The paths below /api/v1/. gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._pages = MessagePages(gateway)

    def routes(self) -> list[Route]:
        stream = "/api/v1/streams/{stream}"
        return [
            Route("/api/v1/cluster", self._cluster),
            Route("/api/v1/streams", self._streams),
            Route(stream, self._stream),
            Route(f"{stream}/messages", self._messages),
            Route("/api/v1/streams", self._create, method="POST"),
            Route(f"{stream}/alter", self._alter, method="POST"),
            Route(f"{stream}/transfer-leader", self._transfer_leader, method="POST"),
            Route(f"{stream}/reassign", self._reassign, method="POST"),
            Route("/api/v1/nodes/{node}/drain", self._drain, method="POST"),
        ]

    # Reading.

    async def _cluster(self, request: web.Request) -> web.Response:
        asked = pb.DescribeClusterRequest(readiness=True)
        return _json(await self._call(request, "Cluster", "DescribeCluster", asked))

    async def _streams(self, request: web.Request) -> web.Response:
        """Descriptions by the streams' leaders. If a leader does not answer: what this node knows.
        Query: match (part of the name or subject), start, limit."""
        start, limit = number(request, "start", 0), number(request, "limit", STREAMS_DEFAULT)
        asked = pb.ListStreamsRequest(describe_led=True)
        listed = await self._call(request, "Streams", "ListStreams", asked)
        await claim(request)
        match = request.query.get("match", "").lower()
        streams = [s for s in listed.streams if match in f"{s.name}@{s.subject}".lower()]
        page = streams[start : start + min(limit, STREAMS_MAX)]
        found = {each.stream.id: each for each in listed.led}
        elsewhere = {s.leader for s in page if s.id not in found and s.leader >= 0}
        asking = (self._led(request, node) for node in sorted(elsewhere))
        for led in await asyncio.gather(*asking):
            found |= {each.stream.id: each for each in led}
        described = [found.get(s.id) or pb.StreamDescription(stream=s) for s in page]
        return web.json_response(
            {"streams": [to_dict(each) for each in described], "total": len(streams)}
        )

    async def _led(self, request: web.Request, node: int) -> list[pb.StreamDescription]:
        asked = pb.ListStreamsRequest(describe_led=True)
        try:
            answer = await self._call(request, "Streams", "ListStreams", asked, node_id=node)
        except JetstreamError:
            return []  # Their descriptions are what this node knows.
        return list(answer.led)

    async def _stream(self, request: web.Request) -> web.Response:
        ref = ref_of(request.match_info["stream"])
        try:
            asked = pb.DescribeStreamRequest(stream=ref)
            answer = await self._call(request, "Streams", "DescribeStream", asked)
        except JetstreamError as error:
            if not error.retriable:
                raise
            asked = pb.DescribeStreamRequest(stream=ref, registry_only=True)
            answer = await self._call(request, "Streams", "DescribeStream", asked)
            answer.description.state = f"unknown: {error.message}"
        return _json(answer.description)

    async def _messages(self, request: web.Request) -> web.Response:
        page = await self._pages.page(
            ref_of(request.match_info["stream"]),
            sender_of(request),
            offset=_optional(request, "offset"),
            timestamp_us=_optional(request, "timestamp_us"),
            last=_optional(request, "last"),
            limit=number(request, "limit", 50),
            subject=request.query.get("subject", ""),
            key=request.query.get("key"),
            wait_ms=number(request, "wait_ms", 0),
            claim=partial(claim, request),
        )
        return web.json_response(page)

    # Changing.

    async def _create(self, request: web.Request) -> web.Response:
        asked = await _body(request, pb.CreateStreamRequest())
        return _json(await self._call(request, "Streams", "CreateStream", asked))

    async def _alter(self, request: web.Request) -> web.Response:
        asked = await _body(request, pb.AlterStreamRequest())
        asked.stream.CopyFrom(ref_of(request.match_info["stream"]))
        return _json(await self._call(request, "Streams", "AlterStream", asked))

    async def _transfer_leader(self, request: web.Request) -> web.Response:
        asked = await _body(request, pb.TransferLeaderRequest())
        asked.stream.CopyFrom(ref_of(request.match_info["stream"]))
        return _json(await self._call(request, "Cluster", "TransferLeader", asked))

    async def _reassign(self, request: web.Request) -> web.Response:
        asked = await _body(request, pb.ReassignStreamRequest())
        asked.stream.CopyFrom(ref_of(request.match_info["stream"]))
        return _json(await self._call(request, "Cluster", "ReassignStream", asked))

    async def _drain(self, request: web.Request) -> web.Response:
        asked = await _body(request, pb.DrainNodeRequest())
        asked.node_id = integer("node", request.match_info["node"], _NODE_ID_MAX)
        return _json(await self._call(request, "Cluster", "DrainNode", asked))

    async def _call(
        self,
        request: web.Request,
        service: str,
        method: str,
        asked: Message,
        *,
        node_id: int | None = None,
    ) -> Any:
        return await self._gateway.call(service, method, asked, sender_of(request), node_id=node_id)


def ref_of(stream: str) -> common_pb2.StreamRef:
    """A stream by its name or name@subject."""
    name, _, subject = stream.partition("@")
    return common_pb2.StreamRef(name=name, subject=subject)


def number(request: web.Request, name: str, default: int) -> int:
    found = _optional(request, name)
    return default if found is None else found


def _optional(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    return None if text is None else integer(name, text)


def integer(name: str, text: str, most: int = 10**18 - 1) -> int:
    """Parse. Raises InvalidRequestError. most: by default a bound that fits in an int64."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidRequestError(f"{name} must be a whole number that is not negative")
    if int(text) > most:
        raise InvalidRequestError(f"{name} is at most {most}")
    return int(text)


async def body_of(request: web.Request) -> dict[str, Any]:
    """The body of a change. Raises InvalidRequestError, PermissionDeniedError."""
    if request.content_type != "application/json":
        raise InvalidRequestError("a change is sent as JSON: Content-Type: application/json")
    if not is_from_here(request):
        raise PermissionDeniedError("a change cannot be asked for by a page of another server")
    body = await read_body(request)
    try:
        found = json.loads(body)
        json.dumps(found, ensure_ascii=False).encode()  # Half a surrogate breaks protobuf's parser.
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body cannot be read: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InvalidRequestError("the body cannot be read: it is not a JSON object")
    return found


async def read_body(request: web.BaseRequest) -> bytes:
    """Raises InvalidRequestError if it does not come in time."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError as error:
        raise InvalidRequestError(f"the body did not come within {BODY_SECONDS:g} s") from error


def is_from_here(request: web.Request) -> bool:
    """Whether no page of another server asks. Programs send no `Origin`."""
    origin = request.headers.get("Origin")
    try:
        return origin is None or urlsplit(origin).netloc == request.headers.get("Host")
    except ValueError:
        return False


async def _body(request: web.Request, into: _Message) -> _Message:
    """The body as that message. Raises InvalidRequestError, PermissionDeniedError."""
    found = await body_of(request)
    try:
        return ParseDict(found, into)
    except (ParseError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body cannot be read: {str(error)[:200]}") from error


def to_dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def _json(message: Message) -> web.Response:
    return web.json_response(to_dict(message))
