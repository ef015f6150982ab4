"""The compaction process by itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WORKER = "jetstream_server.log.compaction.worker"


@pytest.mark.parametrize("said", ["", '{"task": {"dir'], ids=["nothing", "half a line"])
def test_a_worker_whose_server_died_before_it_said_what_to_do_ends_without_a_word(
    said: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", WORKER],
        input=said,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_worker_whose_server_died_while_it_worked_ends_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", f"from {WORKER} import _send; _send({{}}); print('went on')"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
