"""Values that nobody means, for every option of the command line and every parameter of the SDK:
one clear error, and no other exception. No server is there: what it refuses is tested elsewhere.

A line takes a tenth of a second. `python -m tests.unit.client.test_odd_values` tries all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from inspect import isawaitable
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from typer.main import get_command

from jetstream_client import AsyncClient, JetstreamError
from jetstream_client.cli.main import app
from jetstream_client.transport.control import ControlPlane
from jetstream_protocol.errors import UnavailableError
from tests.support.command import jetstream
from tests.support.loops import on_loop

TEXTS = (
    "", " ", "-1", "-0", "1e309", "nan", "-inf", "٣", "0x10", "1.5", "9" * 30, str(2**63),
    "9" * 400 + "s", "-1h", "1ns", "1e999999KiB", "0001-01-01", "9999-12-31T23:59:60Z",
    "9999-12-31T23:59:59-23:59", "@-99999999999", "last:99999999999999999999", "\udcff", "a\nb",
    "\u202e", "a" * 5000, "/nowhere/x", "*", "a..b", "@", "a@b@c", "{", "[" * 2000, "%q", "--", ",",
)  # fmt: skip
NUMBERS = (-1, 0, 2**31, 2**63, 2**64, 10**30)
DURATIONS = (-1, 0, float("nan"), float("-inf"), "x", "", "9" * 400 + "s")
WORDS = {"subject": "a.b", "node": "1", "offset": "1", "position": "1", "max": "1"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in command.commands:
        yield from commands(command.commands[name], (*path, name))


def arguments(path: tuple[str, ...], command: Any, odd: Any, value: str) -> list[str]:
    """A line with that value, and something plain for all else that is required."""
    options = ["--yes"] if any("--yes" in each.opts for each in command.params) else []
    positional = []
    for each in command.params:
        if each is not odd and not each.required:
            continue
        text = value if each is odd else WORDS.get(each.name, "name")
        if each.param_type_name == "argument":
            positional.append(text)
        else:
            options.append(f"{max(each.opts, key=len)}={text}")
    return [*path, *options, "--", *positional]


ENDLESS = (("top",),)
"""They wait for a server."""
OPTIONS = [
    (path, command, each)
    for path, command in commands(get_command(app))
    for each in command.params
    if not getattr(each, "is_flag", False) and path not in ENDLESS
]


async def nobody(*_: object, **__: object) -> None:
    raise UnavailableError("nobody is there")


@pytest.fixture(autouse=True)
def nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlPlane, "call", nobody)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def try_options(every: int) -> None:
    values = cycle(TEXTS)
    for path, command, odd in OPTIONS[::every]:
        for value in ("\udcff", next(values)):
            done = jetstream(*arguments(path, command, odd, value))
            assert done.returncode in (0, 1, 2, 3, 4, 6), done
            if done.returncode:
                assert done.stderr.startswith("error: "), done
                assert path == ("sql",) or done.stderr.count("\n") == 1, done


def test_an_odd_value_of_an_option_is_answered_in_one_line() -> None:
    try_options(every=100)


def parameters() -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """Methods of the client, their parameters, and values for each."""
    for name, method in inspect.getmembers(AsyncClient, inspect.isfunction):
        if name.startswith("_") or name in ("aclose", "list_offsets", "process", "processor"):
            continue
        for each in list(inspect.signature(method).parameters.values())[1:]:
            kind = str(each.annotation)
            if each.kind is not each.VAR_KEYWORD and "int" in kind.split(" | "):
                yield name, each.name, NUMBERS
            elif "Size" in kind:
                yield name, each.name, (*NUMBERS, "", "1XB", "9" * 400 + "TiB")
            elif "Seconds" in kind:
                yield name, each.name, DURATIONS
            elif "str" in kind or "Stream" in kind or "Payload" in kind:
                yield name, each.name, ("", "\ud800", "\udcff", "a\0b", "x" * 70_000, "*", "@")
            elif "Position" in kind:
                yield name, each.name, (-1, 2**63, 10**30, "", "yesterday")


PARAMETERS = list(parameters())
PLAIN: dict[str, Any] = {"value": b"v", "offset": 0, "position": 0, "streams": 1, "node": 1}


@on_loop
async def test_an_odd_value_of_a_parameter_is_an_error_of_the_client() -> None:
    plain: dict[str, Any] = {"value": b"v", "offset": 0, "position": 0, "streams": 1, "node": 1}
    async with AsyncClient(timeout=0.02) as client:
        for method, odd, values in parameters():
            call = getattr(client, method)
            given = {
                each.name: plain.get(each.name, "name")
                for each in inspect.signature(call).parameters.values()
                if each.default is each.empty and each.kind is not each.VAR_KEYWORD
            }
            for value in values:
                with suppress(JetstreamError, TypeError):  # Of what is no text, say.
                    found = call(**{**given, odd: value})
                    if isawaitable(found):
                        await found


if __name__ == "__main__":
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ControlPlane, "call", nobody)
        patch.setenv("XDG_CONFIG_HOME", folder)
        patch.chdir(folder)
        try_options(every=1)
