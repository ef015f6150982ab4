"""Output for people that cannot be written: the work goes on, and exit codes say how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from jetstream_client import Client
from jetstream_protocol.errors import JetstreamError
from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.server import free_port_base

READY_SECONDS = 60.0
FULL = "/dev/full"


class Server:
    """`jetstream-server --dev` whose output goes where the test says."""

    def __init__(self, data: Path, output: int | None) -> None:
        """output: the descriptor for stdout and stderr; None: both are closed."""
        self.port_base = free_port_base()
        serve = [
            *(sys.executable, "-m", "jetstream_server", "--dev", "--data", str(data)),
            *("--port-base", str(self.port_base)),
        ]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if output is None:  # What Python makes of that is part of the test.
            self.process = subprocess.Popen(
                ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *serve],
                stdin=subprocess.DEVNULL,
                env=clean,
            )
        else:
            self.process = fork_server.start(serve, environment=clean, stdout=output, stderr=output)

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.port_base}"

    def http(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.port_base + 3}{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())

    def until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert self.process.poll() is None, f"it has ended with {self.process.returncode}"
            try:
                self.http("/readyz")
            except OSError:
                assert time.monotonic() < deadline, "it does not become ready"
                time.sleep(0.1)
            else:
                return

    def nats_pid(self) -> int:
        """Of the embedded nats-server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = [
            int(each)
            for each in children.read_text().split()
            if "nats-server" in Path(f"/proc/{each}/cmdline").read_text()
        ]
        return pid


@contextmanager
def serving(data: Path, output: int | None) -> Iterator[Server]:
    server = Server(data, output)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def works(server: Server) -> None:
    """Does what logs lines on its way, and ends well."""
    server.until_ready()
    with Client(server.grpc, timeout=60) as client:
        assert client.create_stream("orders", "orders.>").name == "orders"
        assert client.publish("orders.a", b"1").offset == 0
        os.kill(server.nats_pid(), signal.SIGKILL)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                ack = client.publish("orders.a", b"2", timeout=2)
                break
            except JetstreamError:
                assert time.monotonic() < deadline, "after a restart of NATS the stream is deaf"
                time.sleep(0.1)
        assert ack.offset >= 1
        assert client.create_stream("more", "more.>").name == "more"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def without_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("kind", ["no reader", "full", "closed", "blocked"])
def test_a_server_works_whatever_becomes_of_its_output(tmp_path: Path, kind: str) -> None:
    reading = output = None
    if kind == "no reader":
        output = without_reader()
    elif kind == "full":
        output = os.open(FULL, os.O_WRONLY)
    elif kind == "blocked":
        reading, output = os.pipe()
        os.set_blocking(output, False)
        with suppress(BlockingIOError):
            while True:
                os.write(output, bytes(4096))
        os.set_blocking(output, True)
    try:
        with serving(tmp_path / "data", output) as server:
            works(server)
    finally:
        for descriptor in (reading, output):
            if descriptor is not None:
                os.close(descriptor)


def test_a_server_works_when_the_reader_of_its_output_leaves(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        with serving(tmp_path / "data", writing) as server:
            server.until_ready()
            os.close(reading)
            works(server)
    finally:
        os.close(writing)


def test_what_was_not_written_is_counted(tmp_path: Path) -> None:
    output = os.open(FULL, os.O_WRONLY)
    try:
        with serving(tmp_path / "data", output) as server:
            server.until_ready()
            (line,) = [
                line
                for line in server.http("/metrics").splitlines()
                if line.startswith("jetstream_log_lines_lost_total ")
            ]
            assert float(line.split()[1]) > 0
    finally:
        os.close(output)


@pytest.mark.parametrize("kind", ["no reader", "full", "closed"])
def test_a_server_that_cannot_start_says_so_by_its_exit_code(tmp_path: Path, kind: str) -> None:
    output = None
    if kind != "closed":
        output = without_reader() if kind == "no reader" else os.open(FULL, os.O_WRONLY)
    arguments = ["--config", str(tmp_path / "missing.yaml")]
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh"] if output is None else []
    command = [*closed, sys.executable, "-m", "jetstream_server", *arguments]
    try:
        ended = subprocess.run(command, stdout=output, stderr=output, timeout=60)
    finally:
        if output is not None:
            os.close(output)
    assert ended.returncode == 2


def test_no_file_of_the_server_is_taken_for_its_output(tmp_path: Path) -> None:
    """A process that begins with closed outputs gives their numbers to the next files it opens:
    what a library writes to standard error would land in them."""
    with serving(tmp_path / "data", None) as server:
        server.until_ready()
        for number in (1, 2):
            assert os.readlink(f"/proc/{server.process.pid}/fd/{number}") == "/dev/null"


JETSTREAM = [sys.executable, "-m", "jetstream_client"]


@pytest.mark.parametrize("kind", ["no reader", "full", "closed"])
def test_a_command_whose_complaint_cannot_be_written_ends_as_it_would(kind: str) -> None:
    output = None
    if kind != "closed":
        output = without_reader() if kind == "no reader" else os.open(FULL, os.O_WRONLY)
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh"] if output is None else []
    unreachable = ["stream", "list", "--server", "127.0.0.1:1", "--timeout", "0.5"]
    try:
        for arguments, code in ((unreachable, 4), (["stream", "nonsense"], 2)):
            ended = subprocess.run(
                [*closed, *JETSTREAM, *arguments],
                stdout=subprocess.PIPE,
                stderr=output,
                timeout=60,
            )
            assert (ended.returncode, ended.stdout) == (code, b""), arguments
    finally:
        if output is not None:
            os.close(output)


def test_a_command_whose_output_does_not_fit_says_so_once(tmp_path: Path) -> None:
    """Its output is its work."""
    with open(FULL, "wb") as full:
        ended = subprocess.run(
            [*JETSTREAM, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert ended.returncode == 1
    assert ended.stderr == b"error: No space left on device\n"
