"""The `jetstream` fixture, used as somebody's own test suite would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jetstream_client import testing
from jetstream_client.testing import EphemeralServer
from jetstream_protocol.extras import install_command

SUITE = """
import os
from jetstream_client import Client

def test_records_are_kept(jetstream):
    jetstream.client.create_stream("orders", subject="orders.>")
    jetstream.client.publish("orders.eu", b"1")
    jetstream.kill()
    jetstream.start()
    assert jetstream.client.fetch("orders").values() == [b"1"]

def test_a_server_that_a_test_ended_is_replaced(jetstream):
    with Client(jetstream.servers, nats=jetstream.nats) as client:
        assert client.list_streams() == []
    assert jetstream.data.is_dir()
    assert jetstream.stop() == 0

def test_one_leaves_streams_and_cursors(jetstream):
    jetstream.client.create_stream("orders", subject="orders.>")
    jetstream.client.publish("orders.eu", b"1")
    jetstream.client.seek_cursor("billing", "orders", "latest")
    jetstream.client.create_stream("gone", subject="gone")
    jetstream.client.seek_cursor("billing", "gone", "latest")
    jetstream.client.delete_stream("gone")
    jetstream.client.close()
    jetstream.began = True

def test_the_next_gets_the_same_server_without_them(jetstream):
    assert jetstream.began
    assert jetstream.client.list_streams() == []
    assert jetstream.client.describe_cursors() == []
    jetstream.client.create_stream("orders", subject="orders.>")
    assert jetstream.client.publish("orders.eu", b"2").offset == 0

def test_the_cluster_is_whole_and_empty_again(jetstream_cluster):
    assert [node.is_running for node in jetstream_cluster.nodes] == [True] * 3
    assert jetstream_cluster.client.list_streams() == []
"""

FORKED = """
import os
import subprocess
import sys
from pathlib import Path

from jetstream_client.testing import _Program
from tests.support.fork_server import fork_server

begin = _Program.begin

def forked(program, command):
    if Path(command[0]).name != "jetstream-server":
        return begin(program, command)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
    command = [sys.executable, "-m", "jetstream_server", *command[1:]]
    with program.log_path.open("a") as log:
        program._process = fork_server.start(
            command, environment=environment, stdout=subprocess.PIPE, stderr=log
        )

_Program.begin = forked
"""
"""The suite's conftest.py: its many servers need not import everything. Those of the tests below
do."""

TREE = Path(__file__).parents[2]
PAGE = TREE / "docs" / "testing.md"


def test_a_suite_gets_real_servers_from_the_fixtures(tmp_path: Path) -> None:
    """The page's suite, and what it does not say."""
    suite = tmp_path / "test_suite.py"
    [of_the_page] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    suite.write_text(of_the_page + SUITE)
    (tmp_path / "conftest.py").write_text(FORKED)
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-c", "/dev/null", "--rootdir", str(tmp_path), *plugin_arguments(), str(suite),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TREE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


def plugin_arguments() -> list[str]:
    """By its entry point where the installed package declares it, else by name."""
    from importlib.metadata import entry_points

    found = entry_points(group="pytest11")
    installed = any(entry.value == "jetstream_client.pytest_plugin" for entry in found)
    return [] if installed else ["-p", "jetstream_client.pytest_plugin"]


def test_ctrl_c_while_a_server_starts_leaves_no_server_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with` does not end what it could not begin."""
    started: list[subprocess.Popen[str]] = []

    def interrupted(process: subprocess.Popen[str]) -> bool:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(testing, "_says_ready", interrupted)
    with pytest.raises(KeyboardInterrupt), EphemeralServer(tmp_path / "data"):
        pass
    assert [process.poll() for process in started] == [-signal.SIGKILL]


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("a file where a folder should be")
    data.with_name("data.log").write_text("of an earlier start\n")
    with (
        pytest.raises(RuntimeError, match=r"did not become ready in \d+ s. Its log") as raised,
        EphemeralServer(data),
    ):
        pass
    assert "earlier" not in str(raised.value)


def test_without_the_server_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=re.escape(install_command("server"))):
        EphemeralServer(tmp_path / "data").start()


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    with EphemeralServer(tmp_path / "data") as server:
        assert server.client.describe_cluster().nats == (server.nats,)
    server.close()
