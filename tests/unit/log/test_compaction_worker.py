"""The compaction process by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("said", ["", '{"task": {"dir'], ids=["nothing", "half a line"])
def test_a_worker_whose_server_died_before_it_said_what_to_do_ends_without_a_word(
    said: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jetstream_server.log.compaction_worker"],
        input=said,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
