"""What stops a server process: SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals(stopped: asyncio.Event) -> Iterator[None]:
    """Meanwhile the first signal sets the event. From then on, and afterwards, signals are ignored:
    the process is ending, and an impatient second one must not change its exit status.

    These are not handlers of the loop: when one of those is removed, which closing the loop does as
    well, the signal would end the process for a moment, or for the rest of its life.
    """
    loop = asyncio.get_running_loop()

    def stop(*_: object) -> None:
        _ignored_by_kernel()
        loop.call_soon_threadsafe(stopped.set)

    for number in NUMBERS:
        signal.signal(number, stop)
    try:
        yield
    finally:
        _ignored_by_kernel()
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)


def _ignored_by_kernel() -> None:
    """No signal arrives any more, and Python keeps its handlers for those that did. If it lost them
    first, it would complain ("ignored due to race condition")."""
    for number in NUMBERS:
        _set_in_kernel(ctypes.c_int(number), ctypes.c_void_p(signal.SIG_IGN))


_set_in_kernel = ctypes.pythonapi.PyOS_setsig
_set_in_kernel.restype = ctypes.c_void_p
