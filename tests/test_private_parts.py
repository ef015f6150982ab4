"""What libraries keep private is not used, except where nothing public does it: each with why."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.support.sources import TREE, nodes_of, text_of

SRC = TREE / "src"
OURS = {path.name for path in SRC.iterdir()}
OF_PYTHON = {"_asdict", "_replace", "_make", "_exit", "_typeshed"}
"""Public in spite of their names: of named tuples, `os` and the types of Python."""
EXCEPTIONS = {
    # nats-py takes no transport of ours in public. Its own takes a server that hangs up for one
    # that has let it in, and waits without bound for a connection to close.
    ("jetstream_client/migration/nats_stream.py", "_transport"),
    ("jetstream_client/transport/nats.py", "_transport"),
    # The part of our transport's base where what is still to be sent waits below TLS.
    ("jetstream_client/transport/nats_socket.py", "_bare_io_writer"),
}
ELSEWHERE = ("metadata/raft/", "jetstream_protocol/generated/")
"""Names of pysyncobj have their own list (tests/unit/metadata/test_pysyncobj_names.py); what is
generated is protobuf's."""


SUPER = ast.dump(ast.Name("super", ast.Load()))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in OF_PYTHON


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Private parts of modules, and of their names."""
    for node in nodes:
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = (node.module or "").split(".")
            paths = [[*start, alias.name] for alias in node.names]
        else:
            continue
        for path in paths:
            if path[0] not in OURS:
                yield from filter(_is_private, path)


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _defined(nodes: Iterable[ast.AST]) -> set[str]:
    """What a file calls its functions, classes, variables and attributes of `self`."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            found.add(node.attr)
    return found


def _foreign(nodes: list[ast.AST], ours: set[str]) -> Iterator[str]:
    """Private attributes: of other objects, if this file does not define them; of our own, if no
    file of ours does."""
    here = _defined(nodes)
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            is_inherited = isinstance(node.value, ast.Call) and ast.dump(node.value.func) == SUPER
            if node.attr not in (ours if _is_own(node) or is_inherited else here):
                yield node.attr


def test_no_private_part_of_a_library_is_used_without_a_reason() -> None:
    nodes = {path: nodes_of(path) for path in sorted(SRC.rglob("*.py"))}
    ours = set[str]().union(*map(_defined, nodes.values()))
    used = {
        (path.relative_to(SRC).as_posix(), name)
        for path, there in nodes.items()
        if not any(each in path.as_posix() for each in ELSEWHERE)
        for name in (*_imported(there), *_foreign(there, ours))
    }
    assert used == EXCEPTIONS, "find a public way, or add it with why nothing else does it"


def test_sockets_are_found_among_the_descriptors_in_one_file() -> None:
    found = {p.name for p in SRC.rglob("*.py") if "/proc/self/fd" in text_of(p)}
    assert found == {"close_peer.py"}
