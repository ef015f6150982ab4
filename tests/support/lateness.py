"""How late this machine is: the allowance for a limit in seconds on a machine that others use, too.

A process that waits for a processor is late through no fault of its own. A thread that only sleeps
for a moment, again and again, is late by the same time. On an idle machine that is almost nothing,
and limits are checked exactly.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

TICK_SECONDS = 0.01
UNAVOIDABLE_SECONDS = 0.002
"""Any sleep takes about so much longer."""


def waited(pid: int) -> float:
    """Seconds for which the main thread of a process has waited for a processor, in all; 0 where
    the kernel does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


class Lateness:
    """Measures from `start` to `stop`."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []
        """When, and by how much."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lateness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def since(self, at: float = 0.0) -> float:
        """Seconds in all, since that moment of the monotonic clock."""
        return sum(seconds for when, seconds in self._found if when >= at)

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = time.monotonic() + TICK_SECONDS
            time.sleep(TICK_SECONDS)
            late = (now := time.monotonic()) - due
            if late > UNAVOIDABLE_SECONDS:
                self._found.append((now, late))
