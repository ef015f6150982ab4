"""`/api/v1/`: what the console needs beside `/v1/`, as JSON (docs/protocol.md, "HTTP").

A request becomes one or a few gRPC calls in the name of its sender (gateway.py). The answer is
gRPC's message in protobuf's JSON. A change needs the Content-Type of JSON. A browser's request must
come from a page of this server: other pages cannot change anything, and there are no cookies.
"""

from __future__ import annotations

from typing import Any, TypeVar

from aiohttp import web
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.schema import Schema, parse, shown
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of
from jetstream_server.serving.http.http_requests import body_of, integer, ref_of
from jetstream_server.serving.http.server import Route
from jetstream_server.serving.http.stream_listing import states_of

_Message = TypeVar("_Message", bound=Message)

_NODE_ID_MAX = 2**31 - 1
"""The largest int32: node ids have that type in gRPC's messages."""


class Api:
    """The paths below /api/v1/. gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        stream = "/api/v1/streams/{stream}"
        return [
            Route("/api/v1/cluster", self._cluster),
            Route("/api/v1/streams", self._create, method="POST"),
            Route(f"{stream}/schema", self._schema),
            Route(f"{stream}/alter", self._alter, method="POST"),
            Route(f"{stream}/transfer-leader", self._transfer_leader, method="POST"),
            Route(f"{stream}/reassign", self._reassign, method="POST"),
            Route("/api/v1/nodes/{node}/drain", self._drain, method="POST"),
        ]

    # Reading.

    async def _cluster(self, request: web.Request) -> web.Response:
        """The cluster, and how many of the streams that the sender may know of are in a state."""
        asked = pb.DescribeClusterRequest(readiness=True)
        found = to_dict(await self._call(request, asked))
        listed = await self._call(request, pb.ListStreamsRequest())
        await claim(request)
        return web.json_response(found | {"stream_states": states_of(listed.streams)})

    async def _schema(self, request: web.Request) -> web.Response:
        """The versions of a stream's schema, and the fields of the last one."""
        asked = pb.DescribeSchemaRequest(stream=ref_of(request.match_info["stream"]))
        found = await self._call(request, asked)
        text = found.schemas[-1] if found.schemas else ""
        schema = parse(text) if text else Schema(())
        fields = [
            {"name": each.name, "type": str(each.type), "required": each.required}
            | {"keys": each.keys}
            for each in schema.fields
        ]
        return web.json_response(
            {"version": found.schema_version, "versions": [*map(shown, found.schemas)]}
            | {"using": schema.using, "fields": fields}
        )

    # Changing.

    async def _create(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.CreateStreamRequest())
        return _json(await self._call(request, asked))

    async def _alter(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.AlterStreamRequest())
        asked.stream.CopyFrom(ref_of(request.match_info["stream"]))
        return _json(await self._call(request, asked))

    async def _transfer_leader(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.TransferLeaderRequest())
        asked.stream.CopyFrom(ref_of(request.match_info["stream"]))
        return _json(await self._call(request, asked))

    async def _reassign(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.ReassignStreamRequest())
        asked.stream.CopyFrom(ref_of(request.match_info["stream"]))
        return _json(await self._call(request, asked))

    async def _drain(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.DrainNodeRequest())
        asked.node_id = integer("node", request.match_info["node"], _NODE_ID_MAX)
        return _json(await self._call(request, asked))

    async def _call(
        self, request: web.Request, asked: Message, *, node_id: int | None = None
    ) -> Any:
        return await self._gateway.call(asked, sender_of(request), node_id=node_id)


async def body_as(request: web.Request, into: _Message) -> _Message:
    """The body as that message. Raises InvalidRequestError."""
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
