"""`python -m tests halts` stops processes of tests for a moment, and nothing else comes of it. It
can have NATS notice late that one has ended."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.late_ends import missing

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

ENDED = """
import subprocess, sys
from tests import late_ends
from tests.support.api import raw_nats
from tests.support.nats_server import NatsServer

SUBSCRIBER = '''
import sys
from tests.support.api import raw_nats
with raw_nats(sys.argv[1]) as client:
    client.subscribe("x")
    print("subscribed", flush=True)
    client.message(600)
'''

def nobody_is_there(client):
    client.publish("x", b"", "_INBOX.a")
    client.sock.sendall(b"PING\\r\\n")
    if (line := client.line()) == b"PONG\\r\\n":
        return False
    assert client.file.read(int(line.split()[-1]) + 2).startswith(b"NATS/1.0 503")
    assert client.line() == b"PONG\\r\\n"
    return True

def test_ended(monkeypatch):
    monkeypatch.setattr(late_ends, "LATE_SECONDS", 3600.0)
    with NatsServer() as nats, raw_nats(nats.url) as client:
        client.subscribe("_INBOX.a")
        assert nobody_is_there(client)
        command = [sys.executable, "-c", SUBSCRIBER, nats.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as subscriber:
            assert subscriber.stdout.readline() == b"subscribed\\n"
            [connection] = late_ends.nats_connections(subscriber.pid)
            connection.close()
            subscriber.kill()
            subscriber.wait()
        assert not nobody_is_there(client)

def test_noticed():
    with NatsServer() as nats, raw_nats(nats.url) as client:
        client.subscribe("_INBOX.a")
        command = [sys.executable, "-c", SUBSCRIBER, nats.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as subscriber:
            assert subscriber.stdout.readline() == b"subscribed\\n"
            subscriber.terminate()
        while not nobody_is_there(client):
            pass
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


def test_nats_gives_messages_to_who_has_ended(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    file = tmp_path / "test_ended.py"
    file.write_text(ENDED)
    command = [sys.executable, "-m", "tests", "halts", "--late-ends", "--only", "nobody", "-q"]
    done = subprocess.run(
        [*command, str(file)], cwd=TREE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done
    assert "2 passed" in done.stdout
    assert "halts: 0," in done.stdout, "no process has that name"
