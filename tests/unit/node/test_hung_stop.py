"""A stop ends the process, whatever hangs at a mount or store that does not answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HUNG = """
import asyncio, sys, threading
from jetstream_server.node import app, cli

async def serve(*_):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    {ending}

app.serve = serve
cli.END_SECONDS = 0.1
sys.argv = ["jetstream-server", "--dev", "--data", {folder!r}, "--log-level", "error"]
cli.main()
"""


def code_of(folder: Path, ending: str) -> int:
    program = HUNG.format(ending=ending, folder=str(folder))
    found = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    return found.returncode


def test_a_thread_that_hangs_does_not_keep_a_stopped_process(tmp_path: Path) -> None:
    assert code_of(tmp_path / "data", "return") == 0


def test_nor_one_that_has_failed(tmp_path: Path) -> None:
    failure = "from jetstream_server.node.run_state import StartError; raise StartError('why')"
    assert code_of(tmp_path / "data", failure) == 1
