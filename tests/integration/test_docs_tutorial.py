"""The tutorial: its commands and programs run in order, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

from tests.support.command import jetstream
from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def shown(text: str) -> re.Pattern[str]:
    """What is shown, with `…` for what differs from run to run."""
    pieces = (re.escape(piece) for piece in text.split("…"))
    return re.compile(".*".join(pieces), re.DOTALL)


def test_the_tutorial_runs_and_prints_what_it_shows(own_server: ServerProcess) -> None:
    own_server.start()
    names: dict[str, Any] = {}
    blocks = re.findall(r"```(console|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [kind for kind, _ in blocks].count("python") == 4
    for kind, block in blocks:
        if kind == "python":
            program = block.replace("localhost:9292", own_server.grpc)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(program, "tutorial.md", "exec"), names)
            continue
        for command, expected in re.findall(r"^\$ jetstream (.*)\n((?:[^$].*\n)*)", block, re.M):
            done = jetstream("--server", own_server.grpc, *shlex.split(command))
            assert done.returncode == 0, done.stderr
            assert shown(expected).fullmatch(done.stdout), f"{command}:\n{done.stdout}"
    names["client"].close()
