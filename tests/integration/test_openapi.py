"""The OpenAPI document: every route and parameter of it is served, and answers are as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote, urlencode

import pytest
from jsonschema import Draft202012Validator

from jetstream_client import Client
from jetstream_server.serving.http import openapi
from jetstream_server.serving.http.api_routes import api_routes
from jetstream_server.serving.http.gateway import Gateway
from tests.support.http_calls import Answer, call
from tests.support.server import ServerProcess

ROUTES = [each for each in api_routes(cast(Gateway, None)) if each.path.startswith("/v1/")]
DOCUMENT = openapi.document(ROUTES)
OPERATIONS = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
BODIES = {
    "setCursor": {"offset": 1, "last_epoch": 1, "owner": "o", "metadata": "m"},
    "publishRecords": {"value": "v", "key": "k", "key_encoding": "utf8", "headers": {"a": "b"}},
}
LINES = "application/x-ndjson"


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    name = name.replace("[", "_")[:40]
    client.create_stream(name, f"{name}.>")
    client.set_schema(name, "a int")
    client.publish(f"{name}.eu", b"text", key=b"k", headers=[("a", "1"), ("a", "2")])
    client.publish(f"{name}.eu", b"\xff", key=b"\xfe")
    client.publish(f"{name}.eu", None, key=b"k")
    client.commit_cursor("billing", name, 1)
    yield name
    client.delete_stream(name)


def asked(
    server: ServerProcess,
    stream: str,
    method: str,
    path: str,
    operation: dict[str, Any],
    *,
    accept: str = "*/*",
    without: tuple[str, ...] = (),
    **more: str,
) -> Answer:
    """Ask with the example of every parameter. without: leaves out one."""
    query, headers = dict(more), {"Accept": accept}
    for each in operation["parameters"]:
        value = each["example"].replace("orders", stream)
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", quote(value, safe=""))
        elif each["name"] not in without:
            (query if each["in"] == "query" else headers)[each["name"]] = value
    body = BODIES.get(operation["operationId"])
    return call(server.http, method.upper(), f"{path}?{urlencode(query)}", body, headers)


def closed(schema: Any) -> Any:
    """The same, without fields that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    return {"additionalProperties": False, **found} if "properties" in schema else found


def check(data: Any, schema: dict[str, Any]) -> None:
    whole = {**closed(schema), "components": closed(DOCUMENT["components"])}
    Draft202012Validator(whole).validate(data)


def test_the_document_is_served_as_it_was_made(server: ServerProcess) -> None:
    assert call(server.http, "GET", openapi.PATH).data == DOCUMENT


def test_every_route_is_described() -> None:
    described = {(path, method.upper()) for method, path, _ in OPERATIONS}
    served = {(each.path, each.method) for each in ROUTES if each.path != openapi.PATH}
    assert described == served
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_schema_is_one() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        for each in _refs(schema):
            assert each.removeprefix("#/components/schemas/") in DOCUMENT["components"]["schemas"]
        assert "description" in schema or "properties" in schema, name


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from ([schema["$ref"]] if "$ref" in schema else [])
    if isinstance(schema, dict | list):
        for each in schema.values() if isinstance(schema, dict) else schema:
            yield from _refs(each)


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[each[2]["operationId"] for each in OPERATIONS]
)
def test_a_route_takes_its_parameters_and_answers_as_it_says(
    server: ServerProcess, stream: str, method: str, path: str, operation: dict[str, Any]
) -> None:
    strange = asked(server, stream, method, path, operation, strange="1")
    assert (strange.status, strange.code) == (400, "invalid_request")
    assert "unknown parameter 'strange'" in strange.data["error"]["message"]
    check(strange.data, operation["responses"]["default"]["content"]["application/json"]["schema"])
    (status, *_) = operation["responses"]
    # A key in the query of a POST is for a body that is one value.
    without = ("key", "format", "Last-Event-ID", "expected_revision")
    contents = operation["responses"][status].get("content", {"": None})
    for content_type, content in contents.items():
        accept = content_type or "*/*"
        if content_type not in ("application/json", LINES, "text/event-stream"):
            without += ("bytes_max", "typed")  # They show whole records.
        answer = asked(server, stream, method, path, operation, accept=accept, without=without)
        assert answer.status == int(status), answer.body
        if content is None:
            assert answer.body == b""
            continue
        assert answer.headers["Content-Type"].partition(";")[0] == content_type
        if content_type in ("application/json", LINES):
            lines = answer.body.splitlines()
            assert lines
            for line in lines:
                check(json.loads(line), content["schema"])
