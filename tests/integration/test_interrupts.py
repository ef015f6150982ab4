"""Commands that are ended early: by Ctrl-C at any moment, by a reader that leaves, by a server that
hangs up. On standard error there is nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.lake_streams import until
from tests.support.server import ServerProcess, free_port_base

BEGIN = (
    "from jetstream_command import client, end_at_interrupt, server\n"
    "end_at_interrupt()\n"
    "print('begun', flush=True)\n"
)
JETSTREAM = [sys.executable, "-c", BEGIN + "client()"]
SERVER = [sys.executable, "-c", BEGIN + "server()"]
INTERRUPTED = (130, -signal.SIGINT)
"""As shells see it both are 130."""

COMMANDS = {
    "fetch": ["fetch", "early", "--follow"],
    "publish": ["publish", "early.x", "-"],
    "count": ["publish", "early.x", "v", "--count", "10000000"],
    "sql": ["sql", "select sum(a.range * b.range) from range(1000000) a, range(1000000) b"],
    "export": ["export", "early", "--from", "0", "--to", "1000000000"],
    "list": ["stream", "list", "--watch"],
    "top": ["top"],
    "bench": ["bench", "publish", "early.bench", "--messages", "100000000"],
    "silent": ["cluster", "status", "--server", "SILENT", "--timeout", "60"],
}


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def commands(silent: str) -> dict[str, list[str]]:
    return {
        name: [word.replace("SILENT", silent) for word in command]
        for name, command in COMMANDS.items()
    }


@pytest.fixture(scope="module")
def environment(server: ServerProcess) -> dict[str, str]:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("early", "early.>")
        client.publish("early.x", b"1")
    return {**os.environ, "JETSTREAM_SERVERS": server.grpc}


def begun(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process in which our first line has run: what Python says before that is Python's."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Which we have set for ourselves by importing the client.
        env={name: value for name, value in environment.items() if name != "GRPC_VERBOSITY"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def interrupt(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)


def ended(process: subprocess.Popen[bytes]) -> int:
    with process:
        try:
            _, stderr = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert stderr == b""
    return process.returncode


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.4, 0.8])
def test_ctrl_c_in_the_first_second_ends_a_command_without_a_word(
    environment: dict[str, str], delay: float
) -> None:
    process = begun([*JETSTREAM, *COMMANDS["fetch"]], environment)
    time.sleep(delay)
    interrupt(process)
    assert ended(process) in INTERRUPTED


def test_ctrl_c_ends_every_command_without_a_word(environment: dict[str, str], silent: str) -> None:
    processes = [
        begun([*JETSTREAM, *command], environment) for command in commands(silent).values()
    ]
    time.sleep(3.0)
    for process in processes:
        interrupt(process)
    codes = [ended(process) for process in processes]
    assert [code for code in codes if code not in INTERRUPTED] == []


def test_ctrl_c_twice_ends_every_command_without_a_word(
    environment: dict[str, str], silent: str, tmp_path: Path
) -> None:
    """All are at work: a fork need not import first."""
    processes = [
        forked(tmp_path / name, BEGIN + "client()", command, environment)
        for name, command in commands(silent).items()
    ]
    for name in COMMANDS:
        until(lambda name=name: (tmp_path / f"{name}.out").read_bytes().startswith(b"begun"))  # type: ignore[misc]
    time.sleep(1.0)
    for process in processes:
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
    for process in processes:
        with process:
            assert process.wait(60) in INTERRUPTED
    assert {name: (tmp_path / f"{name}.err").read_bytes() for name in COMMANDS} == dict.fromkeys(
        COMMANDS, b""
    )


def forked(
    said: Path, code: str, arguments: list[str], environment: Mapping[str, str]
) -> ForkedProcess:
    """For what does not depend on when Python imports what. Its words are in `said`.out, .err."""
    with said.with_suffix(".out").open("wb") as out, said.with_suffix(".err").open("wb") as err:
        return fork_server.start(
            [sys.executable, "-m", "tests.support.run_code", code, *arguments],
            environment=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
        )


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6, 1.2])
def test_ctrl_c_ends_a_server_that_is_starting(tmp_path: Path, delay: float) -> None:
    base = str(free_port_base())
    arguments = ["--dev", "--data", str(tmp_path / "data"), "--port-base", base]
    process = begun([*SERVER, *arguments, "--log-level", "error"], dict(os.environ))
    time.sleep(delay)
    interrupt(process)
    time.sleep(0.02)
    interrupt(process)
    assert ended(process) in (0, 130)


def _at_await(module: str, kind: str, method: str) -> str:
    """The start is cancelled at the first await of that method."""
    return f"""
from {module} import {kind}
wrapped = {kind}.{method}
async def interrupted(*arguments, **named):
    os.kill(os.getpid(), signal.SIGINT)
    return await wrapped(*arguments, **named)
{kind}.{method} = interrupted
"""


MOMENTS = {
    "embedded NATS": _at_await(
        "jetstream_server.ingest.nats.server_process", "NatsServerProcess", "_launch"
    ),
    "connection": _at_await("jetstream_server.ingest.nats.connection", "NatsConnection", "connect"),
    "data plane": _at_await(
        "jetstream_server.serving.dataplane.server", "DataPlaneServer", "start"
    ),
    "HTTP": _at_await("jetstream_server.serving.http.server", "HttpServer", "start"),
    # Once the server's loop is closed, the member would say that it has started.
    "metadata": """
import atexit, time
from jetstream_server.metadata.member.member import Member
wrapped = Member._open_journal
def interrupted(self, group):
    os.kill(os.getpid(), signal.SIGINT)
    atexit.register(self._thread.join, 3)
    until = time.monotonic() + 2
    while not self._listener._loop.is_closed() and time.monotonic() < until:
        time.sleep(0.01)
    return wrapped(self, group)
Member._open_journal = interrupted
""",
    # The start is cancelled between gRPC's first step and its second one.
    "grpc": """
import time
from grpc.aio._server import Server
wrapped = Server.start
async def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
    await wrapped(self)
Server.start = interrupted
""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_a_moment_of_the_start_ends_a_server_without_a_word(
    tmp_path: Path, moment: str
) -> None:
    code = "import os, signal\n" + BEGIN.replace("print", MOMENTS[moment] + "print") + "server()"
    base = str(free_port_base())
    arguments = ["--dev", "--data", str(tmp_path / "data"), "--port-base", base]
    process = forked(tmp_path / "server", code, [*arguments, "--log-level", "error"], os.environ)
    with process:
        assert process.wait(60) == 0
    assert (tmp_path / "server.err").read_bytes() == b""


def test_nothing_is_imported_before_ctrl_c_is_seen_to() -> None:
    code = "import sys; before = set(sys.modules); import jetstream_command; "
    code += "print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert not {"jetstream_client", "jetstream_server", "asyncio", "grpc", "typer"} & loaded


def test_ctrl_c_that_was_switched_off_stays_off(environment: dict[str, str]) -> None:
    """As in `nohup`, or for what a script runs in the background."""
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    command = [sys.executable, "-c", f"{ignoring}{BEGIN}client()", *COMMANDS["publish"]]
    process = begun(command, environment)
    for _ in range(10):
        interrupt(process)
        time.sleep(0.1)
    with process:
        stdout, stderr = process.communicate(b"one\n", timeout=60)
    assert (process.returncode, stderr) == (0, b"")
    assert b"stored in early" in stdout


@pytest.mark.parametrize("command", ["fetch", "list"])
def test_a_reader_that_leaves_ends_a_command_that_has_nothing_to_write(
    environment: dict[str, str], command: str
) -> None:
    process = begun([*JETSTREAM, *COMMANDS[command]], environment)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert ended(process) == 141


@pytest.fixture
def impatient(own_server: ServerProcess) -> Iterator[ServerProcess]:
    """A server that hangs up on gRPC connections after half a second without a call."""
    code = (
        "from jetstream_server.serving.grpc import server\n"
        "idle = 'grpc.max_connection_idle_ms'\n"
        "server._OPTIONS[:] = [(k, 500 if k == idle else v) for k, v in server._OPTIONS]\n"
        "from jetstream_server.node.cli import main\n"
        "main()\n"
    )
    arguments = own_server.command()[3:]
    own_server.command = lambda: [sys.executable, "-c", code, *arguments]  # type: ignore[method-assign]
    own_server.start()
    yield own_server
    own_server.kill()


def test_a_server_that_hangs_up_on_an_idle_follower_is_not_heard_of(
    impatient: ServerProcess,
) -> None:
    """gRPC's core would tell of the GOAWAY, and of one with too many pings at length."""
    environment = {**os.environ, "JETSTREAM_SERVERS": impatient.grpc}
    with Client(impatient.grpc) as client:
        client.create_stream("early", "early.>")
        client.publish("early.x", b"1")
        process = begun([*JETSTREAM, *COMMANDS["fetch"]], environment)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(2.0)
        client.publish("early.x", b"2")
        assert process.stdout.readline().endswith(b"2\n")
        impatient.stop()  # A GOAWAY to everybody.
        time.sleep(1.0)
    interrupt(process)
    assert ended(process) in INTERRUPTED
