"""Limits the memory that the allocator keeps."""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS_MAX: Final = 2
_M_ARENA_MAX: Final = -8


def keep_few_arenas() -> None:
    """Make the threads share ARENAS_MAX of the allocator's arenas.

    glibc would use 8 per processor, and each keeps its peak: after a flood of large requests,
    answered by gRPC's threads, that is hundreds of megabytes. Other C libraries have no arenas;
    this does nothing there. Call it before threads start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
