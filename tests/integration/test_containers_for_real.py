"""The image, three nodes of docker-compose.yml and NATS as containers, one killed under load.

It takes three minutes or more, and keeps up to 1 GB in memory, where something can be mounted.
TEST_CONTAINERS=FOLDER keeps the images in that folder for the next run.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.containers.compose import Compose
from examples.containers.podman import Podman, missing_programs
from tests.support.small_disk import SmallDisk

FOLDER = os.environ.get("TEST_CONTAINERS", "")
SIZE_BYTES_MAX = 4 << 30
TREE = Path(__file__).resolve().parents[2]
CANNOT_FETCH = re.compile(
    r"E: (Failed (getting release file|to fetch)|Invalid Release file|Couldn't download"
    r"|Unable to (fetch|locate)).*"
)
"""What debootstrap and apt-get say without a network, or where no package lists were fetched."""


def containers(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.containers", command, "--folder", str(folder)],
        cwd=TREE, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    if FOLDER:
        yield Path(FOLDER)
        return
    with tempfile.TemporaryDirectory(prefix="containers-") as name, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            # dpkg waits for the disk at every file.
            stack.enter_context(contextlib.closing(SmallDisk(Path(name), SIZE_BYTES_MAX)))
        yield Path(name)


@pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {missing_programs()}")
@pytest.mark.timeout(1800)
def test_the_composed_cluster_loses_nothing_when_a_container_is_killed(folder: Path) -> None:
    if taken := Compose(Podman(folder)).ports_taken():
        pytest.skip(f"ports of docker-compose.yml are taken on this machine: {taken}")
    done = containers("base", folder)
    if found := done.returncode and CANNOT_FETCH.search(done.stdout + done.stderr):
        pytest.skip(f"Debian's packages cannot be fetched here: {found[0]}")
    assert done.returncode == 0, done.stdout + done.stderr
    done = containers("all", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "\u2713 image",
        "\u2713 profiles",
        "\u2713 up",
        "\u2713 frozen",
        "\u2713 nothing acknowledged was lost",
    ):
        assert said in done.stdout
