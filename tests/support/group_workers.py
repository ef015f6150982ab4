"""Members of a consumer group, each a process; what each has handled is in a file of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.support.fork_server import ForkedProcess, fork_server


class GroupWorkers:
    """`start` as many as are wanted; they are known by their numbers, from 0 on."""

    environment: dict[str, str] | None = None
    """Of those that are started from now on, beside the test's own."""

    def __init__(self, servers: str, folder: Path, source: str, group: str) -> None:
        self._arguments = [servers, source, group]
        self._folder = folder
        self.processes: list[ForkedProcess] = []

    def start(self) -> ForkedProcess:
        command = [sys.executable, "-m", "tests.integration.group_worker", *self._arguments]
        number = len(self.processes)
        with self._file(number).open("wb") as handled, self.said(number).open("wb") as said:
            process = fork_server.start(
                command,
                environment={**os.environ, **(self.environment or {})},
                stdout=handled,
                stderr=said,
            )
        self.processes.append(process)
        return process

    def handled(self, number: int) -> list[str]:
        """The values, in order; one that is being written is not among them."""
        text = self._file(number).read_text()
        return text[: text.rfind("\n") + 1].split()

    def all_handled(self) -> set[str]:
        return {value for number in range(len(self.processes)) for value in self.handled(number)}

    def alive(self) -> list[int]:
        return [n for n, process in enumerate(self.processes) if process.poll() is None]

    def signal(self, number: int, which: signal.Signals) -> None:
        if self.processes[number].poll() is None:
            os.kill(self.processes[number].pid, which)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def said(self, number: int) -> Path:
        """The file of what it has said on stderr."""
        return self._folder / f"said-{number}"

    def _file(self, number: int) -> Path:
        return self._folder / f"handled-{number}"
