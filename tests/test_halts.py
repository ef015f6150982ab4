"""`python -m tests halts` stops processes of tests for a moment, and nothing else comes of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parent.parent
HALTED = """
import signal, subprocess, time
from pathlib import Path

def state(process):
    return Path(f"/proc/{process.pid}/stat").read_text().split()[2]

def wait_for(process, wanted):
    while state(process) != wanted:
        time.sleep(0.001)

def test_children():
    with (
        subprocess.Popen(["sleep", "600"]) as stopped,
        subprocess.Popen(["sleep", "600"]) as halted,
    ):
        stopped.send_signal(signal.SIGSTOP)
        wait_for(stopped, "T")
        for _ in range(2):
            wait_for(halted, "T")
            wait_for(halted, "S")
        wait_for(halted, "T")
        halted.send_signal(signal.SIGSTOP)
        time.sleep(1.0)  # It would have gone on by now.
        states = [state(stopped), state(halted)]
        stopped.kill()
        halted.kill()
    assert states == ["T", "T"]

def test_failing():
    assert False
"""


def test_processes_stand_still_and_go_on_but_not_those_that_a_test_has_stopped(
    tmp_path: Path,
) -> None:
    file = tmp_path / "test_halted.py"
    file.write_text(HALTED)
    command = [sys.executable, "-m", "tests", "halts", "--seed", "7", "--longest", "0.3", "-q"]
    done = subprocess.run(
        [*command, str(file)], cwd=TREE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done
    assert "1 failed, 1 passed" in done.stdout
    assert re.search(r"^halts: [1-9]\d*, seed 7, exit code 1$", done.stdout, re.MULTILINE), done
