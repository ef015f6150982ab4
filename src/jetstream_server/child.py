"""What a process that works for the server does first."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """End with the parent: an orphan would write to a folder that another server has opened."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the server has died already")


def limit_memory(bytes_more: int) -> None:
    """What this process asks for beyond so much fails: with a MemoryError, or the process ends.

    bytes_more: than it had at the first call. Libraries reserve the stacks of threads, one for each
    processor, and hundreds of them would be a part of any limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + bytes_more
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


@cache
def _data_bytes() -> int:
    """As RLIMIT_DATA counts, at the first call."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))


def throttle(bytes_per_second: int) -> Callable[[int], None]:
    """A pause that keeps the average since the first byte below the rate."""
    begun = time.monotonic()
    read = 0

    def pause(length: int) -> None:
        nonlocal read
        read += length
        ahead = read / bytes_per_second - (time.monotonic() - begun)
        if ahead > 0.01:  # Shorter sleeps cost more than they give.
            time.sleep(ahead)

    return pause
