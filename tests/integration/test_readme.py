"""What the README shows a newcomer works as written."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

from tests.support.server import running_server

TREE = Path(__file__).parents[2]


def code_block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", (TREE / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_python_of_the_readme_publishes_and_fetches(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        program = code_block("python").replace("localhost:9292", server.grpc)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program, "README.md", "exec"), {})
    assert output.getvalue() == "0 orders.eu b'hello'\n"


def test_the_python_of_the_readme_is_six_lines() -> None:
    assert len([line for line in code_block("python").splitlines() if line.strip()]) == 6


def test_what_the_readme_shows_of_real_runs_is_what_happens() -> None:
    """All but the figures. `scripts/record` makes it so again."""
    subprocess.run([sys.executable, "-m", "examples.readme", "--check"], cwd=TREE, check=True)


def test_the_second_line_says_what_this_is_not() -> None:
    lines = [line for line in (TREE / "README.md").read_text().splitlines() if line]
    assert lines[1].startswith("**This is not NATS JetStream.**")


def test_every_script_is_posix_shell() -> None:
    for path in [*(TREE / "scripts").iterdir(), TREE / ".ci/run"]:
        if path.suffix or not path.is_file():
            continue
        assert path.read_text().startswith("#!/bin/sh\n"), path.name
        subprocess.run(["sh", "-n", path], check=True)


def test_the_environment_needs_only_the_standard_library() -> None:
    """It runs before anything is installed."""
    program = "import sys; sys.argv[1:] = []; import runpy; runpy.run_path(sys.argv[0])"
    path = TREE / "scripts/environment.py"
    command = [sys.executable, "-I", "-S", "-c", program.replace("sys.argv[0]", repr(str(path)))]
    subprocess.run(command, check=True)
