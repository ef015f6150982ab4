"""A real server with its NATS for tests: a child process on free loopback ports.

`pytest_plugin` makes it a fixture; other test frameworks use it as a context manager. Needs
`jetstream-log[server]` in the environment; nothing is imported from it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from jetstream_client._closing import Closing
from jetstream_client.clients.blocking_client import Client

if TYPE_CHECKING:
    from typing import Self

READY_SECONDS = 30.0
STOP_SECONDS = 20.0
_PORTS = 5  # gRPC, data plane, Raft, HTTP, NATS: see `jetstream-server --port-base`.
_STARTS_MAX = 3  # Between finding free ports and taking them another process may be quicker.


class EphemeralServer(Closing):
    """`jetstream-server --dev` on ports of its own. Entering it starts, leaving it kills.

    data: the folder it keeps its log in; a restart finds it again. servers: for `Client` and
    JETSTREAM_SERVERS. nats: the URL of its NATS server.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log_path = data.with_name(f"{data.name}.log")
        self._port_base = 0
        self._process: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port_base}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self._port_base + 3}"

    @property
    def nats(self) -> str:
        return f"nats://127.0.0.1:{self._port_base + 4}"

    @property
    def client(self) -> Client:
        """A client of this server, made on first use and closed with it."""
        if self._client is None:
            self._client = Client(self.servers)
        return self._client

    def start(self) -> Self:
        """Returns when it serves. Raises RuntimeError with its log when it does not come to."""
        if not self._port_base:
            for _ in range(_STARTS_MAX - 1):
                self._port_base = _free_ports()
                if self._start():
                    return self
            self._port_base = _free_ports()
        if not self._start():
            log = self.log_path.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"jetstream-server did not become ready:\n{log}")
        return self

    def _start(self) -> bool:
        command = [_server_command(), "--dev", "--data", str(self.data)]
        command += ["--port-base", str(self._port_base)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        ready = False
        try:
            ready = _says_ready(self._process)
        finally:
            if not ready:  # Interrupted, too: `with` would not end it.
                self.kill()
        return ready

    def stop(self) -> int:
        """End it cleanly; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: it cannot flush or say goodbye."""
        self._end(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:  # Closes the pipe and waits.
            process.send_signal(number)
            try:
                return process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def close(self) -> None:
        """Close the client and kill the server. Idempotent."""
        client, self._client = self._client, None
        try:
            if client is not None:
                client.close()
        finally:
            self.kill()

    def __enter__(self) -> Self:
        return self.start()


def _says_ready(process: subprocess.Popen[str]) -> bool:
    """The ready line is all it prints; the end of the pipe says that it died."""
    assert process.stdout is not None
    too_late = threading.Timer(READY_SECONDS, process.kill)
    try:
        too_late.start()
        return bool(process.stdout.readline())
    finally:
        too_late.cancel()
        if too_late.is_alive():
            too_late.join()


def _server_command() -> str:
    beside_python = Path(sys.executable).with_name("jetstream-server")
    found = str(beside_python) if beside_python.exists() else shutil.which("jetstream-server")
    if found is None:
        raise RuntimeError(
            "jetstream-server is not installed here: pip install 'jetstream-log[server]'"
        )
    return found


def _free_ports() -> int:
    """The first of `_PORTS` consecutive loopback ports that are free now."""
    for _ in range(100):
        base = random.randrange(20_000, 32_000)  # Below the ports systems give to clients.
        if all(map(_is_free, range(base, base + _PORTS))):
            return base
    raise RuntimeError(f"no {_PORTS} consecutive free ports on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
