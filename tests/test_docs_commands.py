"""Every command that a page shows is one of the real command line: its name, its options, the
values of options that take one of a few, and, in blocks, the arguments that it must have. None is
run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from jetstream_client.cli.main import app
from jetstream_server.node.cli import command as server

TREE = Path(__file__).resolve().parent.parent
PAGES = [
    TREE / "README.md",
    TREE / "CHANGELOG.md",
    # Decision records also show commands that were considered and not built.
    *sorted(path for path in (TREE / "docs").rglob("*.md") if path.parent.name != "adr"),
]
COMMANDS: dict[str, Any] = {
    "jetstream": typer.main.get_command(app),
    "jetstream-server": typer.main.get_command(server),
}
GROUPS = {
    name for name, each in COMMANDS["jetstream"].commands.items() if hasattr(each, "commands")
}
OF_A_SHELL = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>"}
ELLIPSIS = {"…", "..."}
LABELS = {
    "jetstream acks/",
    "jetstream batches",
    "jetstream key id",
    "jetstream call/METHOD/SENDER/TARGET/INCARNATION",
}
"""What is signed or derived from, in protocol.md and file_formats.md: no commands."""
OF_NATS = {"stream add", "stream cluster step-down", "stream view"}
"""Commands of `nats` that coming_from_jetstream.md compares with ours."""
OUTPUT = re.compile(r"jetstream-server (not )?ready\b")
STATES = {"stream deleted", "stream re-created"}
"""Of a cursor."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(TREE)))
def test_every_command_shown_exists_as_it_is_shown(path: Path) -> None:
    wrong = []
    for line, whole in commands_in(path.read_text()):
        try:
            check_all(line, whole=whole)
        except Wrong as error:
            wrong.append(f"{line}: {error}")
    assert wrong == []


def test_the_runbook_s_commands_are_found() -> None:
    found = [each for path in PAGES for each in commands_in(path.read_text())]
    assert sum(whole for _, whole in found) > 60
    assert sum(not whole for _, whole in found) > 100


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```\njetstream fetch orders --no-such-option\n```", "--no-such-option"),
        ("```\n$ jetstream stream create \\\n    --replicas 3\n```", "NAME"),
        ("```\njetstream fetch orders orders --json | jq .\n```", "orders"),
        ("    jetstream-server --config\n", "--config"),
        ("Run `jetstream stream destroy orders`.", "destroy"),
        ("Run `jetstream node drain --for-ever`.", "--for-ever"),
        ("Run `node drain --for-ever`.", "--for-ever"),
        ("Run `jetstream stream list|destroy`.", "destroy"),
        ("`jetstream export orders --format papyrus`", "papyrus"),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, complaint: str) -> None:
    ((line, whole),) = commands_in(text)
    with pytest.raises(Wrong, match=re.escape(complaint)):
        check_all(line, whole=whole)


class Wrong(Exception):
    """The command line knows no such command."""


def commands_in(text: str) -> Iterator[tuple[str, bool]]:
    """The commands of a page, and whether each is whole: in text, arguments may be left out."""
    for _, block in re.findall(r"^( *)```.*?\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        yield from ((line, True) for line in commands_of_block(block))
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"^    (?:\$ )?(jetstream(?:-server)? .+)$", prose, re.MULTILINE):
        yield line, True
    for code in re.findall(r"`([^`]+)`", prose):
        code = " ".join(code.replace("\\|", "|").split())
        if code in LABELS | OF_NATS | STATES or OUTPUT.match(code):
            continue
        if re.match(r"jetstream(-server)? ", code):
            yield code, False
        elif code.partition(" ")[0] in GROUPS and re.fullmatch(r"\w+ [a-z|-]+( .*)?", code):
            yield f"jetstream {code}", False


def commands_of_block(block: str) -> Iterator[str]:
    """Lines that go on after a backslash, or within quotes, are put together."""
    lines = iter(block.splitlines())
    for line in lines:
        found = re.match(r"\s*(?:\$ |sudo )*((?:[A-Z_]+=\S+ )*)(jetstream(?:-server)? .*)", line)
        if not found or OUTPUT.match(found[2]):
            continue
        command = found[2]
        while True:
            command = command.rstrip()
            if command.endswith("\\"):
                command = f"{command[:-1]} {next(lines)}"
                continue
            try:
                shlex.split(command, comments=True)
            except ValueError:
                command = f"{command} {next(lines)}"
                continue
            break
        yield command


def alternatives(line: str) -> Iterator[list[str]]:
    """The words of one command. `add|use|list` stands for three; a shell's `|` ends it."""
    words: list[str] = []
    for word in shlex.split(line, comments=True):
        if word in OF_A_SHELL:
            break
        words.append(word)
    words = [word for word in words if word not in ELLIPSIS]
    several = next((at for at, word in enumerate(words) if re.fullmatch(r"[a-z|-]+", word)
                    and "|" in word), None)  # fmt: skip
    if several is None:
        yield words
        return
    for each in words[several].split("|"):
        yield [*words[:several], each, *words[several + 1 :]]


def check_all(line: str, *, whole: bool) -> None:
    for words in alternatives(line):
        check(words, whole=whole)


def check(words: list[str], *, whole: bool) -> None:
    """Raise Wrong unless the command line takes these words."""
    command, rest = COMMANDS[words[0]], words[1:]
    while True:
        context = command.context_class(command, info_name=words[0])
        try:
            # In text, "`--max-age`" may stand without the value that it needs.
            spare = [] if whole else ["VALUE"]
            values, left, _ = command.make_parser(context).parse_args([*rest, *spare])
            left = left[: len(left) - 1] if left[-1:] == spare else left
        except Exception as error:
            raise Wrong(getattr(error, "message", str(error)) or repr(error)) from error
        check_choices(command, values)
        if not hasattr(command, "commands"):
            break
        if not left:
            return
        name, rest = left[0], left[1:]
        if name not in command.commands:
            raise Wrong(f"no command {name}")
        command = command.commands[name]
    if left:
        raise Wrong(f"more than it takes: {' '.join(left)}")
    for parameter in command.params:
        if whole and parameter.required and values.get(parameter.name) in (None, ()):
            raise Wrong(f"without {parameter.name.upper()}")


def check_choices(command: Any, values: dict[str, Any]) -> None:
    for parameter in command.params:
        kind = parameter.type_descriptor.annotation
        value = values.get(parameter.name)
        if not isinstance(value, str) or value.isupper():
            continue
        if isinstance(kind, type) and issubclass(kind, Enum):
            allowed = {str(each.value) for each in kind}
        else:
            allowed = {each for each in get_args(kind) if isinstance(each, str)}
        if allowed and value not in allowed:
            raise Wrong(f"{value} is none of {', '.join(sorted(allowed))}")
