"""Real servers with their NATS for tests: child processes on free loopback ports.

`pytest_plugin` makes them fixtures; other test frameworks use them as context managers. Needs
`jetstream-log[server]` in the environment; nothing is imported from it.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from jetstream_client._closing import Closing
from jetstream_client.clients.blocking_client import Client
from jetstream_protocol.errors import NotFoundError
from jetstream_protocol.extras import install_command

KILL = signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM
READY_SECONDS = 60.0
STOP_SECONDS = 20.0
_HOST = "127.0.0.1"
_PORTS = 5  # gRPC, data plane, Raft, HTTP, NATS: see `jetstream-server --port-base`.
_STARTS_MAX = 3  # Between finding free ports and taking them another process may be quicker.


class _Program:
    """A child process, started as often as wanted. log_path: its standard error."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self._process: subprocess.Popen[str] | None = None
        self._began = 0.0
        self._log_start = 0

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def begin(self, command: Sequence[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
        self._began = time.monotonic()
        with self.log_path.open("a") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def becomes(self, ready: Callable[[subprocess.Popen[str]], bool]) -> bool:
        """Whether it becomes ready. If not it is killed: when interrupted, too, because `with`
        would not end it."""
        assert self._process is not None
        is_ready = False
        try:
            is_ready = ready(self._process)
        finally:
            if not is_ready:
                self.end(KILL)
        return is_ready

    def not_ready_error(self, name: str) -> RuntimeError:
        """What its log has is of this start: earlier ones wrote into the same file."""
        log = self.log_path.read_bytes()[self._log_start :].decode(errors="replace")
        seconds = time.monotonic() - self._began
        found = f"Its log says\n{log}" if log else "Its log is empty"
        return RuntimeError(f"{name} did not become ready in {seconds:.0f} s. {found}")

    def end(self, number: int) -> int:
        """Send it a signal and wait; returns the exit code."""
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


class _WithClient(Closing):
    """Servers with a client of their own."""

    _client: Client | None = None

    @property
    @abstractmethod
    def servers(self) -> str: ...

    @property
    def client(self) -> Client:
        """A client of these servers, made on first use and closed with them."""
        if self._client is None:
            self._client = Client(self.servers)
        return self._client

    def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class EphemeralServer(_WithClient):
    """`jetstream-server --dev` on ports of its own. Entering it starts, leaving it kills.

    data: the folder it keeps its log in; a restart finds it again. servers: for `Client` and
    JETSTREAM_SERVERS. nats: the URL of its NATS server.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log_path = data.with_name(f"{data.name}.log")
        self._port_base = 0
        self._program = _Program(self.log_path)
        self._was_ended = False

    @property
    def servers(self) -> str:
        return f"{_HOST}:{self._port_base}"

    @property
    def http(self) -> str:
        return f"http://{_HOST}:{self._port_base + 3}"

    @property
    def nats(self) -> str:
        return f"nats://{_HOST}:{self._port_base + 4}"

    def start(self) -> Self:
        """Returns when it serves. Raises RuntimeError with its log when it does not come to."""
        if not self._port_base:
            for _ in range(_STARTS_MAX - 1):
                self._port_base = _free_ports(_PORTS)
                if self._start():
                    return self
            self._port_base = _free_ports(_PORTS)
        if not self._start():
            raise self._program.not_ready_error("jetstream-server")
        return self

    def _start(self) -> bool:
        command = [_program_path("jetstream-server"), "--dev", "--data", str(self.data)]
        self._program.begin([*command, "--port-base", str(self._port_base)])
        return self._program.becomes(_says_ready)

    def reset(self) -> None:
        """Empty it for the next test: without streams, cursors and groups. One that a test has
        ended, or that has died, begins anew with an empty folder. What a test has still open,
        as a consumer, fails."""
        self._close_client()
        if self._was_ended or not self._program.is_running:
            self.kill()
            shutil.rmtree(self.data, ignore_errors=True)
            self._was_ended = False
            self.start()
        else:
            _empty(self.client)

    def stop(self) -> int:
        """End it cleanly; returns the exit code."""
        self._was_ended = True
        return self._program.end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: it cannot flush or say goodbye."""
        self._was_ended = True
        self._program.end(KILL)

    def close(self) -> None:
        """Close the client and kill the server. Idempotent."""
        try:
            self._close_client()
        finally:
            self.kill()

    def __enter__(self) -> Self:
        return self.start()


class EphemeralNode:
    """A node of an EphemeralCluster. servers: its address, for `Client`. http: its HTTP port."""

    def __init__(self, folder: Path, number: int, port: int, config: Path) -> None:
        self.number = number
        self.servers = f"{_HOST}:{port}"
        self.http = f"http://{_HOST}:{port + 3}"
        self.data = folder / f"node-{number}"
        self._config = config
        self._program = _Program(folder / f"node-{number}.log")

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._program.is_running

    def start(self) -> None:
        """Returns when it serves; for that, most nodes must run. Raises RuntimeError with its log
        when it does not come to."""
        self._begin()
        self._wait()

    def _begin(self) -> None:
        command = [_program_path("jetstream-server"), "--config", str(self._config)]
        self._program.begin([*command, "--node-id", str(self.number), "--data", str(self.data)])

    def _wait(self) -> None:
        if not self._program.becomes(_says_ready):
            raise self._program.not_ready_error(f"node {self.number}")

    def stop(self) -> int:
        """End it cleanly; returns the exit code."""
        return self._program.end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._program.end(KILL)


class EphemeralCluster(_WithClient):
    """Several nodes and a nats-server, on ports of their own. Entering it starts, leaving it kills.

    folder: holds their data and logs. servers: for `Client` and JETSTREAM_SERVERS. nats: the URL of
    the NATS server. nodes: each can be stopped, killed and started again.
    """

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        first = _free_ports(_PORTS * nodes)
        ports = [first + _PORTS * number for number in range(nodes)]
        config = folder / "cluster.yaml"
        config.touch(mode=0o600)  # It holds the credential.
        # JSON is YAML.
        config.write_text(json.dumps(_configuration(ports)))
        self.nodes = [
            EphemeralNode(folder, number, port, config) for number, port in enumerate(ports)
        ]
        self.nats = f"nats://{_HOST}:{ports[0] + 4}"
        self._nats_port = ports[0] + 4
        self._nats = _Program(folder / "nats.log")

    @property
    def servers(self) -> str:
        return ",".join(node.servers for node in self.nodes)

    def start(self) -> Self:
        """Start what does not run; returns when all nodes serve. Raises RuntimeError with the log
        of what does not come to."""
        if not self._nats.is_running:
            command = [_program_path("nats-server"), "--addr", _HOST]
            self._nats.begin([*command, "--port", str(self._nats_port)])
            if not self._nats.becomes(lambda process: _listens(process, self._nats_port)):
                raise self._nats.not_ready_error("nats-server")
        down = [node for node in self.nodes if not node.is_running]
        for node in down:
            node._begin()
        for node in down:
            node._wait()
        return self

    def reset(self) -> None:
        """Empty it for the next test: nodes that are down are started, and streams, cursors and
        groups deleted. What a test has still open, as a consumer, fails."""
        self._close_client()
        self.start()
        _empty(self.client)

    def close(self) -> None:
        """Close the client and kill all processes. Idempotent."""
        try:
            self._close_client()
        finally:
            for node in self.nodes:
                node.kill()
            self._nats.end(KILL)

    def __enter__(self) -> Self:
        return self.start()


def _configuration(ports: Sequence[int]) -> dict[str, object]:
    names = ("grpc", "data", "raft", "http")
    return {
        "cluster": f"test-{secrets.token_hex(4)}",
        "credential": secrets.token_hex(16),
        "nodes": [
            {"id": number} | {name: f"{_HOST}:{port + at}" for at, name in enumerate(names)}
            for number, port in enumerate(ports)
        ],
        "nats": {"servers": [f"nats://{_HOST}:{ports[0] + 4}"]},
    }


def _empty(client: Client) -> None:
    """Delete every stream and cursor. What is deleted by somebody else meanwhile is gone, too."""
    for cursor in client.describe_cursors():
        with suppress(NotFoundError):
            client.delete_cursor(cursor.name, cursor.stream)
    for stream in client.list_streams():
        with suppress(NotFoundError):
            client.delete_stream(stream)


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


def _listens(process: subprocess.Popen[str], port: int) -> bool:
    """Whether it takes connections before it ends, or READY_SECONDS pass."""
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((_HOST, port)) == 0:
                return True
        time.sleep(0.02)
    return False


def _program_path(name: str) -> str:
    beside_python = Path(sys.executable).with_name(name)
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed here: {install_command('server')}")
    return found


def _free_ports(count: int) -> int:
    """The first of `count` consecutive loopback ports that are free now."""
    for _ in range(100):
        base = random.randrange(13_000, 20_000)  # Below the ports systems give to clients.
        if all(map(_is_free, range(base, base + count))):
            return base
    raise RuntimeError(f"no {count} consecutive free ports on {_HOST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
