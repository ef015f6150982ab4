"""A real jetstream-server process for tests: start, wait for the ready line, kill, start anew."""

from __future__ import annotations

import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.fork_server import ForkedProcess, can_fork, fork_server

READY_SECONDS = 60.0
PORTS_PER_NODE = 5


# Below Linux's ephemeral range, and above the ports that jetstream_client.testing takes.
_PORTS_FROM = 20_000
_PORTS_HERE = 12_000
_given: deque[int] = deque(maxlen=500)
"""The ports given last. Nobody may listen on them yet: two servers of a test must not share one."""


def free_port_base(count: int = PORTS_PER_NODE) -> int:
    """The first of `count` consecutive loopback ports on which no process listens now.

    Tests that run beside these (pytest-xdist's workers) have ports of their own.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = _PORTS_HERE // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first = _PORTS_FROM + number * width
    for _ in range(200):
        base = random.randrange(first, first + width - count)
        ports = range(base, base + count)
        if any(port in _given for port in ports):
            continue
        sockets: list[socket.socket] = []
        try:
            for port in ports:
                sock = socket.socket()
                sockets.append(sock)
                # Connections that have ended hold nobody up, who listens does.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for sock in sockets:
                sock.close()
        _given.extend(ports)
        return base
    raise AssertionError("no free ports")


class ServerProcess:
    """`jetstream-server --dev` (or with other arguments) as a child process."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        port_base: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.port_base = port_base or free_port_base()
        self.arguments = arguments
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")},
            **(environment or {}),
        }
        self.ready_line = ""
        self.process: subprocess.Popen[str] | ForkedProcess | None = None
        self.log_path = data.parent / f"{data.name}.log"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.port_base}"

    @property
    def data_address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port_base + 1

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port_base + 3}"

    @property
    def nats(self) -> str:
        return f"nats://127.0.0.1:{self.port_base + 4}"

    @property
    def log_text(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "jetstream_server", "--dev", "--data", str(self.data),
            "--port-base", str(self.port_base), *self.arguments,
        ]  # fmt: skip

    def start(self, ready_seconds: float = READY_SECONDS) -> ServerProcess:
        """Start and wait for the ready line. Raises AssertionError with the log otherwise."""
        command = self.command()
        with self.log_path.open("a") as log:
            if can_fork(command):
                self.process = fork_server.start(
                    command,
                    environment=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=log.fileno(),
                )
            else:
                self.process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
                )
        assert self.process.stdout is not None
        deadline = time.monotonic() + ready_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if selector.select(max(0.0, deadline - time.monotonic())):
                self.ready_line = self.process.stdout.readline()
        if not self.ready_line:
            self.kill()
            raise AssertionError(f"the server did not become ready:\n{self.log_text}")
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL: no chance to flush or to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the server did not stop:\n{self.log_text}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code


@contextmanager
def running_server(data: Path, *arguments: str, **options: int) -> Iterator[ServerProcess]:
    """A started server, killed at the end whatever happens."""
    server = ServerProcess(data, *arguments, **options)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.kill()
