"""Which interpreter the scripts take, and what they make of an environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, for an environment in which nothing is installed really."""
    path = TREE / "scripts/environment.py"
    spec = importlib.util.spec_from_file_location("environment", path)
    assert spec is not None
    assert spec.loader is not None
    found: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    monkeypatch.delenv("PYTHON", raising=False)
    found.VENV = tmp_path
    found.STAMP, found.PYTHON = tmp_path / "environment.stamp", str(tmp_path / "bin/python")
    found.installed = list[str]()
    found.run = lambda step, *_: found.installed.append(step)
    found.own_uv = found.have_pip = lambda: None
    found.create = lambda _: program(tmp_path / "bin/python", "exit 0")
    return found


@pytest.mark.parametrize("stamp", ["", "{}", "an older version's"])
def test_an_environment_that_somebody_has_made_is_only_added_to(
    environment: Any, stamp: str
) -> None:
    program(environment.VENV / "bin/python", "exit 0")
    package = program(environment.VENV / "lib/package.py", "")
    if stamp:
        environment.STAMP.write_text(stamp)
    environment.make(environment.read_stamp(), ["server", "sql"])
    assert package.exists()
    assert environment.installed == ["installing server, sql"]


def test_a_run_after_an_interrupted_one_has_the_extras_of_before(
    environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    environment.make(environment.read_stamp(), ["dev", "spark"])
    for step in ("run", "create"):
        with monkeypatch.context() as patch:
            patch.setattr(environment, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                environment.make(environment.read_stamp(), ["server"])
        # The Python of before is away, so that the next one makes the environment anew.
        program(environment.VENV / "bin/python", "exit 1")
    environment.make(environment.read_stamp(), ["sql"])
    assert environment.installed[1:] == ["installing dev, server, spark, sql"]
    assert environment.is_current(environment.read_stamp(), ["dev", "sql"])


def test_versions_that_the_machine_has_not_are_named(tree: Path) -> None:
    done = run(tree, "pythons")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("skipped: it is not on this machine\n") == 4
    named = run(tree, "pythons", "3.98", "3.99")
    assert named.returncode == 1
    assert named.stderr == "\nscripts/pythons: failed: 3.98 3.99\n"
