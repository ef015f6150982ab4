"""A plugin of pytest: NATS notices half a second late that a process has ended.

    python -m pytest -p tests.late_ends …

When a test kills or stops a process, the process of the test keeps copies of its connections to
NATS servers. Until they are closed, NATS gives messages to who is no more, and nobody answers: as
on a starved machine, where the next message may come before a server has noticed the end.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

LATE_SECONDS = 0.5
END_SECONDS = 60.0
"""A process that is stopped may take so long to end."""
ENDS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}
PIDFD_GETFD = 438
"""The number of the system call, which Python does not know."""

_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """Why there can be no copies of a child's connections here; "" when there can."""
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL) as child:
        process = os.pidfd_open(child.pid)
        copy = _libc.syscall(PIDFD_GETFD, process, 0, 0)
        reason = "" if copy >= 0 else f"pidfd_getfd: {os.strerror(ctypes.get_errno())}"
        for each in (process, copy):
            if each >= 0:
                os.close(each)
        child.kill()
    return reason


def pytest_configure(config: pytest.Config) -> None:
    if reason := missing():
        raise pytest.UsageError(reason)
    patch = pytest.MonkeyPatch()
    # What subprocess and multiprocessing do, too.
    patch.setattr(os, "kill", _ending_late(os.kill))
    config.add_cleanup(patch.undo)


def _ending_late(kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def late(pid: int, number: int) -> None:
        if number in ENDS and pid > 0 and pid != os.getpid():
            with suppress(OSError):  # It has ended.
                process = os.pidfd_open(pid)
                held = nats_connections(pid)
                threading.Thread(target=_hold, args=(process, held), daemon=True).start()
        kill(pid, number)

    return late


def _hold(process: int, held: list[socket.socket]) -> None:
    select.select([process], [], [], END_SECONDS)
    os.close(process)
    time.sleep(LATE_SECONDS)
    for each in held:
        each.close()


def nats_connections(pid: int) -> list[socket.socket]:
    """Copies of a process's connections to NATS servers."""
    if _name(pid) == "nats-server":
        return []
    numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    ports = {port for each in numbers if _name(each) == "nats-server" for port in _ports(each)}
    held = []
    for copy in _copies(pid):
        with suppress(OSError):  # It is not connected.
            if copy.getpeername()[1] in ports:
                held.append(copy)
                continue
        copy.close()
    return held


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _ports(pid: int) -> Iterator[int]:
    """On which it listens."""
    for copy in _copies(pid):
        with copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield copy.getsockname()[1]


def _copies(pid: int) -> Iterator[socket.socket]:
    """Of its TCP sockets."""
    with suppress(OSError):  # It has ended.
        process = os.pidfd_open(pid)
        try:
            for entry in os.listdir(f"/proc/{pid}/fd"):
                if not os.readlink(f"/proc/{pid}/fd/{entry}").startswith("socket:"):
                    continue
                descriptor = _libc.syscall(PIDFD_GETFD, process, int(entry), 0)
                if descriptor < 0:
                    continue
                copy = socket.socket(fileno=descriptor)
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    yield copy
                else:
                    copy.close()
        finally:
            os.close(process)
