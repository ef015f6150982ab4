"""The processes of a run's programs: started, signalled, and read afterwards."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.consumers.journal import Journal, events
from tests.support.fork_server import ForkedProcess, fork_server


@dataclass(slots=True)
class Worker:
    """One process. frozen_at: since when it is stopped; 0.0: it runs."""

    journal: Journal
    process: ForkedProcess
    file: Path
    said: Path
    frozen_at: float = 0.0

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has begun, and handles signals itself."""
        return self.file.exists() and self.file.stat().st_size > 0

    def signal(self, which: signal.Signals) -> None:
        if self.is_alive and (self.is_ready or which not in (signal.SIGINT, signal.SIGTERM)):
            os.kill(self.process.pid, which)

    def freeze(self) -> None:
        if self.is_alive and not self.frozen_at:
            self.frozen_at = time.monotonic()
            self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.frozen_at:
            self.signal(signal.SIGCONT)
            self.journal.frozen.append((self.frozen_at, time.monotonic()))
            self.frozen_at = 0.0


class Workers:
    """`start` as many as are wanted, and `end` them all in any case. `environment`: of those that
    are started from now on, beside the test's own."""

    def __init__(self, servers: str, folder: Path, seed: str) -> None:
        self.environment: dict[str, str] = {}
        self.all: list[Worker] = []
        self._servers = servers
        self._folder = folder
        self._seed = seed

    def start(self, kind: str, reader: str, instance: str = "") -> Worker:
        number = len(self.all)
        file, said = self._folder / f"journal-{number}", self._folder / f"said-{number}"
        instance = instance or (str(number) if kind == "sender" else "")
        command = [sys.executable, "-m", "tests.chaos.consumers.program", kind, self._servers]
        command += [reader, str(file), f"{self._seed}/{number}", instance]
        begun = time.monotonic()  # Not later: it may be at work before we go on.
        with said.open("wb") as output:
            process = fork_server.start(
                command,
                environment={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
            )
        journal = Journal(number, kind, reader, instance, begun=begun)
        self.all.append(Worker(journal, process, file, said))
        return self.all[-1]

    def alive(self, *kinds: str) -> list[Worker]:
        """Of those kinds, or all."""
        wanted = [each for each in self.all if not kinds or each.journal.kind in kinds]
        return [each for each in wanted if each.is_alive]

    def thaw(self) -> None:
        for worker in self.all:
            worker.thaw()

    def journals(self) -> list[Journal]:
        """With everything that was noted by now."""
        for worker in self.all:
            worker.journal.events = events(worker.file)
            worker.journal.ended = worker.process.poll()
        return [worker.journal for worker in self.all]

    def end(self) -> None:
        for worker in self.all:
            worker.process.kill()
            worker.process.wait()
