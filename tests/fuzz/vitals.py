"""The state of a process: memory, descriptors, threads, and its log."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_CALLER_LEFT = "grpc._cython.cygrpc.ExecuteBatchError"
"""gRPC prints its traceback past every log, line by line beside what others write, when a caller of
no method at all has left before the answer."""

EXPECTED_ERRORS = frozenset[str]()
"""Log events of level error that an attack from outside may cause: none."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """rss_mib: resident memory; peak_mib: the most there ever was."""

    rss_mib: float
    peak_mib: float
    sockets: int
    files: int
    threads: int
    cpu_seconds: float


def vitals(pid: int) -> Vitals:
    """Raises OSError when the process is gone."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue  # Closed meanwhile.
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return Vitals(
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        peak_mib=int(status["VmHWM"].split()[0]) / 1024,
        sockets=sum(link.startswith("socket:") for link in links),
        files=sum(link.startswith("/") for link in links),
        threads=int(status["Threads"]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )


class LogWatch:
    """Reads a server's log as it grows; `problems` are lines no attack may cause."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0
        self._traceback: list[str] = []  # the one that is being written
        self.events: Counter[str] = Counter()

    def problems(self) -> list[str]:
        """What was written since the last call and should not have been."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        lines = whole.decode("utf-8", "backslashreplace").splitlines()
        return [problem for line in lines if (problem := self._problem(line))]

    def _past_the_log(self, line: str) -> str:
        """Of a traceback nothing is said before its last line, which is the error itself."""
        if line.startswith("Traceback") or (self._traceback and line[:1] in (" ", "")):
            self._traceback.append(line)
            return ""
        written, self._traceback = [*self._traceback, line], []
        return "" if line.startswith(_CALLER_LEFT) else "\n".join(written)

    def _problem(self, line: str) -> str:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            return self._past_the_log(line)  # The log is JSON: somebody died, for example.
        self.events[str(entry.get("event"))[:60]] += 1
        is_error = entry.get("level") in ("error", "critical")
        if "exception" in entry or (is_error and entry.get("event") not in EXPECTED_ERRORS):
            return line
        return ""
