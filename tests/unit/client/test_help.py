"""What `help()` and a prompt show: the text itself, in both clients, and what an object is at."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import jetstream_client
from jetstream_client import (
    AsyncClient,
    AsyncConsumer,
    AsyncPublisher,
    AsyncScan,
    AsyncTable,
    Client,
    Consumer,
    Publisher,
    Scan,
    Table,
)
from jetstream_client.cli.main import app

PAGE = Path(__file__).parents[3] / "docs" / "sdk.md"
PAIRS: list[tuple[type, type]] = [
    (Client, AsyncClient),
    (Consumer, AsyncConsumer),
    (Publisher, AsyncPublisher),
    (Scan, AsyncScan),
    (Table, AsyncTable),
]


def public(cls: type) -> dict[str, Any]:
    return {
        name: member
        for base in reversed(cls.__mro__)
        if base.__module__.startswith("jetstream_client")
        for name, member in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


@pytest.mark.parametrize("cls", [cls for pair in PAIRS for cls in pair])
def test_help_explains_and_sends_nobody_elsewhere(cls: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(cls))
    assert not re.search(r"\bSee (Async|Client|Table|Scan|Publisher)", shown), shown
    assert inspect.getdoc(cls)
    for name, member in public(cls).items():
        if inspect.isfunction(member):
            assert inspect.getdoc(member), f"{cls.__name__}.{name}"


def test_both_clients_say_the_same_of_a_method() -> None:
    def first_line(member: Any) -> str:
        return (inspect.getdoc(member) or "").partition("\n")[0].replace("AsyncScan", "Scan")

    theirs = public(AsyncClient)
    for name, member in public(Client).items():
        if name not in ("close", "table"):
            assert first_line(member) == first_line(theirs[name]), name


def test_every_public_name_is_on_the_page_of_the_sdk() -> None:
    page = PAGE.read_text()
    missing = [name for name in jetstream_client.__all__ if not re.search(rf"\b{name}\b", page)]
    assert missing == []
    methods = {name for cls, _ in PAIRS for name in public(cls)}
    assert [name for name in sorted(methods) if not re.search(rf"\b{name}\b", page)] == []


def test_the_version_is_that_of_the_package() -> None:
    assert jetstream_client.__version__ == version("jetstream-log")
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        jetstream_client.missing  # noqa: B018


def command_helps() -> Iterator[tuple[str, Any, str]]:
    """Each command's path, the command, and its help as a terminal of 80 columns shows it."""
    waiting: list[tuple[str, Any]] = [("jetstream", get_command(app))]
    while waiting:
        path, command = waiting.pop()
        context = command.context_class(command, info_name=path, terminal_width=78)
        yield path, command, command.get_help(context)
        parts = getattr(command, "commands", {})
        waiting += [(f"{path} {name}", each) for name, each in parts.items()]


def test_an_example_can_be_copied_from_a_terminal_of_80_columns() -> None:
    folded = []
    for _, command, shown in command_helps():
        written = inspect.getdoc(command.callback) or ""
        for line in re.findall(r"^(?:Examples?: +| {2})(.*\bjetstream .*)$", written, re.MULTILINE):
            if line.strip() not in shown:
                folded.append(line)
    assert not folded, folded


def test_a_list_of_commands_cuts_no_sentence() -> None:
    cut = [
        (path, line)
        for path, _, shown in command_helps()
        for line in shown.splitlines()
        if re.fullmatch(r"  \S+  .*\.\.\.", line)
    ]
    assert not cut, cut
