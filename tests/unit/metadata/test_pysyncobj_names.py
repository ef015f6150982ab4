"""Which private names of pysyncobj are used: those that its decision lists, each with why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pysyncobj import SyncObj
from pysyncobj.transport import Transport

ROOT = Path(__file__).parents[3]
DECISION = ROOT / "docs" / "adr" / "0008-pysyncobj.md"
MANGLED = "_SyncObj__"
PRIVATE = {
    name
    for kind in (SyncObj, Transport)
    for name in dir(kind)
    if name.startswith("_") and not name.startswith("__")
}


def _uses() -> Iterator[tuple[str, Path, bool]]:
    """Each name, its file, and whether a method of ours has that name or calls the one it
    replaces."""
    for path in sorted((ROOT / "src" / "jetstream_server" / "metadata").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield node.name, path, True
            elif isinstance(node, ast.Attribute):
                yield node.attr, path, ast.unparse(node.value) == "super()"
            elif isinstance(node, ast.Constant) and str(node.value).startswith(MANGLED):
                yield str(node.value), path, False


def test_every_private_name_that_is_used_has_a_reason_and_no_other_is_listed() -> None:
    used = {name for name, _, _ in _uses() if name.startswith(MANGLED) or name in PRIVATE}
    rows = re.findall(r"^\| (`_.+`) \| .+ \|$", DECISION.read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(listed) == len(set(listed))
    assert sorted(used) == sorted(listed)


def test_private_state_is_touched_in_one_file() -> None:
    elsewhere = [
        f"{path.name}: {name}"
        for name, path, is_method in _uses()
        if name.startswith(MANGLED) and not is_method and path.name != "library.py"
    ]
    assert not elsewhere, "give it a name in metadata/raft/library.py"


def test_every_private_name_exists_in_the_pinned_version() -> None:
    """A name that pysyncobj has not is ours by mistake: setting it does nothing."""
    core = set(dir(SyncObj)) | {
        node.attr
        for node in ast.walk(ast.parse(Path(_source()).read_text()))
        if isinstance(node, ast.Attribute)
    }
    for name in {name for name, _, _ in _uses() if name.startswith(MANGLED)}:
        assert name in core or name.removeprefix("_SyncObj") in core, name


def _source() -> str:
    import pysyncobj.syncobj

    return str(pysyncobj.syncobj.__file__)
