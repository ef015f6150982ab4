"""The tree keeps to its own rules: what a linter does not check."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tests.support.sources import TREE, functions_of, nodes_of, text_of

FOLDERS = ("src", "tests", "benchmarks", "examples", "scripts", "spark_connector")
SOURCES = sorted(
    path
    for folder in FOLDERS
    for path in (TREE / folder).rglob("*.py")
    if "generated" not in path.parts and "__pycache__" not in path.parts
)
PRODUCT = [path for path in SOURCES if path.relative_to(TREE).parts[0] != "tests"]
TEXTS = sorted(
    path
    for path in [*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md"), *(TREE / "config").glob("*")]
    if path.is_file()
)

FUNCTION_LINES_MAX = 80
"""Most are below 40; a hot loop that is read as a whole may need more."""
FILE_LINES_MAX = 800
"""Most are below 250; a longer file hides a noun. A lower limit made splinters."""


def name(path: Path) -> str:
    return str(path.relative_to(TREE))


def test_every_module_says_what_it_is() -> None:
    silent = []
    for path in PRODUCT:
        module = nodes_of(path)[0]
        assert isinstance(module, ast.Module)
        if module.body and not ast.get_docstring(module):
            silent.append(name(path))
    assert silent == []


def test_functions_can_be_read_as_a_whole() -> None:
    long = [
        f"{name(path)}: {function.name}"
        for path in PRODUCT
        for function in functions_of(path)
        if (function.end_lineno or 0) - function.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_files_are_about_one_noun() -> None:
    long = [name(path) for path in PRODUCT if text_of(path).count("\n") > FILE_LINES_MAX]
    assert long == []


SAME_JOB = {"guard.py", "server.py"}
"""Each port of serving/ has one."""


def test_no_two_files_of_a_package_have_one_name() -> None:
    """Whoever opens a file by its name opens the right one."""
    packages: dict[tuple[str, ...], list[str]] = {}
    for path in PRODUCT:
        parts = path.relative_to(TREE).parts
        if parts[0] == "src" and len(parts) > 3 and not path.name.startswith("__"):
            packages.setdefault(parts[1:3], []).append(path.name)
    twice = {
        f"{'/'.join(package)}: {each}"
        for package, names in packages.items()
        for each in names
        if names.count(each) > 1 and each not in SAME_JOB
    }
    assert twice == set()


ACT_AND_RETURN = {"_serve", "_take_offline", "was_refused"}
"""They do something first; the error is its outcome."""


def test_functions_that_make_errors_are_called_so() -> None:
    """A bare participle (`denied`) reads like an event or a question. `from_...` is a reader's."""
    unnamed = [
        f"{name(path)}: {function.name}"
        for path in PRODUCT
        for function in functions_of(path)
        if function.returns is not None
        and re.fullmatch(r"(\w+(Error|Exception)( \| )?)+", ast.unparse(function.returns))
        and not function.name.endswith("_error")
        and not function.name.startswith("from_")
        and function.name not in ACT_AND_RETURN
    ]
    assert unnamed == []


DIALECT = {"said", "told", "nobody"}
KEPT = {"told", "failures_told_to"}
"""What a member was assigned, and a public method with its argument."""


def test_names_say_reported_and_no_client_as_the_field_does() -> None:
    found = {
        f"{name(path)}: {each}"
        for path in PRODUCT
        if path.relative_to(TREE).parts[0] in ("src", "spark_connector")
        for node in nodes_of(path)
        for each in (getattr(node, kind, None) for kind in ("name", "arg", "id", "attr"))
        if isinstance(each, str) and DIALECT & set(each.lower().split("_")) and each not in KEPT
    }
    assert found == set()


def test_nothing_is_left_for_later_or_for_one_machine() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX)\b|/home/\w|/Users/\w|(?<!\w)/work/")
    found = [
        f"{name(path)}: {match.group()}"
        for path in [*SOURCES, *TEXTS]
        if path != Path(__file__)
        for match in pattern.finditer(text_of(path))
    ]
    assert found == []


BEHIND = re.compile(
    r"(?<![a-z])(at or|before and|offsets?|positions?|boundary|valid|bytes?|batch(es)?"
    r"|records?|segments?|entry|entries|gaps?|tombstones?|begins?|ends?"
    r"|lies?|stands?|stored|appended|goes on|those)"
    r"[ _]behind(?!_latest)",
    re.IGNORECASE,
)
"""`offsets_behind_latest` is public, and a lag."""


def test_positions_are_after_and_only_what_lags_is_behind() -> None:
    found = [
        f"{name(path)}: {match.group()}"
        for path in [*SOURCES, *TEXTS]
        if path != Path(__file__) and "behind" in text_of(path).lower()
        for match in BEHIND.finditer(text_of(path))
    ]
    assert found == []


def test_broad_handlers_say_whom_they_supervise() -> None:
    """Only a supervisor may catch everything and go on, and it says so on the spot."""
    unexplained = []
    for path in PRODUCT:
        lines = text_of(path).splitlines()
        for node in nodes_of(path):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = node.type.id if isinstance(node.type, ast.Name) else ""
            is_broad = node.type is None or caught in ("Exception", "BaseException")
            reraises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if (
                is_broad
                and not reraises
                and not re.search(r"# noqa: BLE001 +\S", lines[node.lineno - 1])
            ):
                unexplained.append(f"{name(path)}:{node.lineno}")
    assert unexplained == []


def test_no_test_hides_another_of_the_same_name() -> None:
    hidden = []
    for path in SOURCES:
        named = Counter(re.findall(r"def (test_\w+)", text_of(path)))
        body = ast.parse(text_of(path)).body if max(named.values(), default=0) > 1 else []
        for scope in (body, *(node.body for node in body if isinstance(node, ast.ClassDef))):
            tests = [
                node.name
                for node in scope
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
            ]
            hidden += [f"{name(path)}: {test}" for test in tests if tests.count(test) > 1]
    assert hidden == []


READS_WHAT_PROGRAMS_STORED = {
    "src/jetstream_client/sql/query.py",
    "src/jetstream_client/migration/json_lines.py",
    "src/jetstream_client/reading/messages.py",
    "src/jetstream_protocol/bounded_json.py",
    "src/jetstream_protocol/typed_json.py",
}
"""Records and rows of a user may be nested as deeply as Python can read them."""


def test_json_from_elsewhere_is_read_in_one_way() -> None:
    """`json.loads` raises RecursionError for deep nesting, which nobody expects (bounded_json)."""
    reading = {
        name(path)
        for path in PRODUCT
        if name(path).startswith(("src/", "spark_connector/"))
        and re.search(r"(?<!bounded_)\bjson\.loads?\(|from json import|JSONDecoder", text_of(path))
    }
    assert reading == READS_WHAT_PROGRAMS_STORED
