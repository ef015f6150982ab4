"""The image, three nodes of docker-compose.yml and NATS as containers, one killed under load.

It takes two to five minutes and 650 MB, too long beside all other tests on two processors:
`scripts/test all` runs it there. TEST_CONTAINERS=FOLDER asks for it anywhere, and keeps the images
in that folder for the next run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from examples.containers.compose import Compose
from examples.containers.podman import Podman, missing_programs

FOLDER = os.environ.get("TEST_CONTAINERS", "")
TREE = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {missing_programs()}")
@pytest.mark.skipif(
    not FOLDER and (os.cpu_count() or 1) < 4,
    reason="too long on two processors: scripts/test all, or TEST_CONTAINERS=FOLDER",
)
@pytest.mark.timeout(1800)
def test_the_composed_cluster_loses_nothing_when_a_container_is_killed() -> None:
    folder = Path(FOLDER or tempfile.mkdtemp(prefix="containers-"))
    if taken := Compose(Podman(folder)).ports_taken():
        pytest.skip(f"ports of docker-compose.yml are taken on this machine: {taken}")
    done = subprocess.run(
        [sys.executable, "-m", "examples.containers", "all", "--folder", str(folder)],
        cwd=TREE, capture_output=True, text=True,
    )  # fmt: skip
    if not FOLDER:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "\u2713 image",
        "\u2713 profiles",
        "\u2713 up",
        "\u2713 frozen",
        "\u2713 nothing acknowledged was lost",
    ):
        assert said in done.stdout
