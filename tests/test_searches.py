"""`python -m tests` knows every search for faults that the pages name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.__main__ import SEARCHES

TREE = Path(__file__).parent.parent
PAGES = (TREE / "CONTRIBUTING.md", TREE / "docs/chaos.md", TREE / "docs/simulation.md")
NO_SEARCHES = {"tests.unit.metadata.raft_disks", "tests.unit.metadata.raft_voters"}
"""They print what a test does."""


def test_every_search_that_the_pages_name_is_listed() -> None:
    text = "".join(page.read_text() for page in PAGES)
    named = {each.rstrip(".") for each in re.findall(r"python -m (tests\.[a-z_.]+)", text)}
    assert len(named) > 5
    assert named - NO_SEARCHES <= {module for module, _ in SEARCHES.values()}


@pytest.mark.parametrize("name", ["log", "lasting"])
def test_a_search_takes_its_own_options(name: str) -> None:
    command = [sys.executable, "-m", "tests", name, "--help"]
    said = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.startswith("usage: ")


def test_an_unknown_search_is_refused() -> None:
    command = [sys.executable, "-m", "tests", "nothing"]
    said = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60)
    assert said.returncode == 2
    assert "`python -m tests` lists them" in said.stderr
