"""The servers under test: started on free ports with a fresh data folder, and always stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.nats_socket import wait_for_port
from examples.cluster.ports import is_free

HOST = "127.0.0.1"
START_SECONDS = 20.0
STOP_SECONDS = 15.0


def executable(name: str) -> str:
    """A program of this environment, else of PATH. Raises FileNotFoundError."""
    beside_python = Path(sys.executable).with_name(name)
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: pip install '.[server]'")
    return found


def free_port_base(count: int) -> int:
    """The first of `count` successive ports that nobody listens on."""
    for base in range(20_000 + os.getpid() % 10_000, 60_000, count):
        if all(is_free(HOST, port) for port in range(base, base + count)):
            return base
    raise OSError("no free ports")


@contextmanager
def data_folder() -> Iterator[Path]:
    """A folder on the disk that all sides share (TMPDIR names it); settled before it is used."""
    with tempfile.TemporaryDirectory(prefix="jetstream-benchmark-") as folder:
        os.sync()  # What the run before left to write must not slow this one.
        yield Path(folder)


@contextmanager
def server(command: Sequence[str], port: int, folder: Path) -> Iterator[int]:
    """Run a server until the block ends; its process id, once `port` accepts connections."""
    log = folder / "server.output"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        try:
            wait_for_port(HOST, port, START_SECONDS)
        except TimeoutError as error:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{command[0]} did not start:\n{tail}") from error
        yield process.pid
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # Its own session: this reaches the children it did not stop.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_json(module: str, *arguments: str) -> dict[str, Any]:
    """Run a measuring process of this package and return the object it prints.

    Raises RuntimeError with what it wrote to stderr.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
