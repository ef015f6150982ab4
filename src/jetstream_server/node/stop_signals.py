"""What stops a server process: SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals(stopped: asyncio.Event) -> Iterator[None]:
    """Meanwhile a signal sets the event. Afterwards signals are ignored: the process is ending, and
    an impatient second one must not change its exit status.

    These are not handlers of the loop: when one of those is removed, which closing the loop does as
    well, the signal would end the process for a moment, or for the rest of its life.
    """
    loop = asyncio.get_running_loop()
    for number in NUMBERS:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopped.set))
    try:
        yield
    finally:
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)
