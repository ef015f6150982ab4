"""Limits the memory that the allocator keeps, and what the garbage collector looks at."""

from __future__ import annotations

import ctypes
import gc
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


def spare_collector() -> None:
    """Exempt all objects of now from garbage collections.

    A full collection looks at every object and holds the loop meanwhile: 0.4 s on a node with
    10,000 streams. What a node has when it has started, it keeps. If its streams are deleted later,
    the objects of theirs that refer to each other stay until it ends.
    """
    gc.collect()
    gc.freeze()
