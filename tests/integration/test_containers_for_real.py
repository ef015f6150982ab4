"""The image, three nodes of docker-compose.yml and NATS as containers, one killed under load.

It takes minutes and needs programs that are not everywhere, so it runs when it is asked to:
TEST_CONTAINERS=FOLDER (where images are kept; a second run finds the base there).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.containers.podman import missing_programs

FOLDER = os.environ.get("TEST_CONTAINERS", "")
TREE = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not FOLDER, reason="minutes long: set TEST_CONTAINERS=FOLDER to run it")
@pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {missing_programs()}")
@pytest.mark.timeout(1800)
def test_the_composed_cluster_loses_nothing_when_a_container_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.containers", "all", "--folder", FOLDER],
        cwd=TREE, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "\u2713 image",
        "\u2713 profiles",
        "\u2713 up",
        "\u2713 frozen",
        "\u2713 nothing acknowledged was lost",
    ):
        assert said in done.stdout
