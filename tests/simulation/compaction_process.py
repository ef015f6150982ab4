"""The process of a compaction pass (log/compaction/worker.py) in simulated time.

It takes a step whenever it is asked for a line, so a pass is as long as its driver's threads take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jetstream_server.log.compaction.rewrite_pass import Task
from jetstream_server.log.compaction.worker import messages
from tests.simulation.disk import SimulatedDisk


class SimulatedPass:
    """What subprocess.Popen is to Compaction; its own stdin and stdout."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.stdin = self.stdout = self
        self.disk = disk
        self._messages: Iterator[dict[str, Any]] = iter(())
        self._is_killed = False

    def write(self, request: bytes) -> None:
        task = Task.from_dict(json.loads(request)["task"])
        self._messages = messages(self.disk, task, lambda length: None)

    def close(self) -> None:
        pass

    def readline(self) -> bytes:
        message = None if self._is_killed else next(self._messages, None)
        return b"" if message is None else json.dumps(message).encode()

    def kill(self) -> None:
        self._is_killed = True

    def wait(self) -> int:
        return 0
