"""The documentation is held against the code: what it lists exists, what exists it lists."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from pydantic import BaseModel

import jetstream_client
from jetstream_client import StreamDescription
from jetstream_protocol import batch
from jetstream_protocol.errors import CODES
from jetstream_protocol.types import MonotonicUs
from jetstream_server.node import config, metrics
from jetstream_server.serving.metrics import consumer_series, cursor_series, stream_series, sums
from jetstream_server.serving.metrics.histograms import Histograms
from jetstream_server.serving.metrics.sums import StreamSums
from tests.support.sources import TREE, nodes_of, text_of

OF_PROMETHEUS = {"process_open_fds", "process_resident_memory_bytes"}
DOCS = TREE / "docs"
SECURITY = TREE / "SECURITY.md"
CONSUMERS = DOCS / "consumers.md"
PAGES = sorted([TREE / "README.md", TREE / "CHANGELOG.md", SECURITY, *DOCS.rglob("*.md")])


def page(name: str) -> str:
    return (DOCS / name).read_text()


def table_rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row, stripped; header and ruler rows included."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(TREE)))
def test_every_link_between_pages_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text()), target


@pytest.mark.parametrize(
    "path", [DOCS / "guarantees.md", CONSUMERS, SECURITY], ids=lambda path: path.stem
)
def test_every_guarantee_names_a_test_that_exists(path: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text())
    assert len(named) > 20
    for file, test in named:
        assert test in defined_in(TREE / file), f"{file}::{test}"


@cache
def defined_in(path: Path) -> set[str]:
    """The functions and classes of a file."""
    return {*re.findall(r"^ *(?:async )?(?:def|class) (\w+)", path.read_text(), re.MULTILINE)}


def rows_of(path: Path, heading: str) -> list[list[str]]:
    """The rows of the tables of a section, without their headers."""
    section = path.read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    return [row for row in table_rows(section) if not row[0] or not set(row[0]) <= {"-", ":"}][1:]


@pytest.mark.parametrize(
    ("path", "heading"),
    [
        (DOCS / "guarantees.md", "## The guarantees"),
        (DOCS / "guarantees.md", "## Tests of acks, and of read-only and paused streams"),
        (CONSUMERS, "## Tests that show it"),
        (SECURITY, "## Tests that show it"),
    ],
    ids=("guarantees", "acks", "consumers", "security"),
)
def test_every_row_of_the_guarantees_is_shown_by_a_test(path: Path, heading: str) -> None:
    rows = rows_of(path, heading)
    assert rows
    for row in rows:
        assert "::test_" in row[-1], row[0]


def test_every_row_of_what_is_lost_is_shown_by_a_test() -> None:
    shown = [row[0] for row in rows_of(CONSUMERS, "## Tests that show it")]
    lost = [row[0] for row in rows_of(CONSUMERS, "## What is lost, repeated, reordered")]
    assert len(lost) > 10
    assert shown[: len(lost)] == lost


def test_every_row_of_acks_and_of_access_is_shown_by_a_test() -> None:
    guarantees = DOCS / "guarantees.md"
    rows = [row[:2] for row in rows_of(guarantees, "## What an ack means") if len(row) == 5]
    heads = [at for at, row in enumerate(rows) if row[0].startswith("acknowledged")]
    assert len(heads) == 1  # The first is left out already.
    acks = [f"one replica: {', '.join(row)}" for row in rows[: heads[0]]]
    acks += [f"three replicas: {', '.join(row)}" for row in rows[heads[0] + 1 :]]
    access = [row[0] for row in rows_of(guarantees, "## Read-only and paused streams")]
    shown = rows_of(guarantees, "## Tests of acks, and of read-only and paused streams")
    assert len(acks) == 10
    assert [row[0] for row in shown] == acks + access


def test_every_step_of_the_walk_names_functions_of_its_files() -> None:
    sources = {str(path): path.read_text() for path in (TREE / "src").rglob("*.py")}
    steps = [row for row in table_rows(page("architecture.md")) if row[0].isdigit()]
    assert len(steps) > 20
    for _, _, files, functions in steps:
        named = re.findall(r"`([\w/]+\.pyx?)`", files)
        found = "".join(
            text for file, text in sources.items() for each in named if file.endswith(each)
        )
        for owner, function in re.findall(r"`(?:(\w+)\.)?(\w+)`", functions):
            assert re.search(rf"def {function}\(", found), f"{function} of {files}"
            assert not owner or re.search(rf"class {owner}\b", found), f"{owner} of {files}"


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements += extra
    used = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in requirements}
    explained = set()
    for row in table_rows(page("adr/0002-dependencies.md")):
        explained |= set(re.findall(r"`([^`]+)`", row[0]))
    assert explained == used - {"jetstream-log"}


def test_no_page_installs_by_a_name_that_a_stranger_could_register() -> None:
    """The package is on no public index: pages install a checkout, or a wheel's file."""
    named = [
        f"{path.relative_to(TREE)}: {line}"
        for path in [TREE / "README.md", *(TREE / "docs").rglob("*.md")]
        for line in path.read_text().splitlines()
        if re.search(r"pip install (-\S+ )*['\"]?jetstream-log", line)
    ]
    assert named == []


def test_every_public_class_and_function_has_a_docstring_of_its_own() -> None:
    public = {name: getattr(jetstream_client, name) for name in jetstream_client.__all__}
    silent = [
        name
        for name, value in public.items()
        if isinstance(value, type) or callable(value)
        if not vars(value).get("__doc__") and getattr(value, "__module__", "") != "typing"
    ]
    assert silent == []


def test_every_public_member_of_the_client_has_a_docstring() -> None:
    missing = []
    for name in jetstream_client.__all__:
        cls = getattr(jetstream_client, name)
        if not inspect.isclass(cls):
            continue
        for base in cls.__mro__:
            if not base.__module__.startswith("jetstream_"):
                continue
            for member, value in vars(base).items():
                function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if member.startswith("_") or not inspect.isfunction(function):
                    continue
                if not inspect.getdoc(getattr(cls, member)):
                    missing.append(f"{name}.{member}")
    assert missing == []


def test_the_table_of_errors_is_the_one_of_the_code() -> None:
    section = page("protocol.md").partition("## Errors")[2]
    documented = {row[0]: row[1:5] for row in table_rows(section) if row[0].startswith("`")}
    actual = {
        f"`{spelling.code}`": [
            spelling.grpc_status,
            str(spelling.nats_code),
            str(spelling.nats_err_code),
            "yes" if error.retriable else "no",
        ]
        for error, spelling in CODES.items()
    }
    assert documented == actual


def test_the_table_of_batch_flags_is_the_one_of_the_code() -> None:
    section = page("file_formats.md").partition("### Flags")[2].partition("\n### ")[0]
    documented = {row[2].strip("`"): int(row[1]) for row in table_rows(section) if "`" in row[2]}
    assert documented == {flag.name: flag.value for flag in batch.Flags}


def test_the_table_of_the_batch_header_is_the_one_of_the_code() -> None:
    section = page("file_formats.md").partition("### Header")[2].partition("\n### ")[0]
    documented = [row[2] for row in table_rows(section) if row[0].isdigit()]
    assert documented == ["magic", *batch.BatchHeader._fields, "header_crc"]


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every configuration key, dotted; list items as `nodes[]`."""
    for name, field in model.model_fields.items():
        nested = [kind for kind in _models(field.annotation) if kind is not config.Endpoint]
        is_list = getattr(field.annotation, "__origin__", None) is list and nested
        key = f"{prefix}{name}{'[]' if is_list else ''}"
        if not nested:
            yield key
        for kind in nested:
            yield from keys(kind, f"{key}.")


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


def test_every_configuration_key_is_described() -> None:
    section = page("operations/configuration.md")
    documented = {row[0].strip("`") for row in table_rows(section) if row[0].startswith("`")}
    assert documented == set(keys(config.Config))


@cache
def logged_events() -> set[str]:
    """The event of every structured log call that asks for attention."""
    events = set()
    for path in (TREE / "src").rglob("*.py"):
        text = text_of(path)
        if "get_logger" not in text:
            continue
        tree = ast.parse(text)
        loggers = _loggers(tree)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls:
            called = call.func
            if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
                continue
            asks = called.attr in ("warning", "error", "critical", "log")
            if asks and called.value.id in loggers:
                # An event may be chosen by an expression: each string in it is one.
                for argument in call.args:
                    events |= {
                        part.value
                        for part in ast.walk(argument)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    }
    return events


def _loggers(tree: ast.Module) -> set[str]:
    """The module's names for structlog loggers."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and "get_logger" in ast.dump(node):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_every_log_line_that_asks_for_action_is_described() -> None:
    section = page("operations/log_lines.md")
    documented = {row[0].strip("`") for row in table_rows(section) if row[0].startswith("`")}
    assert documented == logged_events()


def test_every_metric_is_described() -> None:
    section = page("operations/metrics.md")
    documented = {row[0].strip("`") for row in table_rows(section) if row[0].startswith("`")}
    collected = [
        *metrics.families(None),
        *sums.families(StreamSums()),
        *Histograms().collect(),
        *stream_series.series([], MonotonicUs(0)),
        *cursor_series.series([], 0),
        *consumer_series.series([]),
    ]
    assert documented == {
        f"{family.name}_total" if family.type == "counter" else family.name for family in collected
    }


def test_every_field_that_describe_shows_is_explained() -> None:
    explained = {
        name
        for row in table_rows(page("operations/describe.md"))
        for name in re.findall(r"`(\w+)`", row[0])
    }
    assert explained == {each.name for each in dataclasses.fields(StreamDescription)}


def test_metrics_events_and_errors_named_in_the_runbook_exist() -> None:
    metrics = set(re.findall(r"^\| `(\w+)`", page("operations/metrics.md"), re.MULTILINE))
    spelled = {spelling.code for spelling in CODES.values()}
    known = {path.stem for path in (DOCS / "operations").glob("*.md")} | logged_events() | spelled
    known |= {each.name for each in dataclasses.fields(StreamDescription)}
    for row in table_rows(page("operations/troubleshooting.md")):
        text = " ".join(row)
        series = set(re.findall(r"`(jetstream_\w+)`", text))
        assert series <= metrics, series - metrics
        words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text)) - series - OF_PROMETHEUS
        assert words <= known | set(keys(config.Config)), words - known


@pytest.mark.parametrize("path", sorted((TREE / "config").glob("*.yaml")), ids=lambda p: p.name)
def test_the_example_configurations_load(path: Path) -> None:
    loaded = config.load(path, environment={})
    assert loaded.nodes


REFERENCE = re.compile(r'(docs/[\w/-]+\.md)(?:, "([^"]+)")?')
MODULE = re.compile(r"(?<![\w./*-])((?:[\w-]+/)*[\w-]+\.pyx?)\b(?!\.\w)")
OF_OTHERS = {"setup.py", "pyspark/daemon.py"}


def test_pages_and_sections_named_in_the_code_exist() -> None:
    headings = {}
    for page in (TREE / "docs").rglob("*.md"):
        found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        headings[str(page.relative_to(TREE))] = found
    lost = [
        f"{path.relative_to(TREE)} names {page}, {section!r}"
        for path in written_by_us()
        if "docs/" in text_of(path)
        for page, section in REFERENCE.findall(re.sub(r"\n\s*(?:# ?)?", " ", text_of(path)))
        if page not in headings or (section and section not in headings[page])
    ]
    assert lost == []


def test_modules_named_in_code_and_pages_exist() -> None:
    ours = written_by_us()
    known = {str(path.relative_to(TREE)) for path in ours}
    parts = [path.split("/") for path in known]
    ends = {"/".join(each[start:]) for each in parts for start in range(len(each))} | OF_OTHERS

    def unknown(text: str) -> list[str]:
        return [name for name in MODULE.findall(text) if name not in ends]

    lost = [
        f"{path.relative_to(TREE)} names {name}"
        for path in [*ours, *(TREE / "docs").rglob("*.md"), TREE / "README.md"]
        if path != Path(__file__) and "CHANGELOG" not in path.name and unknown(text_of(path))
        for name in unknown(read(path).prose)
    ]
    assert lost == []


def written_by_us() -> list[Path]:
    folders = ("src", "proto", "tests", "spark_connector", "benchmarks", "examples", "scripts")
    files = [path for folder in folders for path in (TREE / folder).rglob("*.p[yr]*")]
    return [
        path
        for path in [*files, TREE / "hatch_build.py"]
        if path.suffix in {".py", ".pyx", ".proto"} and path.is_file()
    ]


class Read(NamedTuple):
    """What the tests want to know of a file. prose: pages as they are; of code the comments and
    docstrings. classes: of code, the names in each."""

    prose: str
    classes: list[tuple[str, set[str]]]


@cache
def read(path: Path) -> Read:
    text = text_of(path)
    if path.suffix != ".py":
        return Read(text, [])
    nodes = nodes_of(path)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    comments = re.findall(r"(?<![\"'])# (.*)$", text, re.MULTILINE)
    classes = [(node.name, names_in(node)) for node in nodes if isinstance(node, ast.ClassDef)]
    return Read("\n".join([*found, *comments]), classes)


def test_every_page_is_in_the_site_s_navigation() -> None:
    navigation = (TREE / "ops/site/mkdocs.yml").read_text()
    listed = re.findall(r"^ +- .+: ([\w/]+\.md)$", navigation, re.MULTILINE)
    pages = [*DOCS.glob("*.md"), *(DOCS / "operations").glob("*.md")]
    names = [path.relative_to(DOCS).as_posix() for path in pages]
    assert sorted(listed) == sorted(["index.md", *names])


MEMBER = re.compile(r"(?:\bSee |`)([A-Z][a-z]\w*)\.(\w+)")


def test_members_of_our_classes_named_in_code_and_pages_exist() -> None:
    """`Class.member` and "See Class.member"; classes of others are not looked at."""
    ours = written_by_us()
    places: dict[str, list[Path]] = {}
    for path in ours:
        for owner in re.findall(r"^ *class (\w+)", text_of(path), re.MULTILINE):
            places.setdefault(owner, []).append(path)

    @cache
    def names(owner: str) -> set[str]:
        found = (each for path in places.get(owner, []) for each in read(path).classes)
        return set[str]().union(*(named for name, named in found if name == owner))

    def is_member(owner: str, member: str) -> bool:
        bases = names(owner) & places.keys() - {owner}
        return member in names(owner) or any(member in names(base) for base in bases)

    lost = [
        f"{path.relative_to(TREE)} names {owner}.{member}"
        for path in [*ours, *(TREE / "docs").rglob("*.md"), TREE / "README.md"]
        if MEMBER.search(text_of(path))  # Else there is no need to parse it.
        for owner, member in MEMBER.findall(read(path).prose)
        if names(owner) and not is_member(owner, member)
    ]
    assert lost == []


def names_in(node: ast.ClassDef) -> set[str]:
    """All names in a class, those of its bases included."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(each.name)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.Name):
            found.add(each.id)
    return found
