"""The processes of one folder: started, found again, ended.

Nothing about them is written down. Each process carries its folder and its name in its environment,
where /proc shows them. So there is no record that could be damaged or outlive its process, and no
process of others is ever signalled. A lock on the folder lets one program at a time start or end
processes; the kernel releases it however its holder ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

STOP_SECONDS = 60.0
FOLDER_VARIABLE = "JETSTREAM_CLUSTER_FOLDER"
"""In the environment of every process started here: its folder, a slash, and its name."""


_WORKER = re.compile(rb"\0-P\0-m\0jetstream_server\.|/die_with_parent\.py\0")
"""In the command line of what a node starts."""


class ClusterError(Exception):
    """The cluster cannot do that; the message is one line."""


class Child(Protocol):
    """A process that was started here, as `subprocess.Popen` shows it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


def _parent(pid: int) -> int:
    """Raises OSError."""
    return int(_stat(pid)[1])


def _has_ended(pid: int) -> bool:
    """Whether it holds no port any more: the kernel takes its environment from it before that."""
    try:
        stat = _stat(pid)
    except OSError:
        return True
    state, threads = stat[0], int(stat[17])
    return state in (b"Z", b"X") and threads <= 1


def _is_worker(pid: int) -> bool:
    try:
        return _WORKER.search(Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    except OSError:
        return False


def _stat(pid: int) -> list[bytes]:
    """What /proc says of it, from its state on. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


class Processes:
    """Those of `directory`, an absolute path without links."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark = os.fsencode(f"{FOLDER_VARIABLE}={directory}/")
        self._children: dict[str, Child] = {}
        """Those that were started here, by name."""

    @contextmanager
    def changing(self) -> Iterator[None]:
        """For callers that start or end processes: one at a time. The folder is made if it does not
        exist."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ClusterError(
                f"{self._directory} cannot be a folder, a file is in the way: take another --dir"
            ) from error
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if os.fstat(folder).st_nlink == 0:
                raise ClusterError(f"{self._directory} was deleted meanwhile: try again")
            yield
        finally:
            os.close(folder)

    def pids(self) -> dict[str, int]:
        """Those that are alive, by name."""
        children = dict(self._children)  # Another thread may start one meanwhile.
        numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
        found = {name: pid for pid in numbers if (name := self._name(pid))}
        for name, child in children.items():
            if name not in found:
                child.wait()  # It has ended, or is about to: it shows no environment any more.
        return found

    def pid(self, name: str) -> int | None:
        """Of the process of that name, if it is alive. Quick for one that was started here."""
        child = self._children.get(name)
        if child is not None and child.poll() is None:
            return child.pid
        return self.pids().get(name)

    def _name(self, pid: int) -> str:
        """What it was started as; "" when it has ended or is none of these."""
        try:
            if os.getsid(pid) != pid:
                return ""
            parent = _parent(pid)
        except OSError:
            return ""
        name = self._mark_of(pid)
        # Those that it starts have its environment, and some a session of their own. They end with
        # it, but those that have just begun a moment later.
        return "" if name and (self._mark_of(parent) == name or _is_worker(pid)) else name

    def _mark_of(self, pid: int) -> str:
        """The name in its environment; "": none, or it cannot be read."""
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return ""
        names = [word.removeprefix(self._mark) for word in words if word.startswith(self._mark)]
        return os.fsdecode(names[0]) if names and b"/" not in names[0] else ""

    def start(self, name: str, arguments: list[str]) -> None:
        """Its output goes to NAME.log. The caller is `changing` them, and it does not run."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
        environment[FOLDER_VARIABLE] = str(self._directory / name)
        if name in self._children:
            self._children[name].wait()  # It may be about to end.
        with self.log(name).open("ab") as log:
            process = self._launch(arguments, environment, log.fileno())
        self._started(name, process)

    def _started(self, name: str, process: Child) -> None:
        """Take it in, once /proc shows what it is."""
        while process.poll() is None and not self._name(process.pid):
            time.sleep(0.001)  # The kernel shows an environment a moment after it has taken it.
        self._children[name] = process

    def _launch(self, arguments: list[str], environment: dict[str, str], log: int) -> Child:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )

    def end(self, name: str, number: int) -> bool:
        """Signal a process and wait for its end; if it does not end, SIGKILL ends it. Returns
        whether it ran."""
        pid = self.pid(name)
        if pid is None:
            return False
        deadline = time.monotonic() + STOP_SECONDS
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            while self._is_alive(name, pid):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
        return True

    def _is_alive(self, name: str, pid: int) -> bool:
        child = self._children.get(name)
        if child is not None and child.pid == pid:
            return child.poll() is None
        return not _has_ended(pid)

    def log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The last line of its log."""
        lines = self.log(name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"
