"""Tests that are coroutines, on the event loop the server uses."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import uvloop

P = ParamSpec("P")
SECONDS_MAX = 240.0


def on_loop(scenario: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run `scenario` on a uvloop of its own, for at most four minutes."""

    @functools.wraps(scenario)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(asyncio.wait_for(scenario(*args, **kwargs), SECONDS_MAX))

    return test


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return as soon as `condition` holds. Raises AssertionError when it does not in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
