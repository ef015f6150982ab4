"""A request determines the method that takes it, and the answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jetstream_client
from jetstream_client.transport.grpc_calls import _METHODS
from jetstream_protocol.generated import (
    api_pb2,
    api_pb2_grpc,
    consumers_pb2,
    consumers_pb2_grpc,
    cursors_pb2,
    cursors_pb2_grpc,
    groups_pb2,
    groups_pb2_grpc,
)

PARTS = (
    (api_pb2, api_pb2_grpc),
    (consumers_pb2, consumers_pb2_grpc),
    (cursors_pb2, cursors_pb2_grpc),
    (groups_pb2, groups_pb2_grpc),
)


class Channel:
    """Notes what a generated stub would call: by path, how answers are decoded."""

    def __init__(self) -> None:
        self.decoders: dict[str, Any] = {}

    def unary_unary(self, path: str, *, response_deserializer: Any, **_: Any) -> None:
        self.decoders[path] = response_deserializer

    unary_stream = unary_unary


def test_the_methods_are_those_of_the_generated_stubs() -> None:
    channel = Channel()
    for messages, stubs in PARTS:
        for service in messages.DESCRIPTOR.services_by_name:
            getattr(stubs, f"{service}Stub")(channel)
    assert len(channel.decoders) > 40
    found = {path: answer.FromString for path, answer in _METHODS.values()}
    assert found == channel.decoders


def _declared(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The class of each request, and what the answer of its call is declared as."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        requests: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                requests[ast.unparse(node.targets[0])] = ast.unparse(node.value.func)
        for node in ast.walk(function):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Await):
                continue
            call = node.value.value
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".call"):
                asked = call.args[0]
                request = asked.func if isinstance(asked, ast.Call) else asked
                name = ast.unparse(request)
                yield requests.get(name, name), ast.unparse(node.annotation)


def test_answers_are_declared_as_what_they_are() -> None:
    """The request's type decides at run time; type checkers believe what is declared."""
    wrong, right = [], 0
    for path in Path(jetstream_client.__file__).parent.rglob("*.py"):
        for request, declared in _declared(ast.parse(path.read_text())):
            name = request.rpartition(".")[2]
            if f"jetstream.v1.{name}" not in _METHODS:
                wrong.append(f"{path.name}: {request} is not a request")
                continue
            answer = _METHODS[f"jetstream.v1.{name}"][1]
            if declared.rpartition(".")[2] != answer.__name__:
                wrong.append(f"{path.name}: {declared} is not what {request} is answered with")
            right += 1
    assert not wrong
    assert right > 20
