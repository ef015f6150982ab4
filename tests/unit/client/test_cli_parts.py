"""The command's parts are loaded when they are used, and help says of them what they say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

import jetstream_client
from jetstream_client import _WHERE
from jetstream_client.cli.main import app
from jetstream_client.cli.parts import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable

HEAVY = {"grpc", "google.protobuf", "asyncio", "pydantic", "nats", "rich", "pyarrow", "duckdb"}


def loaded_by(program: str, names: Iterable[str]) -> set[str]:
    """Which of these modules a process has loaded at the end of the program."""
    end = f"\nimport sys; print(*({set(names)!r} & sys.modules.keys()), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program + end], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done
    return set(done.stderr.split())


def test_help_loads_nothing_that_it_does_not_need() -> None:
    program = "from jetstream_client.cli.main import run; run(['--help'])"
    assert loaded_by(program, HEAVY) == set()


def test_the_help_of_one_group_loads_no_other() -> None:
    program = "from jetstream_client.cli.main import run; run(['cursor', '--help'])"
    modules = {f"jetstream_client.cli.commands.{part.module}" for part in PARTS.values()}
    assert loaded_by(program, modules) == {"jetstream_client.cli.commands.cursor"}


@pytest.mark.parametrize("name", PARTS)
def test_the_root_says_of_a_command_what_it_says_itself(name: str) -> None:
    root: Any = get_command(app)
    assert root.commands[name].get_short_help_str(200) == PARTS[name].help


def test_type_checkers_find_every_public_name_where_programs_do() -> None:
    module = ast.parse(Path(jetstream_client.__file__).read_text())
    imports: Any = next(each for each in module.body if isinstance(each, ast.If)).body
    read = {(each.module, name.name) for each in imports for name in each.names}
    loaded = {(where, name) for where, names in _WHERE.items() for name in names.split()}
    assert read == loaded
    assert set(dir(jetstream_client)) >= set(jetstream_client.__all__)
