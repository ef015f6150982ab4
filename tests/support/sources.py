"""The sources of the tree, each read and parsed once for all tests that look at them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Every node of a module, itself first."""
    return [*ast.walk(ast.parse(text_of(path)))]


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
