"""A `jetstream-server --dev` that can be killed and started again on the same data."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PORTS = 5
START_SECONDS = 30.0
STOP_SECONDS = 15.0


class ServerError(Exception):
    """The server did not start; the message holds the end of its output."""


class DevServer:
    """One server process, its ports and its data folder."""

    def __init__(self, folder: Path, *, has_lake: bool = False) -> None:
        self.data = folder / "data"
        self._environment = dict(os.environ)
        if has_lake:
            (folder / "lake").mkdir()
            self._environment["JETSTREAM_LAKE__URL"] = (folder / "lake").as_uri()
        self.output = folder / "server.output"
        self.port_base = _free_port_base()
        self.grpc = f"localhost:{self.port_base}"
        self.nats = f"nats://localhost:{self.port_base + 4}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        executable = Path(sys.executable).with_name("jetstream-server")
        return [
            str(executable), "--dev", "--data", str(self.data), "--port-base", str(self.port_base),
        ]  # fmt: skip

    def start(self) -> float:
        """Start, wait for the ready line; the seconds it took. Raises ServerError."""
        begin = time.monotonic()
        with self.output.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal is for the demo, which stops the server.
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        while b"jetstream-server ready" not in self.output.read_bytes():
            waited = time.monotonic() - begin
            if self._process.poll() is not None or waited > START_SECONDS:
                tail = self.output.read_text(errors="replace").strip()[-2000:]
                raise ServerError(f"jetstream-server did not start:\n{tail or '(no output)'}")
            time.sleep(0.02)
        return time.monotonic() - begin

    def kill(self) -> None:
        """kill -9: no goodbye, nothing flushed on the way out."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to stop; insist after a while, for its children too. Safe when never started."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # The usual case: nobody of its session is left.


def _free_port_base() -> int:
    for base in range(9292, 60_000, 1000):
        if all(map(_is_free, range(base, base + PORTS))):
            return base
    raise ServerError("no five successive free ports found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
