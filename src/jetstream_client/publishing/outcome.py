"""The outcome of a batch, for threads, callbacks and coroutines that wait for it.

**safety** The client's thread, which sets it, waits for nothing that another thread holds: what a
signal handler raises there (Ctrl-C), just after a lock was taken, leaves it locked for ever. So
there is none, as a `concurrent.futures.Future` has: lists grow and shrink without.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

from jetstream_client._locked import LOOK_SECONDS
from jetstream_client._log import logger

_T = TypeVar("_T")


class Outcome(Generic[_T]):
    """Set once, by one thread. Any thread may do the rest."""

    __slots__ = ("_calls", "_error", "_is_set", "_sleepers", "_value")

    def __init__(self) -> None:
        self._is_set = False
        self._value: _T | None = None
        self._error: BaseException | None = None
        self._sleepers: list[threading.Lock] = []
        """Taken by who waits, and released by who sets it."""
        self._calls: list[Callable[[Outcome[_T]], object]] = []

    def set_result(self, value: _T) -> None:
        self._value = value
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._tell()

    def _tell(self) -> None:
        self._is_set = True  # First: who begins to wait now sees it.
        with suppress(IndexError):
            while True:
                self._sleepers.pop().release()
        self._call()

    def _call(self) -> None:
        with suppress(IndexError):
            while True:
                call = self._calls.pop(0)
                try:
                    call(self)
                except Exception:  # noqa: BLE001  the program's own: logged
                    logger.exception("exception calling callback for %r", self)

    def done(self) -> bool:
        return self._is_set

    def add_done_callback(self, call: Callable[[Outcome[_T]], object]) -> None:
        """Call it once the outcome is known, or now."""
        self._calls.append(call)
        if self._is_set:
            self._call()

    def result(self) -> _T:
        """Once it is set. Raises the error."""
        if self._error is not None:
            raise self._error
        return cast(_T, self._value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for it; None: it is a result. Raises TimeoutError."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sleep(min(left, LOOK_SECONDS))
        return self._error

    def _sleep(self, seconds: float) -> None:
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        try:
            if not self._is_set:
                sleeper.acquire(timeout=seconds)
        finally:
            with suppress(ValueError):
                self._sleepers.remove(sleeper)

    def awaited(self) -> asyncio.Future[None]:
        """A future of the running loop that ends once it is set, whatever it is. If that is
        cancelled, nothing else is."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not waiting.done():
                waiting.set_result(None)

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # That loop is closed.
                loop.call_soon_threadsafe(end)

        self.add_done_callback(tell)
        return waiting
