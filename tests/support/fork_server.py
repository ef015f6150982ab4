"""A process that has imported the server and the command line already and forks those of tests.

A start of Python that imports the server costs 1.4 s of processor time, the command line half of
that, a fork some milliseconds; the suite starts hundreds. What is forked is a process like any
other: its own pid, environment, descriptors, standard streams, signals and clocks, ended by the
same signals. Tests about the start of a process itself (acceptance, interrupts, containers, what
Python reads from its environment) begin with a new interpreter.

The test process asks over a socket with one message: JSON of a `Request`, and the descriptors for
stdin, stdout, stderr and the exit status. The answer is the pid. The fork server waits for its
children and writes each one's exit status, four bytes, where its asker reads it. It ends with the
socket, that is, with the process that started it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.metadata
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, cast

PRELOADED = (
    "grpc._channel",
    "importlib.readers",
    "jetstream_client.cli.commands.cluster",
    "jetstream_client.cli.commands.fetch",
    "jetstream_client.cli.commands.publish",
    "jetstream_client.cli.commands.streams",
    "jetstream_client.cli.entry",
    "jetstream_client.cli.main",
    "jetstream_client.clients.blocking_client",
    "jetstream_server.node.app",
    "jetstream_server.node.cli",
    "jetstream_server.node.entry",
    "jetstream_server.node.logs",
    "jetstream_server.node.memory",
    "nats.aio.client",
)
STATUS = struct.Struct("<i")
Stream = int | IO[Any]
"""A descriptor, a file, or subprocess.PIPE or DEVNULL."""
MESSAGE_BYTES_MAX = 1 << 17
ENVIRONMENT_BYTES_MAX = 1 << 15
"""What /proc can show of a child's environment."""


@dataclass(frozen=True)
class Request:
    """What to run: `python -m MODULE ARGUMENTS…`."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    new_session: bool


class ForkedProcess:
    """A child of the fork server, with what tests use of `subprocess.Popen`."""

    stdin: IO[Any] | None
    stdout: IO[Any] | None
    stderr: IO[Any] | None

    def __init__(self, pid: int, status: int, streams: Sequence[IO[Any] | None]) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = streams
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        # Not closed before: another thread may be about to look at it.
        weakref.finalize(self, os.close, status)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(seconds):
                    return None
            with self._lock:
                if self.returncode is None:
                    self.returncode = STATUS.unpack(os.read(self._status, STATUS.size))[0]
        return self.returncode


class ForkServer:
    """The test process's end: `start` as often as there are processes to start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] = os.environ,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream,
        stderr: Stream,
        new_session: bool = False,
        text: bool = True,
    ) -> ForkedProcess:
        """Run `[sys.executable, "-m", MODULE, ARGUMENTS…]`. text: of the streams that are
        subprocess.PIPE."""
        assert can_fork(command), command
        request = Request(command[2], [*command[3:]], dict(environment), os.getcwd(), new_session)
        ends = [_ends(stdin, is_input=True), _ends(stdout), _ends(stderr)]
        status, told = os.pipe()
        theirs = [*(each for each, _ in ends), told]
        try:
            with self._lock:
                pid = self._ask(json.dumps(asdict(request)).encode(), theirs)
        finally:
            for each in theirs:
                os.close(each)
        kind = "" if text else "b"
        streams = [
            None if ours is None else os.fdopen(ours, mode + kind)
            for (_, ours), mode in zip(ends, "wrr", strict=True)
        ]
        return ForkedProcess(pid, status, streams)

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] = os.environ,
        given: str | bytes | IO[Any] | None = None,
        timeout: float = 60.0,
        text: bool = True,
    ) -> subprocess.CompletedProcess[Any]:
        """The same with what it has said, once it has ended. given: what is piped into it, or its
        standard input; without it that is /dev/null. It is killed after `timeout` seconds. Raises
        subprocess.TimeoutExpired."""
        data = given.encode() if isinstance(given, str) else given
        stdin = subprocess.PIPE if isinstance(data, bytes) else data
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(
                command,
                environment=environment,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=out,
                stderr=err,
                text=False,
            )
            try:
                if process.stdin is not None:
                    with suppress(BrokenPipeError), process.stdin:
                        process.stdin.write(data)
                code = process.wait(timeout)
            finally:
                process.kill()
            for file in (out, err):
                file.seek(0)
            said = (file.read() for file in (out, err))
            decoded = (each.decode() if text else each for each in said)
            return subprocess.CompletedProcess([*command], code, *decoded)

    def _ask(self, message: bytes, descriptors: list[int]) -> int:
        if self._socket is None:
            self._socket = _launch()
        socket.send_fds(self._socket, [message], descriptors)
        answer = self._socket.recv(STATUS.size)
        if not answer:
            raise AssertionError("the fork server has ended")
        pid: int = STATUS.unpack(answer)[0]
        return pid


fork_server = ForkServer()


def _ends(given: Stream, *, is_input: bool = False) -> tuple[int, int | None]:
    """The child's end of a stream, to be closed here, and for subprocess.PIPE the test's."""
    if given == subprocess.PIPE:
        reading, writing = os.pipe()
        return (reading, writing) if is_input else (writing, reading)
    if given == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(given if isinstance(given, int) else given.fileno()), None


def can_fork(command: Sequence[str]) -> bool:
    """Whether it is a module of this interpreter that is to be run."""
    return [*command[:2]] == [sys.executable, "-m"]


def _launch() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # It is not waited for: it ends when this process does.
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "ROOM": "-" * ENVIRONMENT_BYTES_MAX},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    process.returncode = 0
    return ours


# The fork server's own process.


def serve(control: socket.socket) -> Request:
    """Fork as asked. Returns in each child, which has to run the request; the server exits."""
    statuses: dict[int, int] = {}
    wake, waker = socket.socketpair()
    for end in (wake, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with control, wake, waker, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if wake in ready:
                wake.recv(4096)
                _report(statuses)
            if control in ready:
                message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 4)
                if not message:
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    break
                statuses[pid] = descriptors.pop()
                for descriptor in descriptors:
                    os.close(descriptor)
                control.send(STATUS.pack(pid))
    return become(Request(**json.loads(message)), descriptors)


def _report(statuses: dict[int, int]) -> None:
    """Tell the exit statuses of the children that have ended."""
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        descriptor = statuses.pop(pid)
        with suppress(BrokenPipeError):  # Nobody wants to know any more.
            os.write(descriptor, STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(descriptor)


def become(request: Request, descriptors: list[int]) -> Request:
    """Make a child what a new process would be. descriptors: its stdin, stdout and stderr."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 16)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request.new_session:
        os.setsid()
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    _show_environment()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _set_stream(number, name)
    return request


def _show_environment() -> None:
    """In /proc, which shows what the kernel laid on the stack of the fork server."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = map(int, file.read().rpartition(b")")[2].split()[47:49])
    shown = b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items())
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, shown, min(len(shown), end - begin))


def _set_stream(number: int, name: str) -> None:
    """As Python does when it starts: a terminal is written to line by line."""
    stream = os.fdopen(
        number,
        "w" if number else "r",
        buffering=1 if number == 2 or os.isatty(number) else -1,
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        newline="\n" if number else None,
        closefd=False,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def preload() -> None:
    os.environ["GRPC_VERBOSITY"] = "NONE"  # As the server sets it before it imports gRPC.
    # Each start would parse the metadata of the package, and compile the patterns of the routes.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    for name in PRELOADED:
        importlib.import_module(name)
    from aiohttp.web import UrlDispatcher

    from jetstream_server.serving.http.api_routes import api_routes

    dispatcher = UrlDispatcher()
    for path in {route.path for route in api_routes(cast(Any, None))}:
        dispatcher.add_resource(path)
    gc.collect()
    gc.freeze()


def main() -> None:
    preload()
    run(serve(socket.socket(fileno=int(sys.argv[1]))))


def run(request: Request) -> None:
    sys.argv[1:] = request.arguments
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
