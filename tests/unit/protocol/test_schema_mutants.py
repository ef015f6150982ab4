"""Each reason that a schema may not follow another is switched off, and one of the cases of the
tests beside this notices it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

import pytest

from jetstream_protocol import schema
from jetstream_protocol.schema import parse
from tests.unit.protocol import test_layouts, test_schema

JUDGES = ("why_incompatible", "_changed")


def cases() -> list[tuple[str, str, str]]:
    tests = (
        test_schema.test_a_schema_follows_another_or_the_reason_is_said,
        test_layouts.test_a_layout_follows_another_or_the_reason_is_said,
    )
    marks = [mark for test in tests for mark in test.pytestmark]  # type: ignore[attr-defined]
    return [case for mark in marks for case in mark.args[1]]


TREE = ast.parse(inspect.getsource(schema))
REASONS = [
    node.lineno
    for function in TREE.body
    if isinstance(function, ast.FunctionDef) and function.name.endswith(JUDGES)
    for node in ast.walk(function)
    if isinstance(node, ast.Return) and ast.unparse(node) != "return ''"
]


class Silenced(ast.NodeTransformer):
    """No reason is given in a line."""

    def __init__(self, line: int) -> None:
        self.line = line

    def visit_Return(self, node: ast.Return) -> ast.Return:
        return (
            node
            if node.lineno != self.line
            else ast.copy_location(ast.Return(ast.Constant("")), node)
        )


def judge_without(line: int) -> Callable[..., str]:
    tree = Silenced(line).visit(ast.parse(inspect.getsource(schema)))
    names = dict(vars(schema))
    functions = [each for each in tree.body if getattr(each, "name", "").endswith(JUDGES)]
    exec(compile(ast.fix_missing_locations(ast.Module(functions, [])), "mutant", "exec"), names)
    found: Callable[..., str] = names["why_incompatible"]
    return found


def test_there_are_reasons() -> None:
    assert len(REASONS) >= 15


@pytest.mark.parametrize("line", REASONS)
def test_a_reason_that_is_not_given_is_noticed(line: int) -> None:
    judge = judge_without(line)
    given = [(parse(before), parse(after), bool(why)) for before, after, why in cases()]
    assert any(bool(judge(before, after)) != why for before, after, why in given), (
        inspect.getsource(schema).splitlines()[line - 1]
    )
