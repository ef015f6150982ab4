"""Which interpreter the scripts take."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The scripts in a tree of their own, with a machine's programs without any Python."""
    shutil.copytree(TREE / "scripts", tmp_path / "scripts")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "sh"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run(tree: Path, script: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(tree / "bin"), "HOME": str(tree), **more}
    return subprocess.run(
        [str(tree / "scripts" / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        cwd=os.path.sep,
    )


def test_a_version_that_path_refuses_to_run_is_found_where_pyenv_keeps_it(tree: Path) -> None:
    """As pyenv's own python3.13 does where another version is the chosen one."""
    program(tree / "bin/python9.9", "exit 127")
    program(tree / ".pyenv/versions/9.90.1/bin/python", "echo 9.90.1")
    kept = program(tree / ".pyenv/versions/9.9.1/bin/python", "echo 9.9.1")
    for version in ("9.9", "9.9.1"):
        found = run(tree, "find-python", version)
        assert (found.returncode, found.stdout) == (0, f"{kept}\n")
    missing = run(tree, "find-python", "9.8")
    assert (missing.returncode, missing.stdout, missing.stderr) == (1, "", "")


def test_a_version_on_path_comes_first(tree: Path) -> None:
    chosen = program(tree / "bin/python9.9", "echo 9.9.2")
    program(tree / ".pyenv/versions/9.9.1/bin/python", "echo 9.9.1")
    assert run(tree, "find-python", "9.9").stdout == f"{chosen}\n"


@pytest.mark.parametrize("asked", ["3.99", "/no/such/python", "old"])
def test_an_environment_is_made_by_the_interpreter_asked_for_or_by_none(
    tree: Path, asked: str
) -> None:
    (tree / "bin/python3").symlink_to(sys.executable)
    program(tree / "bin/old", "exit 1")
    done = run(tree, "environment", PYTHON=asked)
    assert done.returncode == 1
    assert asked in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tree / ".venv").exists()


def test_versions_that_the_machine_has_not_are_named(tree: Path) -> None:
    done = run(tree, "pythons")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("skipped: it is not on this machine\n") == 4
    named = run(tree, "pythons", "3.98", "3.99")
    assert named.returncode == 1
    assert named.stderr == "\nscripts/pythons: failed: 3.98 3.99\n"
