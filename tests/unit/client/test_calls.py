"""A request determines the method that takes it, and the answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jetstream_client
from jetstream_protocol.generated import api_pb2
from jetstream_protocol.services import METHODS, SERVICES


def test_no_two_methods_share_a_request() -> None:
    assert len(METHODS) == sum(map(len, SERVICES.values())) > 40
    consume = METHODS[api_pb2.ConsumeRequest]
    assert (consume.path, consume.kind) == ("/jetstream.v1.Reads/Consume", "unary_stream")
    assert consume.answer is api_pb2.FetchResponse


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
    answers = {request.__name__: method.answer for request, method in METHODS.items()}
    for path in Path(jetstream_client.__file__).parent.rglob("*.py"):
        for request, declared in _declared(ast.parse(path.read_text())):
            name = request.rpartition(".")[2]
            if name not in answers:
                wrong.append(f"{path.name}: {request} is not a request")
                continue
            if declared.rpartition(".")[2] != answers[name].__name__:
                wrong.append(f"{path.name}: {declared} is not what {request} is answered with")
            right += 1
    assert not wrong
    assert right > 20
