"""`/v1/openapi.json`: the routes of `/v1/` as an OpenAPI 3.1 document, for programs.

It is made from the routes that are served and what they check, and from nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web

from jetstream_server.serving.http.openapi_schemas import SCHEMAS, TEXT, ref
from jetstream_server.serving.http.operations import JSON, Operation, Parameter, Schema
from jetstream_server.serving.http.server import Route

PATH = "/v1/openapi.json"
_IN_PATHS = {
    "stream": ("A name, or name@subject.", "orders"),
    "cursor": ("The cursor's name.", "billing"),
}


def route(routes: Sequence[Route]) -> Route:
    """The path of the document about these routes. It has no data, so everybody may have it."""
    body = json.dumps(document(routes), indent=1).encode()

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=JSON, charset="utf-8")

    return Route(PATH, handle)


def document(routes: Iterable[Route]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for each in routes:
        if each.operation is not None:
            described = _described(each.path, each.operation)
            paths.setdefault(each.path, {})[each.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Jetstream over HTTP",
            "version": "1",
            "description": "Streams, records and cursors. Every node answers.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(path: str, operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *map(_in_path, re.findall(r"{(\w+)}", path)),
            *map(_parameter, operation.parameters),
        ],
        "responses": {
            str(operation.status): {
                "description": "Done." if not operation.answers else "The answer.",
                **({"content": _content(operation.answers)} if operation.answers else {}),
            },
            "default": {
                "description": "An error.",
                "content": _content({JSON: ref("Error")}),
            },
        },
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": _content(operation.body)}
    return found


def _in_path(name: str) -> dict[str, Any]:
    meaning, example = _IN_PATHS[name]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": meaning,
        "schema": TEXT,
        "example": example,
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "header" if parameter.is_header else "query",
        "description": parameter.meaning,
        "schema": parameter.schema,
        "example": parameter.example,
    }


def _content(schemas: Any) -> dict[str, dict[str, Schema]]:
    return {content_type: {"schema": schema} for content_type, schema in schemas.items()}
