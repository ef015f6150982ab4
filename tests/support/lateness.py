"""How late this machine is: the allowance for a limit in seconds on a machine that others use, too.

A process that waits for a processor or a disk is late through no fault of its own. The kernel
counts the time in which any process did (its pressure stall information). A thread that only sleeps
for a moment, again and again, also sees a machine that stands still as a whole. On an idle machine
both are almost nothing, and limits are checked exactly.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

TICK_SECONDS = 0.01
UNAVOIDABLE_SECONDS = 0.002
"""Any sleep takes about so much longer."""


def pressed() -> float:
    """Seconds in which some process of this machine waited for a processor or a disk, since the
    machine began; 0 where the kernel does not say."""
    return sum(map(_stalled, ("cpu", "io")))


def _stalled(resource: str) -> float:
    try:
        some = Path(f"/proc/pressure/{resource}").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6


class Lateness:
    """Measures from `start` to `stop`."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float, float]] = []
        """When, how late the thread was then, and `pressed` by then."""
        self._began = 0.0
        """`pressed` at the start."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lateness", daemon=True)

    def start(self) -> None:
        self._began = pressed()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def since(self, at: float = 0.0) -> float:
        """Seconds in all, since that moment of the monotonic clock."""
        before = [stalled for when, _, stalled in self._found if when < at] or [self._began]
        return sum(late for when, late, _ in self._found if when >= at) + pressed() - before[-1]

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = time.monotonic() + TICK_SECONDS
            time.sleep(TICK_SECONDS)
            late = (now := time.monotonic()) - due
            self._found.append((now, late if late > UNAVOIDABLE_SECONDS else 0.0, pressed()))
