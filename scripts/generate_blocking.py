"""Writes the calls of the blocking client from the asynchronous one, docstrings included. With
`--check` it writes nothing, and fails if they are not current.

A call is a public coroutine function of AsyncClient, or a function that returns something to read
or publish with, which is begun then. What is written by hand stands in blocking_client.py and
blocking_processing.py: process and closing.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parent.parent
SDK = ROOT / "src/jetstream_client"
CLIENTS = SDK / "clients"
TARGETS = {
    CLIENTS / "blocking_calls.py": (
        "Calls",
        "asks and waits for an answer",
        SDK / "transport",
        "*",
    ),
    CLIENTS / "blocking_methods.py": ("Methods", "reads and publishes", CLIENTS, "async_*"),
}
"""What is written: the class, what it does, and the files with what it is written from."""
BY_HAND = {"aclose", "process", "processor"}
READERS = {
    "consume": ("Consumer[V, K]", "The start is resolved before this returns."),
    "consume_group": ("GroupConsumer[V, K]", "The consumer is a member when this returns."),
    "publisher": ("Publisher[S, SK]", "It is connected and ready when this returns."),
    "queue": ("Queue", "The consumer is there when this returns."),
    "scan": ("Scan", "Start and stop are resolved before this returns."),
    "table": ("Table[K, V]", ""),
}
"""What the blocking one returns, and what its docstring says at the end."""
SAID_OTHERWISE = {
    "Coroutine functions may use": (
        "They run in another thread while the one that reads waits, and may use"
    ),
    "`async with` starts it, and waits until it has everything that is committed then, unless": (
        "Returns when it has everything that is committed now, unless"
    ),
}
WIDTH = 92
INDENT = " " * 8
ALWAYS = {
    "jetstream_client._loop_thread": ["LoopThread"],
    "jetstream_client.clients.async_client": ["AsyncClient"],
    "jetstream_client.processing.listeners": ["in_thread"],
    "jetstream_client.processing.blocking_queue": ["Queue"],
    "jetstream_client.publishing.blocking_publisher": ["Publisher"],
    "jetstream_client.reading.blocking_consumer": ["Consumer"],
    "jetstream_client.reading.blocking_group_consumer": ["GroupConsumer"],
    "jetstream_client.reading.scan": ["Scan"],
    "jetstream_client.reading.table": ["Table"],
}
"""Imports of what no signature of the asynchronous client names."""

HEAD = '''"""The part of `Client` that {does}.

Written by scripts/generate from the classes of AsyncClient. Do not edit.
"""

from __future__ import annotations

{imports}


class {name}:
    """What follows is part of `Client`, which sets these."""

    _thread: LoopThread
    _client: AsyncClient
'''


def main() -> int:
    for target, (name, does, folder, files) in TARGETS.items():
        text = _written(target, name, does, sorted(folder.glob(f"{files}.py")))
        if "--check" not in sys.argv[1:]:
            target.write_text(text)
        elif target.read_text() != text:
            print("the blocking client is not current: run scripts/generate", file=sys.stderr)
            return 1
    return 0


def _written(target: Path, class_name: str, does: str, paths: list[Path]) -> str:
    methods: list[str] = []
    imports = {
        name: (f"from {module} import {name}", False)
        for module, names in ALWAYS.items()
        for name in names
    }
    needed = set(imports)
    for path in paths:
        tree = ast.parse(path.read_text())
        classes = [
            each
            for each in tree.body
            if isinstance(each, ast.ClassDef) and each.name.startswith("Async")
        ]
        found = [method for each in classes for method in each.body if _is_call(method)]
        if found:
            imports |= _imports_of(tree)
        for method in found:
            methods.append(_blocking(method))
            needed |= _names_of(method)
    lines: list[str] = []
    guarded: list[str] = []
    for name in sorted(needed & imports.keys()):
        statement, is_guarded = imports[name]
        (guarded if is_guarded else lines).append(statement)
    if guarded:
        lines += ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:"]
        lines += [f"    {each}" for each in guarded]
    head = HEAD.format(imports="\n".join(lines), name=class_name, does=does)
    return _formatted(head + "\n" + "\n\n".join(methods) + "\n", target)


def _is_call(method: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    is_abstract = any(ast.unparse(each) == "abstractmethod" for each in method.decorator_list)
    if method.name.startswith("_") or method.name in BY_HAND or is_abstract:
        return False
    is_reader = method.name in READERS
    return is_reader or isinstance(method, ast.AsyncFunctionDef) or _awaited(method) is not None


def _awaited(method: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """What a function that returns a coroutine gives in the end; None if it returns none."""
    returns = method.returns
    if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) == "Coroutine":
        assert isinstance(returns.slice, ast.Tuple)
        return returns.slice.elts[-1]
    return None


def _imports_of(tree: ast.Module) -> dict[str, tuple[str, bool]]:
    """The statement that imports each name, and whether only type checkers need it."""
    found: dict[str, tuple[str, bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            for name in node.names:
                found[name.name] = f"{module}import {name.name}", node not in tree.body
    return found


def _names_of(method: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names in the signature of the blocking one, but for readers, which are in ALWAYS."""
    returns = None if method.name in READERS else _awaited(method) or method.returns
    parts: list[ast.AST] = [method.args, *([returns] if returns else [])]
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def _blocking(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = ast.unparse(_awaited(method) or method.returns or ast.Constant(None))
    args = method.args
    passed = [arg.arg for arg in (*args.posonlyargs, *args.args)[1:]]
    passed += [f"{arg.arg}={_elsewhere(arg)}" for arg in args.kwonlyargs]
    if args.kwarg is not None:
        passed.append(f"**{args.kwarg.arg}")
    call = f"self._client.{method.name}({', '.join(passed)})"
    docstring = ast.get_docstring(method, clean=False)
    assert docstring is not None, f"{method.name} has no docstring"
    if method.name in READERS:
        returns, end = READERS[method.name]
        docstring = docstring.rstrip() + (f"\n\n{INDENT}{end}" if end else "") + f"\n{INDENT}"
        body = f"return self._thread.begun(lambda: {call}, {returns.partition('[')[0]})"
    else:
        body = ("" if returns == "None" else "return ") + f"self._thread.run({call})"
    return (
        f"    def {method.name}({ast.unparse(args)}) -> {returns}:\n"
        f'        """{_without_asyncio(docstring)}"""\n'
        f"        {body}\n"
    )


def _elsewhere(arg: ast.arg) -> str:
    """A listener is called in another thread than the client's, which would wait for itself."""
    is_listener = arg.annotation is not None and "Listener" in ast.unparse(arg.annotation)
    return f"in_thread({arg.arg})" if is_listener else arg.arg


def _without_asyncio(docstring: str) -> str:
    """The docstring for programs without asyncio. What is as it was keeps its lines."""
    parts = []
    for part in docstring.split("\n\n"):
        text = part
        for said, otherwise in SAID_OTHERWISE.items():
            text = re.sub(r"\s+".join(map(re.escape, said.split())), otherwise, text)
        text = re.sub(r"\b(await|async) ", "", text).replace("AsyncClient", "Client")
        if text != part and not part.startswith(INDENT + " "):
            text = textwrap.fill(
                " ".join(text.split()), WIDTH + len(INDENT),
                initial_indent=INDENT, subsequent_indent=INDENT,
            )  # fmt: skip
        parts.append(text)
    return "\n\n".join(parts)


def _formatted(text: str, target: Path) -> str:
    for command in (["check", "--fix", "--select", "I,F401", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
