"""`/api/v1/access`: rules and tokens, for the console.

Like the rest of the API, each request becomes gRPC calls in the name of the caller (api.py).
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.security.acl import Operation
from jetstream_server.serving.http.api import body_as, to_dict
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of
from jetstream_server.serving.http.http_requests import integer
from jetstream_server.serving.http.server import Route


class AccessApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        rules, tokens = "/api/v1/access/rules", "/api/v1/access/tokens"
        return [
            Route("/api/v1/access", self._show),
            Route(rules, self._add_rule, "POST"),
            Route(rules + "/{rule}/remove", self._remove_rule, "POST"),
            Route(tokens, self._create_token, "POST"),
            Route(tokens + "/{token}/revoke", self._revoke_token, "POST"),
        ]

    async def _show(self, request: web.Request) -> web.Response:
        """All rules and tokens, and whether the rules are applied."""
        own = pb.TestAclRequest(operation=Operation.CLUSTER_DESCRIBE)
        tested = await self._call(request, own)
        rules = await self._call(request, pb.ListAclsRequest())
        tokens = await self._call(request, pb.ListTokensRequest())
        found = {"security_off": tested.security_off, **to_dict(rules), **to_dict(tokens)}
        return web.json_response(found)

    async def _add_rule(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.AddAclRequest())
        return web.json_response(to_dict(await self._call(request, asked)))

    async def _remove_rule(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.RemoveAclRequest())
        asked.id = integer("rule", request.match_info["rule"])
        return web.json_response(to_dict(await self._call(request, asked)))

    async def _create_token(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.CreateTokenRequest())
        return web.json_response(to_dict(await self._call(request, asked)))

    async def _revoke_token(self, request: web.Request) -> web.Response:
        asked = await body_as(request, pb.RevokeTokenRequest())
        asked.id = request.match_info["token"]
        return web.json_response(to_dict(await self._call(request, asked)))

    async def _call(self, request: web.Request, asked: Any) -> Any:
        return await self._gateway.call(asked, sender_of(request))
