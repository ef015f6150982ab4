"""An event loop whose clock jumps to the next timer: hours pass in no time, in the same order."""

from __future__ import annotations

import asyncio
import functools
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

from jetstream_protocol.types import MonotonicUs

_T = TypeVar("_T")
P = ParamSpec("P")


class _JumpingSelector(selectors.EpollSelector):
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
        self._thread = threading.current_thread()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stand_still(self, seconds: float) -> None:
        """What runs takes so long."""
        self._jumping.now += seconds

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        """Raises AssertionError for another thread: hours pass before it has done anything."""
        assert threading.current_thread() is self._thread, "threads take real time"
        return super().call_soon_threadsafe(*args, **kwargs)

    async def create_connection(self, *_: object, **__: object) -> Any:
        raise AssertionError("peers take real time")

    async def create_server(self, *_: object, **__: object) -> Any:
        raise AssertionError("peers take real time")

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """It takes no time, and comes in a later turn."""

        async def call() -> _T:
            return func(*args)

        return self.create_task(call())


class _LocalSocket(socket.socket):
    def setsockopt(self, level: int, *more: Any) -> None:
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *more)

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection that such a loop may wait for: what was sent has arrived."""
    near, far = socket.socketpair()
    return _LocalSocket(fileno=near.detach()), _LocalSocket(fileno=far.detach())


def loop_clock() -> MonotonicUs:
    """A monotonic clock for what runs on such a loop."""
    return MonotonicUs(round(asyncio.get_running_loop().time() * 1e6))


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
