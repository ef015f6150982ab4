"""How the process takes memory from the system."""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS_MAX: Final = 2
_M_ARENA_MAX: Final = -8


def keep_few_arenas() -> None:
    """Have the threads share ARENAS_MAX of the allocator's arenas.

    glibc would give them 8 per processor, each of which keeps what was once its peak: under a flood
    of large requests, answered by the threads of gRPC, that is hundreds of megabytes. Other C
    libraries have no arenas, and nothing is done. To be called before there are threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
