"""A real jetstream-server process for tests: start, wait for the ready line, kill, start anew."""

from __future__ import annotations

import itertools
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.fork_server import ForkedProcess, can_fork, fork_server

READY_SECONDS = 120.0
PORTS_PER_NODE = 5


# Below Linux's ephemeral range, and above the ports that jetstream_client.testing takes.
_PORTS_FROM = 20_000
_PORTS_HERE = 12_000
_ports = itertools.count(random.randrange(_PORTS_HERE))
"""Where to look next. Given ports come again after all others of this process: two servers of a
test must not share one, and nobody may listen on them yet."""
_looking = threading.Lock()


def free_port_base(count: int = PORTS_PER_NODE) -> int:
    """The first of `count` consecutive loopback ports on which no process listens now.

    Tests that run beside these (pytest-xdist's workers) have ports of their own.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = _PORTS_HERE // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first = _PORTS_FROM + number * width
    with _looking:
        found: list[int] = []
        for at in itertools.islice(_ports, 2 * width):
            port = first + at % width
            if found and port != found[-1] + 1:
                found = []
            found = [*found, port] if _is_free(port) else []
            if len(found) == count:
                return found[0]
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        # Connections that have ended hold nobody up, who listens does.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


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
