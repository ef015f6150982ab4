"""`/iceberg/v1`: a catalog of the streams' tables in the lake, for engines, which may only read it.

It is the part of Iceberg's REST protocol that reading needs. Every stream with `lake` that the
sender may read is a table of the one namespace, `jetstream`, once something was copied.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from aiohttp import web

from jetstream_protocol.errors import CODES, JetstreamError, StreamNotFoundError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import sender_of
from jetstream_server.serving.http.http_requests import ref_of
from jetstream_server.serving.http.server import Handler, Route

NAMESPACE: Final = "jetstream"
_ROOT: Final = "/iceberg/v1"
_ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
_TYPES: Final = {
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NoSuchTableException",
    503: "ServiceUnavailableException",
}


class IcebergApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        namespace = f"{_ROOT}/namespaces/{{namespace}}"
        handlers: dict[str, Handler] = {
            f"{_ROOT}/config": self._config,
            f"{_ROOT}/namespaces": self._namespaces,
            namespace: self._namespace,
            f"{namespace}/tables": self._tables,
            f"{namespace}/tables/{{table}}": self._table,
        }
        return [Route(path, _answering(handler)) for path, handler in handlers.items()]

    async def _config(self, request: web.Request) -> web.Response:
        # No `config` of the store, here or below: with one, DuckDB forgets its user's own.
        return _json({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})

    async def _namespaces(self, request: web.Request) -> web.Response:
        below = request.query.get("parent", "")
        return _json({"namespaces": [] if below else [[NAMESPACE]]})

    async def _namespace(self, request: web.Request) -> web.Response:
        _check_namespace(request)
        return _json({"namespace": [NAMESPACE], "properties": {}})

    async def _tables(self, request: web.Request) -> web.Response:
        """Those that the sender may know of."""
        _check_namespace(request)
        listed = await self._gateway.call(pb.ListStreamsRequest(), sender_of(request))
        await claim(request)
        # Also of streams without `lake`: they make a name ambiguous, too. And some engines take no
        # notice of upper case.
        count = Counter(each.name.lower() for each in listed.streams)
        names = [
            each.name if count[each.name.lower()] == 1 else f"{each.name}@{each.subject}"
            for each in listed.streams
            if each.config.lake
        ]
        return _json({"identifiers": [{"namespace": [NAMESPACE], "name": each} for each in names]})

    async def _table(self, request: web.Request) -> web.Response:
        _check_namespace(request)
        name = request.match_info["table"]
        asked = pb.DescribeLakeRequest(stream=ref_of(name), with_metadata=True)
        found = await self._gateway.call(asked, sender_of(request))
        if not found.table_url:
            raise StreamNotFoundError(f"nothing of stream {name!r} is in the lake yet")
        await claim(request)
        head = json.dumps({"metadata-location": found.table_url, "config": {}})
        body = head[:-1].encode() + b', "metadata": ' + found.metadata + b"}"
        return web.Response(body=body, content_type="application/json", charset="utf-8")


def _check_namespace(request: web.Request) -> None:
    if request.match_info["namespace"] != NAMESPACE:
        raise _NoNamespaceError(f"there is one namespace, {NAMESPACE}")


class _NoNamespaceError(StreamNotFoundError):
    """Only the name of its kind differs for engines."""


def _answering(handler: Handler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except JetstreamError as error:
            return _error_response(error)

    return handle


def _error_response(error: JetstreamError) -> web.Response:
    """As engines know it."""
    if isinstance(error, _NoNamespaceError):
        return _json_error(404, "NoSuchNamespaceException", error.message)
    status = CODES[type(error)].nats_code
    return _json_error(status, _TYPES.get(status, "RESTException"), error.message)


def _json_error(status: int, kind: str, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": kind, "code": status}}, status)


def _json(fields: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(fields, status=status)
