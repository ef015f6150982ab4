"""Threads that call a handler, and the time limit of one call.

Python cannot end a thread. A call that exceeds its limit is abandoned: it fails at once for its
caller, runs on in its thread, and its result is lost. Another thread takes its place. The
threads are daemons, so an abandoned call does not keep the program from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from jetstream_client.processing.processor import EndsProcessing

ABANDONED_MAX = 64
"""Calls that were abandoned and still run. One more ends the processing: every call that hangs
keeps a thread, and what it uses, for ever."""

_A = TypeVar("_A")
_R = TypeVar("_R")


def handler_timeout_error(seconds: float) -> TimeoutError:
    return TimeoutError(f"the handler took longer than {seconds:g} s (handler_timeout)")


def limited(seconds: float | None) -> AbstractAsyncContextManager[object]:
    """The block fails with TimeoutError if it takes longer. None: no limit. A block that waits is
    cancelled then; one that does not is noticed only at its end."""
    return nullcontext() if seconds is None else _Limit(seconds)


class _Limit(AbstractAsyncContextManager[None]):
    """No generator: see `stopping_on_signals`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + seconds
        self._timeout = asyncio.timeout_at(self._ends)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: Any
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, at)
        except TimeoutError:
            raise handler_timeout_error(self._seconds) from None
        expired = self._timeout.expired()
        is_late = expired or self._loop.time() > self._ends
        if (error is None and is_late) or (isinstance(error, TimeoutError) and expired):
            raise handler_timeout_error(self._seconds) from None


class _Handler(threading.Thread):
    """Runs functions of the program, for whose end the client may wait."""


def is_handler(thread: threading.Thread) -> bool:
    """Whether it is one of HandlerThreads."""
    return isinstance(thread, _Handler)


class HandlerThreads(Generic[_A, _R]):
    """Calls `function` in threads, as many as there are calls at a time. Use it in one event loop;
    `close` may be called in any thread. seconds: the limit of a call; None: no limit."""

    def __init__(self, function: Callable[[_A], _R], seconds: float | None) -> None:
        self._function = function
        self._seconds = seconds
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = 0
        self._running = 0
        self._abandoned = 0

    async def call(self, argument: _A) -> _R:
        """What the function returns or raises. Raises TimeoutError if it takes longer than the
        limit, and EndsProcessing if too many calls did and still run."""
        if self._abandoned >= ABANDONED_MAX:
            raise EndsProcessing from TimeoutError(
                f"{self._abandoned} calls of the handler took longer than {self._seconds:g} s "
                "(handler_timeout) and still run, each in its own thread: a thread cannot be "
                "ended, so give what the handler waits for a timeout"
            )
        call = _Call(argument)
        self._running += 1
        if self._running > self._threads:
            self._threads += 1
            name = f"jetstream-handler_{self._threads}"
            _Handler(target=self._serve, name=name, daemon=True).start()
        self._calls.put(call)
        ended = call.ended
        ended.add_done_callback(lambda _: self._has_ended(call))
        result: _R
        if self._seconds is None:
            result = await asyncio.shield(ended)
            return result
        done, _ = await asyncio.wait([ended], timeout=self._seconds)
        if not done:
            call.is_abandoned = True
            self._abandoned += 1
            raise handler_timeout_error(self._seconds)
        result = ended.result()
        return result

    def _has_ended(self, call: _Call) -> None:
        self._running -= 1
        self._abandoned -= call.is_abandoned
        if not call.ended.cancelled():
            call.ended.exception()  # It is not asked for: the call is abandoned.

    def _serve(self) -> None:
        """The work of one thread."""
        while (call := self._calls.get()) is not None:
            try:
                call.ends(call.context.run(self._function, call.argument), None)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                call.ends(None, error)

    def close(self) -> None:
        """Threads end once their calls have."""
        for _ in range(self._threads):
            self._calls.put(None)


class _Call:
    __slots__ = ("_loop", "argument", "context", "ended", "is_abandoned")

    def __init__(self, argument: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self.argument = argument
        self.context = copy_context()
        self.ended: asyncio.Future[Any] = self._loop.create_future()
        self.is_abandoned = False

    def ends(self, result: Any, error: BaseException | None) -> None:
        """To be called in the thread."""
        with suppress(RuntimeError):  # The loop is closed: no task waits.
            self._loop.call_soon_threadsafe(self._set, result, error)

    def _set(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            self.ended.set_result(result)
        else:
            self.ended.set_exception(as_error(error))


def as_error(error: BaseException) -> Exception:
    """The same; a RuntimeError in place of an exception that a coroutine cannot raise, or that
    would end its loop, as that of `sys.exit` would."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped
