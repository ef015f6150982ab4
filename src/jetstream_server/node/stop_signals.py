"""What signals do to a server process.

SIGTERM and SIGINT stop it. SIGHUP has it read certificates and keys again; where a person tries a
server in a terminal, it says that the terminal was closed, and stops the server, too. SIGUSR1 and
SIGUSR2, which end a process that does not expect them, do nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGTERM, signal.SIGINT)
MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2)
NUMBERS = (*STOPPING, signal.SIGHUP, *MEANINGLESS)


def take_hang_ups() -> None:
    """Let SIGHUP through, which waits from the beginning of the process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


@contextmanager
def stop_signals(
    stopped: asyncio.Event, hung_up: Callable[[], None] | None = None
) -> Iterator[None]:
    """Meanwhile the first signal that stops sets the event. From then on, and afterwards, signals
    are ignored: the process is ending, and an impatient second one must not change its exit status.

    hung_up: called in the loop on SIGHUP. None: SIGHUP stops.

    These are not handlers of the loop: when one of those is removed, which closing the loop does as
    well, the signal would end the process for a moment, or for the rest of its life. Nor are
    signals without a meaning left to the kernel to ignore: programs that this one starts would
    begin so.
    """
    loop = asyncio.get_running_loop()

    def stop(*_: object) -> None:
        _ignored_by_kernel()
        loop.call_soon_threadsafe(stopped.set)

    def hang_up(*_: object) -> None:
        assert hung_up is not None
        loop.call_soon_threadsafe(hung_up)

    for number in STOPPING:
        signal.signal(number, stop)
    for number in MEANINGLESS:
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, stop if hung_up is None else hang_up)
    take_hang_ups()
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
