"""An event loop whose clock jumps to the next timer: hours pass in no time, in the same order."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

_T = TypeVar("_T")
P = ParamSpec("P")


class _JumpingSelector(selectors.SelectSelector):
    """Waits by setting the loop's clock forward. Nothing comes from outside: no timer is a hang."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "all tasks wait for something that no timer brings"
            self.now += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For code that asks its loop for the time, and waits by it alone."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def on_virtual_loop(scenario: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """As `on_loop`, on such a loop."""

    @functools.wraps(scenario)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in_virtual_time(scenario(*args, **kwargs))

    return test
