"""`python -m tests late` has the servers of tests hear late of the metadata, however they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parent.parent
LATE = """
import os, time
from jetstream_client import Client
from jetstream_client.testing import EphemeralServer
from tests.support.server import running_server

def seconds_of_creations(servers):
    with Client(servers) as client:
        begun = time.monotonic()
        for number in range(10):
            client.create_stream(f"s{number}", f"a.{number}")
        return time.monotonic() - begun

def test_forked(tmp_path):
    with running_server(tmp_path / "data") as server:
        assert seconds_of_creations(server.grpc) >= 10 * 0.1

def test_started_anew(tmp_path):
    with EphemeralServer(tmp_path / "data") as server:
        assert seconds_of_creations(server.servers) >= 10 * 0.1

def test_failing():
    assert os.environ["LATE_METADATA"] == ""
"""


def test_servers_hear_late(tmp_path: Path) -> None:
    file = tmp_path / "test_heard.py"
    file.write_text(LATE)
    command = [sys.executable, "-m", "tests", "late", "--seed", "7", "--longest", "0.2", "-q"]
    done = subprocess.run(
        [*command, str(file)], cwd=TREE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done
    assert "1 failed, 2 passed" in done.stdout
    assert "'7 0.2' == ''" in done.stdout
    assert done.stdout.endswith("late: seed 7, exit code 1\n"), done
