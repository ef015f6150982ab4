"""`/api/v1/`: what the console needs beside `/v1/`, as JSON (docs/protocol.md, "HTTP").

A request becomes one or a few gRPC calls in the name of its sender (gateway.py). The answer is
gRPC's message in protobuf's JSON. A change needs the Content-Type of JSON. A browser's request must
come from a page of this server: other pages cannot change anything, and there are no cookies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from aiohttp import web
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.schema import Schema, parse, shown
from jetstream_protocol.typed_values import why_unread
from jetstream_protocol.types import NODE_ID_MAX
from jetstream_server.security.acl import Operation
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of
from jetstream_server.serving.http.http_requests import body_of, integer, ref_of
from jetstream_server.serving.http.server import Handler, Route
from jetstream_server.serving.http.stream_listing import states_of


class _Change(NamedTuple):
    """asks: what gRPC is asked, with what the body says. names: puts in what the path says."""

    path: str
    asks: type[Message]
    names: Callable[[Any, web.Request], object] = lambda asked, request: None


def _name_stream(asked: Any, request: web.Request) -> None:
    asked.stream.CopyFrom(ref_of(request.match_info["stream"]))


def _name_node(asked: Any, request: web.Request) -> None:
    asked.node_id = integer("node", request.match_info["node"], NODE_ID_MAX)


def _name_rule(asked: Any, request: web.Request) -> None:
    asked.id = integer("rule", request.match_info["rule"])


def _name_token(asked: Any, request: web.Request) -> None:
    asked.id = request.match_info["token"]


_STREAM, _ACCESS = "/api/v1/streams/{stream}", "/api/v1/access"
_CHANGES = (
    _Change("/api/v1/streams", pb.CreateStreamRequest),
    _Change(f"{_STREAM}/alter", pb.AlterStreamRequest, _name_stream),
    _Change(f"{_STREAM}/transfer-leader", pb.TransferLeaderRequest, _name_stream),
    _Change(f"{_STREAM}/reassign", pb.ReassignStreamRequest, _name_stream),
    _Change("/api/v1/nodes/{node}/drain", pb.DrainNodeRequest, _name_node),
    _Change(f"{_ACCESS}/rules", pb.AddAclRequest),
    _Change(_ACCESS + "/rules/{rule}/remove", pb.RemoveAclRequest, _name_rule),
    _Change(f"{_ACCESS}/tokens", pb.CreateTokenRequest),
    _Change(_ACCESS + "/tokens/{token}/revoke", pb.RevokeTokenRequest, _name_token),
)


class Api:
    """The paths below /api/v1/ that no other file has. gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/cluster", self._cluster),
            Route(f"{_STREAM}/schema", self._schema),
            Route(_ACCESS, self._access),
            *(Route(each.path, self._changing(each), method="POST") for each in _CHANGES),
        ]

    async def _cluster(self, request: web.Request) -> web.Response:
        """The cluster, and how many of the streams that the sender may know of are in a state."""
        asked = pb.DescribeClusterRequest(readiness=True)
        found = to_dict(await self._call(request, asked))
        listed = await self._call(request, pb.ListStreamsRequest())
        await claim(request)
        return web.json_response(found | {"stream_states": states_of(listed.streams)})

    async def _schema(self, request: web.Request) -> web.Response:
        """The versions of a stream's schema, the fields of the last one, and why this node cannot
        read them."""
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
            | {"using": schema.using, "fields": fields, "unread": why_unread(schema)}
        )

    async def _access(self, request: web.Request) -> web.Response:
        """All rules and tokens, and whether the rules are applied."""
        own = pb.TestAclRequest(operation=Operation.CLUSTER_DESCRIBE)
        tested = await self._call(request, own)
        rules = await self._call(request, pb.ListAclsRequest())
        tokens = await self._call(request, pb.ListTokensRequest())
        found = {"security_off": tested.security_off, **to_dict(rules), **to_dict(tokens)}
        return web.json_response(found)

    def _changing(self, change: _Change) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            asked = change.asks()
            await _read_body(request, asked)
            change.names(asked, request)
            return web.json_response(to_dict(await self._call(request, asked)))

        return answer

    async def _call(self, request: web.Request, asked: Message) -> Any:
        return await self._gateway.call(asked, sender_of(request))


async def _read_body(request: web.Request, into: Message) -> None:
    """Raises InvalidRequestError."""
    found = await body_of(request)
    try:
        ParseDict(found, into)
    except (ParseError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body cannot be read: {str(error)[:200]}") from error


def to_dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found
