"""A forked process is like one that was started anew: what a test says of it, holds of that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.forked_nodes import ForkedNodes


def forked(code: str, **environment: str) -> ForkedProcess:
    return fork_server.start(
        [sys.executable, "-m", "tests.support.run_code", code, "one", "two"],
        environment=environment,
        stdout=subprocess.PIPE,
        stderr=2,
    )


def said(process: ForkedProcess) -> str:
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.read()


def test_it_has_the_environment_the_arguments_and_the_descriptors_it_is_given() -> None:
    code = (
        "import json, os, sys; print(json.dumps([dict(os.environ), "
        "sys.argv[1:], os.listdir('/proc/self/fd'), os.getcwd()]))"
    )
    process = forked(code, ONE="1")
    environment, arguments, descriptors, folder = json.loads(said(process))
    assert environment == {"ONE": "1"}
    assert arguments == ["one", "two"]
    assert sorted(descriptors) == ["0", "1", "2", "3"]  # 3 lists them.
    assert folder == os.getcwd()
    assert process.wait(60) == 0


def test_it_is_told_on_its_stdin_what_to_do_and_hears_the_end() -> None:
    process = fork_server.start(
        [sys.executable, "-m", "tests.support.run_code", "import sys; print(sys.stdin.read())"],
        environment={},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=2,
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write("one\n")
    assert said(process) == "one\n\n"
    assert process.wait(60) == 0


def test_its_exit_status_is_told_and_it_exits_as_any_other() -> None:
    process = forked("import atexit, sys; atexit.register(print, 'the end'); sys.exit(3)")
    assert said(process) == "the end\n"
    assert process.wait(60) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_signals_end_it(number: signal.Signals) -> None:
    process = forked("import time; print('begun', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(60) == -number
    assert said(process) == ""


def test_no_two_draw_the_same_random_numbers() -> None:
    code = "import random, secrets; print(random.random(), secrets.token_hex())"
    first, second = (said(forked(code)).splitlines()[0] for _ in range(2))
    assert first != second


def test_threads_may_wait_for_its_end_together() -> None:
    for _ in range(20):
        process = forked("pass")
        said(process)
        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(lambda each: each.wait(60), [process] * 8)) == {0}


def test_a_network_knows_at_once_who_was_started_and_who_has_ended(tmp_path: Path) -> None:
    nodes = ForkedNodes(tmp_path / "nodes")
    command = [sys.executable, "-m", "tests.support.run_code", "import time; time.sleep(600)"]
    with nodes.changing():
        nodes.start("one", command)
        nodes.start("two", command)
    assert nodes.started() == nodes.pids()
    assert nodes.end("one", signal.SIGKILL)
    assert [*nodes.started()] == ["two"]
    assert nodes.end("two", signal.SIGKILL)
    assert nodes.started() == {}
